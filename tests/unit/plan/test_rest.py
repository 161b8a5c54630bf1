"""Faults of llmgw that are still there, each as small as it gets. Belongs into tests/unit/{plan,agent,spec,control}."""

from dataclasses import replace

import pytest
from pydantic import TypeAdapter, ValidationError

from llmgw.agent.events import Found, Stop
from llmgw.fleet.report import Phase
from llmgw.fleet.usage import Active
from llmgw.plan.snapshot import Decided
from llmgw.spec.common import Duration, Size
from tests.builders import Desk, Epoch, cluster, model, node, ordered, told
from tests.unit.agent.brain import KEY, SPEC, Brain

A, B = node("a", local=True), node("b")


def taken_over(desk):
    desk.epoch = Epoch(2)
    desk.decided = Decided.nothing(desk.epoch)
    return desk


def test_a_drain_deadline_of_0s_stalls_everything():
    zero = cluster(router={"timeouts": {"drain": "0s"}})
    desk = Desk.of(zero, A, model("m"))
    desk.settle()
    desk.want(zero, A, model("m", 0))
    desk.plan()


def test_a_drain_on_a_node_that_cannot_be_ordered_is_decided_in_every_round():
    desk = Desk.of(A, B, model("m"))
    desk.settle()
    desk.lose("a", surviving=True)
    taken_over(desk).want(A, B)
    desk.plan()
    assert told(desk.plan()) == []


def test_a_drain_on_a_node_that_cannot_be_ordered_is_called_off_and_the_checker_stalls_everything():
    desk = Desk.of(A, B, model("m", 2))
    desk.settle()
    desk.want(A, B, model("m", 1))
    desk.use("m-1-1", Active(1))
    desk.plan()
    desk.obey()
    desk.lose("b", surviving=True)
    taken_over(desk).want(A, B, model("m", 2))
    desk.plan()
    assert told(desk.plan()) == []


def test_what_mends_an_engine_comes_while_its_last_attempt_is_cleared_away():
    brain = Brain()
    brain.ordered(SPEC)
    for attempt in (1, 2, 3, 4):
        brain.starts(attempt=attempt)
        brain.crashes(attempt)
        if attempt == 4:
            brain.ordered(replace(SPEC, start_timeout=500.0))
        brain.is_gone(attempt)
        brain.passes(60.0)
    assert brain.phase is not Phase.FAILED


def test_engines_found_without_a_readable_order_run_on_until_there_is_one():
    brain = Brain()
    assert not any(isinstance(one, Stop) for one in brain.happens(Found(SPEC, 1, 4242, True)))
    assert brain.ordered() == [Stop(KEY, 1, 4242, 10.0)]


def test_a_node_that_is_new_gets_its_share():
    desk = Desk.of(B, model("m", 2))
    desk.settle()
    desk.want(A, B, model("m", 4))
    desk.plan(0.1)  # the node was written down in the same commit and answers a moment later
    desk.hear("a")
    decided = desk.settle()
    assert [len(shards) for shards in ordered(decided).values()] == [2, 2]


@pytest.mark.parametrize("text", ["1s\n", "\u0661s"])
def test_a_duration_is_ascii_and_ends_where_it_ends(text):
    with pytest.raises(ValidationError):
        TypeAdapter(Duration).validate_python(text)


@pytest.mark.parametrize("text", ["1GiB\n", "\u0663GiB"])
def test_a_size_is_ascii_and_ends_where_it_ends(text):
    with pytest.raises(ValidationError):
        TypeAdapter(Size).validate_python(text)


def test_rollback_after_slow_drains_calls_off_no_more_than_the_surge():
    nodes = (A, B)
    desk = Desk.of(*nodes, model("m", 3))
    desk.settle()
    for number in range(3):
        desk.use(f"m-1-{number}", Active(1))
    desk.want(*nodes, model("m", 3, "--new"))
    for _ in range(20):
        desk.plan()
        desk.obey()
    desk.want(*nodes, model("m", 3))
    for _ in range(20):
        decided = desk.plan()
        desk.obey()
        assert len(decided.table.endpoints) >= 3


def test_fewer_wanted_and_another_revision_while_all_still_load():
    desk = Desk.of(A, B, model("m", 5))
    desk.plan()
    desk.obey(Phase.STARTING)
    desk.want(A, B, model("m", 2, "--new"))
    decided = desk.settle()
    assert len(decided.table.endpoints) == 2
