"""What tests build values with: a cluster directory from a few words, and a `Desk` to plan at.

Every catalog is compiled from text, so a test cannot plan for a directory that an operator could not push. A `Desk`
holds what a decision may see (catalog, nodes, usage, what was decided before, the time); a test changes it by hand and
takes plans, each of which is also checked by `plan.check`. The nodes at a desk do at once what they are ordered, in the phase
that the test says: how an agent gets there is the business of the agent's own tests.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from llmgw.base.cause import Cause
from llmgw.base.ids import (
    BootId,
    Epoch,
    Generation,
    ModelName,
    NodeName,
    ReplicaId,
    Revision,
    ShardId,
    replica_id,
    shard_id,
)
from llmgw.base.time import Instant
from llmgw.catalog.catalog import Catalog
from llmgw.catalog.compile import Accepted, Compiler
from llmgw.catalog.source import SourceTree
from llmgw.engines.adapter import ENGINES
from llmgw.engines.placed import Placed, Seat
from llmgw.engines.shard import ShardSpec
from llmgw.fleet.order import NodeOrder, ShardOrder
from llmgw.fleet.report import SERVING, Facts, Phase, Reason, Report, ShardReport
from llmgw.fleet.table import Address, TcpAddress
from llmgw.fleet.usage import Unknown, Usage, UsageView
from llmgw.fleet.view import NeverSeen, NodeView, Reporting, Routes, lose, report_of
from llmgw.plan.check import check
from llmgw.plan.decide import plan
from llmgw.plan.result import Action, Plan
from llmgw.plan.snapshot import Decided, Snapshot
from llmgw.spec.cluster import Backoff

Object = dict[str, Any]

COMPILER = Compiler()
"""One for all tests: its answers do not depend on what it compiled before, and most directories repeat most files."""
GIB = 1 << 30
FIRST = Epoch(1)
LONG_AGO = Instant(0.0)
AT_FIRST = Instant(1000.0)
QUIET = UsageView({}, Unknown("not used since the gateway started", quiet=True), current=True)
"""What gateways say that have nothing in flight anywhere."""


def cluster(**fields: Any) -> Object:
    """Return a `Cluster`; `control` and `router` as in YAML."""
    return {"apiVersion": "llmgw/v1", "kind": "Cluster", "name": "test", **fields}


def node(name: str, **fields: Any) -> Object:
    """Return a `Node` that is reached by SSH, or locally with `local=True`."""
    reach = {} if fields.get("local") else {"ssh": {"host": f"{name}.test", "host_key": "ssh-ed25519 AAAA"}}
    return {"apiVersion": "llmgw/v1", "kind": "Node", "name": name, **reach, **fields}


def cordoned(name: str, reason: str = "new memory") -> Object:
    """Return a `Node` that gives up what it runs."""
    return node(name, cordoned={"reason": reason})


def model(name: str, replicas: int = 1, *args: str, profile: Object | None = None, **fields: Any) -> Object:
    """Return a `Model` with one profile; `args` are the engine's, `profile` has further fields of it."""
    base: Object = {"engine": "llamacpp", **({"args": list(args)} if args else {})}
    body = {
        "replicas": replicas,
        "weights": {"path": f"/weights/{name}.gguf"},
        "profiles": [{**base, **(profile or {})}],
    }
    return {"apiVersion": "llmgw/v1", "kind": "Model", "name": name, **body, **fields}


def tree(*objects: Object, revision: str = "r1", subject: str = "") -> SourceTree:
    """Return a source tree of these objects; a `Cluster` is added if none is among them."""
    if not any(each["kind"] == "Cluster" for each in objects):
        objects = (cluster(), *objects)
    files = {f"{each['kind'].lower()}/{each['name']}.yaml": json.dumps(each).encode() for each in objects}
    return SourceTree(Revision(revision), files, subject=subject)


def catalog(*objects: Object, revision: str = "r1") -> Catalog:
    """Return the catalog of these objects, which must be valid."""
    outcome = COMPILER.compile(tree(*objects, revision=revision))
    assert isinstance(outcome, Accepted), "\n".join(str(problem) for problem in outcome.problems)
    return outcome.catalog


def facts(cpus: int = 8, memory: int = 32 * GIB, foreign_ports: tuple[int, ...] = ()) -> Facts:
    """Return what a node is."""
    return Facts("host", cpus, memory, "6.1", "0.1.0", 1, "/weights", foreign_ports)


