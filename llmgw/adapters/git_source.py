"""Follows the HEAD of the git repository that a directory is in, reading blobs; never an index, never a work tree.

A developer's tree is half written while a merge, a rebase or a pre-commit hook runs; a commit never is. The directory may
also be a bare repository, to which others push. `git` runs only when the files that name HEAD have changed: an idle look
costs a few stat calls. Once in `RECHECK` seconds git is asked all the same, since ref storage has more forms than are
watched here. Nothing is ever written there: it is somebody's repository.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from llmgw.adapters.git_command import Git, GitFailed, git_environment
from llmgw.adapters.git_history import vet
from llmgw.adapters.git_objects import read_commit
from llmgw.base.ids import Revision
from llmgw.base.time import Clock, Instant
from llmgw.catalog.source import Source, SourceFailed, SourceTree, Trouble
from llmgw.ports.trees import Passed
from llmgw.spec.cluster import SourceRules

RECHECK = 30.0
RETRY = 2.0
"""Seconds between two asks of git when nothing seems to have changed, and after it could not answer."""


class _Nothing(Exception):
    """There is no commit to read."""

    def __init__(self, reason: str, trouble: Trouble) -> None:
        super().__init__(reason)
        self.trouble = trouble


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the repository is, as git says."""

    git_dir: Path
    common_dir: Path
    prefix: str


class GitSource:
    """A `TreeSource` over one directory: of HEAD, or of another revision, which is then read once.

    `path` leads from the directory to the cluster directory, as a bare repository needs.
    """

    def __init__(self, directory: Path, clock: Clock, path: str = "", revision: str = "") -> None:
        self._directory = directory
        self._path = path.strip("/")
        self._revision = revision
        self._clock = clock
        self._place: _Place | None = None
        self._signature: object = None
        self._checked = Instant(0.0)
        self._current: Source | None = None
        self._git = Git(directory, git_environment())

    def describe(self) -> str:
        """Say which place this is."""
        inside = f", its directory {self._path}" if self._path else ""
        return f"{self._directory} (commits of its git repository{inside})"

    def hint(self) -> None:
        """Ask git at the next look."""
        self._checked = Instant(0.0)

    def notices(self) -> tuple[str, ...]:
        """Return nothing: a repository that can be read is followed as it should be."""
        return ()

    async def vet(self, revision: Revision, since: Revision | None, rules: SourceRules) -> Passed | SourceFailed:
        """Say whether a revision may follow another one."""
        return await vet(self._git, revision, since, rules, self._clock.now())

    async def pin(self, revision: Revision) -> None:
        """Do nothing: the repository is not ours to write to; the store keeps what is in force."""

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
        except _Nothing as error:
            found = SourceFailed(str(error), error.trouble)
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
        return await read_commit(self._git, commit, "/".join(filter(None, (self._place.prefix, self._path))))

    async def _find(self) -> _Place:
        if not self._directory.is_dir():
            raise GitFailed(f"there is no directory {self._directory}; create it, or name another one")
        try:
            answer = await self._git.run("rev-parse", "--absolute-git-dir", "--git-common-dir", "--show-prefix")
        except GitFailed as error:
            foreign = re.search(r"dubious ownership in repository at '([^']*)'", str(error))
            if foreign:
                raise GitFailed(
                    f"the git repository of {self._directory} belongs to another user, and git does not trust it; run "
                    f"`git config --global --add safe.directory {foreign[1]}` as the user of this server"
                ) from error
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
            return (await self._git.run("rev-parse", "--verify", "--quiet", "HEAD^{commit}")).strip()
        except GitFailed as error:
            if error.code != 1:
                raise
            others = await self._git.run("for-each-ref", "--count=5", "--format=%(refname:short)", "refs/heads")
            if others.strip():
                names = ", ".join(others.decode(errors="replace").split())
                raise _Nothing(
                    f"the branch that HEAD of {self._directory} names is not there; there are: {names}; push it, "
                    "or point HEAD at another one (`git symbolic-ref HEAD refs/heads/NAME`)",
                    Trouble.BRANCH_MISSING,
                ) from error
            raise _Nothing(
                f"the git repository of {self._directory} has no commit yet; commit the cluster directory",
                Trouble.EMPTY,
            ) from error

    async def _named(self) -> bytes:
        try:
            # what begins with a dash is no option after this
            asked = ("rev-parse", "--verify", "--quiet", "--end-of-options", f"{self._revision}^{{commit}}")
            return (await self._git.run(*asked)).strip()
        except GitFailed as error:
            raise GitFailed(
                f"the git repository of {self._directory} has no commit {self._revision!r}; fetch it, or name another"
            ) from error


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
