"""Stalls, endless loops and places lost that were found by playing against the planner, each in its smallest form."""

import pytest

from llmgw.base.ids import NodeName
from llmgw.base.time import Instant
from llmgw.fleet.report import Phase, Reason
from llmgw.fleet.usage import Active, Idle, Unknown
from llmgw.fleet.view import NeverSeen, Reporting
from llmgw.plan.explain import explain
from tests.builders import Desk, Object, cluster, held, model, node, ordered, published, told
from tests.cards import CLASSES, gpus, on_cards, stranger

CLUSTER = cluster(gpu_classes=CLASSES)
GAVE_UP = Reason("exit", "out of memory")
QUIET = Unknown("no request yet", quiet=True)
HOUR = 3600.0


def with_cards(count: int, *objects: Object, **counts: int) -> Desk:
    names = [one["name"] for one in objects if one["kind"] == "Node"]
    return Desk.of(CLUSTER, *objects, cards={NodeName(name): gpus(name, counts.get(name, count)) for name in names})


def pass_time(desk: Desk, seconds: float) -> None:
    """Let time pass in which every node that answers goes on to do so."""
    desk.now = Instant(desk.now + seconds)
    for name, view in list(desk.views.items()):
        if isinstance(view, Reporting):
            desk.regain(name)


def play(desk: Desk, rounds: int, after: float = 1.0, phase: Phase = Phase.READY) -> list[str]:
    """Plan and obey so often; return what was done."""
    done = []
    for _ in range(rounds):
        done += told(desk.plan(after))
        desk.obey(phase)
        pass_time(desk, 0.0)
    return done


def started(lines: list[str]) -> list[str]:
    return [line for line in lines if line.startswith("start")]


# What the planner makes passes its own check


def test_gangs_that_lost_a_worker_are_replaced() -> None:
    nodes = [node(name, fabric="ib") for name in "abcde"]
    desk = with_cards(0, *nodes, model("g", 2, profile=on_cards(2, nodes=2)), a=4, b=4)
    desk.settle()
    for name in "cde":
        desk.cards[NodeName(name)] = gpus(name, 4)
        desk.regain(name)
    desk.lose("b")
    desk.plan()
    assert len(started(told(desk.plan(after=2 * HOUR)))) == 2


def test_a_replica_that_a_drain_of_this_round_relies_on_is_not_preempted() -> None:
    low = model("l", 2, profile=on_cards(1))
    desk = with_cards(3, node("a"), low, model("h", 1, profile=on_cards(1), priority=5, preempt=True))
    desk.settle()
    pass_time(desk, HOUR)
    changed = model("l", 2, "--new", profile=on_cards(1))
    desk.want(CLUSTER, node("a"), changed, model("h", 2, profile=on_cards(1), priority=5, preempt=True))
    assert [line for line in told(desk.plan()) if line.startswith("drain")] == ["drain l-1-1 @a"]


def test_a_reverted_model_is_as_it_is_wanted_now_but_for_what_it_runs() -> None:
    fields = {"profile": on_cards(1), "rollout": {"auto_revert": True, "deadline": "60s"}, "priority": 5}
    desk = with_cards(2, node("a"), model("h", 1, preempt=True, **fields), model("l", 1, profile=on_cards(1)))
    desk.settle()
    pass_time(desk, HOUR)
    bad = model("h", 2, "--bad", preempt=False, aliases=["gpt"], **fields)
    desk.want(CLUSTER, node("a"), bad, model("l", 1, profile=on_cards(1)))
    desk.use("l-1-0", Active(1))
    play(desk, 6, after=50.0, phase=Phase.STARTING)
    decided = desk.plan()
    assert "h" in decided.rollouts
    assert decided.rollouts["h"].failed
    assert [one.aliases for one in decided.table.models if one.name == "h"] == [("gpt",)]
    assert not any("l-1-0" in line for line in told(decided)), "the model does not say preempt any more"


def test_scaling_down_in_the_middle_of_min_ready_keeps_what_has_been_ready_for_long_enough() -> None:
    fields = {"rollout": {"min_ready": "10m"}}
    desk = Desk.of(node("a"), model("m", 2, **fields))
    desk.settle()
    pass_time(desk, HOUR)
    desk.want(node("a"), model("m", 2, "--new", **fields))
    while "m-1-0" not in [line.split()[1] for line in play(desk, 1, after=100.0) if line.startswith("start")]:
        assert desk.now < 20_000
    play(desk, 1)
    desk.want(node("a"), model("m", 1, "--new", **fields))
    play(desk, 12, after=100.0)
    assert len(ordered(desk.plan())["a"]) == 1


