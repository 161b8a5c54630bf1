"""`Spent`: what requests cost, added up by tenant, key, model and hour. Sums, so that memory is bounded whatever the traffic.

A record of its own for every request would be a million rows an hour to move and to keep, for a question that is always about
sums. So each gateway worker adds up what it answered, and hands over batches with a number of its own: a batch is counted once,
however often it is sent, and a request is in one batch, so each request is counted once.
"""

from dataclasses import dataclass, replace

HOUR = 3600
"""Seconds."""


@dataclass(frozen=True, slots=True)
class Spent:
    """A sum over requests of one tenant, key, model and hour; over many of these, where a question joins them."""

    tenant: str
    """Empty where no key was needed, or where the sum is over all."""
    key: str
    model: str
    hour: int
    """Whole hours since 1970."""
    requests: int = 0
    """All that named a model that there is, whatever came of them."""
    failed: int = 0
    """Of these, those that ended with a status of 400 or more, or were left by their client."""
    prompt: int = 0
    completion: int = 0
    """Tokens."""
    cached: int = 0
    """Of the prompt's tokens, those that the engine knew already."""
    estimated: int = 0
    """Of all tokens, those that no engine reported: their number is worked out from bytes and events."""

    def plus(self, other: "Spent") -> "Spent":
        """Return the sum, under this one's names."""
        return replace(
            self,
            requests=self.requests + other.requests,
            failed=self.failed + other.failed,
            prompt=self.prompt + other.prompt,
            completion=self.completion + other.completion,
            cached=self.cached + other.cached,
            estimated=self.estimated + other.estimated,
        )


@dataclass(frozen=True, slots=True)
class SpentBatch:
    """What one gateway worker answered between two of these."""

    source: str
    """The worker's run: another one after each start."""
    sequence: int
    """Grows by one with every batch of a source; the next is sent when this one is kept."""
    rows: tuple[Spent, ...]
