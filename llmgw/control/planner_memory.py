"""`PlannerMemory`: hands what a leader decided on to the next one, through the store.

It is read when the lead is taken, before anything is decided, and written behind the rounds, when something of it has
changed, at most once in `PAUSE`. A leader that is killed in between loses that second: its successor tries something once
more, or waits a little longer. What cannot be read is left aside, and that is an event.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from llmgw.base.ids import Epoch
from llmgw.base.time import Clock
from llmgw.control.leadership import Leadership
from llmgw.plan.memory import BadMemory, Memory, memory_of, read, written
from llmgw.plan.snapshot import Decided
from llmgw.ports.memory import MemoryKeeper
from llmgw.ports.sinks import Event, EventSink, StoreUnavailable
from llmgw.runtime.latest import Latest

log = logging.getLogger(__name__)

PAUSE = 1.0
"""Seconds between two writes, and after one that failed."""


class PlannerMemory:
    """One for a control plane. Use from the event loop's thread."""

    def __init__(
        self,
        keeper: MemoryKeeper,
        leadership: Leadership,
        events: EventSink,
        clock: Clock,
        changed: Callable[[], None],
        also: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`changed` is called when what was left is known, so that deciding can begin; `also` is awaited just before."""
        self._also = also
        self._changed = changed
        self._keeper = keeper
        self._leadership = leadership
        self._events = events
        self._clock = clock
        self._epoch: Epoch | None = None
        self._memory = Memory()
        self._newest: Latest[tuple[Epoch, Memory] | None] = Latest(None)
        self._written: Memory | None = None

    def of(self, epoch: Epoch) -> Memory | None:
        """Return what the leader before this epoch left; None while that has not been read."""
        return self._memory if self._epoch == epoch else None

    def note(self, epoch: Epoch, decided: Decided) -> None:
        """Take what was decided in a round; it is written later. Never blocks."""
        memory = memory_of(decided)
        newest = self._newest.value
        if newest is None or newest != (epoch, memory):
            self._newest.set((epoch, memory))

    async def take_over(self) -> bool:
        """Read what was left, if this process leads and has not read it yet; whether it did. Raises StoreUnavailable."""
        epoch = self._leadership.epoch
        if epoch is None or epoch == self._epoch:
            return False
        kept = await self._keeper.last_memory()
        mine = self._newest.value
        self._memory = mine[1] if mine is not None and kept is None else Memory()
        if kept is not None:
            try:
                self._memory = read(kept.content, self._clock.now(), kept.age)
            except BadMemory as error:
                text = f"what the leader before remembered cannot be read, and is left aside: {error}"
                log.warning(text)
                self._events.record(Event(self._clock.now(), "memory_lost", "control", text, ""))
        if self._also is not None:
            await self._also()
        self._epoch = epoch
        self._written = None
        return True

    async def run(self) -> None:
        """Read when the lead is taken, and write what changed, for ever."""
        while True:
            version = self._newest.version
            try:
                if await self.take_over():
                    self._changed()
                await self._write()
            except StoreUnavailable as error:
                log.debug("memory and store are not in step", extra={"reason": str(error)})
                await asyncio.sleep(PAUSE)
            with suppress(TimeoutError):
                async with asyncio.timeout(PAUSE):
                    await self._newest.newer(version)

    async def _write(self) -> None:
        newest = self._newest.value
        if newest is None or newest[1] == self._written or newest[0] != self._leadership.epoch:
            return
        if await self._keeper.keep_memory(newest[0], written(newest[1], self._clock.now())):
            self._written = newest[1]  # else a later leader has written, of which the next renewal tells
        await asyncio.sleep(PAUSE)
