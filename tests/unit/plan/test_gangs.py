"""Replicas that span nodes: the same class on distinct nodes of one fabric, all shards or none, all their lives."""

from llmgw.base.ids import NodeName
from llmgw.fleet.report import Phase
from llmgw.fleet.view import NeverSeen
from tests.builders import Desk, cluster, held, model, node, on, ordered, published, told, why
from tests.cards import CLASSES, L40S, gpus, on_cards, stranger

CLUSTER = cluster(gpu_classes=CLASSES, control={"unreachable_after": "30s", "lost_after": "300s"})


def gang(nodes: int = 2, count: int = 8, name: str = "g", replicas: int = 1, **fields):
    return model(name, replicas, profile=on_cards(count, nodes=nodes), **fields)


def on_fabric(*names: str, fabric: str = "ib"):
    return [node(name, fabric=fabric) for name in names]


def desk_of(*objects, cards=None, **fields) -> Desk:
    names = [each["name"] for each in objects if each["kind"] == "Node"]
    return Desk.of(CLUSTER, *objects, cards={**{NodeName(n): gpus(n) for n in names}, **(cards or {})}, **fields)


def test_each_shard_gets_a_node_of_its_own_with_the_cards_and_ports_it_needs() -> None:
    desk = desk_of(*on_fabric("a", "b", "c"), gang())
    decided = desk.plan()
    assert told(decided) == ["start g-1-0 @a"]
    assert why(decided, "start g-1-0 @a") == "1 wanted, 0 there; 2 nodes of one fabric: a, b"
    assert on(decided, "g-1-0") == {"a": tuple("01234567"), "b": tuple("01234567")}
    specs = [decided.orders[name].shards[0].spec for name in ("a", "b")]
    assert [(one.shard, one.rank, one.shards, one.port, one.ports) for one in specs] == [
        ("g-1-0.s0", 0, 2, 20000, 3),
        ("g-1-0.s1", 1, 2, 20000, 3),
    ]


def test_all_nodes_are_on_one_fabric() -> None:
    desk = desk_of(*on_fabric("a"), *on_fabric("b", fabric="eth"), node("c"), gang())
    assert held(desk.plan())["model/g: start replica 1 of 1"] == (
        "room: a: 1 of the 2 nodes it needs have room on fabric ib; "
        "b: 1 of the 2 nodes it needs have room on fabric eth; "
        "c: is on no fabric, which a replica over several nodes needs"
    )


def test_all_nodes_have_cards_of_one_class() -> None:
    desk = desk_of(*on_fabric("a", "b"), gang(), cards={"b": gpus("b", 8, L40S)})
    assert held(desk.plan())["model/g: start replica 1 of 1"] == (
        "room: a: 1 of the 2 nodes it needs have room on fabric ib; b: has no h100 (has 8 l40s)"
    )


def test_the_fabric_with_the_fewest_nodes_that_would_do_is_taken() -> None:
    desk = desk_of(*on_fabric("a", "b", "c"), *on_fabric("x", "y", fabric="small"), gang())
    assert sorted(on(desk.plan(), "g-1-0")) == ["x", "y"]


def test_nodes_that_are_wholly_free_come_first() -> None:
    desk = desk_of(*on_fabric("a", "b", "c", "d"), gang(count=4))
    desk.card("GPU-a-7", users=(stranger(),))
    desk.card("GPU-b-7", users=(stranger(),))
    assert sorted(on(desk.plan(), "g-1-0")) == ["c", "d"]


def test_two_gangs_do_not_get_half_a_place_each() -> None:
    desk = desk_of(*on_fabric("a", "b", "c"), gang(replicas=2))
    decided = desk.plan()
    assert told(decided) == ["start g-1-0 @a"]
    assert held(decided)["model/g: start replica 2 of 2"] == (
        "room: a, b: 0 of 8 h100 free, needs 8; 8 in use; c: 1 of the 2 nodes it needs have room on fabric ib"
    )


def test_it_serves_when_all_its_shards_do() -> None:
    desk = desk_of(*on_fabric("a", "b"), gang())
    desk.plan()
    desk.obey(Phase.STARTING)
    desk.phase("g-1-0", Phase.READY)
    assert published(desk.plan()) == []
    desk.phase("g-1-0", Phase.READY, rank=1)
    assert published(desk.plan()) == ["g-1-0"]


