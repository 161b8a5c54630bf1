"""When an engine counts as stalled: looks in virtual time."""

import pytest

from llmgw.agent.liveness import SILENT, Liveness, Pulse
from llmgw.base.time import Instant

PATIENCE = 300.0


class Watcher:
    """Looks every 5 seconds."""

    def __init__(self, *, from_loop: bool = True) -> None:
        self.alive = Liveness()
        self.now = 1000.0
        self.from_loop = from_loop

    def sees(self, pulse: Pulse, times: int = 1, every: float = 5.0) -> bool:
        """Look so often; return whether it counts as stalled then."""
        for _ in range(times):
            self.now += every
            self.alive.look(pulse, Instant(self.now))
        return self.verdict is not None

    @property
    def verdict(self) -> str | None:
        reason = self.alive.stalled(PATIENCE, from_loop=self.from_loop)
        return reason.text if reason else None


def busy(tokens: float | None = 10.0, activity: str = "", in_flight: int = 3) -> Pulse:
    return Pulse(True, in_flight, tokens, activity)


def test_work_without_a_token_for_the_whole_time_is_stalled_and_says_the_numbers() -> None:
    watcher = Watcher()
    assert not watcher.sees(busy(), 60)
    assert watcher.alive.quiet_for == 295.0
    assert watcher.sees(busy())
    assert watcher.verdict == "3 requests in flight and no token for 300 s"


def test_one_request_is_said_as_one() -> None:
    watcher = Watcher()
    watcher.sees(busy(in_flight=1), 61)
    assert watcher.verdict == "1 request in flight and no token for 300 s"


@pytest.mark.parametrize("sign", [busy(11.0), busy(9.0), busy(activity="b")], ids=["more", "restarted", "page"])
def test_any_sign_of_progress_begins_the_time_anew(sign) -> None:
    watcher = Watcher()
    watcher.sees(busy(activity=sign.activity and "a"), 60)
    assert not watcher.sees(sign)
    assert not watcher.sees(sign, 59)
    assert watcher.sees(sign)


def test_an_idle_engine_is_never_stalled_and_work_begins_the_time() -> None:
    watcher = Watcher()
    assert not watcher.sees(busy(in_flight=0), 1000)
    assert (watcher.alive.in_flight, watcher.alive.quiet_for) == (0, None)
    assert not watcher.sees(busy(), 60)
    assert watcher.sees(busy())


def test_what_is_not_known_is_never_stalled_and_its_time_does_not_count() -> None:
    unknown = Pulse(True)
    watcher = Watcher()
    assert not watcher.sees(unknown, 1000)
    assert (watcher.alive.in_flight, watcher.alive.quiet_for) == (None, None)
    watcher.sees(busy(), 31)
    watcher.sees(unknown, 1000)
    assert watcher.verdict is None
    assert watcher.alive.quiet_for is None
    assert not watcher.sees(busy(), 30), "150 s before the gap, 145 after"
    assert watcher.sees(busy())


def test_what_happens_in_a_silence_does_not_count() -> None:
    front = Watcher(from_loop=False)
    front.sees(busy(), 31)
    front.sees(SILENT)
    assert not front.sees(busy(), 30), "150 s before the silence, 145 after"
    assert front.sees(busy())


@pytest.mark.parametrize("pulse", [Pulse(True, 3), Pulse(True, None, 5.0, "a")], ids=["no counters", "no load"])
def test_half_of_the_figures_is_unknown(pulse) -> None:
    assert not Watcher().sees(pulse, 1000)


def test_time_in_which_nobody_looked_does_not_count() -> None:
    watcher = Watcher()
    watcher.sees(busy(), 2)
    assert not watcher.sees(busy(), 1, every=3600.0), "a suspended machine"
    assert watcher.alive.quiet_for == 5.0 + 15.0


def test_a_loop_that_answers_nothing_at_all_is_stalled_only_where_the_loop_answers() -> None:
    watcher = Watcher()
    assert not watcher.sees(SILENT, 60)
    assert watcher.sees(SILENT)
    assert watcher.verdict == "its loop does not answer: no word from its metrics for 300 s"
    front = Watcher(from_loop=False)
    assert not front.sees(SILENT, 1000)


def test_one_answer_of_a_loop_begins_the_silence_anew() -> None:
    watcher = Watcher()
    watcher.sees(SILENT, 60)
    assert not watcher.sees(Pulse(True))
    assert not watcher.sees(SILENT, 60)
    assert watcher.sees(SILENT)
