"""The sums of `llmgw status`, and the tables of cards and endpoints: from the snapshot that decisions see, and no other.

What is free is counted by the planner's own ledger, so that the bars cannot say otherwise than placement does. A pure
function; texts are made by the command line.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from llmgw.base.ids import NodeName
from llmgw.fleet.report import Gpu, Phase
from llmgw.fleet.static import StaticEndpoint, is_static, with_static
from llmgw.fleet.usage import Active, Idle, Unknown
from llmgw.fleet.view import NeverSeen, Reporting, Unreachable, report_of
from llmgw.plan.capacity import Machine
from llmgw.plan.replicas import Replica
from llmgw.plan.result import Plan
from llmgw.plan.snapshot import Act, Snapshot
from llmgw.plan.work import Work

KINDS = ("used", "free", "closed", "unhealthy", "foreign", "reserved")
"""What each card is, exactly one of them: `closed` cards are free on a node that gets nothing new, or cordoned."""
_KIND_OF = {"claimed": "used", "kept": "used", "cordoned": "closed"}
ROOM = "room: "
"""What a hold waits for that found no seat; the reason of each node follows."""
MOST = 8
"""Lines that a list in the overview has at most; it says how many more there are."""


def overview(snapshot: Snapshot, last: Plan | None) -> dict[str, Any]:
    """Return the sums, given the newest plan."""
    work = Work(snapshot)
    replicas = list(work.replicas.values())
    machines = work.ledger.machines
    return {
        "nodes": _nodes(snapshot),
        "pools": _pools(snapshot, machines),
        "gpu_classes": _classes(machines),
        "cpu": _cpu(machines),
        "fabrics": _fabrics(machines),
        "replicas": dict(sorted(Counter(_state(one) for one in replicas).items())),
        "models": _models(snapshot),
        "endpoints": len(snapshot.catalog.endpoints),
        "cannot_be_placed": _unplaced(last),
        "holding_cards": _holding(work, replicas),
        "rollouts": _rollouts(snapshot, last),
        "acts": [act_row(act, snapshot.now) for act in work.acts],
    }


def act_row(act: Act, now: float) -> dict[str, Any]:
    """Return an act as the admin API shows it."""
    return {
        "kind": act.kind,
        "target": act.target,
        "reason": act.reason,
        "by": act.by or None,
        "age": now - act.at,
        "ends_in": act.until - now if act.until is not None else None,
    }


def gpu_rows(snapshot: Snapshot) -> list[dict[str, Any]]:
    """Return a row for every card that a node has told of, by node and index."""
    ledger = Work(snapshot).ledger
    return [
        {
            "node": name,
            "index": gpu.index,
            "uuid": gpu.uuid,
            "name": gpu.name,
            "class": ledger.class_of(gpu) or None,
            **_card_state(gpu, ledger.machines.get(name)),
            "memory": gpu.memory,
            "memory_used": gpu.memory_used,
            "node_answers": isinstance(view, Reporting),
        }
        for name, view in sorted(snapshot.nodes.items())
        if (report := report_of(view)) is not None
        for gpu in sorted(report.gpus, key=lambda one: one.index)
    ]


def endpoint_rows(snapshot: Snapshot, static: tuple[StaticEndpoint, ...] = ()) -> list[dict[str, Any]]:
    """Return a row for every endpoint that gateways have, those behind the replicas' included."""
    rows = []
    for one in with_static(snapshot.previous.table, static).endpoints:
        usage = snapshot.usage.of(one.id)
        rows.append(
            {
                "endpoint": one.id,
                "model": one.model,
                "address": str(one.address),
                "in_flight": usage.in_flight if isinstance(usage, Active) else (0 if not _in_doubt(usage) else None),
                "idle_for": snapshot.now - usage.since if isinstance(usage, Idle) else None,
            }
        )
    return rows


def _in_doubt(usage: Active | Idle | Unknown) -> bool:
    return isinstance(usage, Unknown) and not usage.quiet


def _nodes(snapshot: Snapshot) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for name, view in snapshot.nodes.items():
        match view:
            case NeverSeen():
                counts["never seen"] += 1
            case Reporting():
                counts["reporting" if name in snapshot.catalog.nodes else "leaving"] += 1
            case Unreachable():
                counts["unreachable"] += 1
    return dict(sorted(counts.items()))


def _pools(snapshot: Snapshot, machines: Mapping[NodeName, Machine]) -> list[dict[str, Any]]:
    """Return, by pool, how many nodes there are, and how many of them take something new, and why others do not."""
    found: dict[str, Counter[str]] = {}
    for name, machine in machines.items():
        answers = isinstance(snapshot.nodes.get(name), Reporting)
        state = "away" if not answers else "closed" if machine.closed else "open"
        found.setdefault(machine.node.pool, Counter())[state] += 1
    return [
        {"pool": pool, "nodes": counts.total(), **{state: counts[state] for state in ("open", "closed", "away")}}
        for pool, counts in sorted(found.items())
    ]


