"""What a changed directory costs what runs: nothing, a table, a live setting, or new replicas beside the old ones."""

import pytest

from llmgw.fleet.report import Phase, Reason
from llmgw.fleet.usage import Active
from tests.builders import Desk, Object, cluster, held, model, node, ordered, published, told, why

A, B = node("a"), node("b")


def serving(*objects: Object) -> Desk:
    desk = Desk.of(*objects)
    desk.settle()
    return desk


def test_an_alias_changes_the_table_and_no_order() -> None:
    desk = serving(A, model("m"))
    before = desk.plan()
    desk.want(A, model("m", aliases=["gpt"]))
    after = desk.plan()
    assert after.actions == ()
    assert after.orders == before.orders
    assert after.table.version == before.table.version + 1
    assert after.table.models[0].aliases == ("gpt",)
    assert after.table.endpoints == before.table.endpoints


RESTARTS_NOTHING = [
    {"profile": {"name": "renamed"}},
    {"profile": {"start_timeout": "5m"}},
    {"profile": {"priority": 3}},
    {"profile": {"env": {}}},
    {"priority": 4},
    {"aliases": ["x"]},
]


@pytest.mark.parametrize("change", RESTARTS_NOTHING, ids=str)
def test_what_does_not_restart_changes_no_replica(change) -> None:
    desk = serving(A, model("m"))
    desk.want(A, model("m", **change))
    decided = desk.plan()
    assert decided.actions == ()
    assert ordered(decided) == {"a": ["m-1-0"]}
    assert published(decided) == ["m-1-0"]


def test_a_live_setting_travels_in_the_order_and_restarts_nothing() -> None:
    desk = serving(A, model("m"))
    before = desk.plan()
    backoff = cluster(control={"backoff": {"base": "7s"}})
    desk.want(backoff, A, model("m", profile={"start_timeout": "90s", "name": "p"}))
    decided = desk.plan()
    assert decided.actions == ()
    old, new = before.orders["a"], decided.orders["a"]
    assert new.generation == old.generation + 1
    assert (new.shards[0].spec.start_timeout, new.shards[0].spec.profile) == (90.0, "p")
    assert new.shards[0].spec.restarts.base == 7.0
    assert new.shards[0].spec.hash == old.shards[0].spec.hash


def test_changed_arguments_start_the_new_one_first_and_drain_the_old_one_only_when_it_serves() -> None:
    desk = serving(A, B, model("m"))
    desk.want(A, B, model("m", 1, "--ctx", "1"))
    decided = desk.plan()
    assert told(decided) == ["start m-1-1 @b"]
    assert why(decided, "start m-1-1 @b").startswith("replaces an outdated one (m-1-0)")
    assert held(decided) == {"replica/m-1-0: drain (outdated)": "1 more to serve first"}
    for phase in (Phase.WAITING, Phase.STARTING, Phase.BACKOFF):
        desk.obey(phase)
        desk.phase("m-1-1", phase)
        decided = desk.plan()
        assert (told(decided), published(decided)) == ([], ["m-1-0"]), phase
    desk.phase("m-1-1", Phase.READY)
    decided = desk.plan()
    assert told(decided) == ["drain m-1-0 @a", "publish m-1-1 @b", "withdraw m-1-0 @a"]
    assert published(decided) == ["m-1-1"]
    desk.obey()
    assert told(desk.plan()) == ["stop m-1-0 @a"]


def test_a_rollover_goes_one_by_one_and_never_below_the_wanted_number() -> None:
    desk = serving(A, B, model("m", 3))
    desk.want(A, B, model("m", 3, "--new"))
    running = 0
    for _ in range(40):
        decided = desk.plan()
        desk.obey()
        assert len(published(decided)) >= 3
        active = [one for shards in ordered(decided).values() for one in shards]
        running = max(running, len(active))
        if not decided.actions:
            break
    assert running == 4
    assert {one.spec.args[-1] for wanted in decided.orders.values() for one in wanted.shards} == {"--new"}
    assert held(decided) == {}


def test_without_room_one_of_two_gives_way_while_the_other_serves() -> None:
    desk = serving(A, model("m", 2, profile={"cpus": 4}))
    desk.want(A, model("m", 2, "--new", profile={"cpus": 4}))
    fewest = 2
    for _ in range(40):
        decided = desk.plan()
        desk.obey()
        fewest = min(fewest, len(published(decided)))
        if not decided.actions:
            break
    assert fewest == 1
    assert len(published(decided)) == 2
    assert {one.spec.args[-1] for one in decided.orders["a"].shards} == {"--new"}


def test_a_single_replica_without_room_keeps_serving_and_the_hold_says_why() -> None:
    desk = serving(A, model("m", 1, profile={"cpus": 5}))
    desk.want(A, model("m", 1, "--new", profile={"cpus": 5}))
    for _ in range(5):
        decided = desk.plan(100.0)
        assert told(decided) == []
        assert published(decided) == ["m-1-0"]
    assert held(decided) == {
        "model/m: start replica 1 of 1": "room: a: 3 of 8 cpus free, needs 5; or for `strategy: recreate`, which stops the old "
        "one first",
        "replica/m-1-0: drain (outdated)": "1 more to serve first",
    }


