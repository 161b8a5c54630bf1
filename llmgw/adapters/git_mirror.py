"""Follows one branch of a repository elsewhere, by a bare mirror of our own: fetched every `EVERY` seconds and when told to.

Only that branch is fetched, by its full name and always to the same ref of ours, so that a branch deleted there, or replaced
by a directory of branches, is told from one that nobody can reach, and never leaves an old ref behind that looks current.
What is in force has a ref of its own: git's collection must not take it after the branch was rewritten.

The mirror belongs to the one server that holds the state directory's lock. So a `*.lock` of git's in it that no running git
accounts for was left by a crash, and is removed. So are its `tmp_*` objects before each fetch: a fetch that is cut short every
time would fill the disk with them.
"""

import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from llmgw.adapters.git_command import Git, GitFailed
from llmgw.adapters.git_history import is_commit, vet
from llmgw.adapters.git_objects import read_commit
from llmgw.adapters.git_remote import CONFIG, Remote, SecretOf, environment_for, explained
from llmgw.base.ids import Revision
from llmgw.base.time import Clock, Instant
from llmgw.catalog.source import Source, SourceFailed, SourceTree, Trouble
from llmgw.ports.trees import Passed
from llmgw.spec.cluster import SourceRules

log = logging.getLogger(__name__)

EVERY = 15.0
"""Seconds between two fetches that nobody asked for."""
GAP = 1.0
"""Seconds between two fetches at the least, however often somebody asks."""
FETCH_LIMIT = 60.0
"""Seconds for one fetch."""
LEFT_OVER = ("objects/tmp_*", "objects/pack/tmp_*", "objects/[0-9a-f][0-9a-f]/tmp_*")
"""What git writes objects to before they have their names."""
FETCHED = "refs/llmgw/fetched"
LAST_GOOD = "refs/llmgw/last-good"


