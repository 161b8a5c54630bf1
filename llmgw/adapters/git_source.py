"""Follows the HEAD of the git repository that a directory is in, reading blobs; never an index, never a work tree.

A developer's tree is half written while a merge, a rebase or a pre-commit hook runs; a commit never is. `git` runs as a
subprocess with a fixed environment and a time limit, and only when the files that name HEAD have changed: an idle look
costs a few stat calls. Once in `RECHECK` seconds git is asked all the same, since ref storage has more forms than are
watched here. GitPython is not used: it says of itself that it does not suit long-running processes.
"""

import asyncio
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from llmgw.base.ids import Revision
from llmgw.base.time import Clock, Instant
from llmgw.catalog.source import Source, SourceFailed, SourceTree

LIMIT = 20.0
"""Seconds for one git command; its process group is killed then."""
RECHECK = 30.0
RETRY = 2.0
"""Seconds between two asks of git when nothing seems to have changed, and after it could not answer."""
SUFFIXES = (b".yaml", b".yml")
_KINDS = {b"120000": "symlink", b"160000": "submodule"}


class GitFailed(Exception):
    """A git command failed; the message is one line that says what to do."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the repository is, as git says."""

    git_dir: Path
    common_dir: Path
    prefix: str


class GitSource:
    """A `TreeSource` over one directory: of HEAD, or of another revision, which is then read once."""

    def __init__(self, directory: Path, clock: Clock, revision: str = "") -> None:
        self._directory = directory
        self._revision = revision
        self._clock = clock
        self._place: _Place | None = None
        self._signature: object = None
        self._checked = Instant(0.0)
        self._current: Source | None = None

    def describe(self) -> str:
        """Say which place this is."""
        return f"{self._directory} (commits of its git repository)"

    async def current(self) -> Source:
        """Return the tree at HEAD, or why there is none."""
        now = self._clock.now()
        patience = RETRY if isinstance(self._current, SourceFailed) else RECHECK
        signature = self._sign()
        if self._current is not None and signature == self._signature and now - self._checked < patience:
            return self._current
        try:
            found: Source = await self._read()
        except GitFailed as error:
            found = SourceFailed(str(error))
        self._signature = self._sign() if self._place is not None and signature is None else signature
        self._checked = now
        if self._current is None or found != self._current:
            self._current = found
        return self._current

    def _sign(self) -> object:
        """Return what changes whenever HEAD moves: the files that hold it and their times."""
        if self._place is None:
            return None
        head = _bytes(self._place.git_dir / "HEAD")
        signs: list[object] = [head]
        if head.startswith(b"ref: "):
            name = os.fsdecode(head[5:].strip())
            signs += [_stamp(self._place.common_dir / name), _stamp(self._place.git_dir / name)]
        signs += [
            _stamp(self._place.common_dir / "packed-refs"),
            _stamp(self._place.common_dir / "reftable/tables.list"),
        ]
        return signs

    async def _read(self) -> Source:
        self._place = await self._find()
        commit = (await self._head()).decode()
        if isinstance(self._current, SourceTree) and self._current.revision == commit:
            return self._current
        listing = await self._git("ls-tree", "-rz", "--full-tree", f"{commit}:{self._place.prefix}")
        blobs: dict[str, str] = {}
        refused: dict[str, str] = {}
        for entry in filter(None, listing.split(b"\0")):
            meta, _, name = entry.partition(b"\t")
            mode, _, digest = meta.split(b" ")
            if not name.lower().endswith(SUFFIXES):
                continue
            path = name.decode("utf-8", "backslashreplace")
            if mode in _KINDS:
                refused[path] = _KINDS[mode]
            else:
                blobs[path] = digest.decode()
        files = await self._blobs(blobs)
        show = await self._git("show", "-s", "--no-show-signature", "--format=%an%x00%ct%x00%s", commit)
        author, committed, subject = (*show.decode("utf-8", "replace").rstrip("\n").split("\0"), "", "", "")[:3]
        seconds = float(committed) if committed.isdigit() else None
        return SourceTree(Revision(commit), files, refused, subject, author, seconds)

    async def _find(self) -> _Place:
        if not self._directory.is_dir():
            raise GitFailed(f"there is no directory {self._directory}; create it, or name another one")
        try:
            answer = await self._git("rev-parse", "--absolute-git-dir", "--git-common-dir", "--show-prefix")
        except GitFailed as error:
            if "not a git repository" in str(error):
                raise GitFailed(
                    f"{self._directory} is not in a git repository; run `git init` there and commit, "
                    "or follow the files themselves with --worktree"
                ) from error
            raise
        git_dir, common_dir, prefix = [*answer.decode().split("\n"), "", "", ""][:3]
        return _Place(Path(git_dir), (self._directory / common_dir).resolve(), prefix.rstrip("/"))

    async def _head(self) -> bytes:
        if self._revision:
            return await self._named()
        try:
            return (await self._git("rev-parse", "--verify", "--quiet", "HEAD^{commit}")).strip()
        except GitFailed as error:
            raise GitFailed(
                f"the git repository of {self._directory} has no commit yet; commit the cluster directory"
            ) from error

    async def _named(self) -> bytes:
        try:
            # what begins with a dash is no option after this
            asked = ("rev-parse", "--verify", "--quiet", "--end-of-options", f"{self._revision}^{{commit}}")
            return (await self._git(*asked)).strip()
        except GitFailed as error:
            raise GitFailed(
                f"the git repository of {self._directory} has no commit {self._revision!r}; fetch it, or name another"
            ) from error

    async def _blobs(self, digests: dict[str, str]) -> dict[str, bytes]:
        if not digests:
            return {}
        asked = "".join(f"{digest}\n" for digest in digests.values()).encode()
        answer = memoryview(await self._git("cat-file", "--batch", stdin=asked))
        files: dict[str, bytes] = {}
        at = 0
        for path in digests:
            head, found, _ = bytes(answer[at : at + 200]).partition(b"\n")
            fields = head.split(b" ")
            if not found or len(fields) != 3 or not fields[2].isdigit():
                raise GitFailed(
                    f"the git repository of {self._directory} lacks the contents of {path} ({head.decode(errors='replace')}); "
                    "run `git fsck` there"
                )
            size = int(fields[2])
            at += len(head) + 1
            files[path] = bytes(answer[at : at + size])
            at += size + 1
        return files

    async def _git(self, *arguments: str, stdin: bytes = b"") -> bytes:
        return await run_git(self._directory, arguments, stdin)


