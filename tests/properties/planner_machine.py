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

from llmgw.base.ids import Epoch, ModelName, NodeName, ReplicaId, ShardId
from llmgw.base.time import Instant
from llmgw.engines.shard import ShardSpec
from llmgw.fleet.order import NodeOrder
from llmgw.fleet.report import SERVING, Phase, Reason
from llmgw.fleet.usage import Active, Idle, Unknown, UsageView, is_quiet
from llmgw.fleet.view import NeverSeen, Reporting, Unreachable, lose, report_of
from llmgw.plan.decide import plan
from llmgw.plan.result import Plan, Verb
from llmgw.plan.snapshot import Decided, Snapshot
from tests.builders import QUIET, Desk, Object, cluster, model, node, report, routes, shard_report
from tests.cards import CLASSES, L40S, gpus, on_cards, stranger

NODES = ("a", "b", "c")
MODELS = ("m", "n")
LOST = 40.0
MIN_LIFE = 20.0
CLUSTER = cluster(
    router={"timeouts": {"drain": "60s"}},
    control={"unreachable_after": "10s", "lost_after": f"{LOST:.0f}s"},
    gpu_classes=CLASSES,
)
CARDS = {
    NodeName("a"): gpus("a", 4),
    NodeName("b"): gpus("b", 4),
    NodeName("c"): (*gpus("c", 2), *gpus("d", 2, L40S)),
}
WAYS: dict[str, Object] = {
    "cpu": {},
    "one": on_cards(1),
    "two": on_cards(2),
    "four": on_cards(4),
    "other": on_cards(1, "l40s"),
    "gang": on_cards(2, nodes=2),
}
"""What one replica may take."""

nodes = st.sampled_from(NODES)
models = st.sampled_from(MODELS)
ways = st.sampled_from(sorted(WAYS))
uuids = st.sampled_from([gpu.uuid for cards in CARDS.values() for gpu in cards])


