"""What requests cost: taken from the gateways, kept, and dropped when it is old.

Every batch is written in a transaction of its own and confirmed then, so what is confirmed is kept, and what is not comes
again. A worker sends one a second at most, with sums instead of requests: two thousand requests a second are one small
transaction.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from llmgw.base.time import Clock, Instant
from llmgw.fleet.spent import HOUR, SpentBatch
from llmgw.ports.audit import AuditKeeper
from llmgw.ports.keys import KeyKeeper
from llmgw.ports.sinks import StoreUnavailable
from llmgw.ports.usage import UsageKeeper

log = logging.getLogger(__name__)

TIDY = 3600.0
"""Seconds between two looks for what is too old to be kept."""


class Spendings:
    """One for a control plane. `used` is told which keys were used, and when."""

    def __init__(self, keeper: UsageKeeper, clock: Clock, used: Callable[[list[str], Instant], None]) -> None:
        self._keeper = keeper
        self._clock = clock
        self._used = used

    async def keep(self, batch: SpentBatch) -> None:
        """Return once a batch is kept. Raises StoreUnavailable."""
        now = self._clock.now()
        await self._keeper.keep(batch, now)
        for row in batch.rows:
            # one that was held back while nobody could be asked is no word on the present hour
            self._used([row.key], min(now, Instant((row.hour + 1.0) * HOUR)))


async def tidy(
    usage: UsageKeeper, audit: AuditKeeper, keys: KeyKeeper, clock: Clock, kept: Callable[[], float | None]
) -> None:
    """Drop what is older than `kept` seconds, for ever; nothing while that is None."""
    while True:
        seconds, now = kept(), clock.now()
        if seconds is not None:
            before = Instant(now - seconds)
            works: tuple[Awaitable[None], ...] = (
                usage.forget(int(before) // HOUR, now),
                audit.forget(before),
                keys.forget(before),
            )
            for work in works:
                try:
                    await work
                except StoreUnavailable as error:
                    log.warning("what is old could not be dropped", extra={"reason": str(error)})
        await asyncio.sleep(TIDY)
