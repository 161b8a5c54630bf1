"""How the control plane reaches an agent and the engines beside it."""

from collections.abc import Mapping
from typing import Protocol

from llmgw.base.ids import ShardId
from llmgw.fleet.table import Address
from llmgw.spec.cluster import SshDefaults
from llmgw.spec.node import Node


class LinkBroken(Exception):
    """The node cannot be reached, or the connection ended. The message says why, and what to do if a person must."""


class Channel(Protocol):
    """One connection to one agent. One reader at a time; what several tasks send is sent whole and in turn.

    After LinkBroken it is of no further use.
    """

    routes_survive: bool
    """Whether the routes are usable without this connection."""

    async def send(self, data: bytes) -> None:
        """Send bytes, in order. Raises LinkBroken; blocks while the peer does not read, up to a limit of the adapter."""
        ...

    async def receive(self) -> bytes:
        """Return the next bytes, at least one. Raises LinkBroken at the end of the connection."""
        ...

    async def routes(self, ports: Mapping[ShardId, int]) -> dict[ShardId, Address]:
        """Make each of these TCP ports of the node reachable from this host, drop all others, and say where.

        A port that cannot be reached now is left out. Raises LinkBroken.
        """
        ...

    async def close(self) -> None:
        """End the connection and its routes. Never raises."""
        ...


class Link(Protocol):
    """Makes channels to nodes."""

    async def connect(self, node: Node, defaults: SshDefaults) -> Channel:
        """Connect to the node's agent within a time limit of the adapter. Raises LinkBroken."""
        ...
