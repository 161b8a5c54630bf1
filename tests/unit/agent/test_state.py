"""The agent's brain, event by event.

What an instruction leads to is always said by the test, because the order in which results come back is what these rules
are about: an attempt that ended must not be mistaken for the next, and nothing starts before the last is verified gone.
"""

from dataclasses import replace
from typing import Any

import pytest

from llmgw.agent.events import (
    Exited,
    Found,
    Gone,
    LeftOver,
    NotStarted,
    OrderStored,
    Probe,
    Probed,
    Reap,
    Say,
    Start,
    Stop,
)
from llmgw.agent.state import AgentState
from llmgw.base.ids import BootId, NodeName, ShardId
from llmgw.base.time import Instant
from llmgw.engines.shard import RestartPolicy
from llmgw.fleet.report import Phase, Reason
from tests.builders import catalog, facts, model, order, spec_of
from tests.unit.agent.brain import KEY, LOADING, NO_WEIGHTS, OTHER, PROVING, SERVING, SPEC, Brain


def test_an_order_starts_what_it_names_and_tells() -> None:
    brain = Brain()
    assert brain.ordered(SPEC) == [Start(SPEC, 1, "r1#1")]
    assert Say() in brain.said
    assert brain.phase is Phase.WAITING
    assert brain.passes(10.0) == [], "one start at a time"


def test_a_started_engine_is_probed_until_it_is_ready_and_then_less_often() -> None:
    brain = Brain()
    brain.ordered(SPEC)
    assert brain.starts() == []
    assert (brain.phase, brain.report.pid, brain.report.attempt) == (Phase.STARTING, 1001, 1)
    assert brain.passes(0.2) == []
    assert brain.passes(0.05) == [LOADING]
    assert brain.passes(3.0) == [], "one probe at a time"
    assert brain.happens(Probed(KEY, 1, False, "/health answers 503")) == []
    assert brain.report.reason == Reason("loading", "/health answers 503")
    assert brain.passes(0.25) == [LOADING]
    assert brain.happens(Probed(KEY, 1, True, "")) == []
    assert (brain.phase, brain.report.reason) == (Phase.READY, None)
    assert brain.passes(4.9) == []
    assert brain.passes(0.1) == [SERVING]


def test_what_changes_nothing_is_not_told() -> None:
    brain = Brain().serves()
    brain.passes(5.0)
    assert brain.said == [SERVING]
    brain.happens(Probed(KEY, 1, True, ""))
    assert brain.said == []


def test_events_of_another_attempt_are_ignored() -> None:
    brain = Brain().serves()
    brain.crashes()
    brain.is_gone()
    assert brain.passes(2.0) == [Start(SPEC, 2, "r1#1")]
    brain.starts(attempt=2)
    before = brain.report
    for stale in (Exited(KEY, 1, "exit", "", ()), Gone(KEY, 1), Probed(KEY, 1, True, ""), Probed(KEY, 3, True, "")):
        assert brain.happens(stale) == []
        assert brain.report == before
    for unknown in (Exited(ShardId("x-0.s0"), 1, "exit", "", ()), Gone(ShardId("x-0.s0"), 1)):
        assert brain.happens(unknown) == []


def test_a_gone_that_nobody_asked_for_changes_nothing() -> None:
    brain = Brain().serves()
    assert brain.is_gone() == []
    assert brain.phase is Phase.READY


def test_a_crash_is_cleared_away_before_the_next_start() -> None:
    brain = Brain().serves()
    assert brain.crashes() == [Stop(KEY, 1, 1001, 0.0)]
    assert brain.phase is Phase.STOPPING
    assert brain.passes(100.0) == [], "nothing starts before the rest is verified gone"
    assert brain.crashes() == [], "it is counted once"
    assert brain.is_gone() == []
    assert (brain.phase, brain.report.failures, brain.report.pid) == (Phase.BACKOFF, 1, None)
    ended = brain.report.last_end
    assert ended is not None
    assert (ended.attempt, ended.code, ended.text, ended.tail) == (1, "exit", "exit status 1", ("last words",))