def at(name: str, **fields: Any) -> Object:
    """Return a node of the machine; they are all on one fabric."""
    return node(name, fabric="ib", **fields)


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
        self.present: dict[str, Object] = {name: at(name) for name in NODES[:2]}
        self.desk = Desk.of(CLUSTER, started=Instant(1000.0), planner=type(self).planner, cards=dict(CARDS))
        self.last: Plan | None = None

    # what operators do

    @initialize(replicas=st.integers(0, 3))
    def begin(self, replicas: int) -> None:
        self.wanted["m"] = {"replicas": replicas, "args": []}
        self._edit()
        for name in NODES:
            self._report(name)
        self._plan(0.1)

    @rule(
        name=models,
        replicas=st.integers(0, 3),
        args=st.sampled_from(["one", "two", "three"]),
        way=ways,
        priority=st.sampled_from([0, 5]),
        preempt=st.booleans(),
    )
    def want(self, name: str, replicas: int, args: str, way: str, priority: int, preempt: bool) -> None:
        given = {"args": [args], "way": way, "priority": priority, "preempt": preempt}
        self.wanted[name] = {"replicas": replicas, **given}
        self._edit()

    @rule(name=models, replicas=st.integers(1, 2), idle=st.booleans(), seconds=st.sampled_from([1.0, 30.0]))
    def want_what_needs_room(self, name: str, replicas: int, idle: bool, seconds: float) -> None:
        """Fill the nodes with one model, let it run for a while, and want another that is more important."""
        other = next(each for each in MODELS if each != name)
        self.wanted[other] = {"replicas": 3, "args": [], "way": "two", "priority": 0}
        self._edit()
        for _ in range(4):
            self.all_nodes_go_on()
        self.time_passes(seconds)
        for shard in [shard for one in self.hardware.values() for shard in one.shards.values()]:
            self.desk.use(shard.spec.replica, Idle(self.desk.now) if idle else Unknown("not used yet", quiet=True))
        self.wanted[name] = {"replicas": replicas, "args": [], "way": "four", "priority": 5, "preempt": not idle}
        self._edit()

    @precondition(lambda self: self.wanted)
    @rule(data=st.data())
    def change_one_thing(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.wanted)))
        field_ = data.draw(
            st.sampled_from(["replicas", "args", "aliases", "start_timeout", "way", "priority", "min_ready"])
        )
        values: dict[str, st.SearchStrategy[Any]] = {
            "replicas": st.integers(0, 4),
            "args": st.sampled_from([["one"], ["two"], ["three"]]),
            "aliases": st.sampled_from([[], [f"{name}-alias"]]),
            "start_timeout": st.sampled_from(["1m", "2m"]),
            "way": ways,
            "min_ready": st.sampled_from(["0s", "15s"]),
            "priority": st.sampled_from([0, 5]),
        }
        self.wanted[name] = {**self.wanted[name], field_: data.draw(values[field_])}
        self._edit()

    @rule(name=models)
    def roll_over_slowly(self, name: str) -> None:
        """Change a model that runs, where a new replica must have been ready for a while before it counts."""
        for args in ("one", "two"):
            self.wanted[name] = {"replicas": 1, "args": [args], "min_ready": "15s"}
            self._edit()
            for _ in range(4):
                self.all_nodes_go_on()

    @rule(name=models)
    def remove_model(self, name: str) -> None:
        self.wanted.pop(name, None)
        self._edit()

    @rule(name=nodes, how=st.sampled_from(["plain", "cordoned", "gone"]))
    def change_node(self, name: str, how: str) -> None:
        self.present.pop(name, None)
        if how != "gone":
            self.present[name] = at(name) if how == "plain" else at(name, cordoned={"reason": "new memory"})
        self._edit()

    @rule(
        kind=st.sampled_from(["cordon", "drain"]),
        what=st.one_of(uuids.map("gpu/{}".format), nodes.map("node/{}".format)),
    )
    def operator_asks(self, kind: Any, what: str) -> None:
        self.desk.ask(kind, what, until=self.desk.now + 50)
        self._plan(0.1)

    @rule(kind=st.sampled_from(["drain", "restart"]), data=st.data())
    def operator_asks_for_a_replica(self, kind: Any, data: st.DataObject) -> None:
        there = self._replicas()
        if there:
            self.desk.ask(kind, f"replica/{data.draw(st.sampled_from(there))}", until=self.desk.now + 50)
        self._plan(0.1)

    # what nodes do

    @rule(uuid=uuids, how=st.sampled_from(["unhealthy", "foreign", "well"]))
    def card_changes(self, uuid: str, how: str) -> None:
        changes = {
            "unhealthy": "XID 79" if how == "unhealthy" else "",
            "users": (stranger(),) if how == "foreign" else (),
        }
        for name, cards in self.desk.cards.items():
            self.desk.cards[name] = tuple(replace(gpu, **changes) if gpu.uuid == uuid else gpu for gpu in cards)
            self._report(name)
        self._plan(0.1)

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

    @rule(name=models)
    def most_nodes_vanish_together(self, name: str) -> None:
        """Let a model run on all nodes, and all but the last of them fall silent until they would be lost."""
        self.present = {each: at(each) for each in NODES}
        self.wanted[name] = {"replicas": 3, "args": []}
        for each in NODES:
            self.hardware[each].away = False
        self._edit()
        for _ in range(4):
            self.all_nodes_go_on()
        for each in NODES[:-1]:
            self.node_falls_silent(each, surviving=True)
        self.time_passes(LOST + 1.0)

    @rule(name=nodes)
    def node_is_back(self, name: str) -> None:
        self.hardware[name].away = False
        self._report(name)
        self._plan(0.1)

    # what gateways, control planes and time do

    @rule(data=st.data(), usage=st.sampled_from(["active", "idle", "unknown"]))
    def usage_changes(self, data: st.DataObject, usage: str) -> None:
        replicas = self._replicas()
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
            all_ports = [one.spec.port + n for one in wanted.shards for n in range(one.spec.ports)]
            assert len(set(all_ports)) == len(all_ports), f"a port of {name} is given twice"
            for key, shard in self.hardware[name].shards.items():
                if key not in ports and not self.hardware[name].away and shard.phase is not Phase.WAITING:
                    known = self.desk.views.get(name)
                    reported = isinstance(known, Reporting) and known.report.shard(key) is not None
                    assert not reported or shard.spec.port not in ports.values(), f"a port of {name} is not free yet"

    @invariant()
    def cards_are_given_once(self) -> None:
        for name, wanted in self.desk.decided.orders.items():
            known = report_of(self.desk.views[name]) if name in self.desk.views else None
            held = {one.spec.shard: one.spec.gpus for one in known.shards} if known is not None else {}
            held |= {one.spec.shard: one.spec.gpus for one in wanted.shards}
            cards = [card for given in held.values() for card in given]
            assert len(set(cards)) == len(cards), f"a card of {name} is given twice: {held}"

    def teardown(self) -> None:
        """Let all faults end: what is wanted must come about, and then there must be nothing left to do.

        First without cards, since what is held for want of a card may rightly be held for ever; then on one card each, if
        there are enough of them to put the new beside the old.
        """
        if not self.present:
            return
        self.present = {name: at(name) for name in self.present}
        for one in self.hardware.values():
            one.away = False
        self.desk.usage = QUIET
        self.desk.acts = ()
        self.desk.cards = dict(CARDS)
        self._converge("cpu")
        free = sum(gpu.name != L40S for name in self.present for gpu in CARDS[NodeName(name)])
        if sum(one["replicas"] for one in self.wanted.values()) <= free:
            self._converge("one")

    def _converge(self, way: str) -> None:
        for name in self.wanted:
            self.wanted[name] = {"replicas": self.wanted[name]["replicas"], "args": [f"mended for {way}"], "way": way}
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
            profile = {"start_timeout": one["start_timeout"]} if "start_timeout" in one else {}
            profile = {**profile, **WAYS[one.get("way", "cpu")]}
            about = {key: one[key] for key in ("aliases", "priority", "preempt") if key in one}
            about["rollout"] = {"min_ready": one.get("min_ready", "0s")}
            about["min_life"] = f"{MIN_LIFE:.0f}s"
            made.append(model(name, one["replicas"], *one["args"], profile=profile, **about))
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
            said = shard_report(shard.spec, phase, reason=reason, draining=shard.draining)
            shards.append(self.desk.aged(said))
        rank = {"epoch": one.order.epoch, "generation": one.order.generation} if one.order else {}
        said = report(name, *shards, sequence=one.sequence, gpus=self.desk.cards[known], **rank)
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
        _starts_are_whole_and_on_free_cards(before, decided)
        _who_gives_way_may(before, decided)
        _holds_say_what_they_wait_for(before, decided)
        _the_brake_holds(before, decided)
        desk.forget_empty()

    def _replicas(self) -> list[ReplicaId]:
        return sorted({shard.spec.replica for one in self.hardware.values() for shard in one.shards.values()})


