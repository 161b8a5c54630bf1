"""Reaches a node by SSH: one connection a node, `direct-streamlocal` to the agent's Unix socket, tunnels to its engines.

The connection is kept when only the agent at its end went away, and engine traffic has a client of its own where
OpenSSH's is installed (`ssh_client`), so an agent that restarts cuts no stream. An engine that listens on the node's own
address (`traffic: direct`) is reached there, whatever becomes of the connection. Every await has an outer limit: asyncssh's
own time limits were seen not to hold on a frozen peer.
"""

import asyncio
import itertools
import logging
import random
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import asyncssh

from llmgw.adapters.ssh_client import ClientTunnel
from llmgw.adapters.ssh_forwards import Forwards
from llmgw.adapters.ssh_login import HANDSHAKES, Login, abandon, log_in, login_of
from llmgw.base.ids import ShardId
from llmgw.fleet.table import Address, UnixAddress
from llmgw.ports.links import Channel, LinkBroken, SecretSource, Target
from llmgw.runtime.latest import Latest
from llmgw.runtime.supervisor import Supervisor
from llmgw.spec.cluster import SshDefaults
from llmgw.spec.node import Node

log = logging.getLogger(__name__)

OPEN_LIMIT = 10.0
SEND_LIMIT = 30.0
"""Seconds."""
LONGEST_NAME = 48
"""Bytes below the tunnels' directory that a socket's path needs; OpenSSH's client adds 17 to that of its control socket."""


@dataclass(frozen=True, slots=True)
class SshWays:
    """What all links of a control plane share."""

    tunnels: Path
    """Directory of sockets; this user's alone, and nobody else's at this time."""
    agent_socket: str
    """The agent's socket on a node that names none."""
    client: str | None
    """OpenSSH's client; None means that asyncssh carries engine traffic too."""
    secrets: SecretSource
    handshakes: asyncio.Semaphore
    numbers: Iterator[int]
    """One for each file in the directory, so that what an old link removes late is never a new link's."""

    @staticmethod
    def prepare(tunnels: Path, agent_socket: str, client: str | None, secrets: SecretSource) -> "SshWays":
        """Make the directory and remove what an earlier control plane left in it. Raises OSError."""
        tunnels.mkdir(exist_ok=True, mode=0o700, parents=True)
        tunnels.chmod(0o700)
        for left in tunnels.iterdir():
            if not stat.S_ISDIR(left.lstat().st_mode):
                left.unlink(missing_ok=True)
        return SshWays(tunnels, agent_socket, client, secrets, asyncio.Semaphore(HANDSHAKES), itertools.count(1))


class SshLink:
    """A `Link` for one node with an `ssh:` block."""

    def __init__(self, ways: SshWays, node: str, rng: random.Random) -> None:
        self._ways = ways
        self._name = node
        self._made: tuple[Login, list[asyncssh.SSHClientConnection], Forwards] | None = None
        self._news: Latest[None] = Latest(None)
        self._tasks = Supervisor(f"link.{node}")
        self._tunnel = (
            ClientTunnel(ways.client, ways.tunnels, node, ways.numbers, ways.secrets, rng, self._stir)
            if ways.client
            else None
        )

    async def connect(self, node: Node, defaults: SshDefaults) -> Channel:
        """Log in, check the pinned host keys, and open the agent's socket. Raises LinkBroken."""
        login = login_of(node, defaults)
        if self._made is not None and (self._made[0] != login or self._made[1][-1].is_closed()):
            self._drop()
        if self._made is None:
            connections = await log_in(self._name, login, self._ways.secrets, self._ways.handshakes)
            self._made = (
                login,
                connections,
                Forwards(connections, self._ways.tunnels, self._name, self._ways.numbers),
            )
            self._tasks.job("closed", self._tell(connections[-1]))
        _, connections, forwards = self._made
        path = node.agent_socket or self._ways.agent_socket
        answered = False
        try:
            async with asyncio.timeout(OPEN_LIMIT):
                reader, writer = await connections[-1].open_unix_connection(path, encoding=None)
            answered = True
        except asyncssh.ChannelOpenError as error:
            answered = not connections[-1].is_closed()
            raise LinkBroken(
                f"no agent listens on {path} on node {node.name} ({error.reason}); start `llmgw agent` there, "
                "or set the node's `agent_socket`"
            ) from error
        except (asyncssh.Error, OSError, TimeoutError) as error:
            raise LinkBroken(f"cannot open {path} on node {node.name}: {str(error) or 'no answer'}") from error
        finally:
            if not answered:
                self._drop()
        return SshChannel(node, login, connections[-1], reader, writer, forwards, self._tunnel, self._news)

    async def close(self) -> None:
        """End the connection and the tunnel."""
        self._drop()
        await self._tasks.stop()
        if self._tunnel is not None:
            await self._tunnel.close()

    async def _tell(self, connection: asyncssh.SSHClientConnection) -> None:
        """Say when a connection ended: its forwards went with it."""
        await connection.wait_closed()
        self._stir()

    def _drop(self) -> None:
        if self._made is not None:
            _, connections, forwards = self._made
            self._made = None
            forwards.close()
            abandon(connections)
            self._stir()

    def _stir(self) -> None:
        self._news.set(None)


