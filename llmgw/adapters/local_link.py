"""Reaches an agent on this host by its Unix socket; engines are reached where they listen."""

import asyncio
import contextlib
from collections.abc import Mapping
from pathlib import Path

from llmgw.base.ids import ShardId
from llmgw.fleet.table import Address, TcpAddress
from llmgw.ports.links import Channel, LinkBroken, Target
from llmgw.spec.cluster import SshDefaults
from llmgw.spec.node import Node

CONNECT_LIMIT = 5.0
SEND_LIMIT = 30.0
"""Seconds."""


class LocalLink:
    """A `Link` for nodes with `local: true`."""

    def __init__(self, default_socket: Path) -> None:
        self._default_socket = default_socket

    async def connect(self, node: Node, defaults: SshDefaults) -> Channel:  # noqa: ARG002 - the port's signature
        """Connect to the agent's socket. Raises LinkBroken."""
        path = node.agent_socket or str(self._default_socket)
        try:
            async with asyncio.timeout(CONNECT_LIMIT):
                reader, writer = await asyncio.open_unix_connection(path)
        except (FileNotFoundError, ConnectionRefusedError) as error:
            raise LinkBroken(f"no agent listens on {path}; start one with `llmgw agent`") from error
        except PermissionError as error:
            raise LinkBroken(f"the agent's socket {path} belongs to another user") from error
        except TimeoutError as error:
            raise LinkBroken(f"the agent on {path} does not answer") from error
        except OSError as error:
            raise LinkBroken(f"cannot connect to {path}: {error.strerror or error}") from error
        return LocalChannel(node, reader, writer)

    async def close(self) -> None:
        """Nothing outlives a channel here."""


class LocalChannel:
    """A `Channel` over a Unix socket."""

    def __init__(self, node: Node, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._node = node
        self._routes: dict[ShardId, Address] = {}
        self._reader = reader
        self._writer = writer

    async def send(self, data: bytes) -> None:
        """Send bytes. Raises LinkBroken."""
        try:
            self._writer.write(data)
            async with asyncio.timeout(SEND_LIMIT):
                await self._writer.drain()
        except (OSError, TimeoutError) as error:
            raise LinkBroken(f"the agent does not take what it is sent: {str(error) or 'no room'}") from error

    async def receive(self) -> bytes:
        """Return the next bytes. Raises LinkBroken at the end."""
        try:
            data = await self._reader.read(1 << 16)
        except OSError as error:
            raise LinkBroken(f"the connection to the agent broke: {error}") from error
        if not data:
            raise LinkBroken("the agent closed the connection")
        return data

    async def routes(self, targets: Mapping[ShardId, Target]) -> dict[ShardId, Address]:
        """Engines are reached where they listen."""
        self._routes = {
            shard: target.outside(self._node) or TcpAddress(target.inside.host, target.port)
            for shard, target in targets.items()
        }
        return dict(self._routes)

    def surviving(self) -> dict[ShardId, Address]:
        """No way needs this connection."""
        return dict(self._routes)

    @property
    def trouble(self) -> str:
        """None: what is asked for is there."""
        return ""

    async def stirred(self) -> None:
        """Never: no way comes or goes by itself."""
        await asyncio.get_running_loop().create_future()

    async def close(self) -> None:
        """End the connection."""
        self._writer.close()
        with contextlib.suppress(OSError):  # however it ended, it is over
            await self._writer.wait_closed()
