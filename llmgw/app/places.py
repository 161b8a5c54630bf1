"""The places a server or a router holds on this host: state directory, sockets, the gateway's port; and their settings."""

import asyncio
import contextlib
import fcntl
import hashlib
import os
import socket
import sys
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from stat import S_ISDIR
from typing import IO, Any

from llmgw.adapters.forge_status import ForgeSettings
from llmgw.adapters.git_remote import Remote
from llmgw.agent import procfs
from llmgw.agent.main import CannotStart
from llmgw.agent.server import LONGEST_SOCKET_PATH
from llmgw.app.worker import listening_socket, serve
from llmgw.catalog.catalog import Catalog
from llmgw.fleet.static import StaticEndpoint
from llmgw.gateway.tls import BadPair, ServerTls

WORKER_MODULE = "llmgw.app.worker"


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """What clients of the gateway are shown."""

    certificate: Path
    key: Path


@dataclass(frozen=True, slots=True)
class GatewayProcesses:
    """What the command line of a server and of a router says of the gateway's workers."""

    listen: tuple[str, int]
    state_dir: Path
    workers: int
    drain: float
    log_level: str
    tls: TlsFiles | None = None
    endpoints: tuple[StaticEndpoint, ...] = ()
    """What somebody else runs."""
    access_log: str | None = None
    """A file, or `-` for standard output."""
    collector: str | None = None
    """Where spans go; empty if the environment says it, None if nowhere."""

    def url(self, port: int) -> str:
        """Return the gateway's own URL."""
        return f"{'https' if self.tls else 'http'}://{url_host(self.listen[0])}:{port}/v1"


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """What the command line of a server says."""

    cluster: Path
    worktree: bool
    gateway: GatewayProcesses
    admin_listen: tuple[str, int] | None
    admin_socket: Path
    state_dir: Path
    store: str | None
    ephemeral: bool = False
    lease: float = 15.0
    """Seconds that the lease lasts without renewal."""
    secrets_dir: Path | None = None
    remote: Remote | None = None
    """The repository to mirror; `cluster` is not looked at then."""
    path: str = ""
    """Of the cluster directory inside the repository that `cluster` is."""
    hook_secret: str | None = None
    """Name of the secret by which webhooks are known."""
    forge: ForgeSettings | None = None
    """Where commit statuses are shown, if anywhere."""
    router_secret: str | None = None
    """Name of the secret by which routers on other hosts are known."""


@dataclass(frozen=True, slots=True)
class RouterSettings:
    """What the command line of a router says."""

    gateway: GatewayProcesses
    name: str
    """What the control plane calls it; without a control plane of no use."""
    controls: tuple[str, ...] = ()
    """Admin URLs of the control planes it follows; without any it has its static endpoints alone."""
    router_secret: str = ""
    secrets_dir: Path | None = None
    metrics_listen: tuple[str, int] | None = None
    client_secret: str = ""
    """Name of the secret that clients show as their key; of use without a control plane alone."""


def default_state_dir(program: str = "server") -> Path:
    """Return where a control plane, or another program, of this user keeps its state."""
    if os.geteuid() == 0:
        return Path("/var/lib/llmgw") / program
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local/state") / "llmgw" / program


@contextlib.contextmanager
def held_state_dir(state_dir: Path, admin_socket: Path | None, program: str = "server") -> Iterator[None]:
    """Hold the state directory for as long as the server, or the router, runs. Raises CannotStart."""
    for path in (*([admin_socket] if admin_socket else []), workers_socket(state_dir)):
        size = len(str(path).encode())
        if size > LONGEST_SOCKET_PATH:
            raise CannotStart(
                f"socket path {path} has {size} bytes, at most {LONGEST_SOCKET_PATH} will do; "
                f"choose a shorter --state-dir{' (or --admin-socket)' if admin_socket else ''}"
            )
    lock: IO[str] | None = None
    try:
        try:
            state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
            if admin_socket is not None:
                admin_socket.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = (state_dir / "lock").open("a+")
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            assert lock is not None
            lock.seek(0)
            holder = lock.read().strip() or "?"
            raise CannotStart(
                f"another llmgw {program} (pid {holder}) uses {state_dir}; stop it, or give this one another --state-dir"
            ) from error
        except OSError as error:
            raise CannotStart(
                f"cannot write {state_dir}: {why(error)}; choose another place with --state-dir"
            ) from error
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield
    finally:
        if lock is not None:
            lock.close()


