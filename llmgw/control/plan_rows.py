"""What a plan means for objects and replicas, as rows: how they are replaced, on which cards they start, what drains.

Pure functions of a plan and the snapshot that it was made from; `preview` puts the rows into what it publishes.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, assert_never

from llmgw.base.ids import ModelName, NodeName, ReplicaId
from llmgw.catalog.catalog import Catalog
from llmgw.catalog.diff import ObjectChange
from llmgw.control.drift import drift
from llmgw.engines.shard import ShardSpec
from llmgw.fleet.usage import Active, Idle, Unknown
from llmgw.fleet.view import report_of
from llmgw.plan.replicas import existing
from llmgw.plan.result import Action, Plan, Verb
from llmgw.plan.snapshot import Snapshot
from llmgw.ports.sinks import Event
from llmgw.spec.common import Impact

Order = Literal["new first", "old first"]
_ACTIONS: dict[str, list[str]] = {"new first": ["create", "delete"], "old first": ["delete", "create"]}


@dataclass(frozen=True, slots=True)
class Decision:
    """A plan, the snapshot it was made from, and what was in force before."""

    live: Snapshot
    """The state of things, with the catalog in force."""
    there: Snapshot
    """The same with the catalog that is planned for."""
    plan: Plan


def replaces(change: ObjectChange, before: Catalog | None, decision: Decision | None) -> Order | None:
    """Return in which order the replicas of a changed model are replaced; None if they are not."""
    if change.kind != "Model" or change.action != "update" or before is None or decision is None:
        return None
    name, after = ModelName(change.name), decision.there.catalog
    new = after.models[name]
    old = before.models.get(name) or before.models.get(ModelName(new.moved_from or ""))
    if old is None:
        return None
    if not old.replicas or not new.replicas:
        return None
    wanted = {after.hash_of(new, profile) for profile in new.profiles}
    if all(before.hash_of(old, profile) in wanted for profile in old.profiles):
        return None
    match new.rollout.strategy:
        case "recreate":
            return "old first"
        case "surge":
            return "new first"
        case "auto":
            verbs = {one.verb for one in decision.plan.actions if one.model == name}
            return "old first" if Verb.DRAIN in verbs and Verb.START not in verbs else "new first"
        case _:
            assert_never(new.rollout.strategy)


def object_actions(change: ObjectChange, how: Order | None) -> list[str]:
    """Return the actions of an object as a list, in which every form of replacement has `delete`."""
    return _ACTIONS[how] if how is not None else [change.action]


def object_reason(change: ObjectChange, before: Catalog | None, after: Catalog | None) -> str | None:
    """Return what comes of an upstream that is new or gone; of all else, fields and replicas say it."""
    catalog = before if change.action == "delete" else after
    if change.kind != "Endpoint" or catalog is None or change.action == "update":
        return None
    one = catalog.endpoints[change.name]
    models = ", ".join(one.models)
    if change.action == "delete":
        return f"requests for {models} go to {one.url} no more; those that run there finish [{Impact.ROUTE}]"
    return f"requests for {models} go to {one.url} [{Impact.ROUTE}]"


def drift_rows(decision: Decision | None) -> list[dict[str, Any]]:
    """Return what changed outside."""
    return [asdict(one) for one in drift(decision.live)] if decision is not None else []


def replica_details(
    actions: Iterable[Action], decision: Decision | None, cold: Mapping[ModelName, float]
) -> list[dict[str, Any]]:
    """Return a row for each action: what is known of its replica beside the reason. `cold` is in seconds."""
    if decision is None:
        return [{} for _ in actions]
    wanted: dict[ReplicaId, list[tuple[NodeName, ShardSpec]]] = {}
    for node, order in decision.plan.orders.items():
        for one in order.shards:
            wanted.setdefault(one.spec.replica, []).append((node, one.spec))
    known = {one.id: [(part.node, part.spec) for part in one.parts] for one in existing(decision.there)}
    cause = str(decision.plan.cause)
    rows = []
    for action in actions:
        parts = wanted.get(action.replica) or known.get(action.replica, [])
        row: dict[str, Any] = {
            "cause": cause,
            "nodes": [node for node, _ in parts],
            "port": parts[0][1].port if parts else None,
            "cards": [card for node, spec in parts for card in _cards(decision.there, node, spec)],
        }
        if action.verb is Verb.START:
            row["last_cold_start"] = cold.get(action.model)
        elif action.verb is not Verb.MOVE_PORT:
            row |= _streams(decision.there, action.replica)
        rows.append(row)
    return rows


def _cards(snapshot: Snapshot, node: NodeName, spec: ShardSpec) -> list[dict[str, Any]]:
    view = snapshot.nodes.get(node)
    report = report_of(view) if view is not None else None
    known = {gpu.uuid: gpu for gpu in report.gpus} if report is not None else {}
    return [
        {"node": node, "uuid": uuid, "index": known[uuid].index, "name": known[uuid].name}
        if uuid in known
        else {"node": node, "uuid": uuid, "index": None, "name": ""}
        for uuid in spec.gpus
    ]


def _streams(snapshot: Snapshot, replica: ReplicaId) -> dict[str, Any]:
    usage = snapshot.usage.of(replica)
    match usage:
        case Active(in_flight=count):
            return {"streams": count, "streams_unknown": None}
        case Idle():
            return {"streams": 0, "streams_unknown": None}
        case Unknown(why=why, quiet=quiet):
            return {"streams": 0 if quiet else None, "streams_unknown": None if quiet else why}
        case _:
            assert_never(usage)


def cold_starts(events: Iterable[Event]) -> dict[ModelName, float]:
    """Return how long it took each model from the start of a replica to its publication, the last time.

    `events` in any order. A replica that an earlier control plane started has no start here, and one that never served has
    no publication; neither says anything.
    """
    started: dict[str, float] = {}
    took: dict[ModelName, float] = {}
    for event in sorted(events, key=lambda one: one.at):
        kind, _, replica = event.subject.partition("/")
        if kind != "replica":
            continue
        if event.kind == "start":
            started[replica] = event.at
        elif event.kind == "publish" and replica in started:
            took[ModelName(replica.rsplit("-", 2)[0])] = event.at - started.pop(replica)
    return took
