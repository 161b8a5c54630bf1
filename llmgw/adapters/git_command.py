"""Runs git: argument lists only, a fixed environment, no terminal, a time limit that ends the whole process group.

GitPython is not used: it says of itself that it does not suit long-running processes.
"""

import asyncio
import os
import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from llmgw.base.redact import redact

LIMIT = 20.0
"""Seconds for one git command; its process group is killed then."""


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

    async def run(self, *arguments: str, stdin: bytes = b"", limit: float = LIMIT, config: Iterable[str] = ()) -> bytes:
        """Return what git prints. Raises GitFailed."""
        where = [f"--git-dir={self.place}"] if self.bare else ["-C", str(self.place)]
        options = [word for one in config for word in ("-c", one)]
        process = await self._start("--no-pager", *where, *options, *arguments)
        try:
            async with asyncio.timeout(limit):
                out, err = await process.communicate(stdin)
        except TimeoutError as error:
            raise GitFailed(f"git {arguments[0]} did not end within {limit:.0f} s in {self.place}") from error
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        if process.returncode != 0:
            said = redact(err.decode("utf-8", "replace"), self.secrets)
            lines = [line.strip() for line in said.splitlines() if line.strip()]
            reason = "; ".join(lines)[:500] or "no message"
            raise GitFailed(f"git {arguments[0]} failed in {self.place}: {reason}", process.returncode, said)
        return out

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


def git_environment() -> dict[str, str]:
    """Return the environment for git: ours without `GIT_*`, which a hook's would point elsewhere; no prompts, no locks."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return {
        **kept, "LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0", "GIT_PAGER": "cat",
        "GIT_NO_REPLACE_OBJECTS": "1",
    }  # fmt: skip
