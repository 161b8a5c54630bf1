"""Starting, proving, watching and ending engine processes on this host.

Engines are session leaders with their output in a file: they outlive the agent, and a restarted agent adopts them. So
neither `asyncio`'s subprocess transport (it kills its process when it is closed) nor `subprocess.Popen` fits;
`posix_spawn` leaves nothing behind but a pid. The end of a process is noticed by a pidfd, which works for our own
children and for adopted ones alike; only for children does the kernel also tell how they ended.
"""

import asyncio
import ctypes
import os
import shutil
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from llmgw.agent import procfs
from llmgw.agent.disk import Disk, Record
from llmgw.base.ids import ShardId
from llmgw.engines.shard import PYTHON, WEIGHTS, ShardSpec
from llmgw.fleet.report import Reason

MARK_AGENT = "LLMGW_AGENT"
MARK_SHARD = "LLMGW_SHARD"
MARK_ATTEMPT = "LLMGW_ATTEMPT"
MARK_HASH = "LLMGW_HASH"
MARK_CAUSE = "LLMGW_CAUSE"

PASSED_ON = (
    "CUDA_HOME", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "LOGNAME", "PATH", "SSL_CERT_DIR",
    "SSL_CERT_FILE", "TMPDIR", "TZ", "USER", "XDG_CACHE_HOME",
)  # fmt: skip
"""What an engine inherits of the agent's environment. Everything else could change it unseen (LLAMA_ARG_*, PORT, …)."""

KILL_PATIENCE = 5.0
"""Seconds that a killed session may take to be empty."""

_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_PDEATHSIG = 1


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


@dataclass(frozen=True, slots=True)
class Ending:
    """How a process ended: a code for programs, a sentence for people."""

    code: str
    text: str


def become_subreaper() -> None:
    """Have orphaned grandchildren given to this process, so that they can be reaped and counted."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_with_parent() -> None:
    """Have the kernel send SIGTERM to this process when its parent ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