def _serving_stays(before: Snapshot, decided: Plan) -> None:
    """A wanted model that is served stays served, unless that which serves it has gone by itself or gave way."""
    for name, wanted in before.catalog.models.items():
        if wanted.replicas == 0:
            continue
        published = [one for one in before.previous.table.endpoints if one.id not in decided.preempted]
        had = [one for one in published if one.model == name and _serves(before, one.id)]
        has = [one for one in decided.table.endpoints if one.model == name]
        assert has or not had, f"{name} is served by {[one.id for one in had]} and would not be any more"


def _serves(snapshot: Snapshot, replica: ReplicaId) -> bool:
    """Whether its node says so, and a way to it exists."""
    serving, shards, reached = 0, 1, False
    for view in snapshot.nodes.values():
        if isinstance(view, NeverSeen):
            continue
        said = view.report if isinstance(view, Reporting) else view.last
        for one in said.shards:
            if one.spec.replica == replica:
                serving += one.phase in SERVING
                shards = one.spec.shards
                reached = reached or (one.spec.rank == 0 and one.spec.shard in view.routes)
    return serving == shards and reached


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


def _new_shards(before: Snapshot, decided: Plan) -> list[tuple[NodeName, ShardSpec]]:
    """Return what is ordered and was neither ordered nor reported before."""
    known = {one.spec.shard for order in before.previous.orders.values() for one in order.shards}
    for view in before.nodes.values():
        said = report_of(view)
        known |= {one.spec.shard for one in said.shards} if said is not None else set()
    return [
        (name, one.spec)
        for name, order in decided.orders.items()
        for one in order.shards
        if one.spec.shard not in known
    ]