# Nothing goes round for ever


@pytest.mark.parametrize("life", ["0s", "600s"])
def test_what_gave_up_and_was_mended_gets_its_place_back_once(life: str) -> None:
    important = {"profile": on_cards(1), "priority": 5, "preempt": True}
    other = model("o", 2, profile=on_cards(1), min_life=life)
    desk = with_cards(1, node("a"), model("p", 1, **important))
    desk.settle()
    desk.phase("p-1-0", Phase.FAILED, GAVE_UP)
    desk.want(CLUSTER, node("a"), model("p", 1, **important), other)
    play(desk, 6)
    assert published(desk.plan()) == ["o-1-0"]
    desk.want(CLUSTER, node("a"), model("p", 1, "--mended", **important), other)
    assert len(started(play(desk, 24, after=200.0))) == 1
    assert ordered(desk.plan())["a"] == ["p-1-0"]


def test_a_reverted_spec_is_not_tried_again_where_it_gave_up() -> None:
    fields = {"rollout": {"auto_revert": True, "deadline": "60s"}}
    desk = Desk.of(node("a"), node("b"), model("m", 1, **fields))
    desk.settle()
    desk.want(node("a"), node("b"), model("m", 1, "--bad", **fields))
    play(desk, 1, phase=Phase.STARTING)
    play(desk, 6, after=100.0)
    starts = 0
    for _ in range(12):
        starts += len(started(told(desk.plan())))
        desk.obey(Phase.STARTING)
        for view in list(desk.views.values()):
            for one in view.report.shards if isinstance(view, Reporting) else ():
                if one.phase in (Phase.STARTING, Phase.READY):
                    desk.phase(one.spec.replica, Phase.FAILED, GAVE_UP)
    assert starts <= 1


# Who gets a place


def test_a_place_that_a_restart_freed_is_the_model_s_own() -> None:
    desk = with_cards(3, node("a"), model("l", 3, profile=on_cards(1)), model("p", 1, profile=on_cards(1)))
    desk.want(CLUSTER, node("a"), model("l", 3, profile=on_cards(1)))
    desk.settle()
    desk.want(CLUSTER, node("a"), model("l", 3, profile=on_cards(1)), model("p", 1, profile=on_cards(1)))
    desk.ask("restart", "replica/l-1-0")
    for _ in range(12):
        desk.plan()
        desk.obey()
        if "l-1-0" not in ordered(desk.plan())["a"]:
            desk.acts = ()
    assert sorted(ordered(desk.plan())["a"]) == ["l-1-0", "l-1-1", "l-1-2"]


def test_a_more_important_model_that_gave_up_comes_first_once_it_is_mended() -> None:
    low = model("l", 5, profile=on_cards(1))
    desk = with_cards(1, node("a"), model("h", 1, profile=on_cards(1), priority=10), b=2)
    desk.settle()
    desk.phase("h-1-0", Phase.FAILED, GAVE_UP)
    desk.want(CLUSTER, node("a"), model("h", 1, profile=on_cards(1), priority=10), low)
    play(desk, 6)
    desk.cards[NodeName("b")] = gpus("b", 2)
    desk.want(CLUSTER, node("a"), node("b"), model("h", 1, "--mended", profile=on_cards(1), priority=10), low)
    desk.hear("b")
    assert "start h-1-0 @b" in told(desk.plan())


def test_who_gave_way_is_remembered_while_a_new_node_has_not_spoken() -> None:
    high = {"profile": on_cards(1), "priority": 5, "preempt": True}
    low = model("b", 1, profile=on_cards(1), min_life="10s")
    desk = with_cards(2, node("n"), low, model("a", 1, **high))
    desk.settle()
    pass_time(desk, HOUR)
    desk.use("b-1-0", QUIET)
    desk.want(CLUSTER, node("n"), low, model("a", 2, **high))
    play(desk, 1)
    desk.want(CLUSTER, node("n"), low, model("a", 2, **high), node("z"))
    desk.views[NodeName("z")] = NeverSeen(desk.now)
    play(desk, 20, after=10.0)
    assert ordered(desk.plan())["n"] == ["a-1-0", "a-1-1"]