class Processes:
    """Engine processes of one agent. Use from the event loop's thread; calls block for milliseconds at most."""

    def __init__(self, agent_id: str, disk: Disk, weights_dir: Path | None) -> None:
        self._agent_id = agent_id
        self._disk = disk
        self._weights_dir = weights_dir
        self._boot = procfs.boot_id()
        self._endings: dict[int, Ending] = {}
        self._watched: dict[int, int] = {}

    def spawn(self, spec: ShardSpec, attempt: int, cause: str, weights_dir: str | None) -> Spawned | Reason:
        """Start an attempt and record it; or say what it lacks."""
        argv = self._argv(spec, weights_dir)
        if isinstance(argv, Reason):
            return argv
        taken = port_taken(spec.port)
        if taken is not None:
            return taken
        mark = {
            MARK_AGENT: self._agent_id,
            MARK_SHARD: spec.shard,
            MARK_ATTEMPT: str(attempt),
            MARK_HASH: spec.hash,
            MARK_CAUSE: cause,
        }
        inherited = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        try:
            log = os.open(self._disk.log_path(spec.shard, attempt), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        except OSError as error:
            return Reason("state_unwritable", f"cannot write the engine's log: {error.strerror}")
        try:
            os.write(log, f"# {' '.join(argv)}\n".encode())
        except OSError as error:
            os.close(log)
            return Reason("state_unwritable", f"cannot write the engine's log: {error.strerror}")
        try:
            pid = os.posix_spawn(
                argv[0],
                argv,
                {**inherited, **spec.env, **mark},
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_DUP2, log, 1),
                    (os.POSIX_SPAWN_DUP2, log, 2),
                ],
                setsid=True,
                setsigmask=[],
                setsigdef=[signal.SIGPIPE, signal.SIGINT, signal.SIGTERM],
            )
        except OSError as error:
            return Reason("not_executable", f"cannot run {argv[0]}: {error.strerror}")
        finally:
            os.close(log)
        stat = procfs.stat_of(pid)
        record = Record(spec, attempt, pid, stat.start_ticks if stat else 0, self._boot)
        try:
            self._disk.store_record(record)
        except OSError as error:
            os.killpg(pid, signal.SIGKILL)
            return Reason("state_unwritable", f"cannot record the process: {error.strerror}")
        return Spawned(pid, record)

    def is_ours(self, record: Record) -> bool:
        """Whether the recorded process still runs: same boot, pid, start time, and our marker in its environment."""
        stat = procfs.stat_of(record.pid)
        if stat is None or stat.state in ("Z", "X"):
            return False
        if record.boot != self._boot or stat.start_ticks != record.start_ticks:
            return False
        environment = procfs.environment_of(record.pid)
        return (
            environment.get(MARK_AGENT) == self._agent_id
            and environment.get(MARK_SHARD) == record.spec.shard
            and environment.get(MARK_ATTEMPT) == str(record.attempt)
        )

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
        return sorted(found, key=lambda stray: not stray.leads)

    def record_of(self, spec: ShardSpec, stray: "Stray") -> Record | None:
        """Return a record of a process that runs, for one whose own record was lost."""
        stat = procfs.stat_of(stray.pid)
        return Record(spec, stray.attempt, stray.pid, stat.start_ticks, self._boot) if stat is not None else None

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
                self._endings[pid] = _ending(status)

    def ending(self, pid: int) -> Ending:
        """Return how a process ended. For an adopted one the kernel told its parent, not us."""
        return self._endings.pop(
            pid, Ending("exited", "it ended; how is not known, since it was started by an earlier agent")
        )

    async def end(self, pid: int, shard: ShardId, attempt: int, grace: float) -> tuple[int, ...]:
        """End a whole session: SIGTERM to its leader, wait, SIGKILL to all; return the pids that would not end.

        Everything with the attempt's marker counts as a part of it, whatever its session.
        """
        if grace > 0 and self._signal(pid, signal.SIGTERM):
            await self._empty(pid, shard, attempt, grace)
        for member in self._part_of(pid, shard, attempt):
            self._signal(member, signal.SIGKILL)
        return await self._empty(pid, shard, attempt, KILL_PATIENCE)

    async def _empty(self, pid: int, shard: ShardId, attempt: int, patience: float) -> tuple[int, ...]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + patience
        pause = 0.02
        while True:
            self.reap()
            left = self._part_of(pid, shard, attempt)
            if not left or loop.time() >= deadline:
                return tuple(left)
            await asyncio.sleep(pause)
            pause = min(0.5, pause * 1.5)  # a look reads every process of the host

    def _part_of(self, pid: int, shard: ShardId, attempt: int) -> list[int]:
        """Return the living processes of an attempt: its session's, and those that carry its marker."""
        own = os.getpid()
        wanted = {MARK_AGENT: self._agent_id, MARK_SHARD: str(shard), MARK_ATTEMPT: str(attempt)}
        found = []
        for stat in procfs.processes():
            if stat.state in ("Z", "X") or stat.pid == own:
                continue
            environment = procfs.environment_of(stat.pid)
            marked = all(environment.get(name) == value for name, value in wanted.items())
            # a session of that number without our marker anywhere is a stranger that got the pid since
            if marked or (stat.session == pid and environment.get(MARK_AGENT) == self._agent_id):
                found.append(stat.pid)
        return found

    def _signal(self, pid: int, number: signal.Signals) -> bool:
        if procfs.environment_of(pid).get(MARK_AGENT) != self._agent_id:
            return False
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return False
        return True

    def _argv(self, spec: ShardSpec, weights_dir: str | None) -> list[str] | Reason:
        program = next((found for names in spec.programs if (found := _resolve(names)) is not None), None)
        if program is None:
            names = " or ".join(names[0] for names in spec.programs)
            return Reason("program_missing", f"{names} is not installed on this node, or not in the agent's PATH")
        weights = Path(spec.weights)
        if not weights.is_absolute():
            base = weights_dir or self._weights_dir
            if base is None:
                return Reason(
                    "weights_missing",
                    f"weights path {spec.weights} is relative and the node has no weights directory; set the node's "
                    "`weights_dir` or start the agent with --weights-dir",
                )
            weights = Path(base) / weights
        if not weights.exists():
            return Reason("weights_missing", f"weights {weights} do not exist on this node; put them there")
        return [*program, *(str(weights) if arg == WEIGHTS else arg for arg in spec.args)]


def _resolve(names: tuple[str, ...]) -> list[str] | None:
    first = sys.executable if names[0] == PYTHON else shutil.which(names[0])
    return None if first is None else [first, *names[1:]]


def port_taken(port: int) -> Reason | None:
    """Return who holds a port, or None if it is free.

    The bind is plain, without SO_REUSEADDR: only that fails against an engine that has bound and does not listen yet. It
    also fails on connections in TIME_WAIT, which harm nothing, so those are told apart.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            pids = procfs.listeners(port)
            if not pids and port not in procfs.listening_ports() and procfs.in_time_wait(port):
                return None
            holder = (
                ", ".join(f"pid {pid} ({procfs.command_of(pid)})" for pid in pids) or "a process that is not visible"
            )
            return Reason("port_taken", f"port {port} is taken by {holder}")
    return None


def _ending(status: int) -> Ending:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        name = signal.Signals(number).name if number in {one.value for one in signal.Signals} else f"signal {number}"
        return Ending("killed", f"killed by {name}")
    code = os.WEXITSTATUS(status)
    if code == 0:
        return Ending("exited", "exited with status 0 without being asked to")
    return Ending("exited", f"exited with status {code}")
