"""The status: aggregates and the tables behind them, derived from one snapshot, so that they cannot disagree."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from llmgw.base.ids import NodeName, ReplicaId
from llmgw.catalog.problems import Problem
from llmgw.control.catalogs import CatalogState
from llmgw.control.overview import overview
from llmgw.fleet.report import Reason, Report
from llmgw.fleet.usage import Active, Idle, Unknown, UsageView
from llmgw.fleet.view import NeverSeen, NodeView, Reporting, Unreachable, report_of
from llmgw.plan.replicas import Replica, existing
from llmgw.plan.result import Plan
from llmgw.plan.snapshot import Act, Snapshot
from llmgw.spec.node import Node

NO_WAY = Reason("no_way", "its engine is ready, but no tunnel or connection reaches it")


@dataclass(frozen=True, slots=True)
class Control:
    """What the control plane says of itself."""

    version: str
    pid: int
    source: str
    listen: str
    admin_socket: str
    leading: bool
    epoch: int | None
    workers: tuple[int, ...]
    alarms: tuple[str, ...]
    notices: tuple[str, ...] = ()
    """What a person should know of how the source is followed."""
    routers: tuple[dict[str, Any], ...] = ()
    leader: Mapping[str, Any] = field(default_factory=dict)
    """Who leads, as far as this control plane knows."""
    router_notices: tuple[str, ...] = ()
    """What a person should know of routers on other hosts."""


def status(
    control: Control, state: CatalogState, snapshot: Snapshot | None, last: Plan | None, now: float
) -> dict[str, Any]:
    """Return everything that `llmgw status --json` prints."""
    replicas = existing(snapshot) if snapshot is not None else []
    return {
        "format_version": "1.0",
        "now": now,
        "control": {
            "version": control.version,
            "pid": control.pid,
            "listen": control.listen,
            "admin_socket": control.admin_socket,
            "leading": control.leading,
            "epoch": control.epoch,
            "leader": dict(control.leader),
            "workers": list(control.workers),
            "workers_current": snapshot is not None and snapshot.usage.current,
            "routers": list(control.routers),
            "router_notices": list(control.router_notices),
            "alarms": list(control.alarms),
        },
        "overview": overview(snapshot, last) if snapshot is not None else None,
        "source": {**_source(control.source, state, last, now), "notices": list(control.notices)},
        "nodes": [_node(name, view, snapshot) for name, view in sorted(snapshot.nodes.items())] if snapshot else [],
        "models": _models(snapshot, replicas, last) if snapshot else [],
        "replicas": [_replica(one, snapshot, now) for one in replicas] if snapshot else [],
        "endpoints": _endpoints(snapshot) if snapshot else [],
        "held": [
            {"subject": hold.subject, "what": hold.what, "waits_for": hold.waits_for}
            for hold in (last.holds if last is not None else ())
        ],
    }


def _source(place: str, state: CatalogState, last: Plan | None, now: float) -> dict[str, Any]:
    tree, fetched = state.tree, state.fetched
    return {
        "place": place,
        "fetched": fetched.revision if fetched else None,
        "in_force": tree.revision if tree else None,
        "subject": tree.subject if tree else None,
        "author": tree.author if tree else None,
        "age": now - state.accepted_at if state.accepted_at is not None else None,
        "planned": last.based_on if last is not None else None,
        "refused": _refused(state),
        "state": state.failed.trouble.value if state.failed else ("invalid" if state.rejected else "valid"),
        "verified_by": state.verified_by or None,
        "failed": state.failed.reason if state.failed else None,
        "warnings": [_problem(one) for one in state.warnings],
    }


def _refused(state: CatalogState) -> dict[str, Any] | None:
    if state.rejected is None:
        return None
    return {
        "revision": state.rejected.revision,
        "subject": state.fetched.subject if state.fetched else None,
        "problems": [_problem(one) for one in state.rejected.problems],
    }


def _problem(problem: Problem) -> dict[str, Any]:
    return {
        "severity": problem.severity,
        "path": problem.path,
        "line": problem.line,
        "column": problem.column,
        "message": problem.message,
        "text": str(problem),
    }


def _acts_on(name: NodeName, snapshot: Snapshot) -> Iterator[Act]:
    return (act for act in snapshot.acts if act.target == f"node/{name}" and act.holds(snapshot.now))


def _closed(node: Node | None, act: Act | None) -> str | None:
    """Return why a node gets nothing new, by its file or by an operator; None if it does."""
    if node is not None and node.cordoned is not None:
        return node.cordoned.reason
    return f"{act.kind}: {act.reason}" if act is not None else None


def _node(name: NodeName, view: NodeView, snapshot: Snapshot | None) -> dict[str, Any]:
    report = report_of(view)
    node = snapshot.catalog.nodes.get(name) if snapshot else None
    act = next(_acts_on(name, snapshot), None) if snapshot else None
    row: dict[str, Any] = {
        "name": name,
        "in_catalog": node is not None,
        "cordoned": _closed(node, act),
        "shards": len(report.shards) if report else None,
        "refused_orders": report.refused if report else None,
        "cpus": report.facts.cpus if report else None,
        "memory": report.facts.memory if report else None,
        "agent_version": report.facts.agent_version if report else None,
        "agent_pid": report.facts.agent_pid if report else None,
        "complaint": (report.facts.complaint or None) if report else None,
        "epoch": report.epoch if report else None,
        "generation": report.generation if report else None,
        **_machine(report),
    }
    match view:
        case NeverSeen(since=since, why=why):
            return {**row, "state": "never seen", "why": why, "since": since}
        case Unreachable(since=since, why=why):
            return {**row, "state": "unreachable", "why": why, "since": since}
        case Reporting(at=at):
            return {**row, "state": "reporting", "why": None, "since": at}


def _machine(report: Report | None) -> dict[str, Any]:
    """Return what a node says of its machine; None for what is not known, so that no number is made up."""
    if report is None:
        keys = ("driver", "gpus", "gpus_unhealthy", "gpu_trouble", "disk_free", "cgroups", "adoptions")
        return dict.fromkeys(keys)
    facts = report.facts
    return {
        "driver": facts.driver or None,
        "gpus": len(report.gpus),
        "gpus_unhealthy": [f"{gpu.index} ({gpu.name}): {gpu.unhealthy}" for gpu in report.gpus if gpu.unhealthy],
        "gpu_trouble": facts.gpu_trouble or None,
        "disk_free": facts.disk_free,
        "cgroups": facts.cgroups or None,
        "adoptions": asdict(facts.adoptions),
    }


def _models(snapshot: Snapshot, replicas: list[Replica], last: Plan | None) -> list[dict[str, Any]]:
    published = {endpoint.id for endpoint in snapshot.previous.table.endpoints}
    rows = []
    for name, model in snapshot.catalog.models.items():
        own = [one for one in replicas if one.model == name]
        waits = [
            f"{hold.what}: {hold.waits_for}" for hold in (last.holds if last else ()) if hold.subject == f"model/{name}"
        ]
        rows.append(
            {
                "name": name,
                "aliases": list(model.aliases),
                "wanted": model.replicas,
                "ready": sum(one.id in published for one in own),
                "replicas": len(own),
                "waits_for": waits or _why_not_ready(own, published),
            }
        )
    return rows


def _endpoints(snapshot: Snapshot) -> list[dict[str, Any]]:
    """Return the upstreams that somebody else runs; a key by its name."""
    return [
        {
            "name": name,
            "url": one.url,
            "models": list(one.models),
            "api_key": one.api_key.secret if one.api_key is not None else None,
        }
        for name, one in snapshot.catalog.endpoints.items()
    ]


def _why_not_ready(own: list[Replica], published: set[ReplicaId]) -> list[str]:
    """Say what each replica that is not published does, for a model of which nothing is held back."""
    said = []
    for one in own:
        if one.id not in published and not one.draining and not one.leaving:
            why = _reason(one)
            reason = f": {why.text}" if why is not None else ""
            reason += f" ({one.report.progress})" if one.report and one.report.progress else ""
            where = "" if one.node_answers else f", node {one.node} does not answer"
            said.append(f"{one.id} ({one.phase}{reason}{where})")
    return said


def _reason(one: Replica) -> Reason | None:
    """Return why a replica is where it is; its node knows nothing of the way to it."""
    if one.report is not None and one.report.reason is None and one.phase_serves and one.address is None:
        return NO_WAY
    return one.report.reason if one.report is not None else None


def _replica(one: Replica, snapshot: Snapshot, now: float) -> dict[str, Any]:
    report = one.report
    view = snapshot.nodes[one.node]
    reason = _reason(one)
    since = now - (view.at if isinstance(view, Reporting) else view.since)  # a report's ages go on after it was made
    return {
        "replica": one.id,
        "model": one.model,
        "node": one.node,
        "nodes": list(one.nodes),
        "gpus": [uuid for part in one.parts for uuid in part.spec.gpus],
        "phase": "stopping" if one.leaving else ("draining" if one.draining else one.phase.value),
        "age": report.age + since if report else None,
        "attempt": report.attempt if report else 0,
        "failures": report.failures if report else 0,
        "pid": report.pid if report else None,
        "port": one.spec.port,
        "address": str(one.address) if one.address else None,
        "node_answers": one.node_answers,
        "reason": reason.text if reason else None,
        "reason_code": reason.code if reason else None,
        "progress": (report.progress or None) if report else None,
        "engine_in_flight": report.in_flight if report else None,
        "quiet_for": report.quiet_for if report else None,
        "degraded": report.degraded if report else None,
        "last_end": (
            {
                "attempt": report.last_end.attempt,
                "code": report.last_end.code,
                "text": report.last_end.text,
                "age": report.last_end.age + since,
                "tail": list(report.last_end.tail),
            }
            if report and report.last_end
            else None
        ),
        **_usage(one, snapshot.usage, now),
    }


def _usage(one: Replica, usage: UsageView, now: float) -> dict[str, Any]:
    match usage.of(one.id):
        case Active(in_flight=n):
            return {"usage": "active", "in_flight": n, "idle_for": None, "usage_unknown": None}
        case Idle(since=since):
            return {"usage": "idle", "in_flight": 0, "idle_for": now - since, "usage_unknown": None}
        case Unknown(why=why, quiet=quiet):
            return {"usage": "unknown", "in_flight": 0 if quiet else None, "idle_for": None, "usage_unknown": why}
