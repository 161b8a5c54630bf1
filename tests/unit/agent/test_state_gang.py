"""A shard of a replica of several: it does not start again by itself, and it ends when another of them did."""

from dataclasses import replace

from llmgw.agent.events import Exited, Found, Gone, LeftOver, Start, Stop
from llmgw.fleet.report import Phase
from tests.builders import order
from tests.unit.agent.brain import KEY, SPEC, Brain

ONE = replace(SPEC, shards=2, stop_grace=30.0)
TWO = replace(ONE, incarnation=1)
THREE = replace(ONE, incarnation=2)


def serving() -> Brain:
    brain = Brain()
    brain.ordered(ONE)
    brain.starts(ONE)
    brain.is_ready()
    return brain


def test_what_ended_waits_for_another_incarnation_and_says_so_at_once() -> None:
    brain = serving()
    brain.crashes()
    assert brain.report.spent == 0, "told before all of it is gone, so that the others end meanwhile"
    brain.is_gone()
    assert (brain.phase, brain.report.failures) == (Phase.BACKOFF, 1)
    assert "with the other shards of its replica" in brain.report.progress
    assert brain.passes(3600.0) == []
    assert brain.ordered(TWO) == [Start(TWO, 2, "r1#1")]


def test_another_incarnation_does_not_shorten_the_wait_nor_forget_the_failures() -> None:
    brain = serving()
    for attempt, spec in enumerate((TWO, THREE), start=1):
        brain.crashes(attempt)
        brain.is_gone(attempt)
        assert brain.report.failures == attempt
        assert brain.ordered(spec) == []
        assert brain.report.spent == attempt - 1
        assert brain.passes(2.0**attempt - 0.1) == []
        assert brain.passes(0.1) == [Start(spec, attempt + 1, "r1#1")]
        brain.starts(spec, attempt + 1)


def test_it_gives_up_after_so_many_failures_in_a_row() -> None:
    brain = serving()
    for attempt in range(1, 5):
        brain.crashes(attempt)
        brain.is_gone(attempt)
        brain.ordered(replace(ONE, incarnation=attempt))
        brain.passes(60.0)
        brain.starts(replace(ONE, incarnation=attempt), attempt + 1) if attempt < 4 else None
    assert (brain.phase, brain.report.failures) == (Phase.FAILED, 4)


def test_a_higher_incarnation_ends_what_runs_without_grace_and_starts_it_at_once() -> None:
    brain = serving()
    assert brain.ordered(TWO) == [Stop(KEY, 1, 1001, 0.0, ())]
    assert brain.report.reason is not None
    assert brain.report.reason.text == "another shard of its replica ended"
    assert brain.is_gone() == [Start(TWO, 2, "r1#1")]
    assert (brain.report.failures, brain.report.spent) == (0, -1), "it was not this one that ended"


def test_a_lower_incarnation_changes_nothing() -> None:
    brain = Brain()
    brain.ordered(TWO)
    brain.starts(TWO)
    brain.is_ready()
    assert brain.ordered(ONE) == []


def test_an_incarnation_ordered_while_it_stops_keeps_the_failure() -> None:
    brain = serving()
    brain.crashes()
    brain.ordered(TWO)
    brain.is_gone()
    assert (brain.phase, brain.report.failures) == (Phase.BACKOFF, 1)
    assert brain.passes(2.0) == [Start(TWO, 2, "r1#1")]


def test_what_ended_while_no_agent_ran_is_known_to_have_ended() -> None:
    brain = Brain()
    brain.state.order = order("a", ONE)
    assert brain.happens(LeftOver(ONE, 3)) == []
    assert (brain.phase, brain.report.spent) == (Phase.WAITING, 0)
    assert brain.passes(60.0) == []
    assert brain.ordered(TWO) == [Start(TWO, 4, "r1#1")]


def test_an_adopted_one_is_replaced_like_any_other() -> None:
    brain = Brain()
    brain.happens(Found(ONE, 1, 1001, True))
    assert brain.ordered(TWO) == [Stop(KEY, 1, 1001, 0.0, ())]


def test_a_replica_of_one_shard_starts_again_by_itself() -> None:
    brain = Brain().serves()
    brain.happens(Exited(KEY, 1, "exit", "exit status 1", ()))
    brain.happens(Gone(KEY, 1))
    assert brain.report.spent == -1
    assert brain.passes(2.0) == [Start(SPEC, 2, "r1#1")]
