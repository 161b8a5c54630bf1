"""What requests cost, as it is kept and asked for."""

from typing import Literal, Protocol

from llmgw.base.time import Instant
from llmgw.fleet.spent import Spent, SpentBatch

By = Literal["tenant", "key", "model", "hour", "day"]
BYS: tuple[By, ...] = ("tenant", "key", "model", "hour", "day")


class UsageKeeper(Protocol):
    """Keeps it. Every method raises StoreUnavailable."""

    async def keep(self, batch: SpentBatch, now: Instant) -> None:
        """Add a batch to what is kept, all of it or nothing; nothing if one of this number or a later one was.

        So it may be tried again after any failure, and by another control plane on the same store.
        """
        ...

    async def usage(self, by: By, since: int, until: int) -> tuple[Spent, ...]:
        """Return the sums of the hours from `since` to before `until`, in order of what they are grouped by.

        What is not grouped by is empty, and the hour 0; by key, the tenant is there too; by day, the hour is its first (UTC).
        """
        ...

    async def forget(self, hour: int, now: Instant) -> None:
        """Drop what is older than that hour, and sources that were not heard of for a month."""
        ...
