"""Faults of the planner and its checker that the simulation found, each as the smallest case."""

from dataclasses import replace

from llmgw.base.ids import NodeName, ReplicaId
from llmgw.fleet.report import Phase
from llmgw.fleet.usage import Active, Unknown, UsageView
from llmgw.plan.work import Work
from tests.builders import Desk, cluster, model, node, shard_report, told
from tests.unit.cli.fleets import CLASSES, cards

CLUSTER = cluster(gpu_classes=CLASSES)


def fabric(*names: str) -> list[dict]:
    return [node(name, fabric="ib") for name in names]


def gang(name: str, *args: str, **fields) -> dict:
    profile = {"engine": "vllm", "gpu": {"class": "h100", "count": 1}, "nodes": 2}
    return model(name, 1, *args, profile={**profile, "tensor_parallel": 1, "pipeline_parallel": 2}, **fields)


def one_card(name: str, replicas: int = 1, **fields) -> dict:
    return model(name, replicas, profile={"gpu": {"class": "h100", "count": 1}}, min_life="0s", **fields)


def desk_of(machines: dict[str, int], *objects: dict) -> Desk:
    desk = Desk.of(CLUSTER, *fabric(*machines), *objects)
    for name, count in machines.items():
        desk.cards[name] = cards(name, count)
        desk.hear(name)
    return desk


def test_a_node_with_room_is_one_place_of_a_gang_and_nothing_gives_way_for_a_second_one_there() -> None:
    desk = desk_of({"a": 1, "b": 1}, one_card("peer", 2, priority=5))
    desk.settle()
    desk.want(CLUSTER, *fabric("a", "b"), one_card("peer", 1, priority=5), one_card("low"))
    desk.settle()
    assert desk.shard("peer-1-0")[0] == "a"
    desk.cards["b"] = cards("b", 2)
    desk.hear("b", *desk.views["b"].report.shards)
    desk.want(
        CLUSTER,
        *fabric("a", "b"),
        one_card("peer", 1, priority=5),
        one_card("low"),
        gang("big", priority=5, preempt=True),
    )
    assert told(desk.plan()) == []


def test_a_gang_of_which_a_shard_is_down_does_not_count_as_the_last_one_that_serves() -> None:
    desk = desk_of({"a": 1, "b": 1}, gang("big"))
    desk.settle()
    desk.phase("big-1-0", Phase.BACKOFF, rank=1)
    desk.want(CLUSTER, *fabric("a", "b"), gang("big", "--new"))
    decided = desk.plan()
    assert "drain big-1-0 @a" in told(decided)


def test_the_id_of_what_was_ordered_and_taken_back_on_a_node_that_went_silent_is_not_given_again() -> None:
    desk = Desk.of(CLUSTER, node("a"), node("b"), model("m"))
    assert told(desk.plan()) == ["start m-1-0 @a"]
    desk.lose("a")
    desk.want(CLUSTER, node("a"), node("b"))
    assert told(desk.plan()) == ["drain m-1-0 @a"]
    assert told(desk.plan()) == ["stop m-1-0 @a"]
    desk.want(CLUSTER, node("a"), node("b"), model("m"))
    assert told(desk.plan()) == ["start m-1-1 @b"], "nobody knows whether m-1-0 runs on a"
    desk.obey()
    desk.hear("a")
    desk.want(CLUSTER, node("a"), node("b"), model("m", 2))
    assert "start m-1-0 @a" in told(desk.plan()), "a has obeyed, so that m-1-0 is known to be gone"


def test_a_card_of_what_was_ordered_and_taken_back_is_not_given_before_the_node_obeyed() -> None:
    desk = desk_of({"a": 1}, one_card("m"))
    assert told(desk.plan()) == ["start m-1-0 @a"]
    before = desk.views[NodeName("a")]
    desk.want(CLUSTER, *fabric("a"), one_card("other"))
    assert told(desk.plan()) == ["drain m-1-0 @a"]
    assert told(desk.plan()) == ["stop m-1-0 @a"]
    desk.views[NodeName("a")] = before
    assert told(desk.plan()) == [], "its newest word is older than the order without m-1-0"
    desk.hear("a")
    assert told(desk.plan()) == ["start other-1-0 @a"]


def test_an_engine_that_shows_up_on_a_card_given_to_another_meanwhile_breaks_no_rule() -> None:
    desk = desk_of({"a": 1}, one_card("m"))
    desk.plan()
    wanted = desk.decided.orders[NodeName("a")].shards[0].spec
    stray = shard_report(replace(wanted, shard="m-0-7.s0", replica="m-0-7", port=20005), Phase.STOPPING)
    desk.hear("a", shard_report(wanted, Phase.WAITING), stray)
    assert told(desk.plan()) == []
    assert [one.spec.shard for one in desk.decided.orders[NodeName("a")].shards] == ["m-1-0.s0"]
    desk.want(CLUSTER, *fabric("a"), one_card("m"), one_card("other"))
    assert told(desk.plan()) == []
    work = Work(desk.snapshot())
    free = work.ledger.machines[NodeName("a")].free_of
    for replica, left in (("m-1-0", 0), ("m-0-7", 1)):
        work.set_free([work.replicas[ReplicaId(replica)]])
        assert free("h100") == left, "it is free when neither of the two claims it"


def test_an_engine_that_died_is_not_stopped_before_every_gateway_has_forgotten_it() -> None:
    """Its agent may start it again before it hears of the stop, and a gateway by an older table would send requests there."""
    desk = Desk.of(node("a"), node("b"), model("m", 1))
    desk.settle()
    desk.want(node("a"), node("b"), model("m", 1, "--new"))
    desk.plan()
    desk.obey(Phase.READY)
    desk.phase("m-1-0", Phase.BACKOFF)
    desk.usage = UsageView({}, Unknown("gateway worker 7 goes by an older table"))
    desk.plan()
    behind = desk.plan()
    assert not any(line.startswith("stop") for line in told(behind))
    desk.obey()
    desk.usage = UsageView({}, Unknown("not used since the gateway started", quiet=True), current=True)
    assert any(line.startswith("stop m-1-0") for line in told(desk.plan()))


def test_a_drain_is_timed_from_when_the_gateways_of_this_leader_have_dropped_the_replica() -> None:
    """Until all nodes have spoken they go by a table of the leader before, in which it may be."""
    limits = cluster(router={"timeouts": {"drain": "10s"}})
    desk = Desk.of(limits, node("a"), node("b"), model("m", 1))
    desk.settle()
    desk.want(limits, node("a"), node("b"))
    desk.plan()
    desk.obey()
    silent = next(name for name in ("a", "b") if "m-1-0" not in str(desk.views[NodeName(name)]))
    kept = desk.views.pop(NodeName(silent))
    desk.take_over()
    desk.usage = UsageView({ReplicaId("m-1-0"): Active(2)}, Unknown("not used", quiet=True), current=True)
    for _ in range(15):
        assert told(desk.plan()) == []
    desk.views[NodeName(silent)] = kept
    for _ in range(10):
        assert told(desk.plan()) == []
    assert [line.partition(" @")[0] for line in told(desk.plan())] == ["stop m-1-0"]