def test_backoff_doubles_until_the_shard_is_given_up_and_stays_down() -> None:
    brain = Brain()
    brain.ordered(SPEC)
    for attempt, wait in ((1, 2.0), (2, 4.0), (3, 8.0)):
        brain.starts(attempt=attempt)
        brain.crashes(attempt)
        brain.is_gone(attempt)
        assert (brain.phase, brain.report.failures) == (Phase.BACKOFF, attempt)
        assert brain.passes(wait - 0.1) == []
        assert brain.passes(0.1) == [Start(SPEC, attempt + 1, "r1#1")]
    brain.starts(attempt=4)
    brain.crashes(4)
    brain.is_gone(4)
    assert (brain.phase, brain.report.failures) == (Phase.FAILED, 4)
    assert brain.report.reason == Reason("exit", "exit status 1")
    assert brain.passes(86400.0) == []
    assert brain.ordered(SPEC) == [], "the same order again clears nothing"
    assert brain.phase is Phase.FAILED


@pytest.mark.parametrize("change", [{"start_timeout": 90.0}, {"hash": "0"}, {"port": 20007}], ids=str)
def test_a_changed_spec_clears_failure_and_starts_at_once(change) -> None:
    brain = failed()
    changed = replace(SPEC, **change)
    assert brain.ordered(changed) == [Start(changed, 5, "r1#1")]
    assert (brain.phase, brain.report.failures) == (Phase.WAITING, 0)


def failed() -> Brain:
    brain = Brain()
    brain.ordered(SPEC)
    for attempt in (1, 2, 3, 4):
        brain.starts(attempt=attempt)
        brain.crashes(attempt)
        brain.is_gone(attempt)
        brain.passes(60.0)
    assert brain.phase is Phase.FAILED
    return brain


def test_the_longest_wait_between_starts_is_bounded() -> None:
    policy = RestartPolicy(2.0, 60.0, 100, 600.0)
    assert [policy.delay(n) for n in (1, 2, 5, 6, 50, 10**6)] == [2.0, 4.0, 32.0, 60.0, 60.0, 60.0]


def test_an_engine_that_is_not_ready_in_time_is_stopped_without_grace_and_counts_as_failed() -> None:
    brain = Brain()
    brain.ordered(SPEC)
    brain.starts()
    brain.passes(0.25)
    brain.happens(Probed(KEY, 1, False, "/health answers 503"))
    assert all(isinstance(one, Probe) for one in brain.passes(59.0))
    assert brain.happens(Probed(KEY, 1, False, "/health answers 503"), 0.8) == [Stop(KEY, 1, 1001, 0.0)]
    ended = brain.report.last_end
    assert ended is not None
    assert ended.text == "not ready within 60 s; last answer: /health answers 503"
    brain.is_gone()
    assert (brain.phase, brain.report.failures, brain.report.reason.code) == (Phase.BACKOFF, 1, "start_timeout")


def test_a_probe_that_hangs_does_not_suspend_the_start_timeout() -> None:
    brain = Brain()
    brain.ordered(SPEC)
    brain.starts()
    assert brain.passes(1.0) == [LOADING]
    assert brain.passes(60.0) == [Stop(KEY, 1, 1001, 0.0)]


def test_a_longer_start_timeout_holds_for_the_attempt_under_way() -> None:
    brain = Brain()
    brain.ordered(SPEC)
    brain.starts()
    brain.passes(50.0)
    assert brain.ordered(replace(SPEC, start_timeout=100.0)) == []
    assert brain.passes(30.0) == []
    assert brain.passes(30.0) == [Stop(KEY, 1, 1001, 0.0)]


def test_a_start_that_cannot_happen_waits_and_looks_again_without_counting_attempts() -> None:
    brain = Brain()
    brain.ordered(SPEC)
    for _ in range(20):
        assert brain.happens(NotStarted(KEY, NO_WEIGHTS)) == []
        assert (brain.phase, brain.report.reason, brain.report.attempt) == (Phase.WAITING, NO_WEIGHTS, 0)
        assert brain.passes(1.9) == []
        assert brain.passes(0.1) == [Start(SPEC, 1, "r1#1")]
    brain.starts()
    assert (brain.phase, brain.report.failures) == (Phase.STARTING, 0)
    assert brain.report.reason == Reason("loading", "started; not asked yet")


def test_the_time_of_waiting_counts_from_the_first_look_for_the_same_reason() -> None:
    brain = Brain()
    brain.ordered(SPEC)
    brain.happens(NotStarted(KEY, NO_WEIGHTS))
    brain.passes(2.0)
    brain.happens(NotStarted(KEY, NO_WEIGHTS))
    assert (brain.report.age, brain.said) == (2.0, [])
    brain.passes(2.0)
    brain.happens(NotStarted(KEY, Reason("port_taken", "port 20000 is taken")))
    assert (brain.report.age, brain.said) == (0.0, [Say()])