def test_a_drain_for_a_model_that_was_removed_is_called_off() -> None:
    low = model("b", 1, profile=on_cards(1))
    desk = with_cards(1, node("n"), low)
    desk.settle()
    pass_time(desk, HOUR)
    desk.use("b-1-0", Active(1))
    desk.want(CLUSTER, node("n"), low, model("a", 1, profile=on_cards(1), priority=5, preempt=True))
    assert "drain b-1-0 @n" in told(desk.plan())
    desk.obey()
    desk.want(CLUSTER, node("n"), low)
    assert "keep b-1-0 @n" in told(desk.plan())


def test_the_most_important_victim_is_the_first_that_is_spared() -> None:
    base = [node("n"), *(model(name, 1, profile=on_cards(n), priority=p) for name, n, p in (("a", 1, 0), ("b", 1, 1)))]
    base.append(model("c", 1, profile=on_cards(2), priority=2))
    desk = with_cards(4, *base)
    desk.settle()
    pass_time(desk, HOUR)
    desk.use("a-1-0", Idle(Instant(desk.now - 100)))
    desk.use("b-1-0", Active(3))
    desk.use("c-1-0", Active(1))
    desk.want(CLUSTER, *base, model("h", 1, profile=on_cards(3), priority=9, preempt=True))
    drained = [line for line in told(desk.plan()) if line.startswith("drain")]
    assert drained == ["drain a-1-0 @n", "drain c-1-0 @n"]


def test_one_gang_gives_way_rather_than_two_singles() -> None:
    nodes = [node(name, fabric="ib", pool="singles" if name in "cd" else "gangs") for name in "cdxy"]
    base = [
        *nodes,
        model("g", 1, profile=on_cards(2, nodes=2, pool="gangs")),
        model("s", 2, profile=on_cards(2, pool="singles")),
    ]
    desk = with_cards(2, *base)
    desk.settle()
    pass_time(desk, HOUR)
    for name in ("g-1-0", "s-1-0", "s-1-1"):
        desk.use(name, Idle(desk.now))
    desk.want(CLUSTER, *base, model("h", 1, profile=on_cards(2, nodes=2), priority=9))
    assert [line for line in told(desk.plan()) if line.startswith("drain")] == ["drain g-1-0 @x"]


def test_a_stranger_on_a_reserved_card_does_not_reserve_another() -> None:
    desk = with_cards(4, node("a", reserved={"gpus": 1}), model("m", 3, profile=on_cards(1)))
    desk.card("GPU-a-3", users=(stranger(),))
    assert len(started(told(desk.plan()))) == 3


# Rollouts


def test_a_rollout_is_not_failed_by_a_node_that_is_dead() -> None:
    nodes = [node(name) for name in "abcdef"]
    desk = Desk.of(*nodes, model("m", 3))
    desk.settle()
    desk.lose("c")
    desk.take_over()
    desk.want(*nodes, model("m", 3, "--new"))
    play(desk, 100, after=100.0)
    assert not any(one.failed for one in desk.decided.rollouts.values())
    desk.want(*nodes, model("m", 5, "--new"))
    play(desk, 10, after=10.0)
    assert len(published(desk.plan())) == 5


def test_a_model_that_only_partly_fits_is_rolled_one_at_a_time() -> None:
    desk = with_cards(2, node("a"), model("m", 3, profile=on_cards(1)))
    play(desk, 4)
    desk.want(CLUSTER, node("a"), model("m", 3, "--new", profile=on_cards(1)))
    for _ in range(30):
        assert published(desk.plan(after=10.0)), "one always serves"
        desk.obey()
    specs = [one.spec for one in desk.decided.orders[NodeName("a")].shards]
    assert [("--new" in one.args) for one in specs] == [True, True]


def test_recreate_stops_nothing_that_could_not_start_again() -> None:
    recreate = {"rollout": {"strategy": "recreate"}}
    desk = with_cards(4, node("a"), model("m", 1, profile=on_cards(2), **recreate))
    desk.settle()
    desk.want(CLUSTER, node("a"), model("m", 1, profile=on_cards(8), **recreate))
    decided = desk.plan()
    assert told(decided) == []
    assert held(decided)["replica/m-1-0: drain (outdated)"] == "room for a new one, which its own place does not give"