def _card_state(gpu: Gpu, machine: Machine | None) -> dict[str, Any]:
    if machine is None:
        return {"state": "closed", "why": "its node is no longer in the catalog"}
    busy = machine.busy.get(gpu.uuid)
    if busy is not None:
        kind = busy[1].kind
        return {"state": _KIND_OF.get(kind, kind), "why": busy[1].why}
    return {"state": "closed" if machine.closed else "free", "why": machine.closed or None}


def _classes(machines: Mapping[NodeName, Machine]) -> list[dict[str, Any]]:
    """Return each class with what its cards are; the kinds add up to the total."""
    sums: dict[str, Counter[str]] = {}
    for machine in machines.values():
        for gpu_class, free in machine.free.items():
            sums.setdefault(gpu_class, Counter())["closed" if machine.closed else "free"] += len(free)
        for gpu_class, busy in machine.busy.values():
            sums.setdefault(gpu_class, Counter())[_KIND_OF.get(busy.kind, busy.kind)] += 1
    return [
        {"class": name or None, "total": counts.total(), **{kind: counts[kind] for kind in KINDS}}
        for name, counts in sorted(sums.items())
        if counts.total()
    ]


def _cpu(machines: Mapping[NodeName, Machine]) -> dict[str, int]:
    """Return the cores and memory (bytes) of nodes that answer and get new work, and what of them is declared by replicas."""
    open_ones = [one for one in machines.values() if not one.closed]
    return {
        "nodes": len(open_ones),
        "cpus": sum(one.cpus for one in open_ones),
        "cpus_claimed": sum(one.cpus - one.cpus_free for one in open_ones),
        "memory": sum(one.memory for one in open_ones),
        "memory_claimed": sum(one.memory - one.memory_free for one in open_ones),
    }


def _fabrics(machines: Mapping[NodeName, Machine]) -> list[dict[str, Any]]:
    """Return, by fabric and class, how many nodes there are and how many have all of their cards free."""
    found: dict[tuple[str, str], list[Machine]] = {}
    for machine in machines.values():
        for gpu_class in machine.total:
            found.setdefault((machine.node.fabric or "", gpu_class), []).append(machine)
    return [
        {
            "fabric": fabric or None,
            "class": gpu_class or None,
            "nodes": len(nodes),
            "free_nodes": sum(one.whole and not one.closed for one in nodes),
        }
        for (fabric, gpu_class), nodes in sorted(found.items())
    ]


def _state(one: Replica) -> str:
    if one.leaving:
        return "stopping"
    if one.draining:
        return "draining"
    return one.phase.value if one.node_answers else "unreachable"


def _models(snapshot: Snapshot) -> dict[str, int]:
    table = snapshot.previous.table.endpoints
    served = {one.model for one in table}
    ready = Counter(one.model for one in table if not is_static(one.id))
    states = Counter(
        "off"
        if not one.replicas
        else "not served"
        if name not in served
        else "ready"
        if ready[name] >= one.replicas
        else "short"
        for name, one in snapshot.catalog.models.items()
    )
    return dict(sorted(states.items()))


def _unplaced(last: Plan | None) -> list[dict[str, Any]]:
    found: dict[str, list[str]] = {}
    for hold in last.holds if last is not None else ():
        if hold.subject.startswith("model/") and hold.waits_for.startswith(ROOM):
            found.setdefault(hold.subject.removeprefix("model/"), []).append(hold.waits_for.removeprefix(ROOM))
    return [{"model": name, "replicas": len(whys), "why": whys[0]} for name, whys in found.items()]


def _holding(work: Work, replicas: list[Replica]) -> dict[str, Any]:
    """Return what holds cards and is not asked for: the longest idle first, and those of which nobody knows after them."""
    found: list[tuple[float | None, int, Replica]] = []
    for one in replicas:
        cards = sum(len(part.spec.gpus) for part in one.parts)
        usage = work.snapshot.usage.of(one.id)
        if cards and not isinstance(usage, Active) and one.phase not in (Phase.STARTING, Phase.FETCHING, Phase.WAITING):
            found.append((work.now - usage.since if isinstance(usage, Idle) else None, cards, one))
    found.sort(key=lambda each: (each[0] is None, -(each[0] or 0.0), each[2].id))
    rows = [
        {"replica": one.id, "model": one.model, "node": one.node, "cards": cards, "idle_for": idle}
        for idle, cards, one in found[:MOST]
    ]
    return {"replicas": rows, "more": len(found) - len(rows), "cards": sum(cards for _, cards, _ in found)}


def _rollouts(snapshot: Snapshot, last: Plan | None) -> list[dict[str, Any]]:
    if last is None:
        return []
    holds: dict[str, str] = {}
    for hold in last.holds:
        holds.setdefault(hold.subject, f"{hold.what} waits for {hold.waits_for}")
    return [
        {
            "model": name,
            "age": snapshot.now - one.since,
            "serving": one.serving,
            "failed": one.failed or None,
            "waits_for": holds.get(f"model/{name}"),
        }
        for name, one in sorted(last.rollouts.items())
    ]