def test_older_orders_are_refused_and_counted_and_equal_ones_are_not() -> None:
    brain = Brain()
    state = brain.state
    assert state.accepts(order("a", epoch=2, generation=3))
    brain.happens(OrderStored(order("a", epoch=2, generation=3)))
    assert not state.accepts(order("a", epoch=2, generation=2))
    assert not state.accepts(order("a", epoch=1, generation=99))
    assert state.accepts(order("a", epoch=2, generation=3))
    assert state.accepts(order("a", epoch=3, generation=1))
    report = state.report(NodeName("a"), facts(), Instant(0.0))
    assert (report.refused, report.epoch, report.generation) == (2, 2, 3)


def test_reports_are_numbered() -> None:
    brain = Brain()
    numbers = [brain.state.report(NodeName("a"), facts(), Instant(0.0)).sequence for _ in range(3)]
    assert numbers == [1, 2, 3]


def test_a_shard_left_out_while_it_waits_is_forgotten() -> None:
    brain = Brain()
    brain.ordered(SPEC)
    brain.happens(NotStarted(KEY, NO_WEIGHTS))
    assert brain.ordered() == [Reap(KEY)]
    assert brain.empty


def test_a_shard_left_out_while_its_start_is_under_way_is_stopped_when_it_runs() -> None:
    brain = Brain()
    brain.ordered(SPEC)
    assert brain.ordered() == []
    assert brain.starts() == [Stop(KEY, 1, 1001, 0.0)]
    assert brain.is_gone() == [Reap(KEY)]
    assert brain.empty


def test_a_shard_left_out_while_its_start_is_under_way_is_forgotten_if_it_cannot_start() -> None:
    brain = Brain()
    brain.ordered(SPEC)
    brain.ordered()
    assert brain.happens(NotStarted(KEY, NO_WEIGHTS)) == [Reap(KEY)]
    assert brain.empty


def test_a_shard_left_out_while_it_loads_is_stopped_without_grace() -> None:
    brain = Brain()
    brain.ordered(SPEC)
    brain.starts()
    assert brain.ordered() == [Stop(KEY, 1, 1001, 0.0)]
    assert brain.is_gone() == [Reap(KEY)]


def test_a_shard_left_out_while_it_serves_is_stopped_with_grace() -> None:
    brain = Brain().serves()
    assert brain.ordered() == [Stop(KEY, 1, 1001, 10.0)]
    assert brain.phase is Phase.STOPPING
    assert brain.crashes() == [], "its end is what was asked for"
    assert brain.is_gone() == [Reap(KEY)]
    assert brain.empty


def test_a_shard_left_out_while_it_stops_is_not_started_again() -> None:
    brain = Brain().serves()
    brain.crashes()
    assert brain.ordered() == []
    assert brain.is_gone() == [Reap(KEY)]
    assert brain.passes(100.0) == []


@pytest.mark.parametrize("give_up", [False, True])
def test_a_shard_left_out_in_backoff_or_failed_is_forgotten(give_up) -> None:
    brain = failed() if give_up else Brain()
    if not give_up:
        brain.ordered(SPEC)
        brain.starts()
        brain.crashes()
        brain.is_gone()
    assert brain.ordered() == [Reap(KEY)]
    assert brain.empty


def test_a_shard_wanted_again_while_it_stops_starts_when_the_old_one_is_gone() -> None:
    brain = Brain().serves()
    brain.ordered()
    assert brain.ordered(SPEC) == []
    assert brain.is_gone() == [Start(SPEC, 2, "r1#1")]
    assert (brain.phase, brain.report.failures) == (Phase.WAITING, 0)


@pytest.mark.parametrize("changed", [OTHER, replace(SPEC, port=20005)], ids=["hash", "port"])
def test_another_hash_or_port_restarts(changed) -> None:
    brain = Brain().serves()
    assert brain.ordered(changed) == [Stop(KEY, 1, 1001, 10.0)]
    assert brain.report.spec == SPEC, "what runs is the old one"
    assert brain.is_gone() == [Start(changed, 2, "r1#1")]
    assert brain.report.failures == 0


