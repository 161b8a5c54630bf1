"""What operators may say of a rollout: strategy, surge, what may be missing, how long to wait; and what fails."""

from llmgw.fleet.report import Phase, Reason
from tests.builders import Desk, cluster, held, model, node, ordered, published, told, why
from tests.cards import CLASSES

CLUSTER = cluster(gpu_classes=CLASSES)
A, B, C, D = (node(name) for name in "abcd")
FULL = {"cpus": 8}
"""Takes a node for itself."""


def m(*args: str, replicas: int = 1, profile=None, **rollout):
    return model("m", replicas, *args, profile=profile, rollout=rollout)


def serving(*objects) -> Desk:
    desk = Desk.of(*objects)
    desk.settle()
    return desk


def test_surge_waits_for_room_rather_than_lower_what_serves() -> None:
    desk = serving(A, B, m(replicas=2, profile=FULL, strategy="surge"))
    desk.want(A, B, m("new", replicas=2, profile=FULL, strategy="surge"))
    decided = desk.plan()
    assert told(decided) == []
    assert held(decided)["model/m: start replica 1 of 2"] == (
        "room: a, b: 0 of 8 cpus free, needs 8; or for `strategy: recreate`, which stops the old one first"
    )


def test_auto_lets_one_give_way_where_there_is_no_room() -> None:
    desk = serving(A, B, m(replicas=2, profile=FULL))
    desk.want(A, B, m("new", replicas=2, profile=FULL))
    decided = desk.plan()
    assert told(decided) == ["drain m-1-1 @b", "withdraw m-1-1 @b"]
    assert why(decided, "drain m-1-1 @b") == (
        "it is outdated, there is no room for one more, and others serve meanwhile"
    )


def test_recreate_takes_the_old_one_away_first_even_the_last() -> None:
    desk = serving(A, m(strategy="recreate"))
    desk.want(A, m("new", strategy="recreate"))
    decided = desk.plan()
    assert told(decided) == ["drain m-1-0 @a", "withdraw m-1-0 @a"]
    assert why(decided, "drain m-1-0 @a") == "it is outdated and its strategy is recreate"
    desk.obey()
    desk.settle()
    assert published(desk.plan()) == ["m-1-1"]


def test_recreate_goes_one_at_a_time() -> None:
    desk = serving(A, B, C, m(replicas=3, strategy="recreate"))
    desk.want(A, B, C, m("new", replicas=3, strategy="recreate"))
    fewest = 3
    for _ in range(20):
        fewest = min(fewest, len(published(desk.plan())))
        desk.obey()
    assert fewest == 2
    assert len(published(desk.plan())) == 3


def test_max_surge_is_how_many_new_ones_start_at_once() -> None:
    desk = serving(A, B, C, D, m(replicas=3, max_surge=2))
    desk.want(A, B, C, D, m("new", replicas=3, max_surge=2))
    decided = desk.plan()
    assert [line.split()[:2] for line in told(decided)] == [["start", "m-1-3"], ["start", "m-1-4"]]
    assert held(decided)["model/m: roll over"] == "an outdated replica to drain"


def test_max_unavailable_lets_so_many_go_before_new_ones_serve() -> None:
    desk = serving(A, B, C, m(replicas=3, max_unavailable=1))
    desk.want(A, B, C, m("new", replicas=3, max_unavailable=1))
    decided = desk.plan()
    assert len(published(decided)) == 2
    assert [line for line in told(decided) if line.startswith("drain")] == ["drain m-1-0 @a"]


def test_max_unavailable_never_takes_the_last_one() -> None:
    desk = serving(A, m(max_unavailable=5))
    desk.want(A, m("new", max_unavailable=5))
    assert told(desk.plan()) == ["start m-1-1 @a"]


