"""A replica over several nodes: all of its shards start together and end together, whatever part of it ended."""

from dataclasses import replace

import pytest

from llmgw.base.ids import Epoch, NodeName, ReplicaId, shard_id
from llmgw.fleet.report import Ended, Gpu, Phase, Reason, ShardReport
from llmgw.fleet.view import Reporting
from llmgw.plan.check import check
from llmgw.plan.decide import plan
from llmgw.plan.snapshot import Decided
from tests.builders import AT_FIRST, Desk, Object, cluster, facts, model, node, report, routes, shard_report, told, why

GIB = 1 << 30
CLUSTER = cluster(gpu_classes=[{"name": "h100", "match": ["NVIDIA H100*"]}], control={"ports": [20000, 20010]})
PROFILE: Object = {"engine": "vllm", "nodes": 2, "gpu": {"class": "h100", "count": 1}, "pipeline_parallel": 2}
ENDED = Ended(1, "engine_died", "exit status 0: its engine process died", 0.0, ())


class Gangs:
    """A desk of nodes with one card each, and replicas that span two of them."""

    def __init__(self, *names: str) -> None:
        self.wanted = (CLUSTER, *(node(name, fabric="rail") for name in names), model("m", profile=PROFILE))
        self.desk = Desk.of(*self.wanted)
        for name in names:
            self.hear(name)

    def hear(self, name: str, *shards: ShardReport, foreign: tuple[int, ...] = ()) -> None:
        card = Gpu(f"GPU-{name}", 0, "NVIDIA H100 80GB HBM3", 80 * GIB, 0)
        told_now = report(name, *shards, gpus=(card,), facts=facts(foreign_ports=foreign))
        self.desk.views[NodeName(name)] = Reporting(told_now, self.desk.now, routes(name, *shards))

    def obey(self, **spent: int) -> None:
        """Let every node run what it is ordered, and say that so much of it ended there."""
        for name, order in self.desk.decided.orders.items():
            reports = [
                replace(
                    shard_report(one.spec, Phase.DRAINING if one.draining else Phase.READY, draining=one.draining),
                    spent=spent.get(name, -1),
                )
                for one in order.shards
            ]
            self.hear(name, *reports)

    def end(self, name: str, phase: Phase = Phase.BACKOFF, reason: Reason | None = None) -> None:
        """Let the shard on a node end in the incarnation it is ordered in."""
        wanted = self.desk.decided.orders[NodeName(name)].shards[0].spec
        ended = replace(shard_report(wanted, phase, reason=reason), spent=wanted.incarnation, last_end=ENDED)
        self.hear(name, ended)

    def incarnations(self) -> dict[str, int]:
        return {
            f"{name}.{one.spec.rank}": one.spec.incarnation
            for name, order in self.desk.decided.orders.items()
            for one in order.shards
        }

    def serving(self) -> "Gangs":
        self.desk.plan()
        self.obey()
        self.desk.plan()
        return self


def test_both_shards_are_ordered_at_once_with_one_head() -> None:
    gangs = Gangs("a", "b")
    decided = gangs.desk.plan()
    assert told(decided) == ["start m-1-0 @a"]
    head, other = (decided.orders[NodeName(name)].shards[0].spec for name in ("a", "b"))
    assert (head.rank, other.rank, head.gpus, other.gpus) == (0, 1, ("GPU-a",), ("GPU-b",))
    assert (
        head.args[head.args.index("--master-addr") + 1] == "a.test" == other.args[other.args.index("--master-addr") + 1]
    )
    gangs.obey()
    assert told(gangs.desk.plan()) == ["publish m-1-0 @a"]


def test_without_room_for_all_shards_none_starts() -> None:
    gangs = Gangs("a", "b")
    gangs.desk.want(CLUSTER, node("a", fabric="rail"), node("b", fabric="other"), gangs.wanted[-1])
    decided = gangs.desk.plan()
    assert told(decided) == []
    assert gangs.incarnations() == {}


@pytest.mark.parametrize("ended", ["a", "b"])
def test_the_end_of_any_shard_starts_all_of_them_anew_once(ended: str) -> None:
    gangs = Gangs("a", "b").serving()
    gangs.end(ended)
    decided = gangs.desk.plan()
    assert told(decided) == ["restart m-1-0 @a", "withdraw m-1-0 @a"]
    assert why(decided, "restart m-1-0 @a") == (
        f"its shard on {ended} ended (exit status 0: its engine process died); all of them start anew"
    )
    assert gangs.incarnations() == {"a.0": 1, "b.1": 1}
    assert told(gangs.desk.plan()) == [], "the node has not obeyed yet, and is not told twice"
    gangs.obey(**{ended: 0})
    assert told(gangs.desk.plan()) == ["publish m-1-0 @a"]
    assert gangs.incarnations() == {"a.0": 1, "b.1": 1}


def test_two_ends_of_one_incarnation_are_one_restart_and_the_next_end_another() -> None:
    gangs = Gangs("a", "b").serving()
    gangs.end("a")
    gangs.end("b")
    assert "restart m-1-0 @a" in told(gangs.desk.plan())
    assert gangs.incarnations() == {"a.0": 1, "b.1": 1}
    gangs.obey(a=0, b=0)
    gangs.desk.plan()
    gangs.end("b")
    gangs.desk.plan()
    assert gangs.incarnations() == {"a.0": 2, "b.1": 2}


