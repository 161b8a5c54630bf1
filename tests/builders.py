"""What tests build values with: a cluster directory from a few words, and a `Desk` to plan at.

Every catalog is compiled from text, so a test cannot plan for a directory that an operator could not push. A `Desk`
holds what a decision may see (catalog, nodes, usage, what was decided before, the time); a test changes it by hand and
takes plans, each of which is also checked by `plan.check`. The nodes at a desk do at once what they are ordered, in the phase
that the test says: how an agent gets there is the business of the agent's own tests.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

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
from llmgw.engines.adapter import ENGINES, Engine
from llmgw.engines.placed import Placed, Seat
from llmgw.engines.shard import ShardSpec
from llmgw.fleet.order import NodeOrder, ShardOrder
from llmgw.fleet.report import SERVING, Facts, Gpu, Phase, Reason, Report, ShardReport
from llmgw.fleet.table import Address, TcpAddress
from llmgw.fleet.usage import Unknown, Usage, UsageView
from llmgw.fleet.view import NeverSeen, NodeView, Reporting, Routes, lose, report_of
from llmgw.plan.check import check
from llmgw.plan.decide import plan
from llmgw.plan.result import Action, Plan
from llmgw.plan.snapshot import Act, Decided, Snapshot, Suspension
from llmgw.sim.directory import Object, cluster, cordoned, endpoint, model, node, tree
from llmgw.spec.cluster import Backoff

__all__ = ["Object", "cluster", "cordoned", "endpoint", "model", "node", "tree"]

COMPILER = Compiler()
"""One for all tests: its answers do not depend on what it compiled before, and most directories repeat most files."""
GIB = 1 << 30
FIRST = Epoch(1)
LONG_AGO = Instant(0.0)
AT_FIRST = Instant(1000.0)
QUIET = UsageView({}, Unknown("not used since the gateway started", quiet=True), current=True)
"""What gateways say that have nothing in flight anywhere."""


def catalog(*objects: Object, revision: str = "r1") -> Catalog:
    """Return the catalog of these objects, which must be valid."""
    outcome = COMPILER.compile(tree(*objects, revision=revision))
    assert isinstance(outcome, Accepted), "\n".join(str(problem) for problem in outcome.problems)
    return outcome.catalog


def facts(cpus: int = 8, memory: int = 32 * GIB, foreign_ports: tuple[int, ...] = ()) -> Facts:
    """Return what a node is."""
    return Facts("host", cpus, memory, "6.1", "0.1.0", 1, "/weights", foreign_ports)


def shard_report(
    spec: ShardSpec,
    phase: Phase = Phase.READY,
    *,
    reason: Reason | None = None,
    draining: bool = False,
    age: float = 1.0,
) -> ShardReport:
    """Return what an agent says of a shard; `age` is how long it has been in its phase."""
    alive = phase not in (Phase.WAITING, Phase.BACKOFF, Phase.FAILED)
    return ShardReport(spec, phase, age, 1, 0, 100 if alive else None, reason, None, draining, None)


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


def on(decided: Plan, replica: str) -> dict[str, tuple[str, ...]]:
    """Return the nodes of a replica, each with the numbers of the cards that it has there."""
    return {
        name: tuple(uuid.rpartition("-")[2] for uuid in one.spec.gpus)
        for name, wanted in decided.orders.items()
        for one in wanted.shards
        if one.spec.replica == replica
    }


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
    cards: dict[NodeName, tuple[Gpu, ...]] = field(default_factory=dict)
    engines: Mapping[str, Engine] = field(default_factory=lambda: ENGINES)
    acts: tuple[Act, ...] = ()
    held: frozenset[NodeName] = frozenset()
    suspended: Suspension | None = None
    entered: dict[ShardId, tuple[Phase, Instant]] = field(default_factory=dict)
    """Which phase each shard is in, and since when."""
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
        return Snapshot(
            self.catalog,
            views,
            self.usage,
            self.decided,
            self.epoch,
            self.rounds,
            self.started,
            self.now,
            self.acts,
            engines=self.engines,
            held=self.held,
            suspended=self.suspended,
        )

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
        """Let a node report these shards, and its cards; each shard is in its phase for as long as it has been."""
        known = NodeName(name)
        aged = [self.aged(one) for one in shards]
        about: dict[str, Any] = {"facts": self.facts.get(known, facts()), "gpus": self.cards.get(known, ())}
        obeyed = self.decided.orders.get(known)
        if obeyed is not None:
            about |= {"epoch": obeyed.epoch, "generation": obeyed.generation}
        self.views[known] = Reporting(report(name, *aged, boot=boot, **about), self.now, routes(name, *aged))

    def aged(self, one: ShardReport) -> ShardReport:
        """Return what is said of a shard with the age of its phase as it is now."""
        phase, since = self.entered.get(one.spec.shard, (one.phase, Instant(self.now - one.age)))
        if phase is not one.phase:
            since = Instant(self.now - one.age)
        self.entered[one.spec.shard] = (one.phase, since)
        return replace(one, age=self.now - since)

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

    def phase(self, replica: str, phase: Phase, reason: Reason | None = None, rank: int = 0) -> None:
        """Let a shard of a replica be in a phase, and its node say so."""
        name, known = self.shard(replica, rank)
        view = self.views[name]
        assert isinstance(view, Reporting)
        changed = shard_report(known.spec, phase, reason=reason, draining=known.draining)
        self.hear(name, *(changed if one is known else one for one in view.report.shards))

    def shard(self, replica: str, rank: int = 0) -> tuple[NodeName, ShardReport]:
        """Return the node of a shard of a replica, and what it says of it."""
        key = shard_id(ReplicaId(replica), rank)
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

    def card(self, uuid: str, **changes: Any) -> None:
        """Let a card be otherwise (`unhealthy`, `users`), and its node say so."""
        for name, cards in self.cards.items():
            if any(gpu.uuid == uuid for gpu in cards):
                self.cards[name] = tuple(replace(gpu, **changes) if gpu.uuid == uuid else gpu for gpu in cards)
                self.regain(name)

    def ask(self, kind: Literal["cordon", "drain", "restart"], target: str, until: float | None = None) -> None:
        """Let an operator ask for something on the command line."""
        end = Instant(until) if until is not None else None
        self.acts = (*self.acts, Act(kind, target, "memory errors", self.now, end, "ann"))

    def take_over(self) -> None:
        """Let another control plane take the lead, which remembers nothing."""
        self.epoch = Epoch(self.epoch + 1)
        self.decided = Decided.nothing(self.epoch)

    def use(self, replica: str, usage: Usage) -> None:
        """Let the gateways say this of a replica."""
        self.usage = replace(self.usage, endpoints={**self.usage.endpoints, ReplicaId(replica): usage})


def routes(name: str, *shards: ShardReport) -> Routes:
    """Return the ways to what serves on a node."""
    found: Mapping[ShardId, Address] = {
        one.spec.shard: TcpAddress(f"{name}.test", one.spec.port) for one in shards if one.phase in SERVING
    }
    return found