@pytest.mark.parametrize("field", ["args", "programs", "env", "start_timeout", "profile"])
def test_another_command_line_with_the_same_hash_takes_effect_at_the_next_start(field) -> None:
    value: Any = {"start_timeout": 5.0, "profile": "p", "env": {"A": "1"}}.get(field, ())
    changed = replace(SPEC, **{field: value})
    brain = Brain().serves()
    assert brain.ordered(changed) == []
    assert brain.phase is Phase.READY
    brain.crashes()
    brain.is_gone()
    assert brain.passes(2.0) == [Start(changed, 2, "r1#1")]


def test_a_change_while_the_start_is_under_way_replaces_what_then_runs() -> None:
    brain = Brain()
    brain.ordered(SPEC)
    assert brain.ordered(OTHER) == []
    assert brain.starts(SPEC) == [Stop(KEY, 1, 1001, 0.0)]
    assert brain.is_gone() == [Start(OTHER, 2, "r1#1")]


def test_draining_is_told_and_changes_nothing_else() -> None:
    brain = Brain().serves()
    assert brain.ordered(SPEC, draining=True) == []
    assert (brain.phase, brain.report.draining) == (Phase.DRAINING, True)
    assert Say() in brain.said
    assert brain.passes(5.0) == [SERVING]
    brain.ordered(SPEC)
    assert (brain.phase, brain.report.draining) == (Phase.READY, False)


def test_a_found_engine_is_adopted_and_not_started_again() -> None:
    brain = Brain()
    brain.state.order = order("a", SPEC)
    assert brain.happens(Found(SPEC, 7, 4242, True)) == [Probe(SPEC, 7, 4242, proof=False, figures=True)]
    assert (brain.phase, brain.report.attempt, brain.report.pid) == (Phase.READY, 7, 4242)
    assert brain.happens(OrderStored(order("a", SPEC))) == []
    assert brain.state.running() == [(SPEC, 7, 4242)]


def test_a_found_engine_that_still_loads_is_adopted_as_starting() -> None:
    brain = Brain()
    brain.state.order = order("a", SPEC)
    brain.happens(Found(SPEC, 1, 4242, False))
    assert brain.phase is Phase.STARTING
    brain.happens(Probed(KEY, 1, True, ""))
    assert brain.phase is Phase.READY


def test_a_found_engine_that_is_not_wanted_or_not_like_this_is_stopped() -> None:
    brain = Brain()
    brain.state.order = order("a")
    assert brain.happens(Found(SPEC, 1, 4242, True)) == [Stop(KEY, 1, 4242, 10.0)]
    brain = Brain()
    brain.state.order = order("a", OTHER)
    assert brain.happens(Found(SPEC, 1, 4242, True)) == [Stop(KEY, 1, 4242, 10.0)]
    assert brain.is_gone() == [Start(OTHER, 2, "r1#1")]


def test_a_record_without_a_process_is_an_attempt_that_ended_unseen() -> None:
    brain = Brain()
    brain.state.order = order("a", SPEC)
    assert brain.happens(LeftOver(SPEC, 3)) == [Start(SPEC, 4, "r1#1")]
    assert brain.report.last_end is not None
    assert (brain.report.last_end.code, brain.report.failures) == ("ended_unseen", 0)


def test_a_record_of_what_nobody_wants_is_nothing() -> None:
    brain = Brain()
    assert brain.happens(LeftOver(SPEC, 3)) == []
    brain.state.order = order("a")
    assert brain.happens(LeftOver(SPEC, 3)) == []
    assert brain.empty


def test_a_busy_engine_is_degraded_after_three_failed_probes_and_never_stopped_for_it() -> None:
    brain = Brain().serves()
    for number in range(1, 10):
        assert brain.passes(5.0) == [SERVING if number == 1 else PROVING], "after a failure, who is it?"
        assert brain.happens(Probed(KEY, 1, False, "/health did not answer within 5 s")) == []
        assert (brain.report.degraded is not None) == (number >= 3)
        assert brain.phase is Phase.READY
    brain.passes(5.0)
    brain.happens(Probed(KEY, 1, True, ""))
    assert brain.report.degraded is None
    assert Say() in brain.said


def test_one_good_probe_between_bad_ones_counts_from_the_start() -> None:
    brain = Brain().serves()
    for ready in (False, False, True, False, False):
        brain.passes(5.0)
        brain.happens(Probed(KEY, 1, ready, "slow"))
    assert brain.report.degraded is None


def test_failures_are_forgotten_after_a_long_time_ready() -> None:
    brain = Brain()
    brain.ordered(SPEC)
    brain.starts()
    brain.crashes()
    brain.is_gone()
    brain.passes(2.0)
    brain.starts(attempt=2)
    brain.is_ready(attempt=2)
    assert brain.report.failures == 1
    brain.passes(599.0)
    assert brain.report.failures == 1, "being ready for a moment proves nothing"
    brain.passes(1.0)
    assert brain.report.failures == 0


