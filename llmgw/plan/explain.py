"""Why a replica does not run, node by node, and what would have to move for it to run.

The answer comes from the round that the planner itself would make of the same snapshot, so it cannot say otherwise than the
plan does. The set of moves is a proposal to a person: llmgw moves nothing that serves only to make room.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from llmgw.base.ids import ModelName, NodeName, ReplicaId
from llmgw.plan.capacity import Machine
from llmgw.plan.decide import decide
from llmgw.plan.placement import Banned, not_yet, place, profiles_of, room_for, why_not
from llmgw.plan.preemption import choose
from llmgw.plan.replicas import Replica
from llmgw.plan.result import Hold
from llmgw.plan.rollout import counted, kinds
from llmgw.plan.seating import banned, new_replica
from llmgw.plan.snapshot import Rollout, Snapshot
from llmgw.plan.work import Work
from llmgw.spec.model import Model
from llmgw.spec.profile import Profile

SEARCHED = 64
"""Nodes that are searched for moves: those that lack least."""


@dataclass(frozen=True, slots=True)
class Move:
    """A replica that could stand elsewhere."""

    replica: ReplicaId
    source: NodeName
    target: NodeName


@dataclass(frozen=True, slots=True)
class Explanation:
    """What there is to say of one model."""

    model: ModelName
    wanted: int
    there: tuple[tuple[ReplicaId, NodeName, str], ...]
    """(replica, node, what it does and why) of every replica."""
    serving: int
    """Replicas that requests go to, also those by an earlier spec."""
    missing: int
    """Replicas that are wanted and not there, as they are wanted now."""
    holds: tuple[Hold, ...]
    nodes: Mapping[NodeName, str]
    """Why each node takes no further replica; empty if nothing is missing."""
    cannot: tuple[str, ...]
    """Profiles that no node could run."""
    moves: tuple[Move, ...]
    """The fewest moves that would make room for one more; empty if there are none, or none is needed."""
    preempts: tuple[ReplicaId, ...]
    """Replicas that would give way, by the rules of preemption."""
    rollout: Rollout | None


def explain(snapshot: Snapshot, name: ModelName) -> Explanation:
    """Explain a model of the catalog. Raises KeyError if there is none of that name."""
    model = snapshot.catalog.models[name]
    work = decide(snapshot)
    current, _ = kinds(work, model)
    missing = max(0, model.replicas - len(counted(work, current)))
    forbidden = partial(banned, work, model)
    reasons = why_not(model, work.ledger, forbidden) if missing else None
    wanting = missing > 0 and place(model, work.ledger, forbidden) is None
    subjects = {f"model/{name}"} | {f"replica/{one.id}" for one in work.of(name)}
    return Explanation(
        model=name,
        wanted=model.replicas,
        there=tuple((one.id, one.node, _does(one, work)) for one in work.of(name)),
        serving=sum(one.serves and not one.draining for one in work.of(name)),
        missing=missing,
        holds=tuple(hold for hold in work.holds.values() if hold.subject in subjects),
        nodes=reasons.reasons if reasons is not None else {},
        cannot=reasons.cannot if reasons is not None else (),
        moves=_moves(work, model) if wanting else (),
        preempts=_give_way(work, model) if missing else (),
        rollout=work.rollouts.get(name),
    )


def _give_way(work: Work, model: Model) -> tuple[ReplicaId, ...]:
    """Return what was told to give way to the model; what would be next, if it was nothing yet."""
    told = [one.id for one in work.replicas.values() if work.preempted.get(one.id) == model.name and one.draining]
    return tuple(told or [one.id for one in choose(work, model, partial(banned, work, model))])


def _does(one: Replica, work: Work) -> str:
    if one.draining:
        return "draining"
    lost = " (its node does not answer any more)" if work.is_lost(one) else ""
    return f"{one.phase}{f': {one.reason}' if one.reason else ''}{lost}"


def _moves(work: Work, model: Model) -> tuple[Move, ...]:
    """Return the fewest moves of replicas to other nodes after which one more of the model would fit on one node."""
    best: list[Move] | None = None
    for profile in profiles_of(model):
        if not_yet(model, profile, work.ledger.engines) or profile.nodes > 1:
            continue
        forbidden = banned(work, model, profile)
        gpu_class = profile.gpu.gpu_class if profile.gpu is not None else ""
        machines = [one for one in work.ledger.machines.values() if not one.closed and one.name not in forbidden]
        machines.sort(key=lambda one: (-one.free_of(gpu_class), one.load, one.name))
        for machine in machines[:SEARCHED]:
            found = _clear(work, machine, profile)
            if found is not None and (best is None or len(found) < len(best)):
                best = found
    return tuple(best or ())


def _clear(work: Work, machine: Machine, profile: Profile) -> list[Move] | None:
    """Find replicas that could move off one node so that the profile fits: one if one will do, else the smallest first."""
    here = [
        one for one in work.replicas.values() if one.nodes == (machine.name,) and not one.draining and not one.leaving
    ]
    cards = profile.gpu is not None
    here.sort(key=lambda one: (cards and not one.spec.gpus, len(one.spec.gpus), one.spec.memory or 0, one.id))
    for chosen in [*([one] for one in here), here]:
        found = _moved_off(work, machine, profile, chosen)
        if found is not None:
            return found
    return None


def _moved_off(work: Work, machine: Machine, profile: Profile, chosen: list[Replica]) -> list[Move] | None:
    """Try to move these, as many as it takes, until the profile fits; leave the ledger as it was."""
    moved: list[tuple[Replica, Replica]] = []
    for one in chosen:
        there = _moved(work, machine, one)
        if there is not None:
            moved.append((one, there))
            if not room_for(profile, machine, work.ledger):
                break
    done = bool(moved) and not room_for(profile, machine, work.ledger)
    for one, there in moved[:-1] if done else []:  # what need not move after all stays
        work.set_free([there])
        work.take_back([one])
        if room_for(profile, machine, work.ledger):
            work.set_free([one])
            work.take_back([there])
        else:
            moved.remove((one, there))
    for one, there in reversed(moved):
        work.set_free([there])
        work.take_back([one])
    return [Move(one.id, machine.name, there.node) for one, there in moved] if done else None


def _moved(work: Work, machine: Machine, one: Replica) -> Replica | None:
    """Put a replica on another node in the ledger, if one takes it; return it as it is there."""
    found = work.profile_of(one)
    if found is None:
        return None
    model, _ = found

    def forbidden(profile: Profile) -> Banned:
        return {**banned(work, model, profile), machine.name: "is being cleared"}

    work.set_free([one])
    elsewhere = place(model, work.ledger, forbidden)
    if elsewhere is None:
        work.take_back([one])
        return None
    there = new_replica(work, model, elsewhere, one.id)
    work.take_back([there])
    return there