def test_a_new_one_counts_when_it_has_been_ready_for_min_ready() -> None:
    desk = serving(A, m(min_ready="60s"))
    desk.want(A, m("new", min_ready="60s"))
    desk.plan()
    desk.obey()
    decided = desk.plan()
    assert published(decided) == ["m-1-0", "m-1-1"]
    assert held(decided)["replica/m-1-0: drain (outdated)"] == "1 more to serve first"
    assert told(desk.plan(50.0)) == []
    desk.regain("a")
    assert "drain m-1-0 @a" in told(desk.plan(10.0))


def test_min_ready_is_asked_of_a_new_one_also_where_its_node_is_left() -> None:
    desk = serving(A, B, m(min_ready="60s"))
    desk.want(A, B, m("new", min_ready="60s"))
    desk.plan()
    desk.obey()
    desk.plan()
    desk.want(A, node("b", cordoned={"reason": "new memory"}), m("new", min_ready="60s"))
    decided = desk.plan()
    assert "drain m-1-1 @b" in told(decided)
    assert published(decided) == ["m-1-0"]


def test_min_ready_is_not_asked_of_the_old_ones() -> None:
    desk = serving(A, B, m(replicas=2, profile=FULL, min_ready="1h"))
    desk.want(A, B, m("new", replicas=2, profile=FULL, min_ready="1h"))
    assert "drain m-1-1 @b" in told(desk.plan())


# deadline


def stuck(*objects, **rollout) -> Desk:
    """Return a desk with a rollout under way whose new replica does not come up."""
    desk = serving(A, B, m(**rollout))
    desk.want(A, B, m("bad", **rollout))
    desk.plan()
    desk.obey(Phase.STARTING)
    return desk


def test_a_rollout_that_stands_still_has_failed_at_its_deadline_and_the_old_one_serves_on() -> None:
    desk = stuck(deadline="10m")
    assert not desk.plan(500.0).rollouts["m"].failed
    decided = desk.plan(200.0)
    assert decided.rollouts["m"].failed == "nothing new has served for 11m (rollout.deadline)"
    assert published(decided) == ["m-1-0"]
    assert any("rollout" in alarm or "model/m" in alarm for alarm in decided.alarms)


def test_each_new_replica_that_serves_moves_the_deadline() -> None:
    desk = serving(A, B, m(replicas=2, deadline="10m"))
    desk.want(A, B, m("new", replicas=2, deadline="10m"))
    desk.plan()
    desk.obey()
    desk.plan(550.0)
    desk.obey(Phase.STARTING)
    desk.plan()
    desk.obey(Phase.STARTING)
    assert not desk.plan(550.0).rollouts["m"].failed
    assert desk.plan(60.0).rollouts["m"].failed


def test_a_failed_rollout_starts_nothing_more() -> None:
    desk = stuck(deadline="10m")
    desk.plan(700.0)
    desk.phase("m-1-1", Phase.FAILED, Reason("exit", "bad argument"))
    decided = desk.plan()
    assert not [line for line in told(decided) if line.startswith("start")]
    assert held(decided)["model/m: roll over"] == (
        "another revision; this one failed: nothing new has served for 11m (rollout.deadline)"
    )


def test_a_spec_that_gave_up_on_three_nodes_has_failed() -> None:
    desk = serving(A, B, C, D, m())
    desk.want(A, B, C, D, m("bad"))
    for _ in range(3):
        desk.plan()
        desk.obey()
        for name, order in desk.decided.orders.items():
            for one in order.shards:
                if one.spec.replica != "m-1-0" and desk.views[name].report.shard(one.spec.shard).phase is Phase.READY:
                    desk.phase(one.spec.replica, Phase.FAILED, Reason("exit", "bad argument"))
    decided = desk.plan()
    assert decided.rollouts["m"].failed.startswith("its replicas gave up on ")
    assert decided.rollouts["m"].failed.endswith(": bad argument")
    assert published(decided) == ["m-1-0"]
    assert not [line for line in told(decided) if line.startswith("start")]


