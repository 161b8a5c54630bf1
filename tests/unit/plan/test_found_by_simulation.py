"""Faults of the planner and its checker that the simulation found, each as the smallest case."""

from llmgw.fleet.report import Phase
from tests.builders import Desk, cluster, model, node, told
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
