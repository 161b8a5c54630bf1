"""Starting, proving, watching and ending engine processes on this host.

Engines are session leaders with their output in a file: they outlive the agent, and a restarted agent adopts them. So
neither `asyncio`'s subprocess transport (it kills its process when it is closed) nor `subprocess.Popen` fits;
`posix_spawn` leaves nothing behind but a pid. The end of a process is noticed by a pidfd, which works for our own
children and for adopted ones alike; only for children does the kernel also tell how they ended.

A container is started and watched like any process: what is started is `tender`, which stands for it. Different are only the
command line, what counts as part of the attempt, and that the end of one is docker's word, too, that nothing is left.
"""

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto
from pathlib import Path

from llmgw.agent import cgroup, container, container_programs, endings, procfs
from llmgw.agent.cgroup import Cgroups
from llmgw.agent.container import Container, Devices
from llmgw.agent.disk import Disk, Record
from llmgw.agent.endings import Ending
from llmgw.agent.launch import MARK_AGENT, MARK_ATTEMPT, MARK_HASH, MARK_SHARD, Attempt, launch, start_of
from llmgw.agent.ports import port_taken
from llmgw.agent.secrets import Secrets
from llmgw.base.ids import ShardId
from llmgw.engines.shard import ShardSpec
from llmgw.fleet.report import Reason

log = logging.getLogger(__name__)
NO_DEVICES = Devices()
KILL_PATIENCE = 5.0
"""Seconds that a killed session may take to be empty."""
TIDYING = 1.0
"""Seconds of these that are left to a process that frees, at the end of the others, what they shared."""
WATCH_AGAIN = 1.0
"""Seconds until a process is watched again that could not be, for want of a file descriptor."""


@dataclass(frozen=True, slots=True)
class Spawned:
    """A started process and the proof to know it by."""

    pid: int
    record: Record


@dataclass(frozen=True, slots=True)
class Stray:
    """A process with our marker that no record speaks of."""

    pid: int
    leads: bool
    """It is the leader of its session: the engine itself."""
    shard: ShardId
    attempt: int
    hash: str


class Proof(Enum):
    """What a recorded pid is now."""

    OURS = auto()
    """The very process that was started."""
    GONE = auto()
    FOREIGN = auto()
    """Another process, which got the number since."""


