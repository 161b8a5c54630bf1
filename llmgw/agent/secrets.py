"""The values of secrets that this node's engines need: in memory, and in one file on tmpfs.

The file is there so that a crashed engine can be started again with nobody connected, also by a restarted agent; tmpfs,
so that nothing is left of it after a reboot or on a disk that is taken out. Only names that the order in force uses are
kept. Values appear nowhere else: not in orders, records, reports or logs, and never in arguments, which every user of a
host can read; an engine gets them by its environment.
"""

import ctypes
import json
import logging
import os
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from llmgw.fleet.order import NodeOrder

log = logging.getLogger(__name__)

TMPFS = 0x01021994
RAMFS = 0x858458F6
"""Numbers of file systems that live in memory (linux/magic.h)."""
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - below it a directory of our own, checked to be that


class Secrets:
    """The values by name. Use from the event loop's thread; blocks for one small file in memory."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._values: dict[str, str] = {}
        self.complaint = ""
        """Why values are in memory alone; empty if they are in the file, or if there are none."""
        if path is not None:
            self._values = _read(path)

    def get(self, name: str) -> str | None:
        """Return a value; None if it is not known."""
        return self._values.get(name)

    def keep(self, values: Mapping[str, str], order: NodeOrder) -> None:
        """Take what came with an order, and forget what it does not use any more."""
        used = {name for shard in order.shards for name in shard.spec.secrets.values()}
        known = {**self._values, **values}
        kept = {name: known[name] for name in sorted(used) if name in known}
        if kept == self._values and not self.complaint:
            return
        self._values = kept
        self.complaint = self._store()

    def _store(self) -> str:
        if not self._values:
            if self._path is not None:
                with suppress(OSError):
                    self._path.unlink(missing_ok=True)
            return ""
        if self._path is None:
            return "no tmpfs here to keep secrets in, so they are lost when the agent restarts"
        try:
            _write(self._path, self._values)
        except OSError as error:
            return f"cannot keep secrets in {self._path}, so they are lost when the agent restarts: {error.strerror}"
        return ""


def place(socket: Path, agent_id: str, shared: Path = SHARED_MEMORY) -> Path | None:
    """Return where the file of secrets goes: beside the socket, or in shared memory; None if neither is a tmpfs of ours."""
    beside, own = socket.parent, shared / f"llmgw-{os.geteuid()}"
    for directory, parent in ((beside, beside.parent), (own, shared)):
        with suppress(OSError):
            if _kind(directory if directory.exists() else parent) in (TMPFS, RAMFS):
                directory.mkdir(parents=directory == beside, exist_ok=True, mode=0o700)
                if _is_private(directory):
                    return directory / f"secrets-{agent_id}"
    return None


def _is_private(directory: Path) -> bool:
    """Whether a directory is really one, ours, and others may not write: anybody may make names in shared memory."""
    found = directory.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022


def _kind(directory: Path) -> int:
    buffer = ctypes.create_string_buffer(256)  # struct statfs begins with f_type, a long
    if ctypes.CDLL(None, use_errno=True).statfs(os.fsencode(directory), buffer) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return ctypes.c_ulong.from_buffer(buffer).value & 0xFFFFFFFF


def _read(path: Path) -> dict[str, str]:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return {}
    with os.fdopen(descriptor, encoding="utf-8", errors="replace") as file:
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid() or found.st_mode & 0o077:
            return {}
        try:
            values = json.load(file)
        except ValueError:
            return {}
    return _texts(values.items()) if isinstance(values, dict) else {}


def _texts(items: Iterable[tuple[object, object]]) -> dict[str, str]:
    return {name: value for name, value in items if isinstance(name, str) and isinstance(value, str)}


def _write(path: Path, values: Mapping[str, str]) -> None:
    temporary = path.with_name(path.name + ".tmp")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(values, file)
        temporary.rename(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
