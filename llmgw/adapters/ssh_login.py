"""Logging in to a node by SSH, over any number of hops: who is who by pinned keys alone, and which key we show.

Nothing of the account that runs the control plane is read: not `~/.ssh/config`, not `known_hosts`, not the default keys
(asyncssh takes those for an empty list of keys, so the keys are always named, those of an agent too). The TCP connection
is made before a place among the handshakes is taken: 64 at once keep a fleet's start from being its own denial of
service, and hosts that swallow packets must not hold those places.
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import asyncssh

from llmgw.ports.links import LinkBroken, SecretSource
from llmgw.spec.cluster import SshDefaults
from llmgw.spec.node import Node

CONNECT_LIMIT = 20.0
"""Seconds for the way through all hops, once a place among the handshakes is free."""
DIAL_LIMIT = 15.0
KEEPALIVE = 15
KEEPALIVES = 3
"""Seconds between keepalives, and how many unanswered ones end a connection."""
HANDSHAKES = 64
"""Logins that run at once, over all nodes."""


@dataclass(frozen=True, slots=True)
class Stop:
    """One sshd on the way; the last one is the node's."""

    host: str
    port: int
    user: str
    host_key: str

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class KeyFile:
    """A private key in a file on this host."""

    path: str


@dataclass(frozen=True, slots=True)
class KeySecret:
    """A private key that is a secret's value."""

    name: str


@dataclass(frozen=True, slots=True)
class KeyAgent:
    """The keys of a running ssh-agent."""

    socket: str


Identity = KeyFile | KeySecret | KeyAgent


@dataclass(frozen=True, slots=True)
class Login:
    """All that decides how a connection is made."""

    stops: tuple[Stop, ...]
    identity: Identity


def login_of(node: Node, defaults: SshDefaults) -> Login:
    """Return how to log in: what the node says, and the cluster's defaults for the rest."""
    ssh = node.ssh
    assert ssh is not None
    user = ssh.user or defaults.user
    hops = [Stop(hop.host, hop.port, hop.user or defaults.user, hop.host_key) for hop in ssh.proxy_jump]
    identity: Identity = KeyAgent(os.environ.get("SSH_AUTH_SOCK", ""))
    for spec in (ssh, defaults):  # a node's own word, whichever it is, comes before any default
        if spec.identity is not None:
            identity = KeySecret(spec.identity.secret)
            break
        if spec.identity_file is not None:
            identity = KeyFile(spec.identity_file)
            break
    return Login((*hops, Stop(ssh.host, ssh.port, user, ssh.host_key)), identity)


def private_key(secret: KeySecret, secrets: SecretSource) -> str:
    """Return the key's text. Raises LinkBroken if there is none."""
    value = secrets.get(secret.name)
    if value is None:
        raise LinkBroken(
            f"the SSH key is secret {secret.name}, and there is none of that name; set LLMGW_SECRET_{secret.name}, "
            "or put it into the secrets directory"
        )
    return value.rstrip("\n") + "\n"  # OpenSSH's format needs the last newline


async def log_in(
    name: str, login: Login, secrets: SecretSource, handshakes: asyncio.Semaphore
) -> list[asyncssh.SSHClientConnection]:
    """Return the connections, one a stop, the node's last. Raises LinkBroken, which says what to do."""
    first = login.stops[0]
    try:
        async with asyncio.timeout(DIAL_LIMIT):
            dialled = await _dial(first)
    except TimeoutError as error:
        raise LinkBroken(f"{first} does not answer: no TCP connection within {DIAL_LIMIT:.0f} s") from error
    except (OSError, UnicodeError) as error:  # a host name that cannot be one is a UnicodeError
        raise LinkBroken(f"cannot connect to {first}: {getattr(error, 'strerror', None) or error}") from error
    made: list[asyncssh.SSHClientConnection] = []
    done = False
    try:
        async with handshakes, _keys(login.identity, secrets) as keys:
            for stop in login.stops:
                way = {"tunnel": made[-1]} if made else {"sock": dialled}
                made.append(await _handshake(name, stop, {**_options(stop), "client_keys": keys, **way}))
        done = True
    finally:
        if not done:
            abandon(made)
            if not made:
                dialled.close()
    return made