def test_a_newer_revision_takes_over_a_failed_one_at_once() -> None:
    desk = stuck(deadline="10m")
    desk.plan(700.0)
    desk.want(A, B, m("good", deadline="10m"))
    desk.plan()
    desk.obey()
    decided = desk.settle()
    assert len(published(decided)) == 1
    assert decided.rollouts == {}
    assert decided.orders["a"].shards + decided.orders["b"].shards
    assert [one.spec.args[-1] for order in decided.orders.values() for one in order.shards] == ["good"]


def test_a_newer_revision_takes_over_a_stuck_one_before_any_deadline() -> None:
    desk = stuck()
    desk.want(A, B, m("good"))
    decided = desk.plan()
    assert "drain m-1-1 @b" in told(decided) or "stop m-1-1 @b" in told(decided)
    desk.obey()
    desk.settle()
    decided = desk.settle()
    assert [one.spec.args[-1] for order in decided.orders.values() for one in order.shards] == ["good"]


# auto_revert


def test_auto_revert_goes_back_to_what_all_replicas_served_by() -> None:
    desk = stuck(deadline="10m", auto_revert=True)
    decided = desk.plan(700.0)
    assert decided.rollouts["m"].failed
    desk.obey()
    decided = desk.settle()
    assert ordered(decided) == {"a": ["m-1-0"], "b": []}
    assert published(decided) == ["m-1-0"]


def test_what_was_reverted_stays_so_until_the_spec_changes() -> None:
    desk = stuck(deadline="10m", auto_revert=True)
    desk.plan(700.0)
    desk.obey()
    desk.settle()
    for _ in range(3):
        decided = desk.plan(2000.0)
        assert told(decided) == []
        assert decided.rollouts["m"].failed
    desk.want(A, B, m("better", deadline="10m", auto_revert=True))
    assert [line.split()[0] for line in told(desk.plan())] == ["start"]


def test_after_a_revert_replicas_are_started_by_the_good_spec() -> None:
    desk = stuck(deadline="10m", auto_revert=True)
    desk.plan(700.0)
    desk.obey()
    desk.settle()
    desk.want(A, B, m("bad", replicas=2, deadline="10m", auto_revert=True))
    desk.plan()
    desk.obey()
    decided = desk.settle()
    specs = [one.spec for order in decided.orders.values() for one in order.shards]
    assert len(specs) == 2
    assert all("bad" not in spec.args for spec in specs)


def test_a_part_of_the_fleet_that_already_rolled_is_rolled_back_new_before_old() -> None:
    desk = serving(A, B, C, m(replicas=2, deadline="10m", auto_revert=True))
    desk.want(A, B, C, m("bad", replicas=2, deadline="10m", auto_revert=True))
    desk.plan()
    desk.obey()
    desk.plan()
    desk.obey(Phase.STARTING)
    desk.plan()
    desk.obey(Phase.STARTING)
    desk.plan(700.0)
    fewest = 2
    for _ in range(20):
        fewest = min(fewest, len(published(desk.plan())))
        desk.obey()
    assert fewest >= 2
    specs = [one.spec for order in desk.decided.orders.values() for one in order.shards]
    assert len(specs) == 2
    assert all("bad" not in spec.args for spec in specs)


def test_without_a_good_spec_there_is_nothing_to_go_back_to() -> None:
    desk = Desk.of(A, m("bad", deadline="10m", auto_revert=True))
    desk.plan()
    desk.obey(Phase.STARTING)
    decided = desk.plan(700.0)
    assert ordered(decided) == {"a": ["m-1-0"]}
    assert told(decided) == []


def test_a_place_that_a_rollout_frees_is_the_rollouts() -> None:
    other = model("a", profile=FULL)
    desk = serving(A, B, m(replicas=2, profile=FULL))
    desk.want(A, B, m("new", replicas=2, profile=FULL), other)
    desk.plan()
    desk.obey()
    desk.plan()
    desk.obey()
    assert told(desk.plan()) == ["start m-1-1 @b"]