async def run_git(directory: Path, arguments: Sequence[str], stdin: bytes = b"") -> bytes:
    """Run git in a directory and return what it prints. Raises GitFailed, also after `LIMIT` seconds."""
    try:
        process = await asyncio.create_subprocess_exec(
            "git",
            "--no-pager",
            "-C",
            str(directory),
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=git_environment(),
            start_new_session=True,
        )
    except FileNotFoundError as error:
        raise GitFailed("git is not installed, or not in PATH; install it (`apt-get install git`)") from error
    except OSError as error:
        raise GitFailed(f"git cannot be run: {error.strerror}") from error
    try:
        async with asyncio.timeout(LIMIT):
            out, err = await process.communicate(stdin)
    except TimeoutError as error:
        raise GitFailed(f"git {arguments[0]} did not end within {LIMIT:.0f} s in {directory}") from error
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    if process.returncode != 0:
        lines = [line for line in err.decode("utf-8", "replace").splitlines() if line.strip()]
        raise GitFailed(f"git {arguments[0]} failed in {directory}: {'; '.join(lines)[:500] or 'no message'}")
    return out


def git_environment() -> dict[str, str]:
    """Return the environment for git: ours without `GIT_*`, which a hook's would point elsewhere; no prompts, no locks."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return {**kept, "LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0", "GIT_PAGER": "cat"}


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _stamp(path: Path) -> object:
    try:
        stat = path.stat()
    except OSError:
        return None
    return (stat.st_mtime_ns, stat.st_ino, stat.st_size)
