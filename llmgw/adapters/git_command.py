"""Runs git: argument lists only, a fixed environment, no terminal, and limits on its time and on how much it may say.

A command that is over its time is told to stop first, so that git removes its temporary files, and killed `GRACE` seconds
later; always with its whole process group. What it prints is bounded, since a tree of a few KB can name a million paths.

GitPython is not used: it says of itself that it does not suit long-running processes.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from llmgw.base.redact import redact
from llmgw.catalog.source import MAX_TREE

LIMIT = 20.0
"""Seconds for one git command; its process group is ended then."""
GRACE = 2.0
"""Seconds that git has to clean up once it is told to stop."""
MOST = 2 * MAX_TREE
"""Bytes that one git command may print unless told otherwise: a whole tree's contents with their heads."""
MOST_SAID = 64 << 10
"""Bytes of standard error that are kept."""
OURS = "LLMGW_SECRET_"
"""How the names of environment variables begin that no child process needs."""


class GitFailed(Exception):
    """A git command failed; the message is one line that says what to do."""

    def __init__(self, message: str, code: int | None = None, said: str = "") -> None:
        super().__init__(message)
        self.code = code
        """Its exit status; None if it did not end by itself."""
        self.said = said
        """What it wrote to standard error, without credentials."""


@dataclass(frozen=True, slots=True)
class Git:
    """Git at one place."""

    place: Path
    """A directory in a repository; with `bare`, the git directory itself."""
    environment: Mapping[str, str]
    bare: bool = False
    secrets: tuple[str, ...] = field(default=(), repr=False)
    """Values that no message may hold."""

    async def run(
        self, *arguments: str, stdin: bytes = b"", limit: float = LIMIT, config: Iterable[str] = (), most: int = MOST
    ) -> bytes:
        """Return what git prints, which may have `most` bytes. Raises GitFailed."""
        where = [f"--git-dir={self.place}"] if self.bare else ["-C", str(self.place)]
        options = [word for one in config for word in ("-c", one)]
        process = await self._start("--no-pager", *where, *options, *arguments)
        try:
            async with asyncio.timeout(limit):
                out, err = await _talk(process, stdin, most)
        except TimeoutError as error:
            raise GitFailed(f"git {arguments[0]} did not end within {limit:.0f} s in {self.place}") from error
        finally:
            if process.returncode is None:
                await _end(process)
        if len(out) > most:
            raise GitFailed(
                f"git {arguments[0]} printed more than {most >> 20} MiB in {self.place}; is this a cluster directory?"
            )
        if process.returncode != 0:
            said = redact(err.decode("utf-8", "replace"), self.secrets)
            lines = [line.strip() for line in said.splitlines() if line.strip()]
            reason = "; ".join(lines)[:500] or "no message"
            raise GitFailed(f"git {arguments[0]} failed in {self.place}: {reason}", process.returncode, said)
        return out

    def run_now(self, *arguments: str, stdin: bytes = b"", most: int = MOST) -> bytes:
        """Return what git prints, in a program that has no event loop. Raises GitFailed."""
        return asyncio.run(self.run(*arguments, stdin=stdin, most=most))

    def with_environment(self, **more: str) -> "Git":
        """Return the same with more in the environment."""
        return replace(self, environment={**self.environment, **more})

    async def _start(self, *arguments: str) -> asyncio.subprocess.Process:
        pipe = asyncio.subprocess.PIPE
        try:
            return await asyncio.create_subprocess_exec(
                "git", *arguments, stdin=pipe, stdout=pipe, stderr=pipe, env=self.environment, start_new_session=True
            )
        except FileNotFoundError as error:
            raise GitFailed("git is not installed, or not in PATH; install it (`apt-get install git`)") from error
        except OSError as error:
            raise GitFailed(f"git cannot be run: {error.strerror}") from error


async def _talk(process: asyncio.subprocess.Process, stdin: bytes, most: int) -> tuple[bytes, bytes]:
    """Return what a command prints and says; the first is longer than `most` where it was cut off, and git killed."""
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None

    async def feed(stream: asyncio.StreamWriter) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it has ended; its status says why
            stream.write(stdin)
            await stream.drain()
        stream.close()

    async def hear(stream: asyncio.StreamReader) -> bytes:
        heard = bytearray()
        while chunk := await stream.read(1 << 16):  # to the end, also of what is too much: else the pipe stays open
            if len(heard) <= most:
                heard += chunk
                if len(heard) > most:
                    signal_group(process.pid, signal.SIGKILL)
        return bytes(heard)

    async def hear_some(stream: asyncio.StreamReader) -> bytes:
        heard = bytearray()
        while chunk := await stream.read(1 << 16):
            heard += chunk[: max(0, MOST_SAID - len(heard))]
        return bytes(heard)

    _, out, err = await asyncio.gather(feed(process.stdin), hear(process.stdout), hear_some(process.stderr))
    await process.wait()
    return out, err


async def _end(process: asyncio.subprocess.Process) -> None:
    """End a command and all that it started, gently first."""
    signal_group(process.pid, signal.SIGTERM)
    try:
        async with asyncio.timeout(GRACE):
            await process.wait()
    except TimeoutError:
        pass
    finally:
        signal_group(process.pid, signal.SIGKILL)  # a helper may outlive git itself
    await process.wait()
    pipes = [pipe.read() for pipe in (process.stdout, process.stderr) if pipe is not None]
    with contextlib.suppress(TimeoutError):  # what is left in a pipe keeps it open
        async with asyncio.timeout(GRACE):
            await asyncio.gather(*pipes)


def signal_group(group: int, number: signal.Signals) -> None:
    """Signal a process group, if it is still there."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)


def git_environment() -> dict[str, str]:
    """Return the environment for git: ours without `GIT_*`, which a hook's would point elsewhere; no prompts, no locks.

    Nor does it get our secrets, which git would hand on to whatever it runs.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("GIT_", OURS))}
    return {
        **kept, "LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0", "GIT_PAGER": "cat",
        "GIT_NO_REPLACE_OBJECTS": "1",
    }  # fmt: skip
