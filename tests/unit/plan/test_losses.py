"""Nodes that do not answer: kept, then replaced elsewhere, and reconciled when they are back; and the brake."""

from llmgw.base.ids import NodeName
from llmgw.fleet.usage import Active
from llmgw.fleet.view import NeverSeen
from tests.builders import Desk, cluster, held, model, node, ordered, published, told, why
from tests.cards import CLASSES, gpus, on_cards

CLUSTER = cluster(
    gpu_classes=CLASSES,
    control={"unreachable_after": "30s", "lost_after": "300s", "brake": {"min_nodes": 2}},
)
NODES = [node(name) for name in ("a", "b", "c", "d", "e")]


def serving(*models, nodes=NODES) -> Desk:
    desk = Desk.of(CLUSTER, *nodes, *models, cards={NodeName(each["name"]): gpus(each["name"], 1) for each in nodes})
    desk.settle()
    return desk


def one(name: str = "m", replicas: int = 1):
    return model(name, replicas, profile=on_cards(1))


def test_nothing_is_replaced_before_lost_after_and_everything_at_it() -> None:
    desk = serving(one())
    desk.lose("a")
    assert told(desk.plan(299.0)) == ["withdraw m-1-0 @a"]
    decided = desk.plan(1.0)
    assert told(decided) == ["start m-1-1 @b"]
    assert why(decided, "start m-1-1 @b").startswith("m-1-0 is on node a, which does not answer any more; ")


def test_what_is_lost_keeps_its_claims() -> None:
    desk = serving(one(replicas=2), nodes=NODES[:3])
    desk.lose("a")
    desk.plan(300.0)
    desk.obey()
    assert ordered(desk.plan()) == {"a": ["m-1-0"], "b": ["m-1-1"], "c": ["m-1-2"]}


def test_an_endpoint_that_still_works_stays_published_and_is_replaced_all_the_same() -> None:
    desk = serving(one())
    desk.lose("a", surviving=True)
    decided = desk.plan(300.0)
    assert told(decided) == ["start m-1-1 @b"]
    assert published(decided) == ["m-1-0"]
    desk.obey()
    assert published(desk.plan()) == ["m-1-0", "m-1-1"]


def test_back_before_it_is_lost_nothing_happens() -> None:
    desk = serving(one())
    desk.lose("a", surviving=True)
    desk.plan(200.0)
    desk.regain("a")
    assert told(desk.plan(200.0)) == []


def test_back_again_the_better_one_stays_the_one_that_serves() -> None:
    desk = serving(one())
    desk.lose("a")
    desk.plan(300.0)
    desk.obey()
    desk.hear("b")  # the replacement has not begun yet
    desk.regain("a")
    decided = desk.plan()
    assert "drain m-1-1 @b" in told(decided)
    assert published(decided) == ["m-1-0"]


def test_back_again_of_two_that_serve_the_one_in_use_stays() -> None:
    desk = serving(one())
    desk.lose("a")
    desk.plan(300.0)
    desk.obey()
    desk.plan()
    desk.regain("a")
    desk.use("m-1-1", Active(3))
    decided = desk.plan()
    assert "drain m-1-0 @a" in told(decided)
    assert why(decided, "drain m-1-0 @a") == "1 wanted, 2 there"


def test_a_node_that_was_lost_with_an_outdated_replica_gives_it_up_when_back() -> None:
    desk = serving(one())
    desk.lose("a")
    desk.plan(300.0)
    desk.obey()
    desk.want(CLUSTER, *NODES, model("m", 1, "new", profile=on_cards(1)))
    desk.settle()
    desk.regain("a")
    desk.settle()
    desk.settle()
    assert ordered(desk.plan())["a"] == []


# the brake


def lose_three(desk: Desk) -> None:
    for name in ("a", "b", "c"):
        desk.lose(name, surviving=True)


def test_many_that_vanish_together_are_our_own_network_and_that_is_an_alarm() -> None:
    desk = serving(one(replicas=2))
    lose_three(desk)
    decided = desk.plan(400.0)
    assert told(decided) == []
    assert published(decided) == ["m-1-0", "m-1-1"]
    assert decided.alarms == (
        "3 of 5 nodes have not answered for up to 6m (a, b, c); so many at once are more likely our own network, so "
        "nothing of theirs is replaced (control.brake)",
    )


def test_fewer_than_the_share_are_replaced() -> None:
    desk = serving(one(replicas=2))
    for name in ("a", "b"):
        desk.lose(name)
    decided = desk.plan(400.0)
    assert [line for line in told(decided) if line.startswith("start")] == ["start m-1-2 @c", "start m-1-3 @d"]
    assert decided.alarms == ()


def test_a_single_node_is_never_braked_however_small_the_fleet() -> None:
    desk = serving(one(), nodes=NODES[:2])
    desk.lose("a")
    assert "start m-1-1 @b" in told(desk.plan(300.0))


def test_nodes_that_vanish_one_by_one_over_hours_are_not_together() -> None:
    desk = serving(one(), nodes=NODES)
    for name in ("c", "d", "a"):
        desk.lose(name)
        decided = desk.plan(1000.0)
    assert decided.alarms == ()
    assert ordered(decided)["b"] == ["m-1-1"]


def test_the_brake_is_released_when_enough_are_back_and_the_rest_gets_its_time_to_follow() -> None:
    desk = serving(one(replicas=2))
    lose_three(desk)
    assert desk.plan(400.0).alarms
    desk.regain("b")
    desk.regain("c")
    assert told(desk.plan(299.0)) == []
    decided = desk.plan(1.0)
    assert decided.alarms == ()
    assert told(decided) == ["start m-1-2 @c"]


def test_what_is_new_is_still_started_under_the_brake() -> None:
    desk = serving(one())
    lose_three(desk)
    desk.plan(400.0)
    desk.want(CLUSTER, *NODES, one(), one("n"))
    assert told(desk.plan()) == ["start n-1-0 @d"]


def test_a_node_that_never_spoke_is_neither_lost_nor_counted() -> None:
    desk = serving(one())
    desk.views[NodeName("d")] = NeverSeen(desk.now)
    desk.views[NodeName("e")] = NeverSeen(desk.now)
    desk.lose("a")
    decided = desk.plan(400.0)
    assert "start m-1-1 @b" in told(decided)
    assert held(decided) == {}


def begun_afresh(desk: Desk, *silent: str) -> Desk:
    """Let another control plane begin, which knows that all nodes had engines, and hears nothing of these."""
    desk.take_over()
    desk.held = frozenset(desk.catalog.nodes)
    desk.views |= {NodeName(name): NeverSeen(desk.now, "no route to host") for name in silent}
    return desk


def test_a_fresh_control_plane_waits_for_a_node_that_had_engines_as_long_as_for_any_other() -> None:
    desk = begun_afresh(serving(one()), "a")
    assert held(desk.plan(299.0)) == {"model/m: start": "the first word of a, which may run it already"}
    assert told(desk.plan(2.0)) == ["start m-2-0 @b"]


def test_a_fresh_control_plane_that_hears_little_replaces_nothing() -> None:
    desk = begun_afresh(serving(one(replicas=3)), "a", "b", "c")
    for _ in range(3):
        decided = desk.plan(600.0)
        assert told(decided) == []
    assert "the first word of a, b, c" in held(decided)["model/m: start"]
    assert "3 of 5 nodes have not answered" in decided.alarms[0]
    desk.held = frozenset()
    assert "start m-2-0 @d" in told(desk.plan()), "nodes that never had anything hold up nothing"
