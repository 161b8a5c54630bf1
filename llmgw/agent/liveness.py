"""Whether an engine with work still makes tokens: the rule, without the asking.

A busy engine is not dead and a silent one is not alive, so neither a failed nor a passed health probe decides. Each look
says what is in flight and whether anything moved: a token counter, or, for an engine whose counters move only at the end of
a request, a page that changes with every token. Quiet time is added up only between two looks that both saw work and no
progress; what was not seen is unknown and counts for nothing, and so does time in which nobody looked (a stopped agent, a
suspended machine). Rejected: the time since the last token, which a gap in the looks would turn into a verdict.

An engine whose own loop answers its metrics gives one more sign: a loop that answers nothing at all for as long is not
serving anybody either.
"""

from dataclasses import dataclass

from llmgw.base.time import Instant
from llmgw.fleet.report import Reason

LONGEST_GAP = 15.0
"""Seconds between two looks that count as seen; a longer gap counts as this much."""


@dataclass(frozen=True, slots=True)
class Pulse:
    """What one look at an engine's own figures said."""

    answered: bool
    """It answered at all, be it with nonsense; False means silence or a refused connection."""
    in_flight: int | None = None
    """Requests running or waiting; None if it does not say."""
    tokens: float | None = None
    """Sum of its token counters; None if it does not say."""
    activity: str = ""
    """Digest of the page that changes with every token; empty if there is none."""


SILENT = Pulse(answered=False)


@dataclass(slots=True)
class Liveness:
    """What the looks at one attempt add up to.

    A new attempt and an adopted one begin with a new one; a starting engine is not looked at.
    """

    _last: Pulse | None = None
    _at: Instant | None = None
    _silent_at: Instant | None = None
    _quiet: float = 0.0
    _silent: float = 0.0

    def look(self, pulse: Pulse, now: Instant) -> None:
        """Take what a look said. Call in the order of the looks."""
        if not pulse.answered:
            if self._silent_at is not None:
                self._silent += min(LONGEST_GAP, now - self._silent_at)
            self._silent_at = now
            self._at = None  # what happens until the next answer is not seen
            return
        self._silent_at, self._silent = None, 0.0
        if pulse.in_flight is None or (pulse.tokens is None and not pulse.activity):
            self._at = None
            return
        last = self._last
        if not pulse.in_flight or last is None or not last.in_flight or _moved(last, pulse):
            self._quiet = 0.0
        elif self._at is not None:
            self._quiet += min(LONGEST_GAP, now - self._at)
        self._last, self._at = pulse, now

    @property
    def in_flight(self) -> int | None:
        """Requests in flight at the last look; None if it did not say."""
        return self._last.in_flight if self._last is not None and self._at is not None else None

    @property
    def quiet_for(self) -> float | None:
        """Seconds without a token while something was in flight; None if nothing is, or if it is not known."""
        return self._quiet if self.in_flight else None

    def stalled(self, stall_after: float, *, from_loop: bool) -> Reason | None:
        """Return why the engine counts as stalled, or None. `from_loop`: its own loop answers these looks."""
        if self._last is not None and self._last.in_flight and self._quiet >= stall_after:
            count = self._last.in_flight
            return Reason(
                "stalled", f"{count} request{'s' * (count != 1)} in flight and no token for {self._quiet:.0f} s"
            )
        if from_loop and self._silent >= stall_after:
            return Reason("stalled", f"its loop does not answer: no word from its metrics for {self._silent:.0f} s")
        return None


def _moved(before: Pulse, after: Pulse) -> bool:
    return before.tokens != after.tokens or before.activity != after.activity