def test_a_shard_that_gave_up_restarts_nothing() -> None:
    gangs = Gangs("a", "b").serving()
    gangs.end("b", Phase.FAILED, Reason("engine_died", "it ended too often"))
    decided = gangs.desk.plan()
    assert "restart m-1-0 @a" not in told(decided)
    assert gangs.incarnations() == {"a.0": 0, "b.1": 0}


def test_what_drains_is_not_started_again() -> None:
    gangs = Gangs("a", "b").serving()
    gangs.desk.want(*gangs.wanted[:-1])
    gangs.desk.plan()
    gangs.end("b")
    decided = gangs.desk.plan()
    assert "restart m-1-0 @a" not in told(decided)
    assert set(gangs.incarnations().values()) <= {0}


def test_a_new_control_plane_goes_on_from_what_the_nodes_say() -> None:
    gangs = Gangs("a", "b").serving()
    gangs.end("b")
    gangs.desk.plan()
    gangs.obey(b=0)
    gangs.desk.plan()
    gangs.end("b")
    gangs.desk.epoch, gangs.desk.decided = Epoch(2), Decided.nothing(Epoch(2))
    gangs.desk.plan()
    assert gangs.incarnations() == {"a.0": 2, "b.1": 2}


def test_shards_found_in_different_incarnations_get_the_newest() -> None:
    """The order of a dead control plane reached only one of the nodes."""
    gangs = Gangs("a", "b").serving()
    order = gangs.desk.decided.orders[NodeName("b")]
    newer = replace(order.shards[0].spec, incarnation=1)
    gangs.hear("b", replace(shard_report(newer), spent=0))
    gangs.desk.epoch, gangs.desk.decided = Epoch(2), Decided.nothing(Epoch(2))
    gangs.desk.plan()
    assert gangs.incarnations() == {"a.0": 1, "b.1": 1}


@pytest.mark.parametrize("drains", [False, True])
def test_a_node_that_speaks_later_of_a_newer_incarnation_makes_it_that_of_all(drains: bool) -> None:
    """The first node has its order from this control plane by then; what drains is left to end as it is."""
    gangs = Gangs("a", "b").serving()
    gangs.desk.epoch, gangs.desk.decided = Epoch(2), Decided.nothing(Epoch(2))
    newer = replace(gangs.desk.views[NodeName("b")].report.shards[0].spec, incarnation=1)
    gangs.desk.views.pop(NodeName("b"))
    gangs.desk.plan()
    assert gangs.incarnations() == {"a.0": 0}
    if drains:
        gangs.desk.want(*gangs.wanted[:-1])
        gangs.desk.plan()
    gangs.hear("b", replace(shard_report(newer, Phase.STARTING), spent=0))
    gangs.desk.plan()
    assert gangs.incarnations() == {"a.0": 0 if drains else 1, "b.1": 1}


def test_another_port_of_one_shard_is_a_new_start_of_all() -> None:
    """The others are told the head's port in their arguments."""
    gangs = Gangs("a", "b")
    gangs.desk.plan()
    gangs.obey()
    head = gangs.desk.decided.orders[NodeName("a")].shards[0].spec
    taken = shard_report(head, Phase.WAITING, reason=Reason("port_taken", "port 20000 is taken by pid 7"))
    gangs.hear("a", taken, foreign=(20000,))
    decided = gangs.desk.plan()
    assert "move port m-1-0 @a" in told(decided)
    assert gangs.incarnations() == {"a.0": 1, "b.1": 1}
    moved, other = (decided.orders[NodeName(name)].shards[0].spec for name in ("a", "b"))
    assert moved.port != head.port
    assert str(moved.port + 1) in other.args


def test_two_shards_whose_ports_are_taken_at_once_both_move() -> None:
    gangs = Gangs("a", "b")
    gangs.desk.plan()
    gangs.obey()
    before = {name: gangs.desk.decided.orders[NodeName(name)].shards[0].spec for name in ("a", "b")}
    for name, spec in before.items():
        taken = shard_report(spec, Phase.WAITING, reason=Reason("port_taken", f"port {spec.port} is taken by pid 7"))
        gangs.hear(name, taken, foreign=(spec.port,))
    decided = gangs.desk.plan()
    for name, spec in before.items():
        assert decided.orders[NodeName(name)].shards[0].spec.port != spec.port


def test_the_check_sees_shards_in_different_incarnations() -> None:
    gangs = Gangs("a", "b")
    snapshot = gangs.desk.snapshot()
    decided = plan(snapshot)
    order = decided.orders[NodeName("b")]
    (one,) = order.shards
    torn = replace(order, shards=(replace(one, spec=replace(one.spec, incarnation=1)),))
    broken = check(replace(decided, orders={**decided.orders, NodeName("b"): torn}), snapshot)
    assert broken == ("shards of m-1-0 are ordered in different incarnations",)
    assert gangs.desk.now == AT_FIRST
    assert one.spec.shard == shard_id(ReplicaId("m-1-0"), 1)
