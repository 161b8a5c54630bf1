"""The contract of `Link` and `Channel`, on the local adapter and on the fake. (SSH's is in `tests/live/test_ssh.py`.)"""

import asyncio
from abc import ABC, abstractmethod
from pathlib import Path

import pytest

from llmgw.adapters.local_link import LocalLink
from llmgw.base.ids import NodeName, ShardId
from llmgw.fleet.table import TcpAddress
from llmgw.ports.links import Link, LinkBroken, Target
from llmgw.runtime.supervisor import Supervisor
from llmgw.sim.link import FakeNetwork, Peer
from llmgw.spec.cluster import SshDefaults
from llmgw.spec.node import Node

NODE = Node(apiVersion="llmgw/v1", kind="Node", name="n", local=True)


class Place(ABC):
    """A link to one node whose agent sends back what it gets, until it is told `bye`."""

    link: Link

    @abstractmethod
    async def start(self) -> None: ...

    @abstractmethod
    async def stop(self) -> None: ...


class _Fake(Place):
    def __init__(self, _: Path) -> None:
        self.network = FakeNetwork()
        self.link = self.network
        self._tasks = Supervisor("echo")

    async def start(self) -> None:
        self.network.listen(NodeName("n"), lambda peer: _ignore(self._tasks.job("peer", self._echo(peer))))

    async def _echo(self, peer: Peer) -> None:
        while data := await peer.read():
            if data == b"bye":
                break
            peer.write(data)
        peer.close()

    async def stop(self) -> None:
        await self._tasks.stop()


class _Local(Place):
    def __init__(self, root: Path) -> None:
        self._path = root / "s"
        self.link = LocalLink(self._path)
        self._server: asyncio.Server | None = None
        self._idle = asyncio.Event()
        self._idle.set()

    async def start(self) -> None:
        self._server = await asyncio.start_unix_server(self._echo, str(self._path))

    async def _echo(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._idle.clear()
        while data := await reader.read(1 << 16):
            if data == b"bye":
                break
            writer.write(data)
        writer.close()
        await writer.wait_closed()
        self._idle.set()

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            await self._idle.wait()
            await self._server.wait_closed()


def _ignore(_: object) -> None:
    """The supervisor owns it."""


@pytest.fixture(params=[_Fake, _Local], ids=["fake", "local"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    made: Place = request.param(tmp_path)
    return made


async def test_bytes_come_back_in_order(place: Place) -> None:
    await place.start()
    channel = await place.link.connect(NODE, SshDefaults())
    await channel.send(b"one")
    await channel.send(b"two")
    received = b""
    while len(received) < 6:
        received += await channel.receive()
    assert received == b"onetwo"
    await channel.close()
    await place.stop()


async def test_without_an_agent_there_is_no_connection_and_the_reason_is_said(place: Place) -> None:
    with pytest.raises(LinkBroken, match="no agent listens"):
        await place.link.connect(NODE, SshDefaults())


async def test_the_end_of_the_connection_is_told_to_the_reader(place: Place) -> None:
    await place.start()
    channel = await place.link.connect(NODE, SshDefaults())
    await channel.send(b"bye")
    with pytest.raises(LinkBroken):
        await channel.receive()
    await channel.close()
    await place.stop()


async def test_routes_are_exactly_what_is_asked_for(place: Place) -> None:
    await place.start()
    channel = await place.link.connect(NODE, SshDefaults())
    one, two = ShardId("m-0.s0"), ShardId("m-1.s0")
    assert set(await channel.routes({one: Target(20000), two: Target(20001)})) == {one, two}
    routes = await channel.routes({two: Target(20001)})
    assert set(routes) == {two}
    assert channel.surviving() == routes
    assert await channel.routes({}) == {}
    assert channel.surviving() == {}
    await channel.close()
    await place.stop()


async def test_an_engine_on_the_nodes_own_address_is_reached_there_and_stays_so(place: Place) -> None:
    await place.start()
    node = NODE.model_copy(update={"traffic": "direct", "address": "10.0.0.9"})
    channel = await place.link.connect(node, SshDefaults())
    own, any_address, inside = ShardId("a-0.s0"), ShardId("a-1.s0"), ShardId("a-2.s0")
    targets = {own: Target(20000, "10.0.0.9"), any_address: Target(20001, "0.0.0.0"), inside: Target(20002)}
    routes = await channel.routes(targets)
    assert routes[own] == TcpAddress("10.0.0.9", 20000)
    assert routes[any_address] == TcpAddress("10.0.0.9", 20001)
    assert routes[inside] == TcpAddress("127.0.0.1", 20002), "one that was started before the traffic changed"
    await channel.send(b"bye")
    with pytest.raises(LinkBroken):
        await channel.receive()
    await channel.close()
    assert channel.surviving() == routes
    await place.stop()