@contextlib.contextmanager
def reserved_port(listen: tuple[str, int], state_dir: Path) -> Iterator[int]:
    """Hold the gateway's address without listening, so that a second server cannot share it unnoticed.

    Workers bind it with `SO_REUSEPORT`; so would another server's, and the kernel would split the traffic silently. So it
    must first be free for a plain bind, or held by workers that an earlier control plane of this state directory left.
    """
    host, port = listen
    try:
        if port and not set(procfs.listeners(port)) & set(left_workers(state_dir)):
            with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((host, port))
        held = listening_socket(host, port)
    except (OSError, OverflowError) as error:
        holders = ", ".join(f"pid {pid} ({procfs.command_of(pid)})" for pid in procfs.listeners(port))
        by = f"; it is held by {holders}" if holders else ""
        raise CannotStart(
            f"cannot listen on {host}:{port}: {why(error)}{by}; choose another address with --listen"
        ) from error
    with held:
        yield held.getsockname()[1]


def check_tls(files: TlsFiles | None) -> None:
    """See that there is a certificate to show, before any worker is started. Raises CannotStart."""
    if files is not None:
        try:
            ServerTls(files.certificate, files.key)
        except BadPair as error:
            raise CannotStart(str(error)) from error


def worker_command(processes: GatewayProcesses, port: int) -> list[str]:
    """Return what starts one worker."""
    command = [
        *(sys.executable, "-m", WORKER_MODULE),
        *("--host", processes.listen[0], "--port", str(port)),
        *("--control", str(workers_socket(processes.state_dir))),
        *("--drain", str(processes.drain), "--log-level", processes.log_level),
    ]
    if processes.tls is not None:
        command += ["--tls-cert", str(processes.tls.certificate), "--tls-key", str(processes.tls.key)]
    if processes.access_log is not None:
        command += ["--access-log", processes.access_log]
    if processes.collector is not None:
        command += ["--otel-endpoint", processes.collector]
    return command


def embedded_worker(
    processes: GatewayProcesses, port: int
) -> Callable[[asyncio.Event], Coroutine[Any, Any, None]] | None:
    """Return what serves in this process, where no worker process is wanted; None where one is."""
    return None if processes.workers else partial(serve, worker_command(processes, port)[3:])


def left_workers(state_dir: Path) -> list[int]:
    """Return the workers that earlier control planes of this state directory, which is locked, have left running."""
    mark = ["--control", str(workers_socket(state_dir))]
    found = []
    for stat in procfs.processes():
        arguments = procfs.arguments_of(stat.pid) if stat.state not in ("Z", "X") else []
        if WORKER_MODULE in arguments and mark == arguments[arguments.index("--control") :][:2]:
            found.append(stat.pid)
    return found


def tunnels_dir(state_dir: Path, below: int) -> Path:
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


def workers_socket(state_dir: Path) -> Path:
    """Return where gateway workers find the control plane."""
    return state_dir / "workers.sock"


def owner_name(unique: str) -> str:
    """Return what the lease calls this process: random, so that a restarted one never matches its own; and to be found."""
    return f"{unique}@{socket.gethostname()[:30]}:{os.getpid()}"


def gateways_name(state_dir: Path, new: Callable[[], str]) -> str:
    """Return what agents know this state directory's gateways by: the next server of it speaks for the same ones."""
    path = state_dir / "gateways.id"
    try:
        known = path.read_text().strip() if path.exists() else ""
        if not known:
            known = new()
            path.write_text(known)
    except OSError as error:
        raise CannotStart(f"cannot write {path}: {why(error)}; choose another place with --state-dir") from error
    return known


def network_id() -> str:
    """Return what is the same for processes that reach each other's loopback; empty if that cannot be told."""
    try:
        return f"{procfs.boot_id()}/{Path('/proc/self/ns/net').stat().st_ino}"
    except OSError:
        return ""


def url_host(host: str) -> str:
    """Return the host as a URL takes it; every address is shown as loopback, which is one of them."""
    if host in ("0.0.0.0", "::", ""):
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host


def check_auth(catalog: Catalog | None, listen: tuple[str, int]) -> None:
    """Refuse to give away to every host what only this one is meant to reach. Raises CannotStart."""
    host, port = listen
    if catalog is not None and catalog.cluster.router.auth == "off" and not is_loopback(host):
        raise CannotStart(
            f"--listen {host}:{port} can be reached from other hosts, and `router.auth` is off: write `auth: keys` below "
            "`router:` in the cluster's file, a Tenant with `models: ['*']`, and make its key with `llmgw keys create`; "
            "or listen on 127.0.0.1"
        )


def is_loopback(host: str) -> bool:
    """Whether only this host reaches an address."""
    return host == "localhost" or host.startswith("127.") or host == "::1"


def why(error: Exception) -> str:
    """Return an error's reason without its number."""
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)