def shard_report(
    spec: ShardSpec, phase: Phase = Phase.READY, *, reason: Reason | None = None, draining: bool = False
) -> ShardReport:
    """Return what an agent says of a shard."""
    alive = phase not in (Phase.WAITING, Phase.BACKOFF, Phase.FAILED)
    return ShardReport(spec, phase, 1.0, 1, 0, 100 if alive else None, reason, None, draining, None)


def report(name: str, *shards: ShardReport, boot: str = "boot-1", sequence: int = 1, **fields: Any) -> Report:
    """Return a node's report."""
    rank = {"epoch": Epoch(0), "generation": Generation(0), "refused": 0, "facts": facts(), **fields}
    return Report(NodeName(name), BootId(boot), sequence, shards=shards, **rank)


def spec_of(wanted: Catalog, name: str, number: int = 0, port: int = 20000) -> ShardSpec:
    """Return the spec of a replica of a model, by the model's first profile."""
    found = wanted.models[ModelName(name)]
    profile = found.profiles[0]
    hashed = wanted.hash_of(found, profile)
    definition = wanted.engine(profile.engine)
    replica = replica_id(ModelName(name), FIRST, number)
    return ENGINES[profile.engine].shards(
        Placed(replica, found, profile, definition, hashed, (Seat(NodeName("a"), port),), Backoff())
    )[0]


def order(name: str, *shards: ShardSpec | ShardOrder, epoch: int = 1, generation: int = 1) -> NodeOrder:
    """Return an order for a node."""
    wanted = tuple(ShardOrder(one) if isinstance(one, ShardSpec) else one for one in shards)
    return NodeOrder(NodeName(name), Epoch(epoch), Generation(generation), wanted, None, Cause(Revision("r1"), 1))


def told(decided: Plan) -> list[str]:
    """Return the plan's actions, each as `verb replica @node`."""
    return [_line(action) for action in decided.actions]


def why(decided: Plan, line: str) -> str:
    """Return the reason given for the action that `told` shows like this."""
    return next(one.why for one in decided.actions if _line(one) == line)


def _line(action: Action) -> str:
    return f"{action.verb} {action.replica} @{action.node}"


def held(decided: Plan) -> dict[str, str]:
    """Return what is held back, as `subject: what` to what it waits for."""
    return {f"{hold.subject}: {hold.what}": hold.waits_for for hold in decided.holds}


def ordered(decided: Plan) -> dict[str, list[str]]:
    """Return what each node shall have, as replicas with a `~` before those that drain."""
    return {
        name: ["~" * one.draining + one.spec.replica for one in wanted.shards]
        for name, wanted in decided.orders.items()
    }


def published(decided: Plan) -> list[str]:
    """Return the replicas in the endpoint table."""
    return [endpoint.id for endpoint in decided.table.endpoints]


