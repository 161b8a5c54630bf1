"""A hypothesis machine that lives with a planner: random edits, nodes, crashes, requests and takeovers, a plan after each.

The nodes are a few lines each: they obey whole orders, start and stop what follows from them, and fall silent. What must
hold is said here a second time, in other words than `plan.check` has, so that the checker is tested as well: every plan must
please both. `test_planner` runs it with the real planner, `test_mutations` with spoilt ones, which it must catch.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from llmgw.base.ids import Epoch, NodeName, ReplicaId, ShardId
from llmgw.base.time import Instant
from llmgw.engines.shard import ShardSpec
from llmgw.fleet.order import NodeOrder
from llmgw.fleet.report import SERVING, Phase, Reason
from llmgw.fleet.usage import Active, Idle, Unknown, UsageView, is_quiet
from llmgw.fleet.view import NeverSeen, Reporting, lose
from llmgw.plan.decide import plan
from llmgw.plan.result import Plan
from llmgw.plan.snapshot import Decided, Snapshot
from tests.builders import QUIET, Desk, Object, cluster, cordoned, model, node, report, routes, shard_report

NODES = ("a", "b", "c")
MODELS = ("m", "n")
CLUSTER = cluster(router={"timeouts": {"drain": "60s"}}, control={"unreachable_after": "10s"})

nodes = st.sampled_from(NODES)
models = st.sampled_from(MODELS)


@dataclass
class Shard:
    """A shard on a node: what runs or would run, and what is wanted; `wanted` is None while it is on its way out."""

    spec: ShardSpec
    wanted: ShardSpec | None
    phase: Phase = Phase.WAITING
    draining: bool = False


@dataclass
class FakeNode:
    """A machine with its agent."""

    order: NodeOrder | None = None
    shards: dict[ShardId, Shard] = field(default_factory=dict)
    away: bool = False
    sequence: int = 0

    def obey(self, order: NodeOrder) -> None:
        """Take a whole order; an older one is refused."""
        if self.order is not None and order.rank < self.order.rank:
            return
        self.order = order
        for key, shard in self.shards.items():
            wanted = order.shard(key)
            shard.wanted = wanted.spec if wanted else None
            shard.draining = wanted.draining if wanted else False
        for one in order.shards:
            self.shards.setdefault(one.spec.shard, Shard(one.spec, one.spec, draining=one.draining))

    def advance(self) -> None:
        """Let every shard take its next step."""
        for key, shard in list(self.shards.items()):
            running = shard.phase in (Phase.STARTING, Phase.READY, Phase.STOPPING)
            if shard.phase is Phase.STOPPING:
                shard.phase = Phase.WAITING
                if shard.wanted is None:
                    del self.shards[key]
            elif shard.wanted is None and not running:
                del self.shards[key]
            elif shard.wanted is None or (running and self._differs(shard)):
                shard.phase = Phase.STOPPING
            elif shard.phase is not Phase.FAILED or self._differs(shard):
                shard.spec = shard.wanted
                shard.phase = Phase.READY if shard.phase in (Phase.STARTING, Phase.READY) else Phase.STARTING

    @staticmethod
    def _differs(shard: Shard) -> bool:
        wanted = shard.wanted
        return wanted is not None and (wanted.hash, wanted.port) != (shard.spec.hash, shard.spec.port)


class PlannerMachine(RuleBasedStateMachine):
    """See the module. `planner` is what is tested."""

    planner: ClassVar[Callable[[Snapshot], Plan]] = staticmethod(plan)

    def __init__(self) -> None:
        super().__init__()
        self.wanted: dict[str, Object] = {}
        self.hardware = {name: FakeNode() for name in NODES}
        self.present: dict[str, Object] = {name: node(name) for name in NODES[:2]}
        self.desk = Desk.of(CLUSTER, started=Instant(1000.0), planner=type(self).planner)
        self.last: Plan | None = None

    # what operators do

    @initialize(replicas=st.integers(0, 3))
    def begin(self, replicas: int) -> None:
        self.wanted["m"] = {"replicas": replicas, "args": []}
        self._edit()
        for name in NODES:
            self._report(name)
        self._plan(0.1)

    @rule(name=models, replicas=st.integers(0, 3), args=st.sampled_from(["one", "two", "three"]))
    def want(self, name: str, replicas: int, args: str) -> None:
        self.wanted[name] = {"replicas": replicas, "args": [args]}
        self._edit()

    @precondition(lambda self: self.wanted)
    @rule(data=st.data())
    def change_one_thing(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.wanted)))
        field_ = data.draw(st.sampled_from(["replicas", "args", "aliases", "start_timeout"]))
        values: dict[str, st.SearchStrategy[Any]] = {
            "replicas": st.integers(0, 4),
            "args": st.sampled_from([["one"], ["two"], ["three"]]),
            "aliases": st.sampled_from([[], [f"{name}-alias"]]),
            "start_timeout": st.sampled_from(["1m", "2m"]),
        }
        self.wanted[name] = {**self.wanted[name], field_: data.draw(values[field_])}
        self._edit()

    @rule(name=models)
    def remove_model(self, name: str) -> None:
        self.wanted.pop(name, None)
        self._edit()

    @rule(name=nodes, how=st.sampled_from(["plain", "cordoned", "gone"]))
    def change_node(self, name: str, how: str) -> None:
        self.present.pop(name, None)
        if how != "gone":
            self.present[name] = node(name) if how == "plain" else cordoned(name)
        self._edit()

    # what nodes do

    @rule(name=nodes)
    def node_obeys(self, name: str) -> None:
        self._obey(name)
        self._report(name)
        self._plan(0.1)

    @rule()
    def all_nodes_go_on(self) -> None:
        for name in NODES:
            self._obey(name)
            self.hardware[name].advance()
            self._report(name)
        self._plan(1.0)

    @rule(name=nodes)
    def node_goes_on(self, name: str) -> None:
        self.hardware[name].advance()
        self._report(name)
        self._plan(0.1)

    @rule(
        name=nodes, phase=st.sampled_from([Phase.BACKOFF, Phase.STOPPING, Phase.FAILED, Phase.WAITING]), data=st.data()
    )
    def engine_fails(self, name: str, phase: Phase, data: st.DataObject) -> None:
        shards = self.hardware[name].shards
        if shards:
            shards[data.draw(st.sampled_from(sorted(shards)))].phase = phase
        self._report(name)
        self._plan(0.1)

    @rule(name=nodes, surviving=st.booleans())
    def node_falls_silent(self, name: str, surviving: bool) -> None:
        known = NodeName(name)
        self.hardware[name].away = True
        view = self.desk.views.get(known)
        if view is not None:
            left = view.routes if surviving and isinstance(view, Reporting) else {}
            self.desk.views[known] = lose(view, self.desk.now, "no route to host", left)
        self._plan(0.1)

    @rule(name=nodes)
    def node_is_back(self, name: str) -> None:
        self.hardware[name].away = False
        self._report(name)
        self._plan(0.1)

    # what gateways, control planes and time do

    @rule(data=st.data(), usage=st.sampled_from(["active", "idle", "unknown"]))
    def usage_changes(self, data: st.DataObject, usage: str) -> None:
        replicas = sorted(shard.spec.replica for one in self.hardware.values() for shard in one.shards.values())
        if replicas:
            known = {"active": Active(2), "idle": Idle(self.desk.now), "unknown": Unknown("older table")}
            self.desk.use(data.draw(st.sampled_from(replicas)), known[usage])
        self._plan(0.1)

    @rule(known=st.booleans())
    def gateways_speak_or_not(self, known: bool) -> None:
        self.desk.usage = QUIET if known else UsageView({}, Unknown("a worker has not reported"))
        self._plan(0.1)

    @rule(seconds=st.sampled_from([1.0, 9.0, 30.0, 100.0]))
    def time_passes(self, seconds: float) -> None:
        self._plan(seconds)

    @rule(afresh=st.booleans())
    def another_takes_over(self, afresh: bool) -> None:
        desk = self.desk
        desk.epoch = Epoch(desk.epoch + 1)
        desk.decided = Decided.nothing(desk.epoch)
        if afresh:
            desk.started = desk.now
            desk.views = {NodeName(name): NeverSeen(desk.now) for name in self.present}
        self._plan(0.1)

    # what must hold

    @invariant()
    def ports_are_given_once(self) -> None:
        for name, wanted in self.desk.decided.orders.items():
            ports = {one.spec.shard: one.spec.port for one in wanted.shards}
            assert len(set(ports.values())) == len(ports), f"a port of {name} is given twice"
            for key, shard in self.hardware[name].shards.items():
                if key not in ports and not self.hardware[name].away and shard.phase is not Phase.WAITING:
                    known = self.desk.views.get(name)
                    reported = isinstance(known, Reporting) and known.report.shard(key) is not None
                    assert not reported or shard.spec.port not in ports.values(), f"a port of {name} is not free yet"

    def teardown(self) -> None:
        """Let all faults end: what is wanted must come about, and then there must be nothing left to do."""
        if not self.present:
            return
        self.present = {name: node(name) for name in self.present}
        for name in self.wanted:
            self.wanted[name] = {"replicas": self.wanted[name]["replicas"], "args": ["mended"]}
        for one in self.hardware.values():
            one.away = False
        self.desk.usage = QUIET
        self._edit()
        for _ in range(80):
            for name in NODES:
                self._obey(name)
                self.hardware[name].advance()
                self._report(name)
            self._plan(5.0)
            assert self.last is not None
            if not self.last.actions and self._is_reached():
                return
        raise AssertionError(f"not reached: {self.last.actions} {self.last.holds}")

    def _is_reached(self) -> bool:
        assert self.last is not None
        serving = {name: sum(endpoint.model == name for endpoint in self.last.table.endpoints) for name in self.wanted}
        # a node that left the catalog before a control plane began is not known to it
        known = [one for name, one in self.hardware.items() if name in self.desk.views]
        shards = [shard for one in known for shard in one.shards.values()]
        return (
            serving == {name: one["replicas"] for name, one in self.wanted.items()}
            and len(shards) == sum(serving.values())
            and not self.last.holds
        )

    # how it is done

    def _edit(self) -> None:
        made = []
        for name, one in self.wanted.items():
            profile = {"start_timeout": one["start_timeout"]} if "start_timeout" in one else None
            made.append(model(name, one["replicas"], *one["args"], profile=profile, aliases=one.get("aliases", [])))
        self.desk.want(CLUSTER, *self.present.values(), *made)
        self.desk.forget_empty()
        for name in self.present:
            self._report(name)
        self._plan(0.1)

    def _obey(self, name: str) -> None:
        order = self.desk.decided.orders.get(NodeName(name))
        if order is not None and not self.hardware[name].away:
            self.hardware[name].obey(order)

    def _report(self, name: str) -> None:
        known, one = NodeName(name), self.hardware[name]
        if one.away or known not in self.desk.views:
            return
        one.sequence += 1
        shards = []
        for key in sorted(one.shards):
            shard = one.shards[key]
            phase = Phase.DRAINING if shard.draining and shard.phase is Phase.READY else shard.phase
            reason = Reason("exit", "ended") if phase is Phase.FAILED else None
            shards.append(shard_report(shard.spec, phase, reason=reason, draining=shard.draining))
        rank = {"epoch": one.order.epoch, "generation": one.order.generation} if one.order else {}
        said = report(name, *shards, sequence=one.sequence, **rank)
        self.desk.views[known] = Reporting(said, self.desk.now, routes(name, *shards))

    def _plan(self, after: float) -> None:
        desk = self.desk
        desk.now = Instant(desk.now + after)
        before = desk.snapshot()
        decided = desk.plan(0.0)
        self.last = decided
        _serving_stays(before, decided)
        _stops_are_clean(before, decided)
        _published_can_serve(before, decided)
        desk.forget_empty()


def _serving_stays(before: Snapshot, decided: Plan) -> None:
    """A wanted model that is served stays served, unless that which serves it has gone by itself."""
    for name, wanted in before.catalog.models.items():
        if wanted.replicas == 0:
            continue
        had = [one for one in before.previous.table.endpoints if one.model == name and _serves(before, one.id)]
        has = [one for one in decided.table.endpoints if one.model == name]
        assert has or not had, f"{name} is served by {[one.id for one in had]} and would not be any more"


def _serves(snapshot: Snapshot, replica: ReplicaId) -> bool:
    """Whether its node says so, and a way to it exists."""
    for view in snapshot.nodes.values():
        if isinstance(view, NeverSeen):
            continue
        said = view.report if isinstance(view, Reporting) else view.last
        for one in said.shards:
            if one.spec.replica == replica:
                return one.phase in SERVING and one.spec.shard in view.routes
    return False


def _stops_are_clean(before: Snapshot, decided: Plan) -> None:
    """What serves is left out of an order only when it was draining before, and quiet or overdue."""
    limit = before.catalog.cluster.router.timeouts.drain
    for name, old in before.previous.orders.items():
        if name not in decided.orders:
            continue
        for one in old.shards:
            replica = one.spec.replica
            if decided.orders[name].shard(one.spec.shard) is None and _serves(before, replica):
                assert one.draining, f"{replica} would be stopped without a drain"
                assert replica not in [endpoint.id for endpoint in before.previous.table.endpoints]
                overdue = before.now - before.previous.draining[replica] >= limit
                assert is_quiet(before.usage.of(replica)) or overdue, f"{replica} would be stopped while it is used"


def _published_can_serve(before: Snapshot, decided: Plan) -> None:
    for endpoint in decided.table.endpoints:
        assert _serves(before, endpoint.id), f"{endpoint.id} is published and does not serve"


def spoilt(change: Callable[[Plan, Snapshot], Plan]) -> Callable[[Snapshot], Plan]:
    """Return the planner with its plans changed afterwards."""

    @wraps(change)
    def planner(snapshot: Snapshot) -> Plan:
        return change(plan(snapshot), snapshot)

    return planner


def with_orders(decided: Plan, orders: dict[NodeName, NodeOrder]) -> Plan:
    """Return a plan with these orders, of a greater generation where they differ."""
    changed = {
        name: order if order == decided.orders.get(name) else replace(order, generation=order.generation + 1)
        for name, order in orders.items()
    }
    return replace(decided, orders=changed)
