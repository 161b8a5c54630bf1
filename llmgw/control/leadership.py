"""Who may decide. The lease row says so; agents are the witnesses that make it safe.

An unreachable store keeps the claim: it is not evidence that somebody else leads. A higher epoch heard from any agent
is, and ends the claim at once. If the lease is ours all the same (a store that was wiped begins to count from one again),
the next renewal takes it with an epoch above everything heard.
"""

import asyncio
import logging
from collections.abc import Callable

from llmgw.base.ids import Epoch, OwnerId
from llmgw.ports.sinks import Lease, LeaseKeeper, StoreUnavailable

log = logging.getLogger(__name__)

LEASE = 15.0
"""Seconds a lease lasts without renewal."""
RENEW = 2.0
"""Seconds between renewals."""


class Leadership:
    """The claim of one process. `epoch` is read by the reconciler; None means that it may not decide."""

    def __init__(self, keeper: LeaseKeeper, owner: OwnerId, changed: Callable[[], None]) -> None:
        self._keeper = keeper
        self._owner = owner
        self._changed = changed
        self._heard = Epoch(0)
        self.epoch: Epoch | None = None
        self.leader: OwnerId | None = None
        self.trouble: str = ""
        """Why the store cannot be used now; empty if it can."""

    def heard(self, epoch: Epoch) -> None:
        """Take note of an epoch that an agent has obeyed; a higher one than ours ends our claim."""
        self._heard = max(self._heard, epoch)
        if self.epoch is not None and epoch > self.epoch:
            log.warning("an agent obeys a higher epoch; stepping down", extra={"ours": self.epoch, "theirs": epoch})
            self._set(None)

    def why_not(self) -> str:
        """Return why this process may not decide, and what to do; empty if it may."""
        if self.epoch is not None:
            return ""
        if self.trouble:
            return f"this server does not lead, and cannot use the store: {self.trouble}; mend the store, and try again"
        return f"this server does not lead; ask the one that does ({self.leader or 'nobody yet'}), or try again in a moment"

    async def renew(self) -> None:
        """Take or renew the lease once."""
        at_least = Epoch(self._heard + 1) if self.epoch is None and self._heard else Epoch(1)
        try:
            lease = await self._keeper.take(self._owner, LEASE, at_least)
        except StoreUnavailable as error:
            if not self.trouble:
                log.warning("the store cannot be used; the claim is kept", extra={"reason": str(error)})
            self.trouble = str(error)
            return
        self.trouble = ""
        self._note(lease)

    async def run(self) -> None:
        """Renew for ever."""
        while True:
            await self.renew()
            await asyncio.sleep(RENEW)

    async def release(self) -> None:
        """Give the lease up, so that another may lead at once."""
        self._set(None)
        try:
            await self._keeper.release(self._owner)
        except StoreUnavailable as error:
            log.warning("the lease could not be given up; it runs out by itself", extra={"reason": str(error)})

    def _note(self, lease: Lease) -> None:
        self.leader = lease.owner
        self._set(lease.epoch if lease.mine and lease.epoch >= self._heard else None)

    def _set(self, epoch: Epoch | None) -> None:
        if epoch != self.epoch:
            log.info("leading" if epoch is not None else "not leading", extra={"epoch": epoch})
            self.epoch = epoch
            self._changed()