@dataclass
class Desk:
    """A planner's desk. Time is 1000 at first, far after `started`, so that no node is waited for."""

    catalog: Catalog
    views: dict[NodeName, NodeView] = field(default_factory=dict)
    decided: Decided = field(default_factory=lambda: Decided.nothing(FIRST))
    usage: UsageView = QUIET
    epoch: Epoch = FIRST
    started: Instant = LONG_AGO
    now: Instant = AT_FIRST
    rounds: int = 0
    checked: bool = True
    """Whether every plan must pass `plan.check`."""
    planner: Callable[[Snapshot], Plan] = plan
    facts: dict[NodeName, Facts] = field(default_factory=dict)
    actions: list[Action] = field(default_factory=list)
    """All that was done at this desk."""

    @staticmethod
    def of(*objects: Object, **fields: Any) -> "Desk":
        """Return a desk for this directory, every node of which has just reported that it is empty."""
        desk = Desk(catalog(*objects), **fields)
        for name in desk.catalog.nodes:
            desk.hear(name)
        return desk

    def want(self, *objects: Object) -> None:
        """Put another directory in force."""
        self.catalog = catalog(*objects, revision=f"r{self.rounds + 2}")
        for name in self.catalog.nodes:
            self.views.setdefault(name, NeverSeen(self.now))

    def snapshot(self) -> Snapshot:
        """Return all that a decision may see now."""
        views = dict(self.views)
        return Snapshot(self.catalog, views, self.usage, self.decided, self.epoch, self.rounds, self.started, self.now)

    def plan(self, after: float = 1.0) -> Plan:
        """Let time pass, decide, check, and take the decision for carried out."""
        self.now = Instant(self.now + after)
        self.rounds += 1
        snapshot = self.snapshot()
        decided = self.planner(snapshot)
        if self.checked:
            broken = check(decided, snapshot)
            assert not broken, "; ".join(broken)
        self.decided = decided.decided
        self.actions += decided.actions
        return decided

    def settle(self, phase: Phase = Phase.READY, rounds: int = 40) -> Plan:
        """Plan and obey until nothing happens any more; new shards get to `phase`. Return the last plan."""
        for _ in range(rounds):
            decided = self.plan()
            self.obey(phase)
            if not decided.actions:
                return decided
        raise AssertionError(f"still busy after {rounds} rounds: {told(decided)}")

    def hear(self, name: str, *shards: ShardReport, boot: str = "boot-1") -> None:
        """Let a node report these shards."""
        known = NodeName(name)
        self.views[known] = Reporting(
            report(name, *shards, boot=boot, facts=self.facts.get(known, facts())), self.now, routes(name, *shards)
        )

    def obey(self, phase: Phase = Phase.READY) -> None:
        """Let every node that answers have exactly what it is ordered; shards that are new get to `phase`."""
        for name, wanted in self.decided.orders.items():
            view = self.views.get(name)
            if not isinstance(view, Reporting):
                continue
            shards = [self._obeyed(view.report.shard(one.spec.shard), one, phase) for one in wanted.shards]
            self.hear(name, *shards)

    @staticmethod
    def _obeyed(known: ShardReport | None, wanted: ShardOrder, phase: Phase) -> ShardReport:
        if known is not None and (known.spec.hash, known.spec.port) == (wanted.spec.hash, wanted.spec.port):
            phase = known.phase
        if wanted.draining and phase is Phase.READY:
            phase = Phase.DRAINING
        elif not wanted.draining and phase is Phase.DRAINING:
            phase = Phase.READY
        return shard_report(wanted.spec, phase, reason=known.reason if known else None, draining=wanted.draining)

    def phase(self, replica: str, phase: Phase, reason: Reason | None = None) -> None:
        """Let a replica be in a phase, and its node say so."""
        name, known = self.shard(replica)
        view = self.views[name]
        assert isinstance(view, Reporting)
        changed = shard_report(known.spec, phase, reason=reason, draining=known.draining)
        self.hear(name, *(changed if one is known else one for one in view.report.shards))

    def shard(self, replica: str) -> tuple[NodeName, ShardReport]:
        """Return a replica's node and what it says of it."""
        key = shard_id(ReplicaId(replica), 0)
        for name, view in self.views.items():
            told_last = report_of(view)
            known = told_last.shard(key) if told_last else None
            if known is not None:
                return name, known
        raise KeyError(replica)

    def lose(self, name: str, *, surviving: bool = False) -> None:
        """Let the connection to a node break; its routes survive or break with it."""
        view = self.views[NodeName(name)]
        left = view.routes if surviving and isinstance(view, Reporting) else {}
        self.views[NodeName(name)] = lose(view, self.now, "no route to host", left)

    def regain(self, name: str) -> None:
        """Let a node answer again, with what it said last."""
        known = report_of(self.views[NodeName(name)])
        self.hear(name, *(known.shards if known else ()))

    def forget_empty(self) -> None:
        """Cease to know of nodes that left the catalog and hold nothing, as the sessions do."""
        for name in [name for name in self.views if name not in self.catalog.nodes]:
            known = report_of(self.views[name])
            wanted = self.decided.orders.get(name)
            if not (known and known.shards) and not (wanted and wanted.shards):
                del self.views[name]

    def use(self, replica: str, usage: Usage) -> None:
        """Let the gateways say this of a replica."""
        self.usage = replace(self.usage, endpoints={**self.usage.endpoints, ReplicaId(replica): usage})


def routes(name: str, *shards: ShardReport) -> Routes:
    """Return the ways to what serves on a node."""
    found: Mapping[ShardId, Address] = {
        one.spec.shard: TcpAddress(f"{name}.test", one.spec.port) for one in shards if one.phase in SERVING
    }
    return found
