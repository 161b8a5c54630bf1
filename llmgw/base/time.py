"""Instants and the clock's interface. The only implementation that reads a real clock is `runtime.clock`."""

from typing import NewType, Protocol

Instant = NewType("Instant", float)
"""Seconds since the Unix epoch, on a clock that never runs backwards within one process."""


class Clock(Protocol):
    """Says what time it is; decisions get the answer as an argument instead."""

    def now(self) -> Instant:
        """Return the present instant; never less than an earlier answer."""
        ...


EARLIEST = Instant(0.0)
"""Before everything."""


def later(instant: Instant, seconds: float) -> Instant:
    """Return the instant so many seconds after."""
    return Instant(instant + seconds)


def age(seconds: float) -> str:
    """Say a duration in the one unit a person would use: `12s`, `5m`, `3h`, `2d`."""
    seconds = max(0.0, seconds)
    for limit, size, unit in ((120, 1, "s"), (7200, 60, "m"), (172800, 3600, "h")):
        if seconds < limit:
            return f"{int(seconds / size)}{unit}"
    return f"{int(seconds / 86400)}d"
