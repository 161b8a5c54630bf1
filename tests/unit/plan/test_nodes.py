"""Nodes that are cordoned, leave, fall silent, come back or have never spoken; and a control plane that begins afresh."""

from llmgw.base.ids import Epoch
from llmgw.base.time import Instant
from llmgw.fleet.report import Phase
from llmgw.fleet.usage import Active
from llmgw.fleet.view import NeverSeen
from llmgw.plan.snapshot import TABLES_PER_EPOCH, Decided
from tests.builders import (
    Desk,
    Object,
    cluster,
    cordoned,
    held,
    model,
    node,
    ordered,
    published,
    shard_report,
    spec_of,
    told,
    why,
)

A, B = node("a"), node("b")


def serving(*objects: Object) -> Desk:
    desk = Desk.of(*objects)
    desk.settle()
    return desk


def test_a_cordoned_node_gives_up_what_it_has_one_by_one_replacement_first() -> None:
    desk = serving(A, B, model("m", 2), model("n", 2))
    desk.want(cordoned("a"), B, model("m", 2), model("n", 2))
    for _ in range(40):
        decided = desk.plan()
        desk.obey()
        for name in "mn":
            assert sum(one.model == name for one in decided.table.endpoints) >= 2
        if not decided.actions:
            break
    assert ordered(decided) == {"a": [], "b": ["m-1-1", "m-1-2", "n-1-0", "n-1-2"]}


def test_without_room_elsewhere_a_cordoned_node_keeps_the_last_one_and_the_hold_says_why() -> None:
    desk = serving(A, model("m"))
    desk.want(cordoned("a"), model("m"))
    decided = desk.settle()
    assert published(decided) == ["m-1-0"]
    assert held(decided) == {
        "model/m: start replica 1 of 1": "room: a: cordoned (new memory)",
        "replica/m-1-0: drain (outdated)": "1 more to serve first",
    }


def test_a_cordon_that_is_lifted_stops_the_move() -> None:
    desk = serving(A, B, model("m"))
    desk.want(cordoned("a"), B, model("m"))
    assert told(desk.plan()) == ["start m-1-1 @b"]
    desk.obey(Phase.STARTING)
    desk.want(A, B, model("m"))
    assert told(desk.plan()) == ["drain m-1-1 @b"]
    desk.obey()
    assert ordered(desk.settle()) == {"a": ["m-1-0"], "b": []}


def test_a_node_that_left_the_catalog_is_replaced_first_and_then_emptied() -> None:
    desk = serving(A, B, model("m"))
    desk.want(B, model("m"))
    decided = desk.plan()
    assert told(decided) == ["start m-1-1 @b"]
    assert ordered(decided)["a"] == ["m-1-0"]
    desk.obey()
    assert told(desk.plan()) == ["drain m-1-0 @a", "publish m-1-1 @b", "withdraw m-1-0 @a"]
    desk.obey()
    decided = desk.settle()
    assert ordered(decided) == {"a": [], "b": ["m-1-1"]}
    desk.forget_empty()
    assert list(desk.plan().orders) == ["b"]


def test_the_last_node_that_left_keeps_serving_for_want_of_another() -> None:
    desk = serving(A, model("m"))
    desk.want(model("m"))
    assert published(desk.settle()) == ["m-1-0"]


def test_an_unreachable_node_keeps_its_claims_and_is_not_replaced_before_it_is_lost() -> None:
    desk = serving(A, B, model("m"))
    desk.lose("a")
    for _ in range(3):
        decided = desk.plan(90.0)
        assert [line for line in told(decided) if not line.startswith("withdraw")] == []
    assert published(decided) == []
    assert ordered(decided) == {"a": ["m-1-0"], "b": []}
    desk.regain("a")
    assert told(desk.plan()) == ["publish m-1-0 @a"]


def test_an_endpoint_of_an_unreachable_node_stays_while_its_route_survives() -> None:
    desk = serving(node("a", local=True), B, model("m"))
    desk.lose("a", surviving=True)
    decided = desk.plan()
    assert told(decided) == []
    assert published(decided) == ["m-1-0"]


def test_an_endpoint_whose_route_broke_with_the_node_is_withdrawn_and_says_why() -> None:
    desk = serving(A, B, model("m"))
    desk.lose("a")
    decided = desk.plan()
    assert told(decided) == ["withdraw m-1-0 @a"]
    assert why(decided, "withdraw m-1-0 @a") == "there is no way to it now"


def test_orders_for_an_unreachable_node_are_kept_and_changed_for_its_return() -> None:
    desk = serving(A, B, model("m"))
    desk.lose("a")
    desk.plan()
    desk.want(A, B)
    decided = desk.plan()
    assert ordered(decided)["a"] == ["~m-1-0"]
    desk.regain("a")
    desk.obey()
    assert ordered(desk.settle()) == {"a": [], "b": []}


def test_there_is_no_order_for_a_node_that_never_spoke() -> None:
    desk = Desk.of(A, B, model("m"))
    desk.views["b"] = NeverSeen(desk.now)
    decided = desk.plan()
    assert list(decided.orders) == ["a"]


