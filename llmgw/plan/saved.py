"""A snapshot as a file: all that a decision may see, so that another machine decides the same from it, offline.

The catalog is kept as the tree that it was compiled from, so that the reader's own rules hold for it; engines are code and
are the reader's. Everything else is the domain's own dataclasses, read and written by pydantic as on the wire; unions whose
members look alike get a tag here. Values of secrets are in no snapshot. Log tails and command lines of processes are, so
such a file is for its owner only.
"""

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, assert_never

from pydantic import TypeAdapter, ValidationError

from llmgw.base.ids import Epoch, ModelName, NodeName, ReplicaId, Revision, ShardId
from llmgw.base.time import Instant
from llmgw.catalog.compile import Rejected, compile_tree
from llmgw.catalog.source import SourceTree
from llmgw.engines.adapter import ENGINES, Engine
from llmgw.fleet.order import NodeOrder
from llmgw.fleet.report import Report
from llmgw.fleet.table import Address, EndpointTable
from llmgw.fleet.usage import Active, Idle, Unknown, Usage, UsageView
from llmgw.fleet.view import NeverSeen, NodeView, Reporting, Unreachable
from llmgw.plan.snapshot import Act, Decided, GaveUp, LeftOut, Rollout, Snapshot, Suspension
from llmgw.spec.model import Model

FORMAT_VERSION = "1.0"
"""The first number grows with what an older reader would misread."""


class BadSnapshot(Exception):
    """What was read is no snapshot, or one that this version cannot read; the message says which."""


@dataclass(frozen=True, slots=True)
class _Tree:
    revision: Revision
    files: Mapping[str, str]
    subject: str
    author: str
    committed: float | None


@dataclass(frozen=True, slots=True)
class _Node:
    state: Literal["never seen", "reporting", "unreachable"]
    at: Instant
    """When it was heard last; since when it is not, where it is not."""
    report: Report | None
    why: str
    routes: Mapping[ShardId, Address]


@dataclass(frozen=True, slots=True)
class _Usage:
    state: Literal["active", "idle", "unknown"]
    in_flight: int
    since: Instant
    why: str
    quiet: bool


@dataclass(frozen=True, slots=True)
class _Decided:
    orders: Mapping[NodeName, NodeOrder]
    table: EndpointTable
    draining: Mapping[ReplicaId, Instant]
    rollouts: Mapping[ModelName, Rollout]
    gave_up: Mapping[ModelName, tuple[GaveUp, ...]]
    good: Mapping[ModelName, Any]
    preempted: Mapping[ReplicaId, ModelName]
    braked: Mapping[NodeName, Instant]
    left_out: Mapping[NodeName, tuple[LeftOut, ...]]
    owed: Mapping[ReplicaId, ModelName]
    by_this_catalog: bool
    """Whether the orders were written by the catalog of the snapshot."""
    told: bool = False


@dataclass(frozen=True, slots=True)
class _Saved:
    format_version: str
    now: Instant
    started: Instant
    epoch: Epoch
    reconcile: int
    tree: _Tree
    nodes: Mapping[NodeName, _Node]
    usage: Mapping[ReplicaId, _Usage]
    otherwise: _Usage
    usage_current: bool
    previous: _Decided
    acts: tuple[Act, ...]
    held: tuple[NodeName, ...]
    suspended: Suspension | None


def dump_snapshot(snapshot: Snapshot, tree: SourceTree) -> dict[str, Any]:
    """Return a snapshot as plain JSON data. `tree` is what its catalog was compiled from."""
    decided = snapshot.previous
    saved = _Saved(
        format_version=FORMAT_VERSION,
        now=snapshot.now,
        started=snapshot.started,
        epoch=snapshot.epoch,
        reconcile=snapshot.reconcile,
        tree=_Tree(
            tree.revision,
            {path: base64.b64encode(data).decode() for path, data in tree.files.items()},
            tree.subject,
            tree.author,
            tree.committed,
        ),
        nodes={name: _node(view) for name, view in snapshot.nodes.items()},
        usage={name: _usage(one) for name, one in snapshot.usage.endpoints.items()},
        otherwise=_usage(snapshot.usage.otherwise),
        usage_current=snapshot.usage.current,
        previous=_Decided(
            orders=decided.orders,
            table=decided.table,
            draining=decided.draining,
            rollouts=decided.rollouts,
            gave_up=decided.gave_up,
            good={
                name: one.model_dump(mode="json", by_alias=True, exclude_unset=True)
                for name, one in decided.good.items()
            },
            preempted=decided.preempted,
            braked=decided.braked,
            left_out=decided.left_out,
            owed=decided.owed,
            told=decided.told,
            by_this_catalog=decided.catalog is snapshot.catalog,
        ),
        acts=snapshot.acts,
        held=tuple(sorted(snapshot.held)),
        suspended=snapshot.suspended,
    )
    shown: dict[str, Any] = _adapter().dump_python(saved, mode="json")
    return shown


