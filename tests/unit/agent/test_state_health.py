"""What ends a ready engine and what does not, how long a start may take, and what is said meanwhile."""

from dataclasses import replace

import pytest

from llmgw.agent.events import Exited, Found, Gone, NotStarted, OrderStored, Probe, Probed, Start, Stop
from llmgw.agent.liveness import SILENT, Pulse
from llmgw.fleet.report import Phase, Reason
from tests.builders import order
from tests.unit.agent.brain import KEY, LOADING, OTHER, PROVING, SERVING, SPEC, Brain

BUSY = Pulse(True, 3, 10.0, "a")
KILL = Stop(KEY, 1, 1001, 0.0)
STOLEN = Reason("port_stolen", "port 20000 is held by pid 77 (thief), which is not the engine that was started")


def looks(brain: Brain, pulse: Pulse | None, times: int, *, ready: bool = True) -> list[object]:
    """Let the engine be looked at every 5 seconds; return the first instructions that are no probes."""
    for _ in range(times):
        brain.passes(5.0)
        done = brain.happens(Probed(KEY, 1, ready, "" if ready else "/health did not answer within 5 s", pulse=pulse))
        if done:
            return done
    return []


def test_work_without_a_token_for_stall_after_ends_the_attempt_without_grace_and_starts_another() -> None:
    brain = Brain().serves()
    assert looks(brain, BUSY, 60) == []
    assert (brain.report.in_flight, brain.report.quiet_for) == (3, 295.0)
    assert looks(brain, BUSY, 1) == [KILL]
    reason = Reason("stalled", "3 requests in flight and no token for 300 s")
    assert (brain.phase, brain.report.reason) == (Phase.STOPPING, reason)
    assert brain.report.last_end is not None
    assert brain.report.last_end.code == "stalled"
    brain.is_gone()
    assert (brain.phase, brain.report.failures, brain.report.reason) == (Phase.BACKOFF, 1, reason)
    assert brain.passes(2.0) == [Start(SPEC, 2, "r1#1")]


def test_the_patience_is_the_specs_and_a_change_of_it_holds_at_once() -> None:
    brain = Brain().serves()
    assert looks(brain, BUSY, 13) == []
    brain.ordered(replace(SPEC, stall_after=60.0))
    assert looks(brain, BUSY, 1) == [KILL]


def test_a_failed_probe_while_tokens_flow_is_degraded_and_nothing_else() -> None:
    brain = Brain().serves()
    for number in range(500):
        assert looks(brain, Pulse(True, 1, float(number), "a"), 1, ready=False) == []
    assert (brain.phase, brain.report.degraded) == (Phase.READY, "/health did not answer within 5 s")
    assert (brain.report.in_flight, brain.report.quiet_for) == (1, 0.0)


@pytest.mark.parametrize("pulse", [None, Pulse(True)], ids=["not asked", "unreadable"])
def test_unknown_figures_never_end_an_engine(pulse) -> None:
    brain = Brain().serves()
    assert looks(brain, pulse, 1000) == []
    assert (brain.report.in_flight, brain.report.quiet_for) == (None, None)


def test_a_loop_that_answers_nothing_is_stalled_where_the_loop_answers() -> None:
    brain = Brain().serves()
    assert looks(brain, SILENT, 60, ready=True) == []
    assert looks(brain, SILENT, 1) == [KILL]
    assert brain.report.reason.text == "its loop does not answer: no word from its metrics for 300 s"


def test_a_silent_front_that_is_not_the_loop_is_no_reason() -> None:
    assert SPEC.metrics is not None
    spec = replace(SPEC, metrics=replace(SPEC.metrics, from_loop=False))
    brain = Brain()
    brain.ordered(spec)
    brain.starts(spec)
    brain.is_ready()
    assert looks(brain, SILENT, 1000) == []


def test_adoption_and_a_new_attempt_begin_the_time_anew() -> None:
    brain = Brain()
    brain.state.order = order("a", SPEC)
    brain.happens(Found(SPEC, 1, 1001, True))
    brain.happens(Probed(KEY, 1, True, "", pulse=BUSY))
    assert looks(brain, BUSY, 59) == []
    assert looks(brain, BUSY, 1) == [KILL]
    brain.is_gone()
    brain.passes(2.0)
    brain.starts(attempt=2)
    brain.is_ready(attempt=2)
    assert brain.report.quiet_for is None
    brain.passes(5.0)
    assert brain.happens(Probed(KEY, 2, True, "", pulse=BUSY)) == []


