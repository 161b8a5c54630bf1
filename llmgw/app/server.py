"""The control plane's composition root: builds its objects, runs them, and takes them down in order.

Down means: the lease is given up, the admin API closes, workers finish their streams, sessions close. Engines are not
touched: they outlive the control plane, and the next one takes them over.
"""

import asyncio
import contextlib
import fcntl
import hashlib
import logging
import os
import random
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISDIR
from typing import IO, TYPE_CHECKING, Any

from llmgw import __version__
from llmgw.adapters.dir_source import DirSource
from llmgw.adapters.git_source import GitSource
from llmgw.adapters.local_link import LocalLink
from llmgw.adapters.prometheus import exposition
from llmgw.adapters.secrets import Secrets
from llmgw.adapters.sql_store import SqlStore
from llmgw.agent import procfs
from llmgw.agent.lineage import end_with_parent
from llmgw.agent.main import CannotStart, default_socket
from llmgw.app.worker import listening_socket
from llmgw.base.ids import OwnerId
from llmgw.catalog.compile import Accepted, Compiler
from llmgw.catalog.source import SourceTree
from llmgw.control.acts import Acts
from llmgw.control.admin import AdminApi
from llmgw.control.book import FleetBook
from llmgw.control.catalogs import Catalogs, CatalogState, compile_in_thread
from llmgw.control.leadership import Leadership
from llmgw.control.operator import OperatorApi
from llmgw.control.plan_api import PlanApi
from llmgw.control.reconcile import Reconciler
from llmgw.control.sessions import SILENCE, Sessions, silence_limit
from llmgw.control.status import Control, status
from llmgw.control.workers import Workers
from llmgw.ports.links import Link
from llmgw.ports.sinks import StoreUnavailable
from llmgw.ports.trees import TreeSource
from llmgw.runtime.clock import RandomIds, SystemClock
from llmgw.runtime.supervisor import Supervisor, first_of
from llmgw.spec.node import Node

if TYPE_CHECKING:
    from llmgw.adapters.ssh_link import SshWays

log = logging.getLogger(__name__)

LONGEST_SOCKET_PATH = 107
REMOTE_AGENT_SOCKET = "/run/llmgw/agent.sock"
"""Where an agent that root runs listens, on a node that says nothing else."""


KEEP_AGAIN = 10.0
"""Seconds until the last good revision is written again, after the store could not take it."""
WORKER_MODULE = "llmgw.app.worker"


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """What the command line says."""

    cluster: Path
    worktree: bool
    listen: tuple[str, int]
    admin_listen: tuple[str, int] | None
    admin_socket: Path
    state_dir: Path
    store: str | None
    workers: int
    drain: float
    log_level: str
    ephemeral: bool = False
    secrets_dir: Path | None = None


def default_state_dir() -> Path:
    """Return where a control plane of this user keeps its state."""
    if os.geteuid() == 0:
        return Path("/var/lib/llmgw/server")
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local/state") / "llmgw/server"


def run_server(settings: ServerSettings) -> None:
    """Run until SIGTERM or SIGINT. Raises CannotStart."""
    with _state_dir(settings), _reserved_port(settings) as port:
        try:
            server = _Server(settings, port)
        except StoreUnavailable as error:
            raise CannotStart(f"cannot use the store: {error}; mend it, or name another one with --store") from error
        asyncio.run(server.run())