def test_all_its_shards_drain_and_stop_together() -> None:
    desk = desk_of(*on_fabric("a", "b"), gang())
    desk.settle()
    desk.want(CLUSTER, *on_fabric("a", "b"), gang(replicas=0))
    assert ordered(desk.plan()) == {"a": ["~g-1-0"], "b": ["~g-1-0"]}
    desk.obey()
    assert ordered(desk.plan()) == {"a": [], "b": []}


def test_a_part_that_failed_fails_the_replica_which_is_tried_on_other_nodes() -> None:
    names = ("a", "b", "c", "d")
    desk = desk_of(*on_fabric(*names), gang())
    desk.settle()
    desk.phase("g-1-0", Phase.FAILED, rank=1)
    decided = desk.plan()
    assert "start g-1-1 @c" in told(decided)
    assert sorted(on(decided, "g-1-1")) == ["c", "d"]
    assert published(decided) == []


def test_one_lost_node_loses_the_replica() -> None:
    desk = desk_of(*on_fabric("a", "b", "c", "d", "e"), gang())
    desk.settle()
    desk.lose("b")
    assert told(desk.plan(299.0)) == []
    decided = desk.plan(2.0)
    assert "start g-1-1 @c" in told(decided)
    assert why(decided, "start g-1-1 @c").startswith("g-1-0 is on node b, which does not answer any more;")


def test_a_part_that_vanished_makes_the_replica_outdated_and_it_ends() -> None:
    """A fresh control plane finds one shard of two: the other node was set up anew and holds nothing."""
    desk = desk_of(*on_fabric("a", "b", "c", "d"), gang())
    desk.settle()
    desk.take_over()
    desk.hear("b")
    decided = desk.plan()
    assert on(decided, "g-2-0") == {"b": tuple("01234567"), "c": tuple("01234567")}
    assert "drain g-1-0 @a" in told(decided)
    assert why(decided, "drain g-1-0 @a") == "1 of its 2 shards is gone and it does not serve"
    desk.obey()
    desk.settle()
    assert ordered(desk.plan()) == {"a": [], "b": ["g-2-0"], "c": ["g-2-0"], "d": []}


def test_a_part_may_run_on_a_node_that_has_not_spoken_yet_until_that_counts_as_lost() -> None:
    desk = desk_of(*on_fabric("a", "b", "c", "d"), gang())
    desk.settle()
    desk.take_over()
    desk.views[NodeName("b")] = NeverSeen(desk.now)
    assert told(desk.plan(299.0)) == []
    assert told(desk.plan(2.0)) == ["start g-2-0 @c", "drain g-1-0 @a"]


def test_a_part_whose_node_does_not_answer_is_not_taken_for_vanished() -> None:
    desk = desk_of(*on_fabric("a", "b", "c", "d"), gang())
    desk.settle()
    desk.lose("b", surviving=True)
    desk.take_over()
    assert told(desk.plan()) in ([], ["publish g-1-0 @a"])


def test_a_condemned_card_of_one_part_moves_the_whole_replica() -> None:
    desk = desk_of(*on_fabric("a", "b", "c", "d"), gang())
    desk.settle()
    desk.card("GPU-b-3", unhealthy="XID 79")
    assert told(desk.plan()) == ["start g-1-1 @c"]
    desk.obey()
    desk.settle()
    assert ordered(desk.plan()) == {"a": [], "b": [], "c": ["g-1-1"], "d": ["g-1-1"]}


def test_a_head_without_ports_in_a_row_is_no_place() -> None:
    cramped = cluster(gpu_classes=CLASSES, control={"ports": [20000, 20002]})
    cards = {NodeName(name): gpus(name) for name in ("a", "b")}
    desk = Desk.of(cramped, *on_fabric("a", "b"), gang(count=4, replicas=2), cards=cards)
    assert held(desk.plan())["model/g: start replica 2 of 2"] == (
        "room: a, b: no 3 free ports in a row in 20000-20002 (control.ports)"
    )