def test_who_answers_is_proven_again_now_and_then() -> None:
    brain = Brain().serves()
    proofs = []
    for _ in range(12):
        proofs += brain.passes(5.0)
        brain.happens(Probed(KEY, 1, True, ""))
    assert proofs == [*[SERVING] * 5, PROVING] * 2


def test_a_stolen_port_ends_a_ready_engine_and_asks_the_planner_for_another() -> None:
    brain = Brain().serves()
    brain.passes(5.0)
    assert brain.happens(Probed(KEY, 1, False, "x", STOLEN)) == []
    assert brain.passes(1.0) == [PROVING]
    assert brain.happens(Probed(KEY, 1, False, "x", STOLEN)) == [KILL]
    brain.is_gone()
    assert (brain.phase, brain.report.failures) == (Phase.WAITING, 1)
    assert brain.report.reason == Reason("port_taken", STOLEN.text)
    moved = replace(SPEC, port=20005)
    assert brain.ordered(moved) == [Start(moved, 2, "r1#1")]


def test_one_proof_alone_ends_nothing() -> None:
    brain = Brain().serves()
    for _ in range(20):
        brain.passes(5.0)
        assert brain.happens(Probed(KEY, 1, False, "x", STOLEN)) == []
        assert brain.passes(1.0) == [PROVING]
        assert brain.happens(Probed(KEY, 1, True, "")) == []
    assert brain.phase is Phase.READY


@pytest.mark.parametrize("code", ["port_lost", "wrong_model"])
def test_other_proofs_end_it_too_and_it_is_started_again_where_it_was(code) -> None:
    brain = Brain().serves()
    brain.passes(5.0)
    brain.happens(Probed(KEY, 1, False, "x", Reason(code, "why")))
    brain.passes(1.0)
    assert brain.happens(Probed(KEY, 1, False, "x", Reason(code, "why"))) == [KILL]
    brain.is_gone()
    assert (brain.phase, brain.report.reason) == (Phase.BACKOFF, Reason(code, "why"))


def test_an_engine_that_found_its_port_taken_waits_for_another_and_is_given_up_if_that_goes_on() -> None:
    brain = Brain()
    brain.ordered(SPEC)
    why = "exited with status 1: the port is taken by another process; port 20000 is taken by pid 77 (thief)"
    for attempt, wait in ((1, 2.0), (2, 4.0), (3, 8.0)):
        brain.starts(attempt=attempt)
        brain.happens(Exited(KEY, attempt, "port_taken", why, ()))
        brain.is_gone(attempt)
        assert (brain.phase, brain.report.reason) == (Phase.WAITING, Reason("port_taken", why))
        assert brain.passes(wait - 0.1) == []
        assert brain.passes(0.1) == [Start(SPEC, attempt + 1, "r1#1")]
    brain.starts(attempt=4)
    brain.happens(Exited(KEY, 4, "port_taken", why, ()))
    brain.is_gone(4)
    assert brain.phase is Phase.FAILED


def test_a_start_whose_port_another_engine_answers_at_is_ended_soon() -> None:
    brain = Brain()
    brain.ordered(SPEC)
    brain.starts()
    for _ in range(7):
        assert brain.passes(0.25) == [LOADING]
        assert brain.happens(Probed(KEY, 1, False, STOLEN.text, STOLEN)) == []
    brain.passes(0.25)
    assert brain.happens(Probed(KEY, 1, False, STOLEN.text, STOLEN)) == [KILL]
    brain.is_gone()
    assert (brain.phase, brain.report.reason.code) == (Phase.WAITING, "port_taken")


def test_a_start_that_nothing_listens_for_yet_goes_on() -> None:
    brain = Brain()
    brain.ordered(SPEC)
    brain.starts()
    for _ in range(100):
        brain.passes(0.25)
        assert brain.happens(Probed(KEY, 1, False, "refused", Reason("port_lost", "nothing listens"))) == []
    assert brain.phase is Phase.STARTING