def abandon(connections: list[asyncssh.SSHClientConnection]) -> None:
    """End connections at once, the innermost first."""
    for connection in reversed(connections):
        connection.abort()


async def _dial(stop: Stop) -> socket.socket:
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(stop.host, stop.port, type=socket.SOCK_STREAM)
    trouble: OSError = OSError(f"no address is known for {stop.host}")
    for family, kind, protocol, _, address in found:
        sock = socket.socket(family, kind, protocol)
        connected = False
        try:
            sock.setblocking(False)
            await loop.sock_connect(sock, address)
            connected = True
        except OSError as error:
            trouble = error
        finally:
            if not connected:
                sock.close()
        if connected:
            return sock
    raise trouble


@contextlib.asynccontextmanager
async def _keys(identity: Identity, secrets: SecretSource) -> AsyncIterator[list[Any]]:
    """Give the keys to show. Raises LinkBroken."""
    match identity:
        case KeyFile(path=path):
            try:
                key = asyncssh.read_private_key(path)
            except (OSError, asyncssh.KeyImportError, asyncssh.KeyEncryptionError) as error:
                raise LinkBroken(f"cannot use the SSH key {path}: {error}") from error
            yield [key]
        case KeySecret(name=name):
            try:
                key = asyncssh.import_private_key(private_key(identity, secrets))
            except (asyncssh.KeyImportError, asyncssh.KeyEncryptionError) as error:
                raise LinkBroken(f"secret {name} is not an SSH private key without a passphrase: {error}") from error
            yield [key]
        case KeyAgent(socket=path):
            async with _agent_keys(path) as held:
                yield held


@contextlib.asynccontextmanager
async def _agent_keys(path: str) -> AsyncIterator[list[Any]]:
    if not path:
        raise LinkBroken(
            "there is no SSH key to show: set `ssh.identity_file` or `ssh.identity`, or start the server with an "
            "ssh-agent (SSH_AUTH_SOCK)"
        )
    agent = asyncssh.SSHAgentClient(path)
    try:
        async with asyncio.timeout(CONNECT_LIMIT):
            held = list(await agent.get_keys())
    except (OSError, ValueError, TimeoutError) as error:
        raise LinkBroken(f"the ssh-agent at {path} gives no keys: {str(error) or 'no answer'}") from error
    if not held:
        agent.close()
        raise LinkBroken(f"the ssh-agent at {path} holds no keys; add one with `ssh-add`")
    try:
        yield held
    finally:
        agent.close()


def _options(stop: Stop) -> dict[str, Any]:
    return {
        "host": stop.host,
        "port": stop.port,
        "username": stop.user,
        "known_hosts": ([asyncssh.import_public_key(stop.host_key)], [], []),
        "agent_path": None,
        "config": None,
        "gss_host": None,
        "preferred_auth": "publickey",
        "keepalive_interval": KEEPALIVE,
        "keepalive_count_max": KEEPALIVES,
        "connect_timeout": CONNECT_LIMIT,
        "login_timeout": CONNECT_LIMIT,
    }


async def _handshake(name: str, stop: Stop, options: dict[str, Any]) -> asyncssh.SSHClientConnection:
    try:
        async with asyncio.timeout(CONNECT_LIMIT):
            return await asyncssh.connect(**options)
    except asyncssh.HostKeyNotVerifiable as error:
        raise LinkBroken(
            f"the host key of {stop} is not the one pinned in node {name}. If the machine was reinstalled, compare "
            f"`ssh-keyscan -p {stop.port} {stop.host}` with what its console shows and put that into `host_key`; "
            "if not, somebody may be in between"
        ) from error
    except asyncssh.PermissionDenied as error:
        raise LinkBroken(
            f"{stop} does not let {stop.user} in; add the control plane's public key to {stop.user}'s authorized_keys "
            "there, or set `ssh.user` and `ssh.identity_file`"
        ) from error
    except TimeoutError as error:
        raise LinkBroken(f"{stop} did not finish the SSH handshake within {CONNECT_LIMIT:.0f} s") from error
    except asyncssh.ChannelOpenError as error:
        raise LinkBroken(f"the machine before {stop} cannot reach it: {error.reason}") from error
    except (OSError, asyncssh.Error, ValueError) as error:  # a host name or a key that cannot be one is a ValueError
        raise LinkBroken(f"cannot connect to {stop}: {error}") from error
