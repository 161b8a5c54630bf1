"""Engine traffic through OpenSSH's own client: one `ssh` process a node, a Unix socket here for each engine there.

It costs a fifth of the CPU that asyncssh takes per streamed event, and it lives apart from the connection that carries reports:
an agent that restarts cuts no stream. Forwards come and go over the client's control socket (`ssh -O forward`).

- It reads its own configuration alone, and knows the pinned keys alone, hop by hop.
- A key that is a secret is handed over in memory (a memfd that is closed once the client is in), so that no copy of it
  lies on a disk, and none is left when this process is killed.
- It ends with this process: the kernel sends it SIGTERM then. What a killed client left is a socket file, which goes at the
  next start. Streams through a tunnel end with the control plane therefore; to keep them, use `traffic: direct`.
- sshd sets TCP_NODELAY on a connection only once a command is run over it (`session.c`), so one is run: `true`. Without
  it, Nagle's algorithm against delayed acknowledgements holds tokens back for 40 ms and more. A login that may run
  nothing still has its tunnel.
"""

import asyncio
import contextlib
import ctypes
import hashlib
import logging
import os
import random
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from llmgw.adapters.ssh_login import (
    CONNECT_LIMIT,
    KEEPALIVE,
    KEEPALIVES,
    KeyAgent,
    KeyFile,
    KeySecret,
    Login,
    Stop,
    private_key,
)
from llmgw.base.ids import ShardId
from llmgw.ports.links import LinkBroken, SecretSource, Target
from llmgw.runtime.backoff import Backoff
from llmgw.runtime.latest import Latest
from llmgw.runtime.supervisor import Owned, Supervisor, first_of

log = logging.getLogger(__name__)

COMMAND_LIMIT = 10.0
AGAIN = 5.0
"""Seconds until a forward that failed is tried again."""
LASTING = 30.0
"""Seconds after which a client that ended is no sign of the next one's end."""
LOOK = 0.02
"""Seconds between two looks for the control socket."""
NODE = "node"
"""What the node is called in the client's configuration; hops are hop0, hop1, ..."""
OVER_THE_RUNNING_ONE = ("-o", "ControlMaster=no", "-o", "ProxyCommand=false")
"""Have a command use a client that runs, and fail where there is none instead of connecting by itself."""
_PR_SET_PDEATHSIG = 1
_prctl = ctypes.CDLL(None, use_errno=True).prctl  # looked up here: between fork and exec, nothing may be loaded


class ClientTunnel:
    """The tunnel to one node. `want` and `ways` are synchronous; one task does what they ask for."""

    def __init__(
        self,
        program: str,
        directory: Path,
        name: str,
        numbers: Iterator[int],
        secrets: SecretSource,
        rng: random.Random,
        stir: Callable[[], None],
    ) -> None:
        self._program = program
        self._directory = directory
        self._name = name
        self._secrets = secrets
        self._stir = stir
        self._backoff = Backoff(0.25, 15.0, rng)
        self._wanted: Latest[Mapping[ShardId, Target]] = Latest({})
        self._open: dict[ShardId, tuple[Target, Path]] = {}
        self._paths: set[Path] = set()
        self._numbers = numbers
        self._tasks = Supervisor(f"tunnel.{name}")
        self._task: Owned | None = None
        self._login: Login | None = None
        self._stem = hashlib.sha256(name.encode()).hexdigest()[:8]

    def want(self, targets: Mapping[ShardId, Target], login: Login) -> None:
        """Have exactly these ways soon. A login that changed is used when the client starts the next time."""
        self._login = login
        if dict(targets) != dict(self._wanted.value):
            self._wanted.set(dict(targets))
        if targets and self._task is None:
            self._task = self._tasks.job("client", self._keep())

    def ways(self) -> dict[ShardId, Path]:
        """Return those that are there now and still wanted."""
        wanted = self._wanted.value
        return {shard: path for shard, (target, path) in self._open.items() if wanted.get(shard) == target}

    async def close(self) -> None:
        """End the client and wait for its end."""
        await self._tasks.stop()

    async def _keep(self) -> None:
        """Keep a client running for as long as something is wanted."""
        loop = asyncio.get_running_loop()
        while True:
            await self._wanted.wait(bool)
            started = loop.time()
            try:
                await self._run()
            except (LinkBroken, OSError) as error:  # OSError: no file or process can be made now
                log.warning("the tunnel to node %s is down: %s", self._name, error, extra={"node": self._name})
            if loop.time() - started > LASTING:
                self._backoff.reset()
            await asyncio.sleep(self._backoff.next())

    async def _run(self) -> None:
        """Run one client until it ends. Raises LinkBroken."""
        assert self._login is not None
        control = self._directory / f"{self._stem}.{next(self._numbers)}"
        client = _Client(self._program, self._directory, control, self._login, self._secrets)
        try:
            await client.start()
            log.info("tunnel is up", extra={"node": self._name, "pid": client.pid})
            await first_of(self._forward(client), client.ended())
        finally:
            self._open.clear()
            self._stir()
            await client.stop()
            for path in self._paths:
                path.unlink(missing_ok=True)
            self._paths.clear()

    async def _forward(self, client: "_Client") -> None:
        """Have the forwards that are wanted, for ever. One that cannot be had harms no other, and is tried again."""
        while True:
            version = self._wanted.version
            wanted = self._wanted.value
            failed = False
            for shard in [shard for shard, (target, _) in self._open.items() if wanted.get(shard) != target]:
                target, path = self._open.pop(shard)
                said = await client.forward("cancel", path, target)
                if said is not None:
                    log.warning("a tunnel's end could not be closed: %s", said, extra={"node": self._name})
                path.unlink(missing_ok=True)
            for shard, target in wanted.items():
                if shard not in self._open:
                    path = self._directory / f"{self._stem}.{next(self._numbers)}.s"
                    self._paths.add(path)
                    said = await client.forward("forward", path, target)
                    if said is None:
                        self._open[shard] = (target, path)
                        self._stir()
                    else:
                        failed = True
                        log.warning("no tunnel to port %s: %s", target.port, said, extra={"node": self._name})
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(AGAIN if failed else None):
                    await self._wanted.newer(version)


