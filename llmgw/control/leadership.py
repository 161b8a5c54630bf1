"""Who may decide. The lease row says so; agents are the witnesses that make it safe.

An unreachable store keeps the claim: it is not evidence that somebody else leads. A higher epoch heard from any agent
is, and ends the claim at once. If the lease is ours all the same (a store that was wiped begins to count from one again),
the next renewal takes it with an epoch above everything heard.

`on_store_loss: stop` is the strict alternative: a claim then ends at two thirds of the lease, counted from before the last
renewal that succeeded was *sent*, so that it ends before any other can begin, however long that renewal took.

A process that stood still (SIGSTOP, a frozen machine) for a whole lease has not heard what happened meanwhile. It asks
before it decides again: keeping the claim is for a store that does not answer, and not for one that was not asked.
All of this is counted on the event loop's monotonic clock; when a lease is over is the store's to say.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from llmgw.base.ids import Epoch, OwnerId
from llmgw.base.time import Clock, Instant, age
from llmgw.ports.sinks import Event, EventSink, Lease, LeaseKeeper, StoreUnavailable

log = logging.getLogger(__name__)

LEASE = 15.0
"""Seconds a lease lasts without renewal."""
RENEWALS = 7.5
"""How often it is renewed while it lasts: every 2 seconds."""
STRICT_SHARE = 2 / 3
"""Share of the lease after which `on_store_loss: stop` stops deciding."""
TOLD_FOR = 600.0
"""Seconds for which a change of the leader is an alarm."""

StoreLoss = Literal["keep", "stop"]


@dataclass(frozen=True, slots=True)
class Change:
    """The lead went from one control plane to another."""

    text: str
    at: Instant


class Leadership:
    """The claim of one process. `epoch` is read by the reconciler; None means that it may not decide."""

    def __init__(
        self,
        keeper: LeaseKeeper,
        owner: OwnerId,
        changed: Callable[[], None],
        events: EventSink,
        clock: Clock,
        *,
        seconds: float = LEASE,
        on_store_loss: Callable[[], StoreLoss] = lambda: "keep",
    ) -> None:
        """`changed` is called when the claim begins or ends."""
        self.owner = owner
        self.leader: OwnerId | None = None
        """Who has the lease, as far as this process knows."""
        self.leaders_epoch: Epoch | None = None
        self.trouble: str = ""
        """Why the store cannot be used now; empty if it can."""
        self.changes = 0
        """How often the lead went from one owner to another, as this process saw it."""
        self._keeper = keeper
        self._changed = changed
        self._events = events
        self._clock = clock
        self._seconds = seconds
        self._on_store_loss = on_store_loss
        self._heard = Epoch(0)
        self._claim: Epoch | None = None
        self._sent = self._answered = 0.0
        """When the last renewal that succeeded was sent, and when the store was last asked to the end, well or not."""
        self._resting_until = 0.0
        self._change: Change | None = None
        self._shown: Epoch | None = None

    @property
    def epoch(self) -> Epoch | None:
        """The epoch in which this process may decide now; None if it may not."""
        if self._claim is None:
            return None
        now = asyncio.get_running_loop().time()
        if now - self._answered > self._seconds:
            return None  # it stood still
        if self._on_store_loss() == "stop" and now - self._sent >= self._seconds * STRICT_SHARE:
            return None
        return self._claim

    def heard(self, epoch: Epoch) -> None:
        """Take note of an epoch that an agent has obeyed; a higher one than ours ends our claim."""
        self._heard = max(self._heard, epoch)
        if self._claim is not None and epoch > self._claim:
            log.warning("an agent obeys a higher epoch; stepping down", extra={"ours": self._claim, "theirs": epoch})
            self._tell(f"this server no longer leads: an agent obeys epoch {epoch}, above its own {self._claim}")
            self._set(None)

    def why_not(self) -> str:
        """Return why this process may not decide, and what to do; empty if it may."""
        if self.epoch is not None:
            return ""
        if self.trouble:
            return f"this server does not lead, and cannot use the store: {self.trouble}; mend the store, and try again"
        return f"this server does not lead; ask the one that does ({self.leader or 'nobody yet'}), or try again in a moment"

    @property
    def alarms(self) -> tuple[str, ...]:
        """What people must know: a store that cannot be used, first; and a lead that went to another one."""
        said = []
        if self.trouble:
            if self.epoch is not None:
                effect = "this server goes on leading, since nobody else can have taken the lead unheard"
            elif self._claim is not None:
                effect = "it decides nothing (control.on_store_loss: stop), and serves on"
            else:
                effect = "this server cannot take the lead, and serves on"
            said.append(f"the store cannot be used: {self.trouble}; {effect}")
        if self._change is not None and self._clock.now() - self._change.at < TOLD_FOR:
            said.append(f"{self._change.text}, {age(self._clock.now() - self._change.at)} ago")
        return tuple(said)

    async def renew(self) -> None:
        """Take or renew the lease once."""
        loop = asyncio.get_running_loop()
        if loop.time() < self._resting_until:
            return
        at_least = Epoch(self._heard + 1) if self._claim is None and self._heard else Epoch(1)
        sent = loop.time()
        try:
            lease = await self._keeper.take(self.owner, self._seconds, at_least)
        except StoreUnavailable as error:
            if not self.trouble:
                log.warning(
                    "the store cannot be used", extra={"reason": str(error), "leading": self._claim is not None}
                )
                self._record("store_lost", str(error))
            self.trouble = str(error)
            self._answered = loop.time()
            self._look()
            return
        if self.trouble:
            log.info("the store can be used again")
            self._record("store_back", f"it could not be used: {self.trouble}")
        self.trouble = ""
        self._answered = loop.time()
        if loop.time() < self._resting_until:
            return  # given up while this was on its way
        self._sent = sent
        self._note(lease)
        self._look()

    async def run(self) -> None:
        """Renew for ever."""
        while True:
            await self.renew()
            await asyncio.sleep(self._seconds / RENEWALS)

    async def release(self) -> None:
        """Give the lease up, so that another may lead at once; this process does not take it for a lease's time."""
        self._resting_until = asyncio.get_running_loop().time() + self._seconds
        self._set(None)
        try:
            await self._keeper.release(self.owner)
        except StoreUnavailable as error:
            log.warning("the lease could not be given up; it runs out by itself", extra={"reason": str(error)})

    async def release_epoch(self, epoch: Epoch) -> bool:
        """Take the lease of this epoch away from whoever has it; whether it was still held.

        Raises StoreUnavailable, and then nothing has changed: a leader goes on leading.
        """
        before = self._resting_until
        if self._claim == epoch:
            self._resting_until = asyncio.get_running_loop().time() + self._seconds  # no renewal comes in between
        try:
            freed = await self._keeper.release_epoch(epoch)
        except StoreUnavailable:
            self._resting_until = before
            raise
        if self._claim == epoch:
            self._set(None)
        return freed

    def _note(self, lease: Lease) -> None:
        before = self.leader
        self.leader, self.leaders_epoch = lease.owner, lease.epoch
        claim = lease.epoch if lease.mine and lease.epoch >= self._heard else None
        if before is not None and before != lease.owner:
            who = "this server" if lease.mine else lease.owner
            self._tell(
                f"{who} leads with epoch {lease.epoch}, in place of {before if before != self.owner else 'this one'}"
            )
        self._set(claim)

    def _set(self, epoch: Epoch | None) -> None:
        if epoch != self._claim:
            log.info("leading" if epoch is not None else "not leading", extra={"epoch": epoch})
            if epoch is not None:
                self._record("leading", f"{self.owner} leads with epoch {epoch}")
            self._claim = epoch
        self._look()

    def _look(self) -> None:
        """Tell if it may decide, and could not before, or the other way round."""
        epoch = self.epoch
        if epoch != self._shown:
            self._shown = epoch
            self._changed()

    def _tell(self, text: str) -> None:
        self.changes += 1
        self._change = Change(text, self._clock.now())
        log.warning("the lead has changed: %s", text)
        self._record("leader_changed", text)

    def _record(self, kind: str, text: str) -> None:
        self._events.record(Event(self._clock.now(), kind, "control", text, ""))
