"""A cgroup for each attempt of a shard: what belongs to it, how much memory it may take, and whether that killed it.

Three kinds of hosts: the unified tree (v2), the older tree of one hierarchy a controller (v1, where `memory` holds both
limit and membership), and hosts where nothing may be written: there the process session must do.

v2 lets no cgroup hold processes and hand controllers to children at once. The agent does not move itself aside for that:
a service whose own cgroup hands out controllers cannot be started again while engines remain below it, since the init
system then cannot put the new agent there (EBUSY). So the engines' cgroups lie beside the agent's own: below the nearest
ancestor that may be written and hands out `memory`. Where there is none (a container), they lie below the agent's own,
for membership alone. On v1 there is no such rule, and they always lie below the agent's own, under whatever limits that.

`cpus` is a weight, not a quota: a quota stalls every thread of an engine for the rest of the period just when it is busy,
which is seen as latency, while idle cores stay unused; a weight counts only when cores are short.

An engine enters by a shell that writes its own pid and then becomes the engine, so nothing of the engine ever runs
outside. Rejected: clone3 with CLONE_INTO_CGROUP, which v1 does not have, and which no interface of Python offers without
running Python between fork and exec.
"""

import logging
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from llmgw.base.ids import ShardId

log = logging.getLogger(__name__)

PREFIX = "llmgw-"
ENTER = 'echo $$ >"$1" || { echo "cannot enter the cgroup $1"; exit 125; }; shift; exec "$@"'
"""Shell script: enter the cgroup whose `cgroup.procs` is the first argument, become the rest."""
WEIGHT_OF_A_CPU = 100
"""The kernel's default `cpu.weight`; an engine without `cpus` counts as one."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the kernel counted for an attempt. Bytes; None where it is not known or not set."""

    oom_kills: int
    limit: int | None
    peak: int | None


@dataclass(frozen=True, slots=True)
class Cgroups:
    """Where the cgroups of one agent's engines lie. Blocking, on the kernel's own file systems: microseconds."""

    version: str
    """`v2`, `v1`, or empty where there are none."""
    base: Path
    """Directory that holds one cgroup an attempt; made at need and removed when empty."""
    mount: Path = Path("/")
    root: str = "/"
    """Where the hierarchy is mounted, and which of its directories is seen there."""

    def create(self, shard: ShardId, attempt: int, memory: int | None, cpus: int | None) -> Path | None:
        """Make the cgroup of an attempt, with its limits; None if the kernel does not let us."""
        if not self.version:
            return None
        path = self.base / f"{shard}.{attempt}"
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            log.warning("no cgroup could be made", extra={"path": path, "error": error.strerror})
            return None
        try:
            self._limit(path, memory, cpus)
        except OSError as error:
            log.warning("its memory is not limited", extra={"shard": shard, "path": path, "error": error.strerror})
        return path

    def _limit(self, path: Path, memory: int | None, cpus: int | None) -> None:
        if self.version == "v1":
            if memory is not None:
                (path / "memory.limit_in_bytes").write_text(str(memory))
                with suppress(OSError):  # kernels without swap accounting
                    (path / "memory.memsw.limit_in_bytes").write_text(str(memory))
            return
        for controller in ("memory", "cpu"):
            with suppress(OSError):
                (self.base / "cgroup.subtree_control").write_text(f"+{controller}")
        if cpus is not None and (path / "cpu.weight").exists():
            (path / "cpu.weight").write_text(str(min(10_000, max(1, cpus) * WEIGHT_OF_A_CPU)))
        if memory is not None:
            (path / "memory.max").write_text(str(memory))
            with suppress(OSError):
                (path / "memory.swap.max").write_text("0")
            with suppress(OSError):  # an engine that lost one worker hangs; all of it is to end
                (path / "memory.oom.group").write_text("1")

    def owns(self, path: Path) -> bool:
        """Whether a cgroup is one that this agent made, now or in an earlier life from another place of the tree."""
        return bool(self.version) and path.parent.name == self.base.name and path.is_dir()

    def all(self) -> list[Path]:
        """Return the cgroups of attempts that are there now."""
        if not self.version or not self.base.is_dir():
            return []
        return sorted(path for path in self.base.iterdir() if path.is_dir())

    def of_process(self, pid: int) -> Path | None:
        """Return the cgroup of an attempt of this agent that a process is in, or None."""
        if not self.version:
            return None
        try:
            lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
        except OSError:
            return None
        for line in lines:
            _, names, inside = line.split(":", 2)
            if _is(names, "memory" if self.version == "v1" else "") and f"/{self.base.name}/" in inside:
                before, _, after = inside.partition(f"/{self.base.name}/")
                above = os.path.relpath(before or "/", self.root)
                return self.mount / above / self.base.name / after.split("/")[0]
        return None


