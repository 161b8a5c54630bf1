"""Connections to nodes without sockets: a `Link` and its `Channel`s over pipes in memory, and the network that breaks them.

Bytes arrive late, in pieces, and in order. A connection can be cut so that both ends are told, or silently, as when a
firewall forgets it: then nothing arrives any more and nobody is told. A node can also be out of reach, so that nothing new
can be connected. Delays and pieces come from the given chance; give none, and bytes arrive whole and at once.
"""

import asyncio
import random
from collections import deque
from collections.abc import Callable, Mapping

from llmgw.base.ids import NodeName, ShardId
from llmgw.fleet.table import Address, TcpAddress, UnixAddress
from llmgw.ports.links import LinkBroken, Target
from llmgw.spec.cluster import SshDefaults
from llmgw.spec.node import Node


class Pipe:
    """One direction of a connection. `ended` says why nothing comes any more; what arrived before is still read."""

    def __init__(self, rng: random.Random | None) -> None:
        self._rng = rng
        self._arrived: deque[bytes] = deque()
        self._news = asyncio.Event()
        self._last = 0.0
        self.ended: str | None = None
        self.dead = False
        """Whether bytes get lost without a word."""

    def write(self, data: bytes) -> None:
        """Send bytes on their way."""
        loop = asyncio.get_running_loop()
        if self._rng is None:
            self._arrive(data)
            return
        cut = self._rng.randrange(1, len(data)) if len(data) > 1 and self._rng.random() < 0.3 else len(data)
        for piece in (data[:cut], data[cut:]):
            if piece:
                self._last = max(self._last + 1e-6, loop.time() + self._rng.uniform(0.001, 0.05))
                loop.call_at(self._last, self._arrive, piece)

    def end(self, why: str) -> None:
        """Let the reader know that nothing more comes."""
        if self.ended is None and not self.dead:
            self.ended = why
            self._news.set()

    async def read(self) -> bytes:
        """Return the next bytes; none at the end."""
        while not self._arrived:
            if self.ended is not None:
                return b""
            self._news.clear()
            await self._news.wait()
        return self._arrived.popleft()

    def _arrive(self, data: bytes) -> None:
        if not self.dead and self.ended is None:
            self._arrived.append(data)
            self._news.set()


class Peer:
    """The node's end of a connection."""

    def __init__(self, inward: Pipe, outward: Pipe) -> None:
        self.inward = inward
        self.outward = outward

    async def read(self) -> bytes:
        """Return the next bytes; none at the end."""
        return await self.inward.read()

    def write(self, data: bytes) -> None:
        """Send bytes."""
        self.outward.write(data)

    def close(self) -> None:
        """End the connection, if it is not dead already."""
        self.inward.end("closed here")
        self.outward.end("the agent closed the connection")


class FakeChannel:
    """A `Channel`: the control plane's end."""

    def __init__(self, network: "FakeNetwork", node: Node, peer: Peer) -> None:
        self._network = network
        self._node = node
        self._peer = peer
        self._routes: dict[ShardId, Address] = {}

    async def send(self, data: bytes) -> None:
        """Send bytes. Raises LinkBroken."""
        self._raise_if_ended()
        self._peer.inward.write(data)

    async def receive(self) -> bytes:
        """Return the next bytes. Raises LinkBroken at the end."""
        data = await self._peer.outward.read()
        if not data:
            self._raise_if_ended()
            raise LinkBroken("the agent closed the connection")
        return data

    async def routes(self, targets: Mapping[ShardId, Target]) -> dict[ShardId, Address]:
        """Tell where each engine is reached. Raises LinkBroken."""
        await self._network.pause()
        self._raise_if_ended()
        self._routes = {
            shard: target.outside(self._node) or self._network.address(self._node, target.port)
            for shard, target in targets.items()
        }
        return dict(self._routes)

    def surviving(self) -> dict[ShardId, Address]:
        """Tunnels go with the connection; addresses of the node do not."""
        if self._node.local or self._peer.outward.ended is None:
            return dict(self._routes)
        return {shard: address for shard, address in self._routes.items() if isinstance(address, TcpAddress)}

    @property
    def trouble(self) -> str:
        """None: what is asked for is there."""
        return ""

    async def stirred(self) -> None:
        """Never: a way goes with its connection only."""
        await asyncio.get_running_loop().create_future()

    async def close(self) -> None:
        """End the connection."""
        self._peer.inward.end("the control plane closed the connection")
        self._peer.outward.end("closed here")

    def _raise_if_ended(self) -> None:
        if self._peer.outward.ended is not None:
            raise LinkBroken(self._peer.outward.ended)


class FakeNetwork:
    """What is between control planes and nodes. Implements `Link`."""

    def __init__(self, rng: random.Random | None = None) -> None:
        self._rng = rng
        self._agents: dict[NodeName, Callable[[Peer], None]] = {}
        self._peers: dict[NodeName, list[Peer]] = {}
        self._away: dict[NodeName, str] = {}

    async def connect(self, node: Node, defaults: SshDefaults) -> FakeChannel:  # noqa: ARG002 - the port has it
        """Connect to a node's agent. Raises LinkBroken."""
        await self.pause()
        name = NodeName(node.name)
        if name in self._away:
            raise LinkBroken(self._away[name])
        accept = self._agents.get(name)
        if accept is None:
            raise LinkBroken(f"no agent listens on {name}")
        peer = Peer(Pipe(self._rng), Pipe(self._rng))
        self._peers.setdefault(name, []).append(peer)
        accept(peer)
        return FakeChannel(self, node, peer)

    async def close(self) -> None:
        """Nothing outlives a channel here."""

    async def pause(self) -> None:
        """Let a little time pass."""
        if self._rng is not None:
            await asyncio.sleep(self._rng.uniform(0.001, 0.1))

    def listen(self, name: NodeName, accept: Callable[[Peer], None]) -> None:
        """Let a node's agent take connections."""
        self._agents[name] = accept

    def deafen(self, name: NodeName) -> None:
        """Let a node's agent be gone, and its connections with it."""
        self._agents.pop(name, None)
        self.cut(name, "the agent closed the connection")

    def cut(self, name: NodeName, why: str = "connection reset", *, silently: bool = False) -> None:
        """Break every connection to a node."""
        for peer in self._peers.pop(name, []):
            for pipe in (peer.inward, peer.outward):
                if silently:
                    pipe.dead = True
                else:
                    pipe.end(why)

    def take_away(self, name: NodeName, why: str = "no route to host", *, silently: bool = False) -> None:
        """Put a node out of reach."""
        self._away[name] = why
        self.cut(name, why, silently=silently)

    def bring_back(self, name: NodeName) -> None:
        """Put a node within reach again."""
        self._away.pop(name, None)

    def is_away(self, name: NodeName) -> bool:
        """Whether a node is out of reach."""
        return name in self._away

    @staticmethod
    def address(node: Node, port: int) -> Address:
        """Return where the gateway reaches a port of a node."""
        return TcpAddress("127.0.0.1", port) if node.local else UnixAddress(f"/tunnels/{node.name}/{port}")
