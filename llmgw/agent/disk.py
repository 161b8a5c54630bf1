"""What an agent keeps on disk: its id, the order in force, one record a running shard, the engines' logs.

Everything that must survive is written to a temporary file, flushed to the disk, and renamed, so that a reader sees the
old or the new and never half. An order that cannot be stored is not obeyed: after a crash the agent would otherwise
accept an older one.
"""

import fcntl
import os
import shutil
import stat
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from pydantic import TypeAdapter, ValidationError

from llmgw.agent import log_files
from llmgw.base.ids import IdSource, ShardId
from llmgw.engines.shard import ShardSpec
from llmgw.fleet.order import NodeOrder

KEPT_FIRST = 1
KEPT_LAST = 9
"""Logs of attempts that are kept for each shard: the first, which often shows the cause, and the last ones."""

KEPT_ENDED = 50
"""Shards that are gone whose logs are kept: the newest."""


@dataclass(frozen=True, slots=True)
class Record:
    """The proof of a started process, by which a restarted agent knows it again."""

    spec: ShardSpec
    attempt: int
    pid: int
    start_ticks: int
    boot: str
    ready: bool = False
    """It was ready once; a busy engine that does not answer an adopting agent is not one that still loads."""
    cgroup: str = ""
    """Directory of its cgroup; empty if it has none."""


ALL_LOGS = 512 << 20
"""Bytes that all logs together may take; the oldest of ended attempts go first."""
LOW = 256 << 20
"""Bytes free below which logs are cut shorter: an engine that cannot write may well die of it."""


OWN_FILES = ("lock", "id", "rank", "cluster", "order.json")


class StateLocked(Exception):
    """Another agent uses this state directory."""


_ORDER: TypeAdapter[NodeOrder] = TypeAdapter(NodeOrder)
_RECORD: TypeAdapter[Record] = TypeAdapter(Record)