def test_waiting_by_its_own_rules_is_not_standing_still() -> None:
    fields = {"rollout": {"min_ready": "2h"}}
    desk = Desk.of(node("a"), model("m", 2, **fields))
    desk.settle()
    pass_time(desk, 3 * HOUR)
    desk.want(node("a"), model("m", 2, "--new", **fields))
    play(desk, 200, after=200.0)
    assert not any(one.failed for one in desk.decided.rollouts.values())
    assert all("--new" in one.spec.args for one in desk.decided.orders[NodeName("a")].shards)


def test_a_spec_that_never_served_is_nothing_to_go_back_to() -> None:
    fields = {"rollout": {"auto_revert": True}}
    desk = Desk.of(node("a"), model("m", 1, **fields))
    desk.settle()
    desk.want(node("a"), model("m", 0, "--never", **fields))
    play(desk, 6)
    assert (
        "--never" not in desk.decided.good.get("m", desk.catalog.models["m"]).profiles[0].args or not desk.decided.good
    )


def test_a_rename_keeps_what_to_go_back_to_and_that_the_new_spec_failed() -> None:
    fields = {"weights": {"path": "/w/x.gguf"}, "rollout": {"auto_revert": True, "deadline": "60s"}}
    desk = Desk.of(node("a"), model("x", 1, **fields))
    desk.settle()
    desk.want(node("a"), model("x", 1, "--bad", **fields))
    play(desk, 6, after=50.0, phase=Phase.STARTING)
    assert desk.decided.rollouts["x"].failed
    desk.want(node("a"), model("y", 1, "--bad", moved_from="x", **fields))
    assert started(play(desk, 4)) == []


def test_a_rename_that_a_node_missed_is_known_by_what_it_runs() -> None:
    weights = {"weights": {"path": "/w/x.gguf"}}
    desk = Desk.of(node("a"), model("old", 1, **weights))
    desk.settle()
    desk.take_over()
    desk.want(node("a"), model("new", 1, **weights))
    decided = desk.plan()
    assert told(decided) == ["publish old-1-0 @a"]
    assert [(one.id, one.model) for one in decided.table.endpoints] == [("old-1-0", "new")]


def test_a_model_that_has_all_its_replicas_takes_none_of_a_removed_twin() -> None:
    weights = {"weights": {"path": "/w/x.gguf"}}
    desk = Desk.of(node("a"), model("one", 1, **weights), model("two", 1, **weights))
    desk.settle()
    desk.want(node("a"), model("two", 1, **weights))
    assert "drain one-1-0 @a" in told(desk.plan())


# What is explained is what helps


def test_one_move_is_named_where_one_will_do() -> None:
    base = [
        node("a", pool="pa"),
        node("b"),
        model("cpu", 1, profile={"pool": "pa"}),
        *(model(name, 1, profile=on_cards(count)) for name, count in (("s", 1), ("t", 1), ("u", 2))),
    ]
    desk = with_cards(4, *base, b=0)
    desk.settle()
    assert sorted(ordered(desk.plan())["a"]) == ["cpu-1-0", "s-1-0", "t-1-0", "u-1-0"]
    desk.cards[NodeName("b")] = gpus("b", 4)
    desk.regain("b")
    desk.want(CLUSTER, *base, model("w", 1, profile=on_cards(2, pool="pa")))
    found = explain(desk.snapshot(), desk.catalog.models["w"].name)
    assert [(one.replica, one.target) for one in found.moves] == [("u-1-0", "b")]


def test_who_gives_way_is_explained_as_it_is_planned() -> None:
    low = model("l", 3, profile=on_cards(1))
    desk = with_cards(3, node("a"), low)
    desk.settle()
    pass_time(desk, HOUR)
    desk.want(CLUSTER, node("a"), low, model("h", 1, profile=on_cards(1), priority=5, preempt=True))
    name = desk.catalog.models["h"].name
    said = explain(desk.snapshot(), name).preempts
    drained = [line.split()[1] for line in told(desk.plan()) if line.startswith("drain")]
    assert list(said) == drained