class _Server:
    """All objects of one control plane."""

    def __init__(self, settings: ServerSettings, port: int) -> None:
        self._settings = settings
        self._clock = SystemClock()
        self._ids = RandomIds()
        self._port = port
        url = settings.store or f"sqlite:///{settings.state_dir / 'store.sqlite'}"
        self._store = SqlStore(url)
        rng = random.Random(os.urandom(16))
        self._rng = rng
        self._secrets = Secrets(os.environ, settings.secrets_dir)
        self._ways: SshWays | None = None
        self._source: TreeSource = (
            DirSource(settings.cluster) if settings.worktree else GitSource(settings.cluster, self._clock)
        )
        compiler = Compiler()  # reads again only the files that changed
        self._catalogs = Catalogs(
            self._source,
            self._store,
            self._clock,
            self._wake,
            lambda tree: asyncio.to_thread(compiler.compile, tree),
        )
        self._book = FleetBook(self._clock, self._wake)
        self._sessions = Sessions(self._link, self._book, rng, self._secrets, self._silence)
        self._leadership = Leadership(self._store, OwnerId(self._ids.new()), self._wake)
        self._workers = self._gateway_workers()
        self._acts = Acts(self._store, self._store, self._clock)
        self._reconciler = Reconciler(
            self._catalogs,
            self._book,
            self._sessions,
            self._leadership,
            self._workers,
            self._workers,
            self._acts,
            self._store,
            self._clock,
        )
        self._admin = self._admin_api()
        self._tasks = Supervisor("server")

    def _gateway_workers(self) -> Workers:
        settings = self._settings
        return Workers(
            command=self._worker_command(),
            wanted=settings.workers,
            socket=_workers_socket(settings),
            clock=self._clock,
            changed=self._wake,
            survivors=lambda: _left_workers(settings),
        )

    def _admin_api(self) -> AdminApi:
        snapshot = self._reconciler.snapshot
        operator = OperatorApi(self._acts, self._store, self._clock, snapshot, self._leadership.why_not, self._wake)
        plans = PlanApi(self._catalogs, snapshot, self._store, self._store.plans, self._clock, self._ids, __version__)
        return AdminApi(
            self._catalogs,
            self._reconciler,
            self._status,
            exposition(self._status),
            self._sessions.logs,
            compile_in_thread,
            operator,
            plans,
        )

    async def run(self) -> None:
        if self._settings.ephemeral:
            end_with_parent()
        stopping = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._on_signal, stopping)
        crashed = True
        try:
            await self._open_store()
            await self._first_catalog()
            await self._listen()
            await self._remember_nodes()
            await self._leadership.renew()
            self._tasks.loop("catalogs", self._catalogs.run())
            self._tasks.loop("last tree", self._keep_last_tree())
            self._tasks.loop("nodes", self._keep_nodes())
            self._tasks.loop("acts", self._acts.run())
            self._tasks.loop("leadership", self._leadership.run())
            self._tasks.loop("reconcile", self._reconciler.run())
            self._reconciler.wake()
            self._announce()
            await first_of(stopping.wait(), self._tasks.failure(), self._sessions.failure(), self._workers.failure())
            crashed = False
        except CannotStart:
            crashed = False
            raise
        finally:
            await self._tasks.stop()
            await self._admin.stop()
            await self._leadership.release()
            if crashed:
                # as after SIGKILL: workers serve on by their last table, and the next control plane takes them over
                await self._workers.abandon()
            else:
                await self._workers.stop(self._settings.drain)
            await self._sessions.stop()
            await self._store.close()

    def _on_signal(self, stopping: asyncio.Event) -> None:
        if stopping.is_set():
            log.warning("told to stop a second time; streams that still run are cut")
            for pid in self._workers.pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        else:
            limit = self._settings.drain
            log.info("stopping; running requests may take up to %.0f s; a second signal cuts them", limit)
        stopping.set()

    async def _open_store(self) -> None:
        try:
            await self._store.open(alone=self._settings.store is None)  # its directory is locked by this process
            await self._acts.load()
        except StoreUnavailable as error:
            raise CannotStart(f"cannot use the store: {error}; mend it, or name another one with --store") from error

    async def _first_catalog(self) -> None:
        """Have a catalog before anything listens: the newest valid one, or the last that was good before."""
        await self._catalogs.look()
        state = self._catalogs.state.value
        if state.catalog is not None:
            return
        try:
            last = await self._store.last_tree()
        except StoreUnavailable as error:
            raise CannotStart(f"cannot use the store: {error}; mend it, or name another one with --store") from error
        outcome = await compile_in_thread(last) if last is not None else None
        if last is not None and isinstance(outcome, Accepted):
            log.error("serving the last good revision", extra={"revision": last.revision})
            self._catalogs.state.set(
                CatalogState(
                    catalog=outcome.catalog,
                    tree=last,
                    accepted_at=self._clock.now(),
                    rejected=state.rejected,
                    fetched=state.fetched,
                    failed=state.failed,
                )
            )
            return
        if state.failed is not None:
            raise CannotStart(state.failed.reason)
        assert state.rejected is not None
        lines = "\n".join(f"  {problem}" for problem in state.rejected.problems)
        raise CannotStart(
            f"{self._settings.cluster} is not a valid cluster directory (`llmgw validate` shows more):\n{lines}"
        )

    async def _listen(self) -> None:
        try:
            await self._admin.start(self._settings.admin_socket, self._settings.admin_listen)
        except OSError as error:
            where = ":".join(str(part) for part in self._settings.admin_listen or ())
            raise CannotStart(
                f"cannot listen on {self._settings.admin_socket}{' or ' + where if where else ''}: {_why(error)}; "
                "choose another place with --admin-socket or --admin-listen"
            ) from error
        await self._workers.start()

    async def _keep_last_tree(self) -> None:
        """Write down each catalog's tree, so that a restart with a broken source serves what was good before."""
        states = self._catalogs.state
        kept: SourceTree | None = None
        while True:
            version = states.version
            tree = states.value.tree
            if tree is not None and tree is not kept:
                try:
                    await self._store.keep_tree(tree)
                except StoreUnavailable as error:
                    log.warning("the last good revision could not be kept", extra={"reason": str(error)})
                    await asyncio.sleep(KEEP_AGAIN)
                    continue
                kept = tree
            await states.newer(version)

    async def _remember_nodes(self) -> None:
        """Go on with nodes that left the catalog before they were empty."""
        catalog = self._catalogs.state.value.catalog
        assert catalog is not None
        try:
            known = await self._store.last_nodes()
        except StoreUnavailable as error:
            log.warning("which nodes hold something is not known", extra={"reason": str(error)})
            return
        left = {name: node for name, node in known.items() if name not in catalog.nodes}
        self._sessions.remember(catalog.cluster.name, {**left, **catalog.nodes}, known, catalog.cluster.ssh)

    async def _keep_nodes(self) -> None:
        """Write down which nodes hold something, so that a later control plane does not forget one that left."""
        holding = self._reconciler.holding
        while True:
            version = holding.version
            if version:
                try:
                    await self._store.keep_nodes(holding.value)
                except StoreUnavailable as error:
                    log.warning("which nodes hold something could not be kept", extra={"reason": str(error)})
                    await asyncio.sleep(KEEP_AGAIN)
                    continue
            await holding.newer(version)

    def _announce(self) -> None:
        host, _ = self._settings.listen
        state = self._catalogs.state.value
        assert state.catalog is not None
        for option, address in (("--listen", self._settings.listen), ("--admin-listen", self._settings.admin_listen)):
            if address is not None and not _is_loopback(address[0]):
                log.warning(
                    "anybody who reaches this address may use it: there are no keys yet", extra={option: address[0]}
                )
        log.info(
            "serving",
            extra={
                "openai": f"http://{_host(host)}:{self._port}/v1",
                "admin": self._settings.admin_socket,
                "cluster": state.catalog.cluster.name,
                "source": self._source.describe(),
            },
        )

    def _wake(self) -> None:
        self._reconciler.wake()

    def _link(self, node: Node) -> Link:
        if node.local:
            return LocalLink(default_socket())
        from llmgw.adapters.ssh_link import (  # noqa: PLC0415 - 20 MB that a cluster without SSH nodes does not need
            LONGEST_NAME,
            SshLink,
            SshWays,
        )

        if self._ways is None:
            directory = _tunnels_dir(self._settings.state_dir, LONGEST_NAME)
            self._ways = SshWays.prepare(directory, REMOTE_AGENT_SOCKET, shutil.which("ssh"), self._secrets)
        return SshLink(self._ways, node.name, random.Random(self._rng.random()))

    def _silence(self) -> float:
        catalog = self._catalogs.state.value.catalog
        return silence_limit(catalog.cluster.control.unreachable_after) if catalog is not None else SILENCE

    def _status(self) -> dict[str, Any]:
        host, _ = self._settings.listen
        alarms = (self._workers.trouble, self._leadership.trouble, *self._reconciler.alarms)
        control = Control(
            version=__version__,
            pid=os.getpid(),
            source=self._source.describe(),
            listen=f"http://{_host(host)}:{self._port}/v1",
            admin_socket=str(self._settings.admin_socket),
            leading=self._leadership.epoch is not None,
            epoch=self._leadership.epoch,
            workers=tuple(self._workers.pids),
            alarms=tuple(alarm for alarm in alarms if alarm),
        )
        snapshot = self._reconciler.snapshot()
        return status(control, self._catalogs.state.value, snapshot, self._reconciler.last, self._clock.now())

    def _worker_command(self) -> list[str]:
        host, _ = self._settings.listen
        return [
            *(sys.executable, "-m", WORKER_MODULE),
            *("--host", host, "--port", str(self._port)),
            *("--control", str(_workers_socket(self._settings))),
            *("--drain", str(self._settings.drain), "--log-level", self._settings.log_level),
        ]