def test_starts_wait_for_the_first_word_of_every_node_but_not_longer_than_unreachable_after() -> None:
    quick = cluster(control={"unreachable_after": "10s"})
    desk = Desk.of(quick, A, B, model("m"), started=Instant(1000.0))
    desk.views["b"] = NeverSeen(desk.now)
    decided = desk.plan(9.0)
    assert told(decided) == []
    assert held(decided) == {"model/m: start": "the first word of b, which may run it already"}
    assert not decided.settled
    decided = desk.plan(1.0)
    assert told(decided) == ["start m-1-0 @a"]
    assert decided.settled


def test_many_silent_nodes_are_named_by_the_first_three() -> None:
    desk = Desk.of(*(node(name) for name in "abcde"), model("m"), started=Instant(1000.0))
    desk.views = {name: NeverSeen(desk.now) for name in desk.views}
    assert held(desk.plan()) == {"model/m: start": "the first word of a, b, c …, which may run it already"}


def test_waiting_for_a_silent_node_does_not_stop_drains() -> None:
    desk = serving(A, B, model("m"))
    desk.started = desk.now
    desk.want(A, B, node("c"))
    assert told(desk.plan()) == ["drain m-1-0 @a", "withdraw m-1-0 @a"]
    desk.obey()
    assert told(desk.plan()) == ["stop m-1-0 @a"]


def fresh(desk: Desk) -> Desk:
    """Let another control plane begin at this desk, with a higher epoch and no memory."""
    desk.epoch = Epoch(desk.epoch + 1)
    desk.decided = Decided.nothing(desk.epoch)
    desk.started = desk.now
    return desk


def test_a_fresh_control_plane_adopts_all_that_runs_and_does_nothing_but_publish_it() -> None:
    desk = fresh(serving(A, B, model("m", 3), model("n")))
    decided = desk.plan()
    assert told(decided) == ["publish m-1-0 @a", "publish m-1-1 @b", "publish m-1-2 @a", "publish n-1-0 @b"]
    assert ordered(decided) == {"a": ["m-1-0", "m-1-2"], "b": ["m-1-1", "n-1-0"]}
    assert {wanted.rank for wanted in decided.orders.values()} == {(2, 1)}
    assert decided.table.version == 2 * TABLES_PER_EPOCH + 1
    assert desk.plan().actions == ()


def test_a_fresh_control_plane_publishes_what_it_hears_before_it_has_heard_all() -> None:
    desk = fresh(serving(A, B, model("m", 2)))
    silent = desk.views["b"]
    desk.views["b"] = NeverSeen(desk.now)
    decided = desk.plan()
    assert told(decided) == ["publish m-1-0 @a"]
    assert held(decided) == {"model/m: start": "the first word of b, which may run it already"}
    desk.views["b"] = silent
    assert told(desk.plan()) == ["publish m-1-1 @b"]


def test_a_fresh_control_plane_goes_on_with_a_drain_it_finds() -> None:
    desk = serving(A, B, model("m", 2))
    desk.use("m-1-0", Active(1))
    desk.use("m-1-1", Active(1))
    desk.want(A, B, model("m", 1))
    desk.plan()
    desk.obey()
    fresh(desk)
    decided = desk.plan()
    assert told(decided) == ["publish m-1-0 @a"]
    assert ordered(decided) == {"a": ["m-1-0"], "b": ["~m-1-1"]}
    assert decided.draining == {"m-1-1": desk.now}, "it cannot know since when"


def test_a_fresh_control_plane_leaves_what_already_stops_to_end() -> None:
    desk = serving(A, B, model("m"))
    fresh(desk).phase("m-1-0", Phase.STOPPING)
    desk.want(A, B)
    decided = desk.plan()
    assert (told(decided), ordered(decided)) == ([], {"a": [], "b": []})


def test_an_upgrade_that_writes_command_lines_differently_restarts_nothing() -> None:
    desk = fresh(serving(A, model("m")))
    name, known = desk.shard("m-1-0")
    old = known.spec.__class__(
        **{field: getattr(known.spec, field) for field in known.spec.__slots__} | {"args": ("--old-style",)}
    )
    desk.hear(name, shard_report(old))
    decided = desk.plan()
    assert told(decided) == ["publish m-1-0 @a"]
    assert decided.orders["a"].shards[0].spec == spec_of(desk.catalog, "m", 0)


def test_a_node_whose_traffic_becomes_direct_gets_engines_that_listen_there_new_before_old() -> None:
    desk = serving(A, model("m"))
    assert desk.shard("m-1-0")[1].spec.host == "127.0.0.1"
    desk.want(node("a", traffic="direct", address="10.0.0.7"), model("m"))
    decided = desk.plan()
    assert told(decided) == ["start m-1-1 @a"]
    assert decided.orders["a"].shards[0].spec.host == "127.0.0.1", "the one that serves is left as it is"
    desk.obey()
    desk.settle()
    assert desk.shard("m-1-1")[1].spec.host == "10.0.0.7"
    drained = next(one.why for one in desk.actions if one.verb == "drain")
    assert drained.startswith("it listens on 127.0.0.1, and the traffic of node a goes to 10.0.0.7")
