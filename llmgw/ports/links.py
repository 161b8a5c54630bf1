"""How the control plane reaches an agent and the engines beside it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from llmgw.base.ids import ShardId
from llmgw.fleet.table import Address, TcpAddress
from llmgw.spec.cluster import SshDefaults
from llmgw.spec.node import Node

LOOPBACK = "127.0.0.1"


class LinkBroken(Exception):
    """The node cannot be reached, or the connection ended. The message says why, and what to do if a person must."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where an engine listens on its node."""

    port: int
    host: str = LOOPBACK

    def outside(self, node: Node) -> TcpAddress | None:
        """Return where it is reached from other machines; None if it listens on the node's loopback only.

        What counts is where this engine listens, not what the node's `traffic` says by now: while that changes, some
        engines listen as before.
        """
        if self.host.startswith("127.") or self.host in ("::1", "localhost"):
            return None
        if self.host not in ("0.0.0.0", "::"):
            return TcpAddress(self.host, self.port)
        return TcpAddress(node.address, self.port) if node.traffic == "direct" and node.address is not None else None

    @property
    def inside(self) -> "Target":
        """Where it is reached from the node itself."""
        return Target(self.port) if self.host in ("0.0.0.0", "::") else self


class Channel(Protocol):
    """One connection to one agent. One reader at a time; what several tasks send is sent whole and in turn.

    After LinkBroken it is of no further use, but for `surviving` and `stirred`.
    """

    async def send(self, data: bytes) -> None:
        """Send bytes, in order. Raises LinkBroken; blocks while the peer does not read, up to a limit of the adapter."""
        ...

    async def receive(self) -> bytes:
        """Return the next bytes, at least one. Raises LinkBroken at the end of the connection."""
        ...

    async def routes(self, targets: Mapping[ShardId, Target]) -> dict[ShardId, Address]:
        """Make each of these engines reachable from this host, drop all other ways, and say where.

        One that cannot be reached now is left out; it is tried again, and `stirred` tells. Raises LinkBroken.
        """
        ...

    def surviving(self) -> dict[ShardId, Address]:
        """Return what `routes` set up and what is usable now without this connection, also after its end."""
        ...

    async def stirred(self) -> None:
        """Return once ways may have come or gone since the last call of `routes` or `surviving`. One waiter at a time."""
        ...

    async def close(self) -> None:
        """End the connection, and the routes that need it. Never raises."""
        ...


class Link(Protocol):
    """Makes channels to one node, one after the other."""

    async def connect(self, node: Node, defaults: SshDefaults) -> Channel:
        """Connect to the node's agent within a time limit of the adapter. Raises LinkBroken."""
        ...

    async def close(self) -> None:
        """End what outlives channels. Never raises; nothing is connected afterwards."""
        ...


class SecretSource(Protocol):
    """Where the values of secrets come from. Called from the event loop's thread; it does not block for long."""

    def get(self, name: str) -> str | None:
        """Return the value as it is now, or None if there is none that can be used. Never raises."""
        ...


class NoSecrets:
    """Knows none: what is wired where nothing else is."""

    def get(self, name: str) -> str | None:  # noqa: ARG002 - the port's signature
        """Return None."""
        return None