NONE = Cgroups("", Path())
"""No cgroups: the process session must do."""


def members(path: Path) -> list[int]:
    """Return the living processes of a cgroup and of those below it."""
    found: set[int] = set()
    for directory in _with_children(path):
        with suppress(OSError):
            found.update(int(line) for line in (directory / "cgroup.procs").read_text().split())
    return sorted(found)


def kill(path: Path) -> bool:
    """Have the kernel kill all of a cgroup at once; False where it has no such thing (v1, before 5.14)."""
    if not (path / "cgroup.kill").exists():
        return False
    try:
        (path / "cgroup.kill").write_text("1")
    except OSError:
        return False
    return True


def remove(path: Path) -> None:
    """Remove a cgroup, and the agent's directory with the last one. One that is not empty stays."""
    for directory in [*_with_children(path)][::-1]:
        with suppress(OSError):
            directory.rmdir()
    with suppress(OSError):
        path.parent.rmdir()


def evidence(path: Path) -> Evidence | None:
    """Return what the kernel counted; None where memory is not accounted or the cgroup is gone."""
    if (path / "memory.events").exists():
        counted, limit, peak = "memory.events", "memory.max", "memory.peak"
    else:
        counted, limit, peak = "memory.oom_control", "memory.limit_in_bytes", "memory.max_usage_in_bytes"
    try:
        pairs = dict(line.split() for line in (path / counted).read_text().splitlines())
    except (OSError, ValueError):
        return None
    return Evidence(int(pairs.get("oom_kill", "0")), _bytes(path / limit), _bytes(path / peak))


def find(agent_id: str) -> Cgroups:
    """Look where the cgroups of this agent's engines can lie."""
    try:
        mounts = Path("/proc/self/mountinfo").read_text()
        own = Path("/proc/self/cgroup").read_text()
    except OSError:
        return NONE
    return choose(mounts, own, agent_id)


def choose(mounts: str, own: str, agent_id: str) -> Cgroups:
    """Choose by the text of `mountinfo` and of the agent's own `cgroup` file; looks at what may be written."""
    unified = _own_directory(mounts, own, "cgroup2", "")
    memory = _own_directory(mounts, own, "cgroup", "memory")
    name = PREFIX + agent_id
    if unified is not None:
        mount, root, directory = unified
        for candidate in (directory, *directory.parents):
            if not candidate.is_relative_to(mount):
                break
            if _writable(candidate) and _hands_out_memory(candidate):
                return Cgroups("v2", candidate / name, mount, root)
    for version, place in (("v1", memory), ("v2", unified)):
        if place is not None and _writable(place[2]):
            return Cgroups(version, place[2] / name, place[0], place[1])
    return NONE


def _own_directory(mounts: str, own: str, kind: str, controller: str) -> tuple[Path, str, Path] | None:
    """Return (mount point, what of the hierarchy is mounted there, the agent's own cgroup below it)."""
    inside = next(
        (path for _, names, path in (line.split(":", 2) for line in own.splitlines()) if _is(names, controller)), None
    )
    if inside is None:
        return None
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        fields, (fstype, _, options) = left.split(), right.split(" ", 2)
        if fstype != kind or (controller and controller not in options.split(",")):
            continue
        root, point = Path(fields[3]), Path(fields[4])
        directory = point / Path(inside).relative_to(root) if Path(inside).is_relative_to(root) else point
        if directory.is_dir():
            return point, fields[3], directory
    return None


def _is(names: str, controller: str) -> bool:
    return controller in names.split(",") if controller else names == ""


def _writable(directory: Path) -> bool:
    return os.access(directory, os.W_OK) and os.access(directory / "cgroup.procs", os.W_OK)


def _hands_out_memory(directory: Path) -> bool:
    control = directory / "cgroup.subtree_control"
    try:
        if "memory" in control.read_text().split():
            return True
        if "memory" not in (directory / "cgroup.controllers").read_text().split():
            return False
        control.write_text("+memory")
    except OSError:
        return False
    return True


def _with_children(path: Path) -> Iterator[Path]:
    yield path
    try:
        entries = sorted(entry for entry in path.iterdir() if entry.is_dir())
    except OSError:
        return
    for entry in entries:
        yield from _with_children(entry)


def _bytes(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    # v1 says "no limit" by the largest number of whole pages
    return int(text) if text.isdigit() and int(text) < 1 << 60 else None