class Processes:
    """Engine processes of one agent. Use from the event loop's thread; calls block for milliseconds at most.

    A process is ours by our marker in its environment, or by being in a cgroup that this agent made, or by being in the
    session of an engine that this agent started or proved. The marker alone will not do: programs that set their title
    (vLLM does) wipe their environment as /proc shows it, and some start children without any.
    """

    def __init__(
        self,
        agent_id: str,
        disk: Disk,
        weights_dir: Path | None,
        cgroups: Cgroups = cgroup.NONE,
        secrets: Secrets | None = None,
    ) -> None:
        self._agent_id = agent_id
        self._disk = disk
        self._weights_dir = weights_dir
        self.cgroups = cgroups
        self.secrets = secrets or Secrets(None)
        self._boot = procfs.boot_id()
        self._statuses: dict[int, int] = {}
        self._watched: dict[int, int] = {}
        self._leaders: dict[int, Record] = {}
        """Engines that this agent started or proved, until nothing of them is left."""
        self._killed: set[int] = set()
        self._containers: dict[tuple[ShardId, int], Container] = {}

    def spawn(
        self,
        spec: ShardSpec,
        attempt: int,
        cause: str,
        weights_dir: str | None,
        extra: Mapping[str, str] | None = None,
        devices: Devices = NO_DEVICES,
    ) -> Spawned | Reason:
        """Start an attempt and record it; or say what it lacks.

        `extra`: variables that only the node can know; `devices`: the same for a container, its cards among them.
        """
        start = start_of(
            spec,
            Attempt(self._agent_id, attempt, cause),
            self.secrets,
            weights_dir or self._weights_dir,
            extra=extra or {},
            devices=devices,
            files=self._disk.container_files(spec.shard, attempt),
        )
        if isinstance(start, Reason):
            return start
        argv, environment = start
        try:
            taken = port_taken(spec.port, spec.host, spec.ports)
        except OSError as error:
            return Reason("cannot_look", f"cannot look whether port {spec.port} is free: {error.strerror}")
        if taken is not None:
            return taken
        log = self._open_log(spec, attempt, argv)
        if isinstance(log, Reason):
            return log
        directory = None
        if spec.runtime == "process":  # a container's limits are docker's business, and so is where it is counted
            directory = self.cgroups.create(spec.shard, attempt, spec.memory, spec.cpus)
        try:
            pid = launch(argv, environment, log, directory)
        except OSError as error:
            if directory is not None:
                cgroup.remove(directory)
            return Reason("not_executable", f"cannot run {argv[0]}: {error.strerror}")
        finally:
            os.close(log)
        try:
            stat = procfs.stat_of(pid)
            began = stat.start_ticks if stat else 0
            record = Record(spec, attempt, pid, began, self._boot, cgroup=str(directory or ""))
            self._disk.store_record(record)
        except OSError as error:
            self._abandon(pid, directory)
            return Reason("state_unwritable", f"cannot record the process: {error.strerror}")
        self.know(record)
        return Spawned(pid, record)

    def _open_log(self, spec: ShardSpec, attempt: int, argv: list[str]) -> int | Reason:
        try:
            log = os.open(self._disk.log_path(spec.shard, attempt), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        except OSError as error:
            return Reason("state_unwritable", f"cannot write the engine's log: {error.strerror}")
        try:
            os.write(log, f"# {' '.join(argv)}\n".encode())
        except OSError as error:
            os.close(log)
            return Reason("state_unwritable", f"cannot write the engine's log: {error.strerror}")
        return log

    def _abandon(self, pid: int, directory: Path | None) -> None:
        os.killpg(pid, signal.SIGKILL)  # it began a moment ago and is not reaped: the number is still its own
        if directory is not None:
            cgroup.kill(directory)
            cgroup.remove(directory)  # if it is not empty yet, the next agent does it

    def know(self, record: Record) -> None:
        """Count a proven process's session, and its cgroup, as ours."""
        self._leaders[record.pid] = record

    def is_ours(self, record: Record) -> bool:
        """Whether the recorded process still runs."""
        return self.proof(record) is Proof.OURS

    def proof(self, record: Record) -> Proof:
        """Tell what the recorded pid is now: by boot and start time, and by our marker or our cgroup.

        Start times count from boot, so no step of the wall clock moves them, and boots are told apart by the kernel's id.
        An environment that shows nothing at all was wiped by a new title; then pid, boot and start time must do.
        """
        stat = procfs.stat_of(record.pid)
        if stat is None or stat.state in ("Z", "X") or record.boot != self._boot:
            return Proof.GONE
        if stat.start_ticks != record.start_ticks:
            return Proof.FOREIGN
        environment = procfs.environment_of(record.pid)
        if MARK_AGENT in environment:
            ours = self._marks(environment, record.spec.shard, record.attempt)
        else:
            ours = not environment or (bool(record.cgroup) and self._cgroup_of(record.pid) == record.cgroup)
        return Proof.OURS if ours else Proof.FOREIGN

    def holds_port(self, record: Record) -> bool:
        """Whether processes of the attempt, and no others, listen on its port; so does one that listens nowhere."""
        if not record.spec.ready_path:
            return True
        owners = procfs.listeners(record.spec.port)
        where = (record.spec.shard, record.attempt)
        family = _Family(record.pid, *where, record.cgroup, led=True, inside=self._container(*where))
        return bool(owners) and all(self._belongs(owner, family) for owner in owners)

    def members(self, pid: int, shard: ShardId, attempt: int) -> list[int]:
        """Return the living processes of an attempt whose leader is or was `pid`. Looks at every process of the host."""
        return self._family_members(self._with_container(self._family(pid, shard, attempt)))

    def shard_of(self, pid: int) -> ShardId | None:
        """Return the shard of this agent that a process belongs to; None for a stranger's."""
        stat = procfs.stat_of(pid)
        led = self._leaders.get(stat.session) if stat is not None else None
        if led is not None:
            return led.spec.shard
        inside = self.cgroups.of_process(pid)
        if inside is not None:
            return ShardId(inside.name.rpartition(".")[0])
        for record in self._leaders.values():
            held = self._container(record.spec.shard, record.attempt) if record.spec.runtime != "process" else None
            if held is not None and held.holds(pid):
                return record.spec.shard
        marks = procfs.environment_of(pid)
        return ShardId(marks.get(MARK_SHARD, "")) or None if marks.get(MARK_AGENT) == self._agent_id else None

    def leftovers(self, known: list[Record], lost: list[Record]) -> list[Path]:
        """Return the cgroups of attempts that are not among the known; empty ones are removed instead."""
        kept = {record.cgroup for record in known}
        found = {*self.cgroups.all(), *(Path(record.cgroup) for record in lost if record.cgroup)}
        left = []
        for path in sorted(found):
            if str(path) in kept or not self.cgroups.owns(path):
                continue
            if cgroup.members(path):
                left.append(path)
            else:
                cgroup.remove(path)
        return left

    async def end_cgroup(self, path: Path) -> tuple[int, ...]:
        """Kill all that is in a cgroup of ours, and remove it; return the pids that would not end."""
        name, _, attempt = path.name.rpartition(".")
        family = _Family(0, ShardId(name), int(attempt) if attempt.isdigit() else 0, str(path), led=False)
        return await self._kill(family)

    async def sweep_containers(self, running: Callable[[], Iterable[tuple[ShardId, int]]]) -> None:
        """Remove containers of this agent that are not of the attempts that `running` names. Returns when all were asked."""
        await container_programs.sweep(self._agent_id, running)

    def strays(self, known: set[int]) -> list["Stray"]:
        """Return our marked processes outside the known sessions: left by a crash between start and record."""
        own = os.getpid()
        found = []
        for stat in procfs.processes():
            if stat.session in known or stat.pid == own or stat.state in ("Z", "X"):
                continue
            marks = procfs.environment_of(stat.pid)
            if marks.get(MARK_AGENT) == self._agent_id:
                attempt = marks.get(MARK_ATTEMPT, "")
                number = int(attempt) if attempt.isdigit() else 0
                leads = stat.session == stat.pid
                found.append(
                    Stray(stat.pid, leads, ShardId(marks.get(MARK_SHARD, "")), number, marks.get(MARK_HASH, ""))
                )
        # what stands for a container comes before what runs in it, which leads a session, too, and knows no hash
        return sorted(found, key=lambda stray: (not stray.leads, not stray.hash))

    def record_of(self, spec: ShardSpec, stray: "Stray") -> Record | None:
        """Return a record of a process that runs, for one whose own record was lost."""
        stat = procfs.stat_of(stray.pid)
        if stat is None:
            return None
        return Record(spec, stray.attempt, stray.pid, stat.start_ticks, self._boot, cgroup=self._cgroup_of(stray.pid))

    def of_other_agents(self) -> list[tuple[int, str]]:
        """Return (pid, shard) of session leaders that carry the marker of another agent of this host."""
        found = []
        for stat in procfs.processes():
            if stat.session == stat.pid and stat.state not in ("Z", "X"):
                environment = procfs.environment_of(stat.pid)
                if environment.get(MARK_AGENT, self._agent_id) != self._agent_id and MARK_SHARD in environment:
                    found.append((stat.pid, environment[MARK_SHARD]))
        return found

    def watch(self, pid: int, ended: Callable[[int], None]) -> None:
        """Call `ended(pid)` when the process has ended. A process that is gone already is noticed too."""
        loop = asyncio.get_running_loop()
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            loop.call_soon(ended, pid)
            return
        except OSError as error:
            log.warning("a process cannot be watched now", extra={"pid": pid, "error": error.strerror})
            loop.call_later(WATCH_AGAIN, self.watch, pid, ended)
            return

        def readable() -> None:
            loop.remove_reader(descriptor)
            os.close(descriptor)
            self.reap()  # keeps the ending of what is watched, so it comes before that ends
            self._watched.pop(pid, None)
            ended(pid)

        self._watched[pid] = descriptor
        loop.add_reader(descriptor, readable)

    def unwatch_all(self) -> None:
        """Look at no process any more; they run on."""
        loop = asyncio.get_running_loop()
        for descriptor in self._watched.values():
            loop.remove_reader(descriptor)
            os.close(descriptor)
        self._watched.clear()

    def reap(self) -> None:
        """Collect the exit statuses of all ended children, orphaned grandchildren included."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in self._watched:
                self._statuses[pid] = status

    def ending(self, pid: int) -> Ending:
        """Return how a process ended. For an adopted one the kernel told its parent, not us."""
        status = self._statuses.pop(pid, None)
        record = self._leaders.get(pid)
        evidence = cgroup.evidence(Path(record.cgroup)) if record is not None and record.cgroup else None
        by_us = pid in self._killed
        kernel = ""
        if evidence is None and record is not None and status == signal.SIGKILL and not by_us:
            kernel = endings.killed_for_memory(pid, record.start_ticks / os.sysconf("SC_CLK_TCK"))
        return endings.classify(status, evidence, by_us=by_us, kernel=kernel)

    async def end(self, pid: int, shard: ShardId, attempt: int, grace: float) -> tuple[int, ...]:
        """End all of an attempt: SIGTERM to its leader, wait, SIGKILL to all; return the pids that would not end."""
        family = self._family(pid, shard, attempt)
        self._killed.add(pid)
        if grace > 0 and self._signal(pid, signal.SIGTERM, family):
            await self._empty(family, grace)
        left = await self._kill(family) or await self._unremoved(pid, shard, attempt)
        if not left:
            self._leaders.pop(pid, None)
            self._killed.discard(pid)
        return left

    async def _unremoved(self, pid: int, shard: ShardId, attempt: int) -> tuple[int, ...]:
        """Remove the container of an attempt of which nothing runs; return its leader's pid if it may yet begin to run."""
        record = self._leaders.get(pid)
        if record is None or record.spec.runtime == "process":
            return ()
        removed = await container_programs.remove(record.spec.runtime, self._agent_id, shard)
        ran = (shard, attempt) in self._containers
        if not removed:
            log.warning("a container could not be removed", extra={"shard": shard, "attempt": attempt, "ran": ran})
        if not removed and not ran:
            return (pid,)  # its start may have been under way
        self._containers.pop((shard, attempt), None)
        for path in self._disk.container_files(shard, attempt):
            path.unlink(missing_ok=True)
        return ()

    def _container(self, shard: ShardId, attempt: int) -> Container | None:
        """Return the container of an attempt, once it runs; None for a process."""
        known = self._containers.get((shard, attempt)) or container.noted(self._disk.container_files(shard, attempt)[1])
        if known is not None:
            self._containers[shard, attempt] = known
        return known

    def _family(self, pid: int, shard: ShardId, attempt: int) -> "_Family":
        record = self._leaders.get(pid)
        if record is not None and (record.spec.shard, record.attempt) == (shard, attempt):
            return _Family(pid, shard, attempt, record.cgroup, led=True)
        place = self.cgroups.of_process(pid)
        ours = place is not None and place.name == f"{shard}.{attempt}"
        return _Family(pid, shard, attempt, str(place) if ours else "", led=False)

    def _with_container(self, family: "_Family") -> "_Family":
        """Return the family with its container, which may run only since it was first looked at."""
        return replace(family, inside=family.inside or self._container(family.shard, family.attempt))

    async def _kill(self, family: "_Family") -> tuple[int, ...]:
        left = await self._empty(family, KILL_PATIENCE, kill=True)
        if not left and family.cgroup:
            cgroup.remove(Path(family.cgroup))
        return left

    async def _empty(self, family: "_Family", patience: float, *, kill: bool = False) -> tuple[int, ...]:
        """Wait until nothing of a family is left. With `kill`, each look kills what it sees: some fork faster than we look."""
        loop = asyncio.get_running_loop()
        deadline, tidied = loop.time() + patience, loop.time() + TIDYING
        pause = 0.02
        while True:
            self.reap()
            try:
                family = self._with_container(family)
                left = cgroup.members(Path(family.cgroup)) if family.cgroup else []
                if not left:  # reading every process of the host takes long, so it is not done here and seldom
                    left = await asyncio.to_thread(self._family_members, family)
            except OSError:
                left = [family.leader]  # what cannot be looked at is not gone
            if not left or loop.time() >= deadline:
                return tuple(left)
            if kill:
                spared = {one for one in left if procfs.is_resource_tracker(one)} if loop.time() < tidied else set()
                if family.cgroup and not spared:
                    cgroup.kill(Path(family.cgroup))
                for member in set(left) - spared:
                    self._signal(member, signal.SIGKILL, family)
            await asyncio.sleep(pause)
            pause = min(0.5, pause * 1.5)

    def _family_members(self, family: "_Family") -> list[int]:
        """Return the living processes of an attempt, by a look at every process of the host."""
        own = os.getpid()
        found = [stat for stat in procfs.processes() if stat.state not in ("Z", "X") and stat.pid != own]
        family = replace(family, led=family.led or any(self._marked_of(stat, family.leader) for stat in found))
        return [stat.pid for stat in found if self._belongs(stat.pid, family)]

    def _marked_of(self, stat: procfs.ProcessStat, session: int) -> bool:
        # a session of that number without our marker anywhere is a stranger that got the pid since
        return stat.session == session and procfs.environment_of(stat.pid).get(MARK_AGENT) == self._agent_id

    def _belongs(self, pid: int, family: "_Family") -> bool:
        """Whether a process is of an attempt: by its cgroup or container, by its marker, or by a proven leader's session."""
        if family.cgroup and self._cgroup_of(pid) == family.cgroup:
            return True
        if family.inside is not None and family.inside.holds(pid):
            return True
        environment = procfs.environment_of(pid)
        if self._marks(environment, family.shard, family.attempt):
            return True
        if environment.get(MARK_AGENT, self._agent_id) != self._agent_id or not family.led:
            return False
        stat = procfs.stat_of(pid)
        return stat is not None and stat.session == family.leader

    def _marks(self, environment: Mapping[str, str], shard: str, attempt: int) -> bool:
        return (
            environment.get(MARK_AGENT) == self._agent_id
            and environment.get(MARK_SHARD) == shard
            and environment.get(MARK_ATTEMPT) == str(attempt)
        )

    def _cgroup_of(self, pid: int) -> str:
        return str(self.cgroups.of_process(pid) or "")

    def _signal(self, pid: int, number: signal.Signals, family: "_Family") -> bool:
        try:
            descriptor = os.pidfd_open(pid)  # held while we look, so the number cannot become another process's
        except OSError:
            return False
        try:
            if not self._belongs(pid, family):
                return False
            signal.pidfd_send_signal(descriptor, number)
        except OSError:
            return False
        finally:
            os.close(descriptor)
        return True


@dataclass(frozen=True, slots=True)
class _Family:
    """How the processes of one attempt are known."""

    leader: int
    shard: ShardId
    attempt: int
    cgroup: str
    led: bool
    """The leader was started or proven by this agent, so that all of its session is ours."""
    inside: Container | None = None
    """The container for which the leader stands, if it runs."""