class _Client:
    """One process of the client."""

    def __init__(self, program: str, directory: Path, control: Path, login: Login, secrets: SecretSource) -> None:
        self._program = program
        self._control = control
        self._config = directory / f"{control.name}.conf"
        self._known = directory / f"{control.name}.known"
        self._login = login
        self._secrets = secrets
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int | None:
        """The process, once it runs."""
        return self._process.pid if self._process else None

    async def start(self) -> None:
        """Start it and wait until it is logged in. Raises LinkBroken."""
        with self._key() as key:
            self._known.write_text("".join(f"{alias} {stop.host_key}\n" for alias, stop in _named(self._login)))
            self._config.write_text(configuration(self._login, key, self._known, self._control))
            try:
                self._process = await asyncio.create_subprocess_exec(
                    *(
                        self._program,
                        "-F",
                        str(self._config),
                        "-M",
                        "-S",
                        _literal(self._control),
                        "-N",
                        "-n",
                        "-T",
                        NODE,
                    ),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.DEVNULL,
                    stderr=asyncio.subprocess.PIPE,
                    env=_environment(),
                    preexec_fn=_end_with_parent,
                )
            except OSError as error:
                raise LinkBroken(f"cannot start {self._program}: {error.strerror}") from error
            try:
                async with asyncio.timeout(CONNECT_LIMIT):
                    await first_of(self._listens(), self.ended())
            except TimeoutError as error:
                raise LinkBroken(f"it was not logged in within {CONNECT_LIMIT:.0f} s") from error
        for alias, _ in _named(self._login):  # see the module's first lines; a hop has a connection of its own
            await self._command("-S", _literal(self._control_of(alias)), "-n", "-T", alias, "true")

    async def ended(self) -> None:
        """Wait for its end. Raises LinkBroken then, with its last words."""
        assert self._process is not None
        assert self._process.stderr is not None
        last = b""
        while line := await self._process.stderr.readline():
            last = line.strip() or last
        code = await self._process.wait()
        raise LinkBroken(f"ssh ended with {code}: {last.decode(errors='replace') or 'it said nothing'}")

    async def forward(self, verb: str, path: Path, target: Target) -> str | None:
        """Add or remove a forward; return None, or what went wrong."""
        way = f"{path}:{_bracketed(target.host)}:{target.port}"
        return await self._command("-S", _literal(self._control), "-O", verb, "-L", way, NODE)

    async def stop(self) -> None:
        """End it, and remove what it leaves. Never raises."""
        process = self._process
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            try:
                async with asyncio.timeout(2.0):
                    await process.wait()
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        for path in (*(self._control_of(alias) for alias, _ in _named(self._login)), self._config, self._known):
            path.unlink(missing_ok=True)

    def _control_of(self, alias: str) -> Path:
        return self._control if alias == NODE else self._control.with_name(f"{self._control.name}.{alias}")

    async def _listens(self) -> None:
        while True:  # the client says nothing when it is in; the socket appears then
            if self._control.is_socket():
                return
            await asyncio.sleep(LOOK)

    async def _command(self, *arguments: str) -> str | None:
        """Have the running client do something; return None, or what went wrong."""
        process = await asyncio.create_subprocess_exec(
            *(self._program, "-F", str(self._config), *OVER_THE_RUNNING_ONE, *arguments),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env=_environment(),
            preexec_fn=_end_with_parent,
        )
        try:
            async with asyncio.timeout(COMMAND_LIMIT):
                _, said = await process.communicate()
        except TimeoutError:
            return f"no answer within {COMMAND_LIMIT:.0f} s"
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        return (
            None
            if process.returncode == 0
            else said.decode(errors="replace").strip() or f"it ended with {process.returncode}"
        )

    @contextlib.contextmanager
    def _key(self) -> Iterator[str]:
        """Give the configuration lines that name the key, for as long as the client logs in. Raises LinkBroken."""
        match self._login.identity:
            case KeyFile(path=path):
                yield f"IdentityFile {_quoted(path)}\nIdentitiesOnly yes\nIdentityAgent none\n"
            case KeyAgent(socket=path):
                yield f"IdentityFile none\nIdentityAgent {_quoted(path)}\n"
            case KeySecret() as secret:
                with _in_memory(private_key(secret, self._secrets)) as path:
                    yield f"IdentityFile {_quoted(path)}\nIdentitiesOnly yes\nIdentityAgent none\n"


