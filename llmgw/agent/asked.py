"""Programs that the agent asks something: started, listened to for a limited time, ended.

Neither `asyncio`'s subprocesses nor `subprocess` fit: the agent reaps every child of its own and of orphaned engines
with one `waitpid(-1)`, which takes the statuses those wait for; and both wait without limit for a child that was killed
and hangs in the kernel. Here a pidfd says whether the process is gone, nothing waits for its status, and a process that
will not die is left behind and known to be there.
"""

import asyncio
import contextlib
import os
import select
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import assert_never

PATIENCE_AFTER_KILL = 2.0
"""Seconds that a killed program gets to be gone."""

OUTPUT_AT_MOST = 8 * 1024 * 1024
"""Bytes of output that are kept; more is an error in the program."""


class Errors(Enum):
    """Where a program's error output goes."""

    OURS = "ours"
    """Where the agent's own goes."""
    WITH_OUTPUT = "with output"
    DROPPED = "dropped"


class Child:
    """A program with pipes to its input and output."""

    def __init__(
        self, argv: Sequence[str], errors: Errors, shared: int | None = None, env: Mapping[str, str] | None = None
    ) -> None:
        """Start it, in a session of its own; `env` is set over our variables, `shared` is its descriptor 3. Raises OSError."""
        theirs_in, self._in = os.pipe()
        self._out, theirs_out = os.pipe()
        actions: list[tuple[int, ...] | tuple[int, int, str, int, int]] = [
            (os.POSIX_SPAWN_DUP2, theirs_in, 0),
            (os.POSIX_SPAWN_DUP2, theirs_out, 1),
        ]
        match errors:
            case Errors.OURS:
                pass
            case Errors.WITH_OUTPUT:
                actions.append((os.POSIX_SPAWN_DUP2, theirs_out, 2))
            case Errors.DROPPED:
                actions.append((os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0))
            case _:
                assert_never(errors)
        if shared is not None:
            actions.append((os.POSIX_SPAWN_DUP2, shared, 3))
        try:
            self.pid = os.posix_spawnp(
                argv[0],
                list(argv),
                {**os.environ, **(env or {})},
                file_actions=actions,
                setsid=True,
                setsigmask=[],
                setsigdef=_DEFAULTS,
            )
            self._pidfd = os.pidfd_open(self.pid)
        except OSError:
            os.close(self._in)
            os.close(self._out)
            raise
        finally:
            os.close(theirs_in)
            os.close(theirs_out)
        os.set_blocking(self._out, False)
        os.set_blocking(self._in, False)
        self._buffer = bytearray()
        self._ended = False
        self._closed = False

    def write(self, data: bytes) -> None:
        """Write to its input: at most 4 KiB, to a program that has read what came before. Raises OSError."""
        os.write(self._in, data)

    def end_of_input(self) -> None:
        """Close its input."""
        if self._in >= 0:
            os.close(self._in)
            self._in = -1

    async def line(self) -> bytes | None:
        """Return its next line; None when its output has ended. One caller at a time; cancel to stop waiting."""
        while b"\n" not in self._buffer:
            if self._ended:
                return None
            await self._more()
        line, _, rest = bytes(self._buffer).partition(b"\n")
        self._buffer = bytearray(rest)
        return line

    async def output(self) -> bytes:
        """Return all its output, once that has ended."""
        while not self._ended:
            await self._more()
        return bytes(self._buffer)

    async def gone(self, patience: float) -> bool:
        """Whether the process has ended, waiting so many seconds at most. Also collects it, if nobody did."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + patience
        pause = 0.005
        while not self._has_ended():
            if loop.time() >= deadline:
                return False
            await asyncio.sleep(pause)
            pause = min(0.2, pause * 2)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, os.WNOHANG)  # noqa: ASYNC222 - it has ended, so this does not wait
        return True

    def kill(self) -> None:
        """Send SIGKILL to its whole session. Safe at any time: a process that has ended is not signalled."""
        if not self._has_ended():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Let go of it. It is not ended by this; `kill` it before."""
        if not self._closed:
            self._closed = True
            self.end_of_input()
            os.close(self._out)
            os.close(self._pidfd)

    def _has_ended(self) -> bool:
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return bool(poll.poll(0))

    async def _more(self) -> None:
        loop = asyncio.get_running_loop()
        readable: asyncio.Future[None] = loop.create_future()
        loop.add_reader(self._out, _settle, readable)
        try:
            await readable
        finally:
            loop.remove_reader(self._out)
        data = os.read(self._out, 65536)
        self._buffer += data
        self._ended = not data or len(self._buffer) > OUTPUT_AT_MOST


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


_DEFAULTS = [signal.SIGPIPE, signal.SIGINT, signal.SIGTERM]


@dataclass(frozen=True, slots=True)
class Silent:
    """Why a program gave no answer."""

    text: str
    hung: bool = False
    """It ran and did not answer in time."""
    stuck: int | None = None
    """Its pid, if it hangs in the kernel and could not be ended."""


async def ask(argv: Sequence[str], limit: float, errors: Errors) -> bytes | Silent:
    """Run a program and return what it prints, or why not. Takes `limit` seconds at most, and 2 more if it hangs."""
    try:
        child = Child(argv, errors)
    except OSError as error:
        return Silent(f"cannot run {argv[0]}: {error.strerror}")
    try:
        child.end_of_input()
        async with asyncio.timeout(limit):
            output = await child.output()
        await child.gone(PATIENCE_AFTER_KILL)
    except TimeoutError:
        child.kill()
        stuck = None if await child.gone(PATIENCE_AFTER_KILL) else child.pid
        return Silent(f"`{' '.join(argv)}` does not answer within {limit:g} s", hung=True, stuck=stuck)
    else:
        return output
    finally:
        child.kill()
        child.close()