def _starts_are_whole_and_on_free_cards(before: Snapshot, decided: Plan) -> None:
    """All shards of a replica start or none; only cards that are well, ours alone and not cordoned get something new."""
    started: dict[ReplicaId, list[NodeName]] = {}
    asked = {act.target for act in before.acts if act.holds(before.now)}
    for name, spec in _new_shards(before, decided):
        started.setdefault(spec.replica, []).append(name)
        view = before.nodes[name]
        assert isinstance(view, Reporting), f"{spec.shard} is started on {name}, which does not answer"
        cards = {gpu.uuid: gpu for gpu in view.report.gpus}
        assert not {f"node/{name}", *(f"gpu/{uuid}" for uuid in spec.gpus)} & asked, (
            f"{spec.shard} is on what is cordoned"
        )
        for uuid in spec.gpus:
            assert not cards[uuid].unhealthy, f"{uuid} is unhealthy and gets {spec.shard}"
            assert not cards[uuid].users, f"{uuid} is used by a stranger and gets {spec.shard}"
        wanted = started[spec.replica]
        assert len(set(wanted)) == len(wanted), f"two shards of {spec.replica} are started on {name}"
    for name, spec in _new_shards(before, decided):
        assert len(started[spec.replica]) == spec.shards, (
            f"{spec.replica} is started in part, on {started[spec.replica]}"
        )
        assert name in started[spec.replica]


def _gave_up(before: Snapshot, replica: str) -> bool:
    """Whether it ended too often: then its place is anybody's."""
    return any(
        one.spec.replica == replica and one.phase is Phase.FAILED
        for view in before.nodes.values()
        if isinstance(view, Reporting)
        for one in view.report.shards
    )


def _who_gives_way_may(before: Snapshot, decided: Plan) -> None:
    """Only the less important gives way, after its minimum life, and in use only where the model says so."""
    models_ = before.catalog.models
    for replica, by in decided.preempted.items():
        if replica in before.previous.preempted:
            continue
        if _gave_up(before, replica):
            continue
        name = ModelName(replica.rsplit("-", 2)[0])
        assert models_[name].priority < models_[by].priority, (
            f"{replica} gives way to {by}, which is not more important"
        )
        idle = isinstance(before.usage.of(replica), Idle)
        assert idle or models_[by].preempt, f"{replica} gives way to {by} and is not known to be idle"
        for view in before.nodes.values():
            for one in view.report.shards if isinstance(view, Reporting) else ():
                if one.spec.replica == replica and one.spec.rank == 0:
                    lived = one.age + before.now - view.at
                    assert lived >= MIN_LIFE, f"{replica} gives way {lived} s after it began"


def _holds_say_what_they_wait_for(before: Snapshot, decided: Plan) -> None:
    """Every hold names something, and a model of which too few are ordered has one; what begins to drain is an action."""
    for hold in decided.holds:
        assert hold.what, hold
        assert hold.waits_for, hold
    held = {hold.subject for hold in decided.holds}
    there: dict[ModelName, set[ReplicaId]] = {}
    for action in decided.actions:
        if action.verb is Verb.DRAIN:
            there.setdefault(action.model, set()).add(action.replica)
    for name, view in before.nodes.items():
        said = report_of(view)
        if name in decided.orders:
            shards = [one.spec for one in decided.orders[name].shards if not one.draining]
        else:
            shards = [one.spec for one in said.shards if not one.draining] if said is not None else []
        for spec in shards:
            there.setdefault(spec.model, set()).add(spec.replica)
    for name, model_ in before.catalog.models.items():
        missing = model_.replicas - len(there.get(name, set()))
        assert missing <= 0 or f"model/{name}" in held, f"{missing} of {name} are missing and nothing says why"


def _the_brake_holds(before: Snapshot, decided: Plan) -> None:
    """Where most nodes vanished together, what stands on them counts as there."""
    away = [
        name for name, view in before.nodes.items() if isinstance(view, Unreachable) and name in before.catalog.nodes
    ]
    since = [view.since for name, view in before.nodes.items() if isinstance(view, Unreachable) and name in away]
    if len(away) < 2 or 2 * len(away) < len(before.catalog.nodes) or max(since) - min(since) > LOST:
        return
    phases = {one.spec.replica: one.phase for view in before.nodes.values() for one in _said(view)}
    for name in {spec.model for _, spec in _new_shards(before, decided)}:
        running = {
            one.spec.replica
            for order in decided.orders.values()
            for one in order.shards
            if one.spec.model == name and not one.draining and phases.get(one.spec.replica) is not Phase.FAILED
        }
        most = before.catalog.models[name].replicas + before.catalog.models[name].rollout.max_surge
        assert len(running) <= most, f"{name} is replaced under the brake: {sorted(running)}"


def _said(view: Any) -> Any:
    said = report_of(view)
    return said.shards if said is not None else ()


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
