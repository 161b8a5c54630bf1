"""Hints that something below a directory may have changed, from the kernel where it gives any. Never what changed.

Events are only a shortcut: they are lost when new directories come once the kernel's limit is used up, when a network file
system changes on another machine, when a link is swapped. So whoever asks here also looks at the contents now and then.
`watchfiles` is asked without waiting, once a look, so that no task has to be owned; its event kinds and its batches are
ignored, since an editor's rename, a checkout of 3,000 files and a `mkdir -p` all look unlike what they are.

What ends a watcher for good, silently, is checked at each look: another directory at the same path, or a link that leads
elsewhere now. A watcher that fails (no more inotify watches, a file name that is not UTF-8) is armed again later.
"""

import logging
import os
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING

from llmgw.base.time import Clock, Instant

if TYPE_CHECKING:
    from watchfiles import Change

log = logging.getLogger(__name__)

AGAIN = 10.0
"""Seconds until a watcher that failed is armed again."""
SILENT = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre", "virtiofs", "vboxsf", "prl_fs"}
)
"""File systems that tell nothing of changes made elsewhere; FUSE's are another."""
FORCE = ("LLMGW_FORCE_POLLING", "WATCHFILES_FORCE_POLLING")
"""Environment variables by which an operator says that no events come, as from the lower layers of an overlay."""

Events = Generator[set[tuple["Change", str]], None, None]
Arm = Callable[[Path], Events]


def arm(root: Path) -> Events:
    """Watch a directory; each `next` returns at once with what was seen since. Raises OSError and RuntimeError."""
    from watchfiles import watch  # noqa: PLC0415 - a quarter of a second that commands which only read files need not pay

    skip = len(str(root)) + 1

    def of_interest(_: object, path: str) -> bool:
        return not any(part.startswith(".") for part in path[skip:].split("/")[:-1])

    # the filter is our own: the library's drops everything below a directory called .venv or node_modules, the root's included
    return watch(
        root, watch_filter=of_interest, debounce=20, step=1, rust_timeout=1, yield_on_timeout=True,
        force_polling=False, raise_interrupt=True,
    )  # fmt: skip


class DirWatch:
    """Watches one directory. Called from one thread at a time; `close` once."""

    def __init__(self, directory: Path, clock: Clock, arm: Arm = arm) -> None:
        self._directory = directory
        self._clock = clock
        self._arm = arm
        self._events: Events | None = None
        self._root: object = None
        self._armed = ""
        self._said: set[str] = set()
        self._armed_at: Instant | None = None
        self.trouble = ""
        """Why the directory is polled instead; empty while events come."""

    def look(self) -> bool | None:
        """Whether anything may have changed since the last look; None if nobody can tell."""
        root = _identity(self._directory)
        moved = root != self._root
        if moved:
            self.close()
            self._root = root
        if self._events is None and root is not None and (moved or self._rested()):
            return True if self._start() else None
        if self._events is None:
            return True if moved else None
        try:
            seen = next(self._events, None)
            if any(path == self._armed for _, path in seen or ()):
                # the directory itself: one that is made anew at once often gets the same inode number, with no watch on it
                self.close()
                self._start()
            return bool(seen) or moved
        except (OSError, RuntimeError) as error:  # the library's own error is a RuntimeError
            self._fail(error)
            return True

    def close(self) -> None:
        """End watching."""
        if self._events is not None:
            self._events.close()
        self._events = None
        self._armed_at = None

    def _rested(self) -> bool:
        return self._armed_at is None or self._clock.now() - self._armed_at >= AGAIN

    def _start(self) -> bool:
        self._armed_at = self._clock.now()
        silent = _silent(self._directory)
        if silent:
            self._say(silent)
            return False
        root = self._directory.resolve()
        self._armed = str(root)
        events = self._arm(root)
        try:
            next(events, None)
        except (OSError, RuntimeError) as error:
            events.close()
            self._fail(error)
            return False
        self._events = events
        if self.trouble:
            log.info("events of the file system come again", extra={"directory": self._directory})
        self.trouble = ""
        return True

    def _fail(self, error: Exception) -> None:
        if self._events is not None:
            self._events.close()
        self._events = None
        self._armed_at = self._clock.now()
        text = str(error)
        if "MaxFilesWatch" in text or "limit" in text or getattr(error, "errno", None) == 28:  # ENOSPC
            text = f"the kernel's watches are used up ({_limit('max_user_watches')}); raise fs.inotify.max_user_watches"
        elif "os error 24" in text or "Too many open files" in text:
            text = (
                f"the kernel's inotify instances or this process's open files are used up "
                f"({_limit('max_user_instances')}); raise fs.inotify.max_user_instances"
            )
        else:
            text = f"the watcher failed ({text.encode('utf-8', 'backslashreplace').decode()[:200]})"
        self._say(text)

    def _say(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            log.warning("the directory is polled: %s", text, extra={"directory": self._directory})
        self.trouble = text


def _identity(directory: Path) -> object:
    """Return what tells one directory from another at the same path; None if there is none."""
    try:
        found = directory.stat()
        return (found.st_dev, found.st_ino, os.path.realpath(directory))
    except OSError:
        return None


def _limit(name: str) -> str:
    try:
        return f"{name} is {Path('/proc/sys/fs/inotify', name).read_text().strip()}"
    except OSError:
        return f"{name} is not known"


def _silent(directory: Path) -> str:
    """Return why no events can be expected, or nothing."""
    for name in FORCE:
        if os.environ.get(name, "").lower() not in ("", "0", "false", "no"):
            return f"{name} asks for it"
    kind = file_system(directory)
    if kind in SILENT or kind.startswith("fuse"):
        return f"its file system, {kind}, does not tell of changes made elsewhere"
    return ""


def file_system(directory: Path, mounts: Path = Path("/proc/self/mountinfo")) -> str:
    """Return the kind of file system that a directory is on, as the kernel names it; empty if that is not known."""
    where = os.path.realpath(directory)
    best, kind = "", ""
    try:
        lines = mounts.read_bytes().decode("utf-8", "surrogateescape").splitlines()
    except OSError:
        return ""
    for line in lines:
        fields, _, rest = line.partition(" - ")
        point = fields.split(" ")[4].replace("\\040", " ") if len(fields.split(" ")) > 4 else ""
        inside = where == point or where.startswith(point.rstrip("/") + "/")
        if point and inside and len(point) >= len(best):  # of two at one place, the later hides the earlier
            best, kind = point, rest.split(" ")[0]
    return kind