def test_a_connection_that_breaks_while_a_rollover_is_held_takes_nothing_away() -> None:
    desk = serving(A, model("m", 1, profile={"cpus": 5}))
    desk.want(A, model("m", 1, "--new", profile={"cpus": 5}))
    desk.plan()
    desk.lose("a")
    for _ in range(5):
        decided = desk.plan(10.0)
        assert not any(line.startswith(("drain", "stop")) for line in told(decided)), told(decided)


def test_replicas_that_drain_hold_up_the_start_of_others() -> None:
    desk = serving(A, B, model("m", 3))
    desk.want(A, B, model("m", 0))
    desk.plan()
    desk.obey()
    for replica in ("m-1-0", "m-1-1", "m-1-2"):
        desk.use(replica, Active(1))
    desk.want(A, B, model("m", 3, "--new"))
    started = [line for line in told(desk.plan()) if line.startswith("start")]
    assert len(started) <= 1, "three run on and may: three wanted, and one more while rolling over"


def test_a_new_revision_that_fails_leaves_the_old_one_serving_and_says_why() -> None:
    desk = serving(A, B, model("m", 2))
    desk.want(A, B, model("m", 2, "--oops"))
    assert told(desk.plan()) == ["start m-1-2 @a"]
    desk.obey(Phase.STARTING)
    desk.phase("m-1-2", Phase.FAILED, Reason("bad_arguments", "the engine refused its arguments"))
    assert told(desk.plan()) == ["start m-1-3 @b"], "another node is tried"
    desk.obey(Phase.STARTING)
    desk.phase("m-1-3", Phase.FAILED, Reason("bad_arguments", "the engine refused its arguments"))
    for _ in range(5):
        decided = desk.plan(600.0)
        assert told(decided) == []
        assert published(decided) == ["m-1-0", "m-1-1"]
    assert held(decided)["model/m: start replica 1 of 2"] == (
        "room: a, b: it gave up there (the engine refused its arguments)"
    )
    assert held(decided)["replica/m-1-1: drain (outdated)"] == "1 more to serve first"


@pytest.mark.parametrize("bad", [Phase.FAILED, Phase.BACKOFF, Phase.WAITING, Phase.STARTING])
def test_a_mended_revision_takes_over_from_the_bad_one(bad) -> None:
    desk = serving(A, B, model("m"))
    desk.want(A, B, model("m", 1, "--oops"))
    desk.plan()
    desk.obey(bad)
    desk.want(A, B, model("m", 1, "--mended"))
    for _ in range(20):
        decided = desk.plan()
        desk.obey()
        assert published(decided), "the old one serves until the mended one does"
        if not decided.actions:
            break
    shards = [one for wanted in decided.orders.values() for one in wanted.shards]
    assert [one.spec.args[-1] for one in shards] == ["--mended"]


def test_going_back_to_the_old_revision_drops_the_bad_one_and_restarts_nothing() -> None:
    desk = serving(A, B, model("m"))
    desk.want(A, B, model("m", 1, "--oops"))
    desk.plan()
    desk.obey(Phase.BACKOFF)
    desk.want(A, B, model("m"))
    assert told(desk.plan()) == ["drain m-1-1 @b"]
    desk.obey()
    assert told(desk.plan()) == ["stop m-1-1 @b"], "once its node has said that it drains, which others then know"
    desk.obey()
    assert ordered(desk.plan()) == {"a": ["m-1-0"], "b": []}


def test_a_drain_that_began_for_a_rollover_is_called_off_by_going_back() -> None:
    desk = serving(A, B, model("m"))
    desk.use("m-1-0", Active(1))
    desk.want(A, B, model("m", 1, "--new"))
    desk.plan()
    desk.obey()
    assert "drain m-1-0 @a" in told(desk.plan())
    desk.obey()
    desk.want(A, B, model("m"))
    decided = desk.plan()
    assert told(decided)[0] == "keep m-1-0 @a"
    desk.obey()
    assert published(desk.plan())[0] == "m-1-0"
    assert published(desk.settle()) == ["m-1-0"]


def test_a_second_change_while_the_first_rolls_ends_with_the_second_alone() -> None:
    desk = serving(A, B, model("m", 2))
    desk.want(A, B, model("m", 2, "--one"))
    desk.plan()
    desk.obey()
    desk.plan()
    desk.want(A, B, model("m", 2, "--two"))
    desk.settle()
    decided = desk.settle()
    shards = [one for wanted in decided.orders.values() for one in wanted.shards]
    assert [one.spec.args[-1] for one in shards] == ["--two", "--two"]
    assert len(published(decided)) == 2


def test_a_change_of_one_model_leaves_the_others_orders_alone() -> None:
    desk = serving(A, B, model("m"), model("n"))
    before = desk.plan()
    desk.want(A, B, model("m", 1, "--new"), model("n"))
    desk.settle()
    after = desk.plan()
    assert [one for one in after.table.endpoints if one.model == "n"] == [
        one for one in before.table.endpoints if one.model == "n"
    ]
    assert {action.model for action in desk.actions[4:]} == {"m"}


def test_an_engine_command_of_the_cluster_rolls_every_model_that_uses_it() -> None:
    desk = serving(A, B, model("m"), model("n"))
    desk.want(cluster(engines=[{"name": "llamacpp", "command": ["/opt/llama"]}]), A, B, model("m"), model("n"))
    decided = desk.settle()
    shards = [one for wanted in decided.orders.values() for one in wanted.shards]
    assert [one.spec.programs for one in shards] == [(("/opt/llama",),)] * 2
