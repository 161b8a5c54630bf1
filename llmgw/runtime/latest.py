"""`Latest[T]`: a value that one part replaces and others look at; waiting is for a condition, never for "a change".

A wake-up carries no news: whoever wakes looks at the whole value. Values set between two looks are skipped, which is
the point: nobody works through history.
"""

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Latest(Generic[T]):
    """Holds the newest value. Set from the event loop's thread only; any number of waiters."""

    def __init__(self, value: T) -> None:
        self._value = value
        self._version = 0
        self._waiters: set[asyncio.Future[None]] = set()

    @property
    def value(self) -> T:
        """The newest value."""
        return self._value

    @property
    def version(self) -> int:
        """How often the value was set."""
        return self._version

    def set(self, value: T) -> None:
        """Replace the value and wake the waiters."""
        self._value = value
        self._version += 1
        waiters, self._waiters = self._waiters, set()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self, condition: Callable[[T], bool]) -> T:
        """Return the value as soon as it meets the condition, which is asked at once and after every set."""
        while not condition(self._value):
            await self._changed()
        return self._value

    async def newer(self, version: int) -> T:
        """Return the value as soon as it was set more often than `version` says."""
        while self._version <= version:
            await self._changed()
        return self._value

    async def _changed(self) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            await waiter
        finally:
            self._waiters.discard(waiter)