@contextlib.contextmanager
def _state_dir(settings: ServerSettings) -> Iterator[None]:
    """Hold the state directory for as long as the server runs."""
    for path in (settings.admin_socket, _workers_socket(settings)):
        size = len(str(path).encode())
        if size > LONGEST_SOCKET_PATH:
            raise CannotStart(
                f"socket path {path} has {size} bytes, at most {LONGEST_SOCKET_PATH} will do; "
                "choose a shorter --state-dir (or --admin-socket)"
            )
    lock: IO[str] | None = None
    try:
        try:
            settings.state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
            settings.admin_socket.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = (settings.state_dir / "lock").open("a+")
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            assert lock is not None
            lock.seek(0)
            holder = lock.read().strip() or "?"
            raise CannotStart(
                f"another llmgw server (pid {holder}) uses {settings.state_dir}; stop it, or give this one another --state-dir"
            ) from error
        except OSError as error:
            raise CannotStart(
                f"cannot write {settings.state_dir}: {_why(error)}; choose another place with --state-dir"
            ) from error
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield
    finally:
        if lock is not None:
            lock.close()


@contextlib.contextmanager
def _reserved_port(settings: ServerSettings) -> Iterator[int]:
    """Hold the gateway's address without listening, so that a second server cannot share it unnoticed.

    Workers bind it with `SO_REUSEPORT`; so would another server's, and the kernel would split the traffic silently. So it
    must first be free for a plain bind, or held by workers that an earlier control plane of this state directory left.
    """
    host, port = settings.listen
    try:
        if port and not set(procfs.listeners(port)) & set(_left_workers(settings)):
            with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((host, port))
        held = listening_socket(host, port)
    except (OSError, OverflowError) as error:
        holders = ", ".join(f"pid {pid} ({procfs.command_of(pid)})" for pid in procfs.listeners(port))
        by = f"; it is held by {holders}" if holders else ""
        raise CannotStart(
            f"cannot listen on {host}:{port}: {_why(error)}{by}; choose another address with --listen"
        ) from error
    with held:
        yield held.getsockname()[1]


