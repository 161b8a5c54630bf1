"""Reads a cluster directory's files as they lie on the disk: for the commands, and for `llmgw server --worktree`.

The revision is a digest of the contents. A tree that is being written (a checkout, an editor) is taken only when two looks
in a row found the same, and not at all while git is at work there: what lies there then is what nobody means. Events of the
file system only say when to look; every `SCAN` seconds all files are read whether any came or not.
"""

import asyncio
import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from llmgw.adapters.dir_watch import DirWatch
from llmgw.adapters.git_busy import git_at_work, stale_lock
from llmgw.base.ids import Revision
from llmgw.base.time import Clock, Instant, later
from llmgw.catalog.entries import Entry, Kind, sort_out
from llmgw.catalog.source import MAX_BYTES, TOO_LARGE, Source, SourceFailed, SourceTree
from llmgw.ports.trees import Passed
from llmgw.spec.cluster import SourceRules

SCAN = 30.0
"""Seconds between two readings of all files when nothing seems to have changed."""
SAY_BUSY = 30.0
"""Seconds after which a person is told that git holds things up."""


def read_directory(directory: Path) -> Source:
    """Return the directory's YAML files as they are now, or why they cannot be read."""
    if not directory.is_dir():
        return SourceFailed(f"there is no directory {directory}; create it, or name another one")
    files: dict[str, bytes] = {}
    try:
        found = [(path, _entry(path, _shown(path, directory))) for path in _walk(directory)]
        chosen = sort_out(entry for _, entry in found)
        places = {entry.path: path for path, entry in found}
        for shown in chosen.files:
            with places[shown].open("rb") as file:
                data = file.read(MAX_BYTES + 1)
            if len(data) > MAX_BYTES:  # it has grown since it was listed
                chosen.refused[shown] = TOO_LARGE
            else:
                files[shown] = data
    except OSError as error:
        return SourceFailed(f"cannot read {error.filename}: {error.strerror}")
    return SourceTree(Revision(f"worktree-{_digest(files, chosen.refused)}"), files, chosen.refused)


def _walk(directory: Path) -> Iterator[Path]:
    """Yield all that is not hidden but directories, and of those the ones that are not gone into. Raises OSError."""
    for root, directories, names in os.walk(directory, onerror=_raise):
        inside = []
        for name in sorted(directories):
            path = Path(root, name)
            if name.startswith("."):
                continue
            if path.is_symlink() or os.path.lexists(path / ".git"):
                yield path
            else:
                inside.append(name)
        directories[:] = inside
        yield from (Path(root, name) for name in sorted(names) if not name.startswith("."))


def _entry(path: Path, shown: str) -> Entry:
    found = path.lstat()
    if stat.S_ISLNK(found.st_mode):
        return Entry(shown, Kind.LINK, target=os.fsencode(path.readlink()).decode("utf-8", "backslashreplace"))
    if stat.S_ISDIR(found.st_mode):
        return Entry(shown, Kind.REPOSITORY)
    return Entry(shown, Kind.FILE if stat.S_ISREG(found.st_mode) else Kind.SPECIAL, found.st_size)


def _shown(path: Path, directory: Path) -> str:
    return os.fsencode(path.relative_to(directory)).decode("utf-8", "backslashreplace")


def _raise(error: OSError) -> None:
    """Fail: a directory that cannot be listed is not an empty one."""
    raise error


def _digest(files: dict[str, bytes], refused: dict[str, str]) -> str:
    digest = hashlib.sha256()
    for path in sorted(files):
        digest.update(f"{path}\0{len(files[path])}\0".encode())
        digest.update(files[path])
    for path, what in sorted(refused.items()):
        digest.update(f"{path}\0{what}\0".encode())
    return digest.hexdigest()[:16]


class DirSource:
    """A `TreeSource` over the files of one directory."""

    def __init__(self, directory: Path, clock: Clock, watch: DirWatch | None = None) -> None:
        self._directory = directory
        self._clock = clock
        self._watch = watch or DirWatch(directory, clock)
        self._current: Source | None = None
        self._candidate: Source | None = None
        self._scan_at = Instant(0.0)
        self._asked = 0
        self._served = 0
        self._busy_since: Instant | None = None
        self._busy = ""

    def describe(self) -> str:
        """Say which place this is."""
        return f"{self._directory} (its files)"

    def hint(self) -> None:
        """Read the files at the next look, also if one is under way, in a thread, and has read some already."""
        self._asked += 1

    def notices(self) -> tuple[str, ...]:
        """Return why events do not come, and what git does that is waited for."""
        said = [f"the files are polled: {self._watch.trouble}"] if self._watch.trouble else []
        now = self._clock.now()
        if self._busy_since is not None and now - self._busy_since >= SAY_BUSY:
            said.append(
                f"the files are left alone for {now - self._busy_since:.0f} s while git is at work: {self._busy}"
            )
        lock = stale_lock(self._directory, now)
        if lock is not None:
            said.append(f"{lock} was left over by a git that crashed; if none runs, remove it")
        return tuple(said)

    async def current(self) -> Source:
        """Return the newest tree that two looks in a row agreed on, or why there is none."""
        return await asyncio.to_thread(self._look)

    async def vet(self, revision: Revision, since: Revision | None, rules: SourceRules) -> Passed | SourceFailed:  # noqa: ARG002 - the port's
        """Take whatever lies there: whoever asked for files instead of commits has no signatures and no history."""
        return Passed()

    async def pin(self, revision: Revision) -> None:
        """Do nothing: files have no earlier revisions."""

    def close(self) -> None:
        """End watching."""
        self._watch.close()

    def _look(self) -> Source:
        now = self._clock.now()
        changed = self._watch.look()
        asked = self._asked
        settled = self._current is not None and self._candidate == self._current
        if self._current is not None and settled and not changed and now < self._scan_at and asked == self._served:
            return self._current
        busy = git_at_work(self._directory, now) if self._current is not None else ""
        if busy:
            self._hold(busy, now)
            assert self._current is not None
            return self._current
        self._busy_since = None
        found = read_directory(self._directory)
        self._served = asked
        took = self._clock.now() - now
        # polled, a big directory is read less often, so that reading it takes a tenth of the time at most
        self._scan_at = later(now, took * 10 if changed is None else SCAN)
        if self._current is None or (found == self._candidate and found != self._current):
            self._current = found
        self._candidate = found
        return self._current

    def _hold(self, busy: str, now: Instant) -> None:
        self._busy = busy
        self._candidate = None
        if self._busy_since is None:
            self._busy_since = now