class Disk:
    """The agent's state directory. Blocking, on small local files."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._lock: IO[str] | None = None

    def open(self) -> None:
        """Create the directories and take the lock. Raises StateLocked, or OSError if it may not be written."""
        for directory in (self.root, self.root / "shards", self.root / "logs"):
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._close_to_others()
        lock = (self.root / "lock").open("a+")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            lock.seek(0)
            holder = lock.read().strip() or "?"
            lock.close()
            raise StateLocked(f"another agent (pid {holder}) uses {self.root}") from error
        os.fchmod(lock.fileno(), 0o600)
        os.truncate(lock.fileno(), 0)
        with suppress(OSError):  # the lock needs no room: on a full disk, too, an agent looks after its engines
            os.write(lock.fileno(), str(os.getpid()).encode())
        self._lock = lock

    def _close_to_others(self) -> None:
        """Leave what is here to this user: orders have the environment of engines. An earlier version was not so strict."""
        files = [*(self.root / name for name in OWN_FILES), *(self.root / "shards").glob("*.json")]
        for path in (self.root, self.root / "shards", self.root / "logs", *files):
            with suppress(FileNotFoundError, PermissionError):  # another user's, who let us in, stays as they made it
                mode = path.lstat().st_mode
                if not mode & stat.S_ISVTX and not stat.S_ISLNK(mode):  # as /tmp has, which all users need
                    path.chmod(stat.S_IMODE(mode) & 0o700)

    def close(self) -> None:
        """Give the lock back."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def agent_id(self, ids: IdSource) -> str:
        """Return the id that marks this agent's processes, drawn once for a state directory."""
        path = self.root / "id"
        known = path.read_text(errors="replace").strip() if path.exists() else ""
        if not known.isalnum():
            _write(path, ids.new().encode())
            known = path.read_text().strip()
        return known

    def store_order(self, order: NodeOrder) -> None:
        """Keep an order; it is on the disk when this returns. Raises OSError."""
        # its rank apart: an order that a later version cannot read must not let older ones in
        _write(self.root / "rank", f"{order.epoch} {order.generation}".encode())
        _write(self.root / "order.json", _ORDER.dump_json(order))

    def rank(self) -> tuple[int, int]:
        """Return (epoch, generation) of the newest order that was stored; (0, 0) if there was none."""
        try:
            epoch, generation = (self.root / "rank").read_text().split()
            return int(epoch), int(generation)
        except (OSError, ValueError):
            return (0, 0)

    def order(self) -> NodeOrder | None:
        """Return the stored order, or None. One that this version cannot read counts as none."""
        try:
            return _ORDER.validate_json((self.root / "order.json").read_bytes())
        except (FileNotFoundError, ValidationError):
            return None

    def store_cluster(self, name: str) -> None:
        """Keep the cluster whose orders are obeyed. Raises OSError."""
        _write(self.root / "cluster", name.encode())

    def cluster(self) -> str:
        """Return the cluster whose orders are obeyed; empty before the first."""
        try:
            return (self.root / "cluster").read_text()
        except OSError:
            return ""

    def store_record(self, record: Record) -> None:
        """Keep the proof of a started process. Raises OSError."""
        _write(self.root / "shards" / f"{record.spec.shard}.json", _RECORD.dump_json(record))

    def mark_ready(self, shard: ShardId) -> None:
        """Note in its record that a shard was ready. Raises OSError."""
        path = self.root / "shards" / f"{shard}.json"
        try:
            record = _RECORD.validate_json(path.read_bytes())
        except (FileNotFoundError, ValidationError):
            return
        if not record.ready:
            self.store_record(replace(record, ready=True))

    def forget(self, shard: ShardId) -> None:
        """Drop the record of a shard."""
        (self.root / "shards" / f"{shard}.json").unlink(missing_ok=True)
        known = {record.spec.shard for record in self.records()}
        ended = [path for path in (self.root / "logs").iterdir() if path.name not in known]
        for path in sorted(ended, key=lambda path: path.stat().st_mtime)[: max(0, len(ended) - KEPT_ENDED)]:
            shutil.rmtree(path, ignore_errors=True)

    def records(self) -> list[Record]:
        """Return every record that can be read, in order of shard."""
        found = []
        for path in sorted((self.root / "shards").glob("*.json")):
            try:
                found.append(_RECORD.validate_json(path.read_bytes()))
            except ValidationError:
                continue  # written over at the next start; its process is found by its marker, as a stray
        return found

    def container_files(self, shard: ShardId, attempt: int) -> tuple[Path, Path]:
        """Return where a container's id is written, and the note of the process that stands for it."""
        stem = self.root / "shards" / f"{shard}.{attempt}"
        return stem.with_name(f"{stem.name}.id"), stem.with_name(f"{stem.name}.container")

    def log_path(self, shard: ShardId, attempt: int) -> Path:
        """Return where an attempt's output goes; older attempts beyond those kept are removed."""
        directory = self.root / "logs" / shard
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        attempts = self.attempts(shard)
        for old in attempts[KEPT_FIRST : max(KEPT_FIRST, len(attempts) - KEPT_LAST + 1)]:
            (directory / f"{old}.log").unlink(missing_ok=True)
        return directory / f"{attempt}.log"

    def attempts(self, shard: ShardId) -> list[int]:
        """Return the attempts whose logs are kept, oldest first."""
        directory = self.root / "logs" / shard
        return sorted(int(path.stem) for path in directory.glob("*.log") if path.stem.isdigit())

    def tail(self, shard: ShardId, attempt: int, lines: int) -> tuple[str, ...]:
        """Return the last lines of an attempt's log; none if there is no such log."""
        return log_files.tail(self.root / "logs" / shard / f"{attempt}.log", lines)

    def read(self, shard: ShardId, attempt: int, offset: int, limit: int) -> tuple[int, bytes, int]:
        """Return (start, data, size) of an attempt's log from `offset` on; an offset in a hole is moved to its end."""
        return log_files.read(self.root / "logs" / shard / f"{attempt}.log", offset, limit)

    def sweep(self) -> None:
        """Keep each log and all of them together within their limits. May run in a thread; one that fails is left."""
        running = {(record.spec.shard, str(record.attempt)) for record in self.records()}
        free = os.statvfs(self.root)
        low = free.f_bavail * free.f_frsize < LOW
        ended: list[tuple[float, int, Path]] = []
        taken = 0
        for path in (self.root / "logs").glob("*/*.log"):
            try:
                log_files.trim(path, log_files.SHORTENED if low else log_files.NEWEST)
                found = path.stat()
            except OSError:
                continue  # removed meanwhile, or a file system in trouble: looked at again soon
            taken += found.st_blocks * 512
            if (path.parent.name, path.stem) not in running:
                ended.append((found.st_mtime, found.st_blocks * 512, path))
        for _, size, path in sorted(ended):
            if taken <= ALL_LOGS:
                break
            path.unlink(missing_ok=True)
            taken -= size


def _write(path: Path, data: bytes) -> None:
    temporary = path.with_suffix(".tmp")
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:  # noqa: PTH123 - of a descriptor
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
    except OSError:
        temporary.unlink(missing_ok=True)  # on a full disk, what was written of it is room that others need
        raise
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
