"""`Meter`: the counts of one gateway worker, cheap to add to, and told as plain samples.

A request adds once, at its end: to a few dictionaries by labels of which there is a bounded number (routes, the catalog's
models, statuses, and reasons of the gateway's own). Nothing is counted by event: the gap between two pieces of a stream is
its time divided by their number. Whoever shows the samples adds those of all workers up.
"""

from bisect import bisect_left
from collections import defaultdict

from llmgw.gateway.outcome import Outcome
from llmgw.routing.request import Route
from llmgw.wire.messages import Sample

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
"""Upper bounds of the buckets of durations."""
GAPS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
"""Upper bounds of the buckets of gaps."""


class Histogram:
    """Counts by upper bound."""

    __slots__ = ("_bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self._bounds, value)] += 1
        self.total += value

    def samples(self, name: str, labels: tuple[str, ...]) -> list[Sample]:
        """Return the buckets, each with those below it, the sum and the count."""
        found = []
        below = 0
        for bound, count in zip((*self._bounds, float("inf")), self.counts, strict=True):
            below += count
            found.append(Sample(f"{name}_bucket", (*labels, "+Inf" if bound == float("inf") else f"{bound:g}"), below))
        return [*found, Sample(f"{name}_sum", labels, self.total), Sample(f"{name}_count", labels, below)]


class _OfModel:
    """The counts of one model."""

    __slots__ = ("cached", "completion", "duration", "first", "gaps", "prompt", "retries")

    def __init__(self) -> None:
        self.prompt = self.completion = self.cached = self.retries = 0
        self.first = Histogram(SECONDS)
        self.duration = Histogram(SECONDS)
        self.gaps = Histogram(GAPS)

    def samples(self, model: str) -> list[Sample]:
        counts = [
            Sample("llmgw_gateway_tokens_total", (model, "prompt"), self.prompt),
            Sample("llmgw_gateway_tokens_total", (model, "completion"), self.completion),
            Sample("llmgw_gateway_tokens_total", (model, "cached"), self.cached),
            Sample("llmgw_gateway_retries_total", (model,), self.retries),
        ]
        return [
            *counts,
            *self.first.samples("llmgw_gateway_time_to_first_byte_seconds", (model,)),
            *self.duration.samples("llmgw_gateway_request_duration_seconds", (model,)),
            *self.gaps.samples("llmgw_gateway_inter_chunk_seconds", (model,)),
        ]


class Meter:
    """The counts. Use from the gateway's event loop only."""

    def __init__(self) -> None:
        self._requests: defaultdict[tuple[str, str, int, str], int] = defaultdict(int)
        self._models: defaultdict[str, _OfModel] = defaultdict(_OfModel)
        self._lag = 0.0

    def count(self, route: Route, model: str, outcome: Outcome) -> None:
        """Count a request that is over; `model` is one of the catalog's, or empty."""
        self._requests[route, model, outcome.status, outcome.reason] += 1
        if not model:
            return
        counts = self._models[model]
        counts.retries += outcome.retries
        counts.duration.add(outcome.duration)
        if outcome.first is None:
            return
        counts.first.add(outcome.first)
        if outcome.pieces > 2:
            counts.gaps.add((outcome.duration - outcome.first) / (outcome.pieces - 1))
        tokens = outcome.tokens
        if tokens is not None:
            counts.prompt += tokens.prompt
            counts.completion += tokens.completion
            counts.cached += tokens.cached

    def late(self, seconds: float) -> None:
        """Note how late the event loop was."""
        self._lag = max(self._lag * 0.9, seconds)

    def samples(self) -> list[Sample]:
        """Return everything, counted since the start."""
        found = [
            Sample("llmgw_gateway_requests_total", (route, model, str(status), reason), count)
            for (route, model, status, reason), count in self._requests.items()
        ]
        for model, counts in self._models.items():
            found += counts.samples(model)
        found.append(Sample("llmgw_gateway_event_loop_lag_seconds", (), self._lag))
        return found