def configuration(login: Login, key: str, known: Path, control: Path) -> str:
    """Return the whole configuration of the client; hops have control sockets beside the node's.

    Raises LinkBroken for a name that cannot stand in one.
    """
    common = f"""\
{key}BatchMode yes
PreferredAuthentications publickey
StrictHostKeyChecking yes
UserKnownHostsFile {_quoted(str(known))}
GlobalKnownHostsFile none
CheckHostIP no
UpdateHostKeys no
VerifyHostKeyDNS no
CanonicalizeHostname no
ForwardAgent no
ForwardX11 no
ControlPersist no
ExitOnForwardFailure yes
StreamLocalBindUnlink yes
StreamLocalBindMask 0177
ConnectTimeout {CONNECT_LIMIT:.0f}
ServerAliveInterval {KEEPALIVE}
ServerAliveCountMax {KEEPALIVES}
LogLevel ERROR
"""
    hosts = "".join(
        f"Host {alias}\n  HostKeyAlias {alias}\n  HostName {_word(stop.host, 'host')}\n  Port {stop.port}\n"
        f"  User {_word(stop.user, 'user')}\n  ProxyJump {before or 'none'}\n"
        + (f"  ControlMaster yes\n  ControlPath {_quoted(f'{control}.{alias}')}\n" if alias != NODE else "")
        for (alias, stop), before in zip(_named(login), ("", *(alias for alias, _ in _named(login))), strict=False)
    )
    return f"{hosts}Host *\n{common}"


def _named(login: Login) -> list[tuple[str, Stop]]:
    """Return each stop with what the configuration calls it."""
    names = [*(f"hop{number}" for number in range(len(login.stops) - 1)), NODE]
    return list(zip(names, login.stops, strict=True))


def _word(text: str, what: str) -> str:
    """Return a name as a configuration takes it; one that could be read as something else is refused."""
    if not text.isprintable() or text.startswith("-") or set(text) & set("\"'\\# \t,=*?!"):
        raise LinkBroken(f"{what} {text!r} cannot be given to ssh; write a plain name or address")
    return text.replace("%", "%%") if what == "host" else text


def _quoted(path: str) -> str:
    """Return a path as a configuration takes it."""
    if not path.isprintable() or set(path) & set('"\\'):
        raise LinkBroken(f"the path {path!r} cannot be given to ssh; choose one without quotes and backslashes")
    return f'"{path.replace("%", "%%")}"'


def _literal(path: Path) -> str:
    """Return a path as an option takes it that expands `%`."""
    return str(path).replace("%", "%%")


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


@contextlib.contextmanager
def _in_memory(text: str) -> Iterator[str]:
    """Give the path of a file that lies in memory only, that this user alone can read, and that is gone afterwards."""
    number = os.memfd_create("key", os.MFD_CLOEXEC)
    try:
        os.fchmod(number, 0o600)
        with os.fdopen(number, "w", closefd=False) as file:
            file.write(text)
        yield f"/proc/{os.getpid()}/fd/{number}"
    finally:
        os.close(number)


def _environment() -> dict[str, str]:
    return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"}


def _end_with_parent() -> None:
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