def test_processes_that_do_not_end_are_named_and_tried_again() -> None:
    brain = Brain().serves()
    brain.ordered()
    assert brain.happens(Gone(KEY, 1, (1001, 1007))) == [Stop(KEY, 1, 1001, 0.0)]
    assert brain.report.reason == Reason("cannot_kill", "processes 1001, 1007 do not end; look at them on the node")
    assert brain.phase is Phase.STOPPING
    assert brain.is_gone() == [Reap(KEY)]


def test_nothing_starts_beside_processes_that_do_not_end() -> None:
    brain = Brain().serves()
    brain.crashes()
    brain.happens(Gone(KEY, 1, (1001,)))
    assert brain.passes(1000.0) == []
    brain.is_gone()
    assert brain.phase is Phase.BACKOFF


def test_the_next_tick_is_due_when_something_is_and_never_at_once_for_what_only_waits() -> None:
    brain = Brain()
    assert brain.state.next_due(Instant(brain.now)) == 1.0
    brain.ordered(SPEC)
    assert brain.state.next_due(Instant(brain.now)) == 1.0, "its start is under way"
    brain.starts()
    assert brain.state.next_due(Instant(brain.now)) == pytest.approx(0.25)
    brain.passes(0.25)
    assert brain.state.next_due(Instant(brain.now)) == 1.0, "its probe is under way"
    brain.happens(Probed(KEY, 1, True, ""))
    assert brain.state.next_due(Instant(brain.now)) == 1.0
    assert brain.state.next_due(Instant(brain.now + 4.5)) == pytest.approx(0.5)
    brain.crashes()
    assert brain.state.next_due(Instant(brain.now + 1000.0)) == 1.0, "stopping"
    brain.is_gone()
    assert brain.state.next_due(Instant(brain.now)) == 1.0
    assert failed().state.next_due(Instant(10**9)) == 1.0, "failed"


def test_several_shards_are_looked_at_in_the_order_of_their_names() -> None:
    wanted = catalog(model("b"), model("a"))
    brain = Brain()
    specs = [spec_of(wanted, "b"), spec_of(wanted, "a", port=20001)]
    assert [one.spec.shard for one in brain.ordered(*specs)] == [specs[1].shard, specs[0].shard]
    assert brain.state.attempt_of(specs[1].shard) == 0
    assert brain.state.attempt_of(ShardId("never-0.s0")) == 0


def test_nothing_starts_on_a_card_that_another_shard_still_has() -> None:
    old = replace(SPEC, gpus=("GPU-1", "GPU-2"))
    new = replace(SPEC, shard=ShardId("a-1-0.s0"), port=20001, gpus=("GPU-2",))
    brain = Brain()
    brain.ordered(old)
    brain.starts(old)
    brain.is_ready()
    assert [type(one) for one in brain.ordered(new)] == [Stop]
    told = brain.state.report(NodeName("a"), facts(), Instant(brain.now)).shard(new.shard)
    assert told is not None
    assert (told.phase, told.reason) == (
        Phase.WAITING,
        Reason("gpu_busy", f"card GPU-2 is still used by shard {SPEC.shard}"),
    )
    assert brain.passes(5.0) == []
    brain.is_gone()
    assert brain.passes(2.0) == [Start(new, 1, "r1#1")]
    other = replace(new, shard=ShardId("c-1-0.s0"), port=20002)
    assert brain.ordered(new, other) == [], "one whose start is under way has its cards, too"


def test_a_late_probe_of_an_ended_attempt_starts_nothing_twice() -> None:
    brain = Brain().serves()
    brain.passes(5.0)
    brain.crashes()
    brain.is_gone()
    starts = brain.passes(2.0)
    late = brain.happens(Probed(SPEC.shard, 1, False, "refused"))
    assert [type(one).__name__ for one in starts + late].count("Start") == 1


def test_without_its_order_an_agent_obeys_nothing_older_than_what_it_obeyed_before() -> None:
    state = AgentState(BootId("b"), floor=(3, 9))
    assert not state.accepts(order("a", epoch=3, generation=8))
    assert state.accepts(order("a", epoch=3, generation=9))
    assert state.accepts(order("a", epoch=4, generation=1))
    assert state.refused == 1
