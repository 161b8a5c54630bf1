"""`Backoff`: how long to wait before the next try, growing, with jitter from a given source of chance."""

import random


class Backoff:
    """One series of tries. Not for concurrent use."""

    def __init__(self, base: float, maximum: float, rng: random.Random) -> None:
        self._base = base
        self._maximum = maximum
        self._rng = rng
        self._failures = 0

    def next(self) -> float:
        """Count a failure and return the seconds to wait: base · 2^(n-1), at most `maximum`, times 0.5 to 1."""
        self._failures += 1
        delay = min(self._maximum, self._base * 2 ** min(self._failures - 1, 30))
        return float(delay * (0.5 + self._rng.random() / 2))

    def reset(self) -> None:
        """Forget earlier failures."""
        self._failures = 0
