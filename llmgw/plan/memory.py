"""The planner's memory: what a leader decided and no node can tell the next one, as text, so that the next decides the same.

That is why a rollout is where it is, which nodes gave up on what, what was good before, who had to give way for whom.
It is not when drains began: how long one may take is counted from when the gateways of the leader that decides dropped the
replica. And it is not what nodes report: orders, tables and ids of an epoch are made anew from that. So a memory that is
missing or old costs a second try of something, and never more than the rules of a fresh leader allow.

Instants are written as ages, and read by the age of the text itself, which the store knows: the clocks of two control
planes need not agree. What cannot be read is no memory; `BadMemory` says why.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache

from pydantic import TypeAdapter, ValidationError

from llmgw.base.ids import ModelName, NodeName, ReplicaId
from llmgw.base.time import Instant
from llmgw.catalog.catalog import Catalog
from llmgw.plan.snapshot import Decided, GaveUp, Rollout
from llmgw.spec.model import Model

VERSION = 1
"""Grows with what an older reader would misread."""


class BadMemory(Exception):
    """What was kept is no memory that this version can read; the message says why."""


@dataclass(frozen=True, slots=True)
class Memory:
    """The parts of `Decided` that are kept."""

    rollouts: Mapping[ModelName, Rollout] = field(default_factory=dict)
    gave_up: Mapping[ModelName, tuple[GaveUp, ...]] = field(default_factory=dict)
    good: Mapping[ModelName, Model] = field(default_factory=dict)
    preempted: Mapping[ReplicaId, ModelName] = field(default_factory=dict)
    owed: Mapping[ReplicaId, ModelName] = field(default_factory=dict)
    braked: Mapping[NodeName, Instant] = field(default_factory=dict)
    version: int = VERSION


def memory_of(decided: Decided) -> Memory:
    """Return what is to be kept of it."""
    return Memory(
        decided.rollouts,
        decided.gave_up,
        decided.good,
        decided.preempted,
        decided.owed,
        decided.braked,
    )


def recalled(memory: Memory, decided: Decided, catalog: Catalog) -> Decided:
    """Return a fresh leader's `Decided` with what is remembered in it.

    A good spec that the catalog still wants is the catalog's own: whether a model was reverted is asked by identity.
    """
    good = {
        name: catalog.models[name] if catalog.models.get(name) == model else model
        for name, model in memory.good.items()
    }
    return replace(
        decided,
        rollouts=memory.rollouts,
        gave_up=memory.gave_up,
        good=good,
        preempted=memory.preempted,
        owed=memory.owed,
        braked=memory.braked,
    )


def written(memory: Memory, now: Instant) -> str:
    """Return the memory as text."""
    return _adapter().dump_json(_moved(memory, -now), exclude_unset=True).decode()


def read(text: str, now: Instant, age: float) -> Memory:
    """Return the memory that a text is, written `age` seconds ago. Raises BadMemory."""
    try:
        found = _adapter().validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise BadMemory(f"{first['msg']} at {where or 'its start'}") from None
    if found.version != VERSION:
        raise BadMemory(f"it has version {found.version}, this llmgw knows {VERSION}")
    return _moved(found, now - age)


def _moved(memory: Memory, by: float) -> Memory:
    return replace(
        memory,
        rollouts={
            name: replace(one, since=Instant(one.since + by), progressed=Instant(one.progressed + by))
            for name, one in memory.rollouts.items()
        },
        braked={name: Instant(at + by) for name, at in memory.braked.items()},
    )


@cache
def _adapter() -> TypeAdapter[Memory]:
    return TypeAdapter(Memory)
