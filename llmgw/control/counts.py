"""`Counts`: what all workers have counted together. A worker that ended is not forgotten: counters only ever grow."""

from collections.abc import Iterable

from llmgw.wire.messages import Sample

GREATEST = frozenset({"llmgw_gateway_circuit_open", "llmgw_gateway_event_loop_lag_seconds"})
"""Of these, the greatest of all workers is shown; all else is added up."""
NOW = GREATEST | {"llmgw_gateway_in_flight", "llmgw_gateway_queued"}
"""What a worker that ended has no part in any more."""

Key = tuple[str, tuple[str, ...]]


class Counts:
    """The samples of one control plane's workers, by process id."""

    def __init__(self) -> None:
        self._ended: dict[Key, float] = {}
        self._living: dict[int, tuple[Sample, ...]] = {}

    def take(self, pid: int, samples: tuple[Sample, ...]) -> None:
        """Take all that a worker has counted."""
        self._living[pid] = samples

    def ended(self, pid: int) -> None:
        """Keep what a worker had counted that is gone."""
        _add(self._ended, (one for one in self._living.pop(pid, ()) if one.name not in NOW))

    def samples(self) -> list[Sample]:
        """Return all of it, in order of name and labels."""
        found = dict(self._ended)
        for samples in self._living.values():
            _add(found, samples)
        return [Sample(name, labels, value) for (name, labels), value in sorted(found.items())]


def _add(found: dict[Key, float], samples: Iterable[Sample]) -> None:
    for one in samples:
        key = (one.name, one.labels)
        before = found.get(key, 0.0)
        found[key] = max(before, one.value) if one.name in GREATEST else before + one.value