class GitMirror:
    """A `TreeSource` over one branch of a remote repository. `directory` is the server's alone."""

    def __init__(
        self, remote: Remote, directory: Path, clock: Clock, secret_of: SecretOf, processes: Path = Path("/proc")
    ) -> None:
        self._remote = remote
        self._directory = directory
        self._mirror = directory / "mirror.git"
        self._clock = clock
        self._secret_of = secret_of
        self._processes = processes
        self._prepared = False
        self._current: Source | None = None
        self._tree: SourceTree | None = None
        self._tried = Instant(0.0)
        self._asked = 0
        self._served = 0
        self._shallow = False

    def describe(self) -> str:
        """Say which place this is."""
        inside = f", directory {self._remote.path}" if self._remote.path else ""
        return f"{self._remote.shown} (branch {self._remote.branch}{inside})"

    def hint(self) -> None:
        """Have the branch fetched soon; also if a fetch is running, which may have asked too early."""
        self._asked += 1

    def notices(self) -> tuple[str, ...]:
        """Return what the repository's kind keeps us from telling."""
        if self._shallow:
            return ("the repository is shallow: whether its history was rewritten cannot be told",)
        return ()

    async def current(self) -> Source:
        """Return the newest tree of the branch, or why there is none."""
        now = self._clock.now()
        waited = now - self._tried
        if self._current is not None and waited < EVERY and (self._asked == self._served or waited < GAP):
            return self._current
        self._tried = now
        self._served = self._asked  # before the fetch: who asks while it runs gets another one
        try:
            found = await self._look()
        except GitFailed as error:
            found = SourceFailed(str(error))
        if self._current is None or found != self._current:
            self._current = found
        return self._current

    async def vet(self, revision: Revision, since: Revision | None, rules: SourceRules) -> Passed | SourceFailed:
        """Say whether a revision may follow another one."""
        home = {name: os.environ[name] for name in ("HOME", "GNUPGHOME") if name in os.environ}  # of the GPG keyring
        try:
            git = (await self._git()).with_environment(**home)
        except GitFailed as error:
            return SourceFailed(str(error))
        return await vet(git, revision, since, rules, self._clock.now())

    async def pin(self, revision: Revision) -> None:
        """Keep a revision from git's collection."""
        if not is_commit(revision):
            return
        try:
            git = await self._git()
            await git.run("update-ref", LAST_GOOD, revision)
            await git.run("gc", "--auto", "--quiet", limit=FETCH_LIMIT, config=("gc.autoDetach=false",))
        except GitFailed as error:
            log.warning("the revision in force is not pinned", extra={"reason": str(error)})

    async def _look(self) -> Source:
        git = await self._git()
        self._clear_left_over()
        trouble = await self._fetch(git)
        if trouble is not None:
            return trouble
        commit = (await git.run("rev-parse", "--verify", f"{FETCHED}^{{commit}}")).strip().decode()
        if self._tree is None or self._tree.revision != commit:
            self._tree = await read_commit(git, commit, self._remote.path.strip("/"))
            self._shallow = (await git.run("rev-parse", "--is-shallow-repository")).strip() == b"true"
        return self._tree

    async def _git(self) -> Git:
        """Return git in the mirror, which is made if it is not there. Raises GitFailed."""
        environment, secrets = environment_for(self._remote, self._directory, self._secret_of)
        git = Git(self._mirror, environment, bare=True, secrets=secrets)
        if not self._prepared:
            if not (self._mirror / "HEAD").is_file():
                await git.run("init", "--quiet", "--bare", "--template=", "--initial-branch=none", str(self._mirror))
            self._clear_locks()
            self._prepared = True
        return git

    async def _fetch(self, git: Git) -> SourceFailed | None:
        """Bring the branch here; return why there is nothing to bring. Raises GitFailed for what else went wrong."""
        try:
            await self._fetch_once(git)
        except GitFailed as error:
            if ".lock': File exists" in error.said and self._clear_locks():
                return await self._fetch(git)
            if "couldn't find remote ref" in error.said:
                return await self._what_is_there(git)
            raise GitFailed(explained(error, self._remote, self._directory), error.code, error.said) from error
        return None

    async def _fetch_once(self, git: Git) -> None:
        refspec = f"+refs/heads/{self._remote.branch}:{FETCHED}"
        await git.run(
            "fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--no-auto-maintenance", "--no-recurse-submodules",
            "--update-shallow", "--", self._remote.url, refspec,
            limit=FETCH_LIMIT, config=(*CONFIG, "http.lowSpeedLimit=1000", "http.lowSpeedTime=20"),
        )  # fmt: skip

    async def _what_is_there(self, git: Git) -> SourceFailed:
        """Tell a missing branch from an empty repository."""
        try:
            output = await git.run("ls-remote", "--heads", "--", self._remote.url, limit=FETCH_LIMIT, config=CONFIG)
        except GitFailed as error:
            raise GitFailed(explained(error, self._remote, self._directory), error.code, error.said) from error
        heads = [line.partition(b"\trefs/heads/")[2].decode(errors="replace") for line in output.splitlines()]
        if not heads:
            return SourceFailed(
                f"{self._remote.shown} has no commit yet; push the cluster directory to its branch {self._remote.branch}",
                Trouble.EMPTY,
            )
        names = ", ".join(heads[:5]) + (f" and {len(heads) - 5} more" if len(heads) > 5 else "")
        return SourceFailed(
            f"{self._remote.shown} has no branch {self._remote.branch}; there are: {names}; push it, or name another one "
            "with --branch",
            Trouble.BRANCH_MISSING,
        )

    def _clear_locks(self) -> bool:
        """Remove locks that a crashed git left in the mirror; return whether there were any."""
        locks = [path for path in self._mirror.rglob("*.lock") if path.is_file()]
        if not locks or any(self._others()):
            return False
        for lock in locks:
            log.warning("a lock that a crashed git left is removed", extra={"file": lock})
            lock.unlink(missing_ok=True)
        return True

    def _clear_left_over(self) -> None:
        """Remove objects that a git which was ended has begun to write."""
        found = [path for pattern in LEFT_OVER for path in self._mirror.glob(pattern)]
        if not found or any(self._others()):
            return
        log.warning("what a git that was ended left in the mirror is removed", extra={"files": len(found)})
        for path in found:
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)

    def _others(self) -> Iterator[str]:
        """Yield the processes that have the mirror in their arguments or environment, as git and its helpers do."""
        mark = os.fsencode(self._mirror)
        for entry in self._processes.iterdir():
            if not entry.name.isdigit() or entry.name == str(os.getpid()):
                continue
            try:
                if mark in (entry / "cmdline").read_bytes() or b"=" + mark in (entry / "environ").read_bytes():
                    yield entry.name
            except OSError:
                continue