def load_snapshot(text: str | bytes, engines: Mapping[str, Engine] = ENGINES) -> tuple[Snapshot, SourceTree]:
    """Return the snapshot that was dumped, and its tree. Raises BadSnapshot."""
    saved = _read(text)
    try:
        files = {path: base64.b64decode(data, validate=True) for path, data in saved.tree.files.items()}
        good = {name: _model(one) for name, one in saved.previous.good.items()}
    except (binascii.Error, ValueError) as error:
        raise BadSnapshot(
            f"the snapshot is damaged: {_first(error)}; save it again with `llmgw get snapshot`"
        ) from error
    tree = SourceTree(saved.tree.revision, files, {}, saved.tree.subject, saved.tree.author, saved.tree.committed)
    outcome = compile_tree(tree)
    if isinstance(outcome, Rejected):
        errors = [str(one) for one in outcome.problems if one.severity == "error"]
        raise BadSnapshot(f"this llmgw does not take the cluster directory in the snapshot for valid: {errors[0]}")
    catalog = outcome.catalog
    previous = saved.previous
    decided = Decided(
        orders=previous.orders,
        table=previous.table,
        draining=previous.draining,
        rollouts=previous.rollouts,
        gave_up=previous.gave_up,
        good={name: catalog.models[name] if catalog.models.get(name) == one else one for name, one in good.items()},
        preempted=previous.preempted,
        braked=previous.braked,
        left_out=previous.left_out,
        owed=previous.owed,
        told=previous.told,
        catalog=catalog if previous.by_this_catalog else None,
    )
    snapshot = Snapshot(
        catalog=catalog,
        nodes={name: _view(one) for name, one in saved.nodes.items()},
        usage=UsageView(
            {name: _use(one) for name, one in saved.usage.items()}, _use(saved.otherwise), saved.usage_current
        ),
        previous=decided,
        epoch=saved.epoch,
        reconcile=saved.reconcile,
        started=saved.started,
        now=saved.now,
        acts=saved.acts,
        held=frozenset(saved.held),
        suspended=saved.suspended,
        engines=engines,
    )
    return snapshot, tree


@cache
def _adapter() -> TypeAdapter[_Saved]:
    return TypeAdapter(_Saved)


@cache
def _head() -> TypeAdapter[dict[str, Any]]:
    return TypeAdapter(dict[str, Any])


def _read(text: str | bytes) -> _Saved:
    try:
        version = str(_head().validate_json(text).get("format_version", ""))
    except ValidationError as error:
        raise BadSnapshot("it is not JSON; `llmgw get snapshot` writes a snapshot") from error
    if version.partition(".")[0] != FORMAT_VERSION.partition(".")[0]:
        known = FORMAT_VERSION.partition(".")[0]
        raise BadSnapshot(
            f"its format_version is {version or 'missing'}, this llmgw reads {known}.x; save it again with this llmgw"
        )
    try:
        return _adapter().validate_json(text)
    except ValidationError as error:
        raise BadSnapshot(
            f"the snapshot is damaged: {_first(error)}; save it again with `llmgw get snapshot`"
        ) from error


def _first(error: Exception) -> str:
    if isinstance(error, ValidationError):
        one = error.errors(include_url=False, include_input=False)[0]
        return f"{'.'.join(map(str, one['loc']))}: {one['msg']}"
    return str(error)


def _model(data: Any) -> Model:
    return Model.model_validate_json(json.dumps(data))


def _node(view: NodeView) -> _Node:
    match view:
        case NeverSeen(since=since, why=why):
            return _Node("never seen", since, None, why, {})
        case Reporting(report=report, at=at, routes=routes):
            return _Node("reporting", at, report, "", routes)
        case Unreachable(last=report, since=since, why=why, routes=routes):
            return _Node("unreachable", since, report, why, routes)
        case _:
            assert_never(view)


def _view(one: _Node) -> NodeView:
    if one.report is None:
        return NeverSeen(one.at, one.why)
    if one.state == "reporting":
        return Reporting(one.report, one.at, one.routes)
    return Unreachable(one.report, one.at, one.why, one.routes)


def _usage(usage: Usage) -> _Usage:
    match usage:
        case Active(in_flight=count):
            return _Usage("active", count, Instant(0.0), "", quiet=False)
        case Idle(since=since):
            return _Usage("idle", 0, since, "", quiet=False)
        case Unknown(why=why, quiet=quiet):
            return _Usage("unknown", 0, Instant(0.0), why, quiet)
        case _:
            assert_never(usage)


def _use(one: _Usage) -> Usage:
    match one.state:
        case "active":
            return Active(one.in_flight)
        case "idle":
            return Idle(one.since)
        case "unknown":
            return Unknown(one.why, one.quiet)
        case _:
            assert_never(one.state)
