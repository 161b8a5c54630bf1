"""A `UsageKeeper` and an `AuditKeeper` in memory."""

from collections.abc import Callable
from dataclasses import replace

from llmgw.base.time import Instant
from llmgw.fleet.spent import Spent, SpentBatch
from llmgw.ports.audit import Entry
from llmgw.ports.sinks import StoreUnavailable
from llmgw.ports.usage import By

_NAMES: dict[By, Callable[[Spent], Spent]] = {
    "tenant": lambda one: Spent(one.tenant, "", "", 0),
    "key": lambda one: Spent(one.tenant, one.key, "", 0),
    "model": lambda one: Spent("", "", one.model, 0),
    "hour": lambda one: Spent("", "", "", one.hour),
    "day": lambda one: Spent("", "", "", one.hour - one.hour % 24),
}


class FakeUsage:
    """See `UsageKeeper`; `available` takes it away."""

    def __init__(self) -> None:
        self.available = True
        self.rows: list[Spent] = []
        self._sequences: dict[str, int] = {}

    async def keep(self, batch: SpentBatch, now: Instant) -> None:  # noqa: ARG002 - sources are few here
        """Add a batch, once."""
        self._raise_if_away()
        if self._sequences.get(batch.source, 0) < batch.sequence:
            self._sequences[batch.source] = batch.sequence
            self.rows += batch.rows

    async def usage(self, by: By, since: int, until: int) -> tuple[Spent, ...]:
        """Return the sums."""
        self._raise_if_away()
        found: dict[Spent, Spent] = {}
        for one in self.rows:
            if since <= one.hour < until:
                name = _NAMES[by](one)
                found[name] = found.get(name, name).plus(one)
        return tuple(found[name] for name in sorted(found, key=lambda one: (one.tenant, one.key, one.model, one.hour)))

    async def forget(self, hour: int, now: Instant) -> None:  # noqa: ARG002 - sources are few here
        """Drop what is old."""
        self._raise_if_away()
        self.rows = [one for one in self.rows if one.hour >= hour]

    def _raise_if_away(self) -> None:
        if not self.available:
            raise StoreUnavailable("the database does not answer")


class FakeAudit:
    """See `AuditKeeper`."""

    def __init__(self) -> None:
        self.recorded: list[Entry] = []

    def record(self, entry: Entry) -> None:
        """Take a line."""
        self.recorded.append(replace(entry))

    async def entries(self, limit: int, since: Instant | None = None) -> list[Entry]:
        """Return the newest."""
        return [one for one in reversed(self.recorded) if since is None or one.at >= since][:limit]

    async def forget(self, before: Instant) -> None:
        """Drop what is older."""
        self.recorded = [one for one in self.recorded if one.at >= before]
