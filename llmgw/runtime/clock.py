"""The only module that reads a real clock or draws a real id; everything else takes them as arguments."""

import asyncio
import secrets
import time
from collections.abc import Callable
from typing import cast

from llmgw.base.time import Instant


class SystemClock:
    """Wall-clock time that never runs backwards: the wall clock is read once, then the monotonic clock carries on.

    So a clock that is set while the process runs moves no deadline; the process shows times by the old setting.
    """

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()

    def now(self) -> Instant:
        """Return seconds since the Unix epoch."""
        return Instant(self._offset + time.monotonic())


class LoopClock:
    """The running event loop's time, read once a turn of the loop and so nearly free. For spans, not for dates."""

    __slots__ = ("now",)

    def __init__(self) -> None:
        self.now = cast("Callable[[], Instant]", asyncio.get_running_loop().time)


class RandomIds:
    """Ids of 64 random bits."""

    def new(self) -> str:
        """Return 16 hexadecimal digits."""
        return secrets.token_hex(8)
