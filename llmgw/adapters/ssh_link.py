"""Reaches a node by SSH: one connection a node, `direct-streamlocal` to the agent's Unix socket, tunnels to its engines.

The host key is the one pinned in the node's YAML and nothing else; the user's `~/.ssh/config` and `known_hosts` are not
read, so that what works does not depend on whose account runs the control plane. Each engine gets a Unix socket on this
host that any gateway worker can open. Every await has an outer limit: asyncssh's own time limits were seen not to
hold on a frozen peer.
"""

import asyncio
import hashlib
from collections.abc import Mapping
from pathlib import Path

import asyncssh

from llmgw.base.ids import ShardId
from llmgw.fleet.table import Address, UnixAddress
from llmgw.ports.links import Channel, LinkBroken
from llmgw.spec.cluster import SshDefaults
from llmgw.spec.node import Node, Ssh

CONNECT_LIMIT = 20.0
OPEN_LIMIT = 10.0
SEND_LIMIT = 30.0
KEEPALIVE = 15.0
"""Seconds; three unanswered keepalives end the connection."""


class SshLink:
    """A `Link` for nodes with an `ssh:` block."""

    def __init__(self, tunnels: Path, agent_socket: str) -> None:
        self._tunnels = tunnels
        self._agent_socket = agent_socket

    async def connect(self, node: Node, defaults: SshDefaults) -> Channel:
        """Log in, check the pinned host key, and open the agent's socket. Raises LinkBroken."""
        ssh = node.ssh
        assert ssh is not None
        where = f"{ssh.host}:{ssh.port}"
        try:
            async with asyncio.timeout(CONNECT_LIMIT):
                connection = await asyncssh.connect(**_options(ssh, defaults))
        except asyncssh.HostKeyNotVerifiable as error:
            raise LinkBroken(
                f"the host key of {where} is not the one pinned in node {node.name}. If the machine was reinstalled, compare "
                f"`ssh-keyscan -p {ssh.port} {ssh.host}` with what its console shows and put that into `ssh.host_key`; "
                "if not, somebody may be in between"
            ) from error
        except asyncssh.PermissionDenied as error:
            user = ssh.user or defaults.user
            raise LinkBroken(
                f"{where} does not let {user} in; add the control plane's public key to {user}'s authorized_keys there, "
                "or set `ssh.user` and `ssh.identity_file`"
            ) from error
        except TimeoutError as error:
            raise LinkBroken(f"{where} did not finish the SSH handshake within {CONNECT_LIMIT:.0f} s") from error
        except (
            OSError,
            asyncssh.Error,
            ValueError,
        ) as error:  # a host name or a key that cannot be one is a ValueError
            raise LinkBroken(f"cannot connect to {where}: {error}") from error
        channel = SshChannel(connection, self._tunnels, node.name)
        opened = False
        try:
            await channel.open(node.agent_socket or self._agent_socket)
            opened = True
        finally:
            if not opened:
                await channel.close()
        return channel


def _options(ssh: Ssh, defaults: SshDefaults) -> dict[str, object]:
    identity = ssh.identity_file or defaults.identity_file
    return {
        "host": ssh.host,
        "port": ssh.port,
        "username": ssh.user or defaults.user,
        "known_hosts": ([asyncssh.import_public_key(ssh.host_key)], [], []),
        "client_keys": [identity] if identity else (),
        **({"agent_path": None} if identity else {}),
        "config": None,
        "preferred_auth": "publickey",
        "keepalive_interval": KEEPALIVE,
        "keepalive_count_max": 3,
        "connect_timeout": CONNECT_LIMIT,
        "login_timeout": CONNECT_LIMIT,
    }


class SshChannel:
    """A `Channel` over one SSH connection."""

    routes_survive = False

    def __init__(self, connection: asyncssh.SSHClientConnection, tunnels: Path, node: str) -> None:
        self._connection = connection
        self._tunnels = tunnels
        self._node = node
        self._reader: asyncssh.SSHReader[bytes] | None = None
        self._writer: asyncssh.SSHWriter[bytes] | None = None
        self._open: dict[ShardId, tuple[int, Path, asyncssh.SSHListener]] = {}

    async def open(self, agent_socket: str) -> None:
        """Open the agent's socket. Raises LinkBroken."""
        try:
            async with asyncio.timeout(OPEN_LIMIT):
                self._reader, self._writer = await self._connection.open_unix_connection(agent_socket, encoding=None)
        except asyncssh.ChannelOpenError as error:
            raise LinkBroken(
                f"no agent listens on {agent_socket} on node {self._node} ({error.reason}); start `llmgw agent` there, "
                "or set the node's `agent_socket`"
            ) from error
        except (asyncssh.Error, OSError, TimeoutError) as error:
            raise LinkBroken(f"cannot open {agent_socket} on node {self._node}: {str(error) or 'no answer'}") from error

    async def send(self, data: bytes) -> None:
        """Send bytes. Raises LinkBroken."""
        assert self._writer is not None
        try:
            self._writer.write(data)
            async with asyncio.timeout(SEND_LIMIT):
                await self._writer.drain()
        except (asyncssh.Error, OSError, TimeoutError) as error:
            raise LinkBroken(f"the node does not take what it is sent: {str(error) or 'no room'}") from error

    async def receive(self) -> bytes:
        """Return the next bytes. Raises LinkBroken at the end."""
        assert self._reader is not None
        try:
            data = await self._reader.read(1 << 16)
        except (asyncssh.Error, OSError) as error:
            raise LinkBroken(f"the SSH connection broke: {error}") from error
        if not data:
            raise LinkBroken("the agent closed the connection, or the SSH connection ended")
        return data

    async def routes(self, ports: Mapping[ShardId, int]) -> dict[ShardId, Address]:
        """Have one Unix socket here for each port there."""
        for shard in [shard for shard, (port, _, _) in self._open.items() if ports.get(shard) != port]:
            self._shut(shard)
        for shard, port in ports.items():
            if shard not in self._open:
                path = self._tunnels / f"{hashlib.sha256(f'{self._node}/{shard}'.encode()).hexdigest()[:16]}.sock"
                path.unlink(missing_ok=True)
                try:
                    async with asyncio.timeout(OPEN_LIMIT):
                        listener = await self._connection.forward_local_path_to_port(str(path), "127.0.0.1", port)
                except (asyncssh.Error, OSError, TimeoutError) as error:
                    raise LinkBroken(f"cannot make a tunnel to port {port} of node {self._node}: {error}") from error
                path.chmod(0o600)
                self._open[shard] = (port, path, listener)
        return {shard: UnixAddress(str(path)) for shard, (_, path, _) in self._open.items()}

    async def close(self) -> None:
        """End the connection and its tunnels."""
        for shard in list(self._open):
            self._shut(shard)
        self._connection.abort()

    def _shut(self, shard: ShardId) -> None:
        _, path, listener = self._open.pop(shard)
        listener.close()
        path.unlink(missing_ok=True)