class SshChannel:
    """A `Channel` over one SSH connection."""

    def __init__(
        self,
        node: Node,
        login: Login,
        connection: asyncssh.SSHClientConnection,
        reader: asyncssh.SSHReader[bytes],
        writer: asyncssh.SSHWriter[bytes],
        forwards: Forwards,
        tunnel: ClientTunnel | None,
        news: Latest[None],
    ) -> None:
        self._node = node
        self._login = login
        self._connection = connection
        self._reader = reader
        self._writer = writer
        self._forwards = forwards
        self._tunnel = tunnel
        self._news = news
        self._seen = news.version
        self._direct: dict[ShardId, Address] = {}
        self._turn = asyncio.Lock()

    async def send(self, data: bytes) -> None:
        """Send bytes. Raises LinkBroken."""
        try:
            self._writer.write(data)
            async with asyncio.timeout(SEND_LIMIT):
                await self._writer.drain()
        except (asyncssh.Error, OSError, TimeoutError) as error:
            self._connection.abort()  # nobody who waits for this peer shall wait longer
            raise LinkBroken(f"the node does not take what it is sent: {str(error) or 'no room'}") from error

    async def receive(self) -> bytes:
        """Return the next bytes. Raises LinkBroken at the end."""
        try:
            data = await self._reader.read(1 << 16)
        except (asyncssh.Error, OSError) as error:
            raise LinkBroken(f"the SSH connection broke: {error}") from error
        if not data:
            raise LinkBroken("the agent closed the connection, or the SSH connection ended")
        return data

    async def routes(self, targets: Mapping[ShardId, Target]) -> dict[ShardId, Address]:
        """Have one Unix socket here for each engine there, or its own address. Raises LinkBroken."""
        self._direct, tunnelled = {}, {}
        for shard, target in targets.items():
            address = target.outside(self._node)
            if address is None:
                tunnelled[shard] = target.inside
            else:
                self._direct[shard] = address
        if self._tunnel is not None:
            self._tunnel.want(tunnelled, self._login)
        else:
            async with self._turn:
                await self._forwards.have(tunnelled)
        return self.surviving()

    def surviving(self) -> dict[ShardId, Address]:
        """Return what is usable now."""
        self._seen = self._news.version
        ways = self._tunnel.ways() if self._tunnel is not None else self._forwards.ways()
        return {**self._direct, **{shard: UnixAddress(str(path)) for shard, path in ways.items()}}

    async def stirred(self) -> None:
        """Wait until a tunnel came or went."""
        await self._news.newer(self._seen)

    async def close(self) -> None:
        """End the agent's stream; the connection under it is kept for the next one, unless it is dead."""
        self._writer.close()