def loads(brain: Brain, seconds: float, every: float, lines: int = 10**9) -> tuple[float, list[object]]:
    """Let a start go on with a line of log so often; return (seconds, instructions) when something else is done."""
    passed, log = 0.0, 100
    while passed < seconds:
        passed += 0.25
        done = [one for one in brain.passes(0.25) if not isinstance(one, Probe)]
        if done:
            return passed, done
        log = 100 + min(lines, int(passed / every))
        done = brain.happens(Probed(KEY, 1, False, "/health answers 503", log=log, last_line=f"layer {log}"))
        if done:
            return passed, done
    return passed, []


def test_a_slow_load_that_visibly_advances_may_take_longer_than_start_timeout() -> None:
    brain = Brain()
    brain.ordered(SPEC)
    brain.starts()
    assert loads(brain, 200.0, every=20.0) == (200.0, [])
    assert (brain.phase, brain.report.progress) == (Phase.STARTING, "layer 110")
    assert brain.report.reason == Reason("loading", "/health answers 503")


def test_a_start_whose_log_falls_silent_is_ended_when_it_was_silent_for_half_of_start_timeout() -> None:
    brain = Brain()
    brain.ordered(SPEC)
    brain.starts()
    took, done = loads(brain, 1000.0, every=20.0, lines=4)
    assert done == [KILL]
    assert took == pytest.approx(80.0 + 30.25, abs=0.5)
    assert "its log silent for 30 s; last answer: /health answers 503; last line of its log: layer 104" in (
        brain.report.reason.text
    )


def test_a_log_that_never_falls_silent_does_not_keep_a_start_for_ever() -> None:
    brain = Brain()
    brain.ordered(SPEC)
    brain.starts()
    took, done = loads(brain, 1000.0, every=1.0)
    assert (took, done) == (240.25, [KILL])
    assert brain.report.reason.code == "start_timeout"
    assert brain.report.reason.text.startswith("not ready within 240 s, though its log grows")


def test_a_silent_start_says_for_how_long() -> None:
    brain = Brain()
    brain.ordered(SPEC)
    brain.starts()
    brain.passes(0.25)
    brain.happens(Probed(KEY, 1, False, "refused", log=9, last_line="loading weights"))
    assert brain.report.progress == "loading weights"
    brain.passes(12.0)
    assert brain.report.progress == "loading weights (12 s ago)"


def test_a_card_that_is_not_free_yet_holds_back_the_next_start_and_names_the_holder() -> None:
    spec = replace(SPEC, gpus=("GPU-1",))
    brain = Brain()
    brain.ordered(spec)
    brain.starts(spec)
    brain.is_ready()
    assert brain.crashes() == [Stop(KEY, 1, 1001, 0.0, ("GPU-1",))]
    held = "GPU 0 (GPU-1): 9 GiB are still held by pid 1007 (python)"
    assert brain.happens(Gone(KEY, 1, (), held)) == [Stop(KEY, 1, 1001, 0.0, ("GPU-1",))]
    assert (brain.phase, brain.report.reason) == (Phase.STOPPING, Reason("gpu_busy", held))
    assert brain.passes(100.0) == []
    brain.is_gone()
    assert (brain.phase, brain.report.reason) == (Phase.BACKOFF, Reason("exit", "exit status 1"))


@pytest.mark.parametrize(
    ("wanted", "text"),
    [
        ((), "the order leaves it out; killed if it has not ended after 10 s"),
        ((OTHER,), "the order wants it otherwise; killed if it has not ended after 10 s"),
    ],
    ids=["left out", "changed"],
)
def test_what_is_asked_to_end_says_why_and_for_how_long(wanted, text) -> None:
    brain = Brain().serves()
    brain.ordered(*wanted)
    assert brain.report.reason == Reason("asked_to_end", text)


def test_backoff_says_when_it_ends() -> None:
    brain = Brain().serves()
    brain.crashes()
    brain.is_gone()
    brain.passes(0.5)
    assert brain.report.progress == "next start in 2 s"


def test_missing_weights_do_not_make_a_shard_without_a_source_fetch() -> None:
    brain = Brain()
    brain.happens(OrderStored(order("a", SPEC)))
    brain.happens(NotStarted(KEY, Reason("weights_missing", "no file")))
    assert brain.passes(2.0) == [Start(SPEC, 1, "r1#1")]