def _left_workers(settings: ServerSettings) -> list[int]:
    """Return the workers that earlier control planes of this state directory, which is locked, have left running."""
    mark = ["--control", str(_workers_socket(settings))]
    found = []
    for stat in procfs.processes():
        arguments = procfs.arguments_of(stat.pid) if stat.state not in ("Z", "X") else []
        if WORKER_MODULE in arguments and mark == arguments[arguments.index("--control") :][:2]:
            found.append(stat.pid)
    return found


def _tunnels_dir(state_dir: Path, below: int) -> Path:
    """Return where the sockets of tunnels lie: in the state directory, or below /tmp if their paths would be too long there.

    There the directory is named after the state directory, and must be this user's alone. Raises CannotStart.
    """
    inside = state_dir / "tunnels"
    if len(str(inside).encode()) + below <= LONGEST_SOCKET_PATH and ":" not in str(inside):
        return inside
    name = hashlib.sha256(str(state_dir).encode()).hexdigest()[:16]
    short = Path(tempfile.gettempdir()) / f"llmgw-{os.geteuid()}-{name}"
    short.mkdir(mode=0o700, exist_ok=True)
    found = short.lstat()
    if not S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise CannotStart(f"{short} is not this user's alone; remove it, or choose a shorter --state-dir")
    return short


def _workers_socket(settings: ServerSettings) -> Path:
    return settings.state_dir / "workers.sock"


def _host(host: str) -> str:
    """Return the host as a URL takes it; every address is shown as loopback, which is one of them."""
    if host in ("0.0.0.0", "::", ""):
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host


def _is_loopback(host: str) -> bool:
    return host == "localhost" or host.startswith("127.") or host == "::1"


def _why(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)
