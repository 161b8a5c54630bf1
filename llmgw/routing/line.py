"""`Line`: requests that wait for a place, in the order in which they came, and how fast their model's line moves.

What a client that is turned away is told of when to come again is worked out from that: as long as the line is, at the pace at
which places became free of late.
"""

from math import ceil
from typing import Generic, TypeVar

LONGEST_WAIT = 60
"""Seconds; the most that a client is told to stay away."""
OLD = 0.8
"""Share that what is known of the pace keeps when a place becomes free."""

T = TypeVar("T")


class Line(Generic[T]):
    """All lines of a gateway, one for each model. Synchronous throughout."""

    def __init__(self) -> None:
        self._lines: dict[str, dict[T, float]] = {}
        self._count = 0
        self._moved: dict[str, float] = {}
        self._pace: dict[str, float] = {}

    def __len__(self) -> int:
        return self._count

    def join(self, model: str, one: T, now: float) -> None:
        """Let a request wait at the end of its model's line."""
        line = self._lines.get(model)
        if line is None:
            line = self._lines[model] = {}
            self._moved[model] = now
        line[one] = now
        self._count += 1

    def leave(self, model: str, one: T) -> None:
        """Let it wait no more."""
        line = self._lines[model]
        del line[one]
        self._count -= 1
        if not line:
            del self._lines[model]

    def moved(self, model: str, now: float) -> None:
        """Note that the first of a line got a place."""
        gap = now - self._moved.get(model, now)
        known = self._pace.get(model)
        self._pace[model] = gap if known is None else OLD * known + (1.0 - OLD) * gap
        self._moved[model] = now

    def first(self, model: str) -> T:
        """Return who has waited longest for a model that somebody waits for."""
        return next(iter(self._lines[model]))

    def models(self) -> list[str]:
        """Return the models that somebody waits for; the one first whose first has waited longest."""
        return sorted(self._lines, key=self._since)

    def waiting(self, model: str) -> int:
        """Return how many wait for a model."""
        line = self._lines.get(model)
        return len(line) if line is not None else 0

    def seconds(self, model: str) -> int:
        """Return after how many seconds a place may be free for one that comes now; 1 if nothing is known."""
        wait = (self.waiting(model) + 1) * self._pace.get(model, 0.0)
        return min(LONGEST_WAIT, max(1, ceil(wait)))

    def keep(self, models: frozenset[str]) -> None:
        """Forget the pace of every model that is not among these."""
        for known in [one for one in self._pace if one not in models]:
            del self._pace[known]
        for known in [one for one in self._moved if one not in models and one not in self._lines]:
            del self._moved[known]

    def _since(self, model: str) -> float:
        return next(iter(self._lines[model].values()))
