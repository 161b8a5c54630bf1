"""Sessions over fake connections in virtual time: who is listened to, what reconnects, and what secrets do."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from llmgw.base.ids import NodeName, ShardId
from llmgw.control.book import FleetBook
from llmgw.control.sessions import SHORTEST_SILENCE, Sessions, silence_limit
from llmgw.fleet.order import NodeOrder
from llmgw.fleet.report import Report
from llmgw.fleet.table import Address, TcpAddress, UnixAddress
from llmgw.fleet.view import NeverSeen, Reporting, Unreachable, routes_of
from llmgw.ports.links import LinkBroken, Target
from llmgw.runtime.supervisor import Supervisor
from llmgw.sim.link import FakeNetwork, Peer
from llmgw.sim.loop import SimClock, simulate
from llmgw.spec.cluster import SshDefaults
from llmgw.spec.node import Hop, Node, Ssh
from llmgw.wire.frames import frame
from llmgw.wire.messages import PROTOCOL, Order, Said, Welcome, encode
from llmgw.wire.session import Session
from tests.builders import catalog, model, node, order, report, shard_report, spec_of

N = NodeName("n")
KEY = "ssh-ed25519 AAAA"
FAR = Node(apiVersion="llmgw/v1", kind="Node", name="n", ssh=Ssh(host="n.test", host_key=KEY))
WANTED = catalog(model("m"), node("n"))


class FakeAgent:
    """Greets, reports what it is told to, and remembers the orders."""

    def __init__(self, network: FakeNetwork) -> None:
        self.orders: list[Order] = []
        self.peers: list[Peer] = []
        self.report: Report | None = report("n")
        self.tasks = Supervisor("agent")
        network.listen(N, self._accept)

    def _accept(self, peer: Peer) -> None:
        self.tasks.job("peer", self._serve(peer))

    async def _serve(self, peer: Peer) -> None:
        self.peers.append(peer)
        session = Session("agent")
        while data := await peer.read():
            for message in session.feed(data):
                if isinstance(message, Order):
                    self.orders.append(message)
                else:
                    peer.write(frame(encode(Welcome(PROTOCOL, "test"))))
                    if self.report is not None:
                        self.say(self.report)

    def say(self, said: Report, connection: int = -1) -> None:
        """Report on a connection."""
        self.peers[connection].write(frame(encode(Said(said))))


class Values:
    """A `SecretSource` to change by hand."""

    def __init__(self, **values: str) -> None:
        self.values = values

    def get(self, name: str) -> str | None:
        """Return it."""
        return self.values.get(name)


class Scene:
    """Sessions, one fake agent, and the book."""

    def __init__(self, network: FakeNetwork | None = None, **values: str) -> None:
        self.network = network or FakeNetwork()
        self.agent = FakeAgent(self.network)
        self.wakes = 0
        loop = asyncio.get_running_loop()
        self.book = FleetBook(SimClock(loop), self._wake)
        self.secrets = Values(**values)
        self.sessions = Sessions(lambda _: self.network, self.book, random.Random(1), self.secrets, lambda: 15.0)

    def _wake(self) -> None:
        self.wakes += 1

    def follow(self, node: Node = FAR, defaults: SshDefaults | None = None) -> None:
        """Take up a spec."""
        self.sessions.follow("test", {N: node}, defaults or SshDefaults())

    async def reporting(self) -> None:
        """Wait until the node reports."""
        while True:
            if isinstance(self.book.views[N], Reporting):
                return
            await asyncio.sleep(0.01)

    async def end(self) -> None:
        """Stop all."""
        await self.sessions.stop()
        await self.agent.tasks.stop()


def staged(test: Callable[[Scene], Awaitable[None]], **values: str) -> None:
    """Run a test in virtual time."""

    async def main() -> None:
        scene = Scene(**values)
        try:
            await test(scene)
        finally:
            await scene.end()

    simulate(main)


def with_secret(name: str = "TOKEN") -> NodeOrder:
    """Return an order whose shard names a secret."""
    return order("n", replace(spec_of(WANTED, "m"), secrets={"HF_TOKEN": name}))


def changed(**ssh: Any) -> Node:
    """Return the node with other fields of `ssh`."""
    return FAR.model_copy(update={"ssh": FAR.ssh.model_copy(update=ssh)})  # type: ignore[union-attr]


# secrets


def test_an_order_goes_with_the_values_its_shards_name_and_no_others() -> None:
    async def main(scene: Scene) -> None:
        scene.follow()
        await scene.reporting()
        scene.sessions.send({N: with_secret()})
        await asyncio.sleep(1)
        assert [one.secrets for one in scene.agent.orders] == [{"TOKEN": "hush-hush"}]
        assert "hush-hush" not in repr(scene.agent.orders[0]), "nothing that prints a message prints a value"

    staged(main, TOKEN="hush-hush", OTHER="x")


def test_an_unknown_secret_is_left_out() -> None:
    async def main(scene: Scene) -> None:
        scene.follow()
        await scene.reporting()
        scene.sessions.send({N: with_secret("NOT_THERE")})
        await asyncio.sleep(1)
        assert [one.secrets for one in scene.agent.orders] == [{}]

    staged(main, TOKEN="v1")


def test_a_value_that_changed_is_sent_at_the_next_round_and_only_then() -> None:
    async def main(scene: Scene) -> None:
        scene.follow()
        await scene.reporting()
        wanted = with_secret()
        for value in ("v1", "v1", "v2", "v2", None, None):
            scene.secrets.values = {"TOKEN": value} if value else {}
            scene.sessions.send({N: wanted})
            await asyncio.sleep(0.1)
        assert [dict(one.secrets) for one in scene.agent.orders] == [{"TOKEN": "v1"}, {"TOKEN": "v2"}, {}]

    staged(main, TOKEN="v1")


def test_no_session_keeps_a_value() -> None:
    async def main(scene: Scene) -> None:
        scene.follow()
        await scene.reporting()
        scene.sessions.send({N: with_secret()})
        await asyncio.sleep(1)
        session, _ = scene.sessions._sessions[N]
        kept = {name: value for name, value in vars(session).items() if name != "_secrets"}
        assert "a-very-secret-value" not in repr(kept)
        assert b"a-very-secret-value" not in session._sent_secrets

    staged(main, TOKEN="a-very-secret-value")


# which connection is listened to


def test_what_an_old_connection_still_says_is_not_heard() -> None:
    async def main() -> None:
        book = FleetBook(SimClock(asyncio.get_running_loop()), lambda: None)
        book.expect(N)
        old = book.connecting(N)
        book.heard(N, old, report("n", sequence=1), {})
        new = book.connecting(N)
        book.heard(N, new, report("n", boot="boot-2", sequence=1), {ShardId("s"): TcpAddress("h", 1)})
        before = book.views[N]
        book.heard(N, old, report("n", sequence=9), {})
        book.lost(N, old, "an end that is no news", {})
        book.rerouted(N, old, {})
        assert book.views[N] == before
        book.lost(N, new, "cut", {})
        assert isinstance(book.views[N], Unreachable)

    simulate(main)


class Stuck:
    """A `Link` whose connects end when the test says, well or badly; it does not care who still waits."""

    def __init__(self, network: FakeNetwork) -> None:
        self.network = network
        self.gates: list[asyncio.Future[str | None]] = []

    async def connect(self, node: Node, defaults: SshDefaults) -> Any:
        """Wait for the gate; a cancellation is swallowed, as libraries do."""
        gate: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self.gates.append(gate)
        try:
            why = await asyncio.shield(gate)
        except asyncio.CancelledError:
            why = await gate
        if why is not None:
            raise LinkBroken(why)
        return await self.network.connect(node, defaults)

    async def close(self) -> None:
        """Nothing."""


def test_a_late_failure_of_an_old_connection_does_not_touch_the_new_one() -> None:
    async def main() -> None:
        network = FakeNetwork()
        agent = FakeAgent(network)
        book = FleetBook(SimClock(asyncio.get_running_loop()), lambda: None)
        stuck = Stuck(network)
        links: list[Any] = [stuck, network]
        sessions = Sessions(lambda _: links.pop(0), book, random.Random(1))
        sessions.follow("test", {N: FAR}, SshDefaults())
        await asyncio.sleep(1)
        sessions.follow("test", {N: changed(host="other.test")}, SshDefaults())
        await asyncio.sleep(1)
        assert isinstance(book.views[N], Reporting)
        stuck.gates[0].set_result("too late")
        await asyncio.sleep(1)
        assert isinstance(book.views[N], Reporting)
        await asyncio.sleep(60)
        assert len(stuck.gates) == 1, "nor does it connect again"
        await sessions.stop()
        await agent.tasks.stop()

    simulate(main)


# what reconnects


@pytest.mark.parametrize(
    ("node", "again"),
    [
        (changed(user="other"), False),
        (changed(identity_file="/k"), False),
        (FAR.model_copy(update={"traffic": "direct", "address": "10.0.0.9"}), False),
        (FAR.model_copy(update={"labels": {"a": "b"}}), False),
        (changed(host="other.test"), True),
        (changed(port=23), True),
        (changed(host_key="ssh-ed25519 BBBB"), True),
        (changed(proxy_jump=[Hop(host="h", host_key=KEY)]), True),
        (FAR.model_copy(update={"agent_socket": "/run/x"}), True),
        (Node(apiVersion="llmgw/v1", kind="Node", name="n", local=True), True),
    ],
    ids=["user", "key", "traffic", "labels", "host", "port", "host_key", "proxy_jump", "agent_socket", "local"],
)
def test_only_another_place_connects_anew(node: Node, again: bool) -> None:
    async def main(scene: Scene) -> None:
        scene.follow()
        await scene.reporting()
        scene.follow(node)
        await asyncio.sleep(5)
        await scene.reporting()
        assert len(scene.agent.peers) == (2 if again else 1)

    staged(main)


def test_another_user_is_used_at_the_next_connect() -> None:
    async def main() -> None:
        seen: list[tuple[str | None, str]] = []

        class Recording(FakeNetwork):
            async def connect(self, node: Node, defaults: SshDefaults) -> Any:
                seen.append((node.ssh.user if node.ssh else None, defaults.user))
                return await super().connect(node, defaults)

        scene = Scene(Recording())
        scene.follow()
        await scene.reporting()
        scene.follow(changed(user="u"), SshDefaults(user="d"))
        scene.network.cut(N)
        await asyncio.sleep(1)
        await scene.reporting()
        assert seen == [(None, "llmgw"), ("u", "d")]
        await scene.end()

    simulate(main)


# silence and ways


def test_silence_ends_a_connection() -> None:
    async def main(scene: Scene) -> None:
        scene.follow()
        await scene.reporting()
        scene.network.cut(N, silently=True)
        await asyncio.sleep(14.5)
        assert isinstance(scene.book.views[N], Reporting)
        await asyncio.sleep(0.6)
        view = scene.book.views[N]
        assert len(scene.agent.peers) == 2 or isinstance(view, Unreachable)

    staged(main)


def test_the_silence_limit_leaves_room_for_the_reports_every_ten_seconds() -> None:
    assert silence_limit(30.0) == 35.0
    assert silence_limit(2.0) == SHORTEST_SILENCE > 10.0 + 1.0
    assert silence_limit(120.0) == 125.0


class Wayward:
    """A channel whose tunnels come and go by the test's hand, also after its end."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.ways: dict[ShardId, Address] = {}
        self.news = asyncio.Event()
        self.targets: Mapping[ShardId, Target] = {}
        self.trouble = ""

    async def send(self, data: bytes) -> None:
        await self.inner.send(data)

    async def receive(self) -> bytes:
        return bytes(await self.inner.receive())

    async def routes(self, targets: Mapping[ShardId, Target]) -> dict[ShardId, Address]:
        self.targets = targets
        return self.surviving()

    def surviving(self) -> dict[ShardId, Address]:
        return {shard: way for shard, way in self.ways.items() if shard in self.targets}

    async def stirred(self) -> None:
        await self.news.wait()
        self.news.clear()

    async def close(self) -> None:
        await self.inner.close()

    def change(self, **ways: Address) -> None:
        self.ways = {ShardId(shard): way for shard, way in ways.items()}
        self.news.set()


class WaywardLink(FakeNetwork):
    """Gives such channels."""

    def __init__(self) -> None:
        super().__init__()
        self.channels: list[Wayward] = []

    async def connect(self, node: Node, defaults: SshDefaults) -> Any:
        channel = Wayward(await super().connect(node, defaults))
        self.channels.append(channel)
        return channel


def test_a_way_that_comes_and_goes_is_known_without_a_report_and_after_the_connection() -> None:
    async def main() -> None:
        network = WaywardLink()
        scene = Scene(network)
        spec = replace(spec_of(WANTED, "m"), shard=ShardId("s"))
        scene.agent.report = report("n", shard_report(spec))
        scene.follow()
        await scene.reporting()
        assert routes_of(scene.book.views[N]) == {}
        up = UnixAddress("/t/1")
        network.channels[0].change(s=up)
        await asyncio.sleep(0.1)
        assert routes_of(scene.book.views[N]) == {"s": up}
        network.take_away(N)
        await asyncio.sleep(0.1)
        view = scene.book.views[N]
        assert isinstance(view, Unreachable)
        assert view.routes == {"s": up}, "the way does not need the connection that is gone"
        wakes = scene.wakes
        network.channels[0].change()
        await asyncio.sleep(0.1)
        assert routes_of(scene.book.views[N]) == {}
        assert scene.wakes > wakes
        network.channels[0].change(s=up)
        await asyncio.sleep(20)
        assert routes_of(scene.book.views[N]) == {"s": up}, "and failed tries to connect do not lose it"
        network.bring_back(N)
        await asyncio.sleep(20)
        assert isinstance(scene.book.views[N], Reporting)
        assert scene.sessions.alarms == ()
        network.channels[-1].trouble = "ssh ended with 255"
        assert scene.sessions.alarms == ("engines of node n cannot be reached: ssh ended with 255",)
        network.channels[-1].trouble = ""
        network.channels[0].change(s=UnixAddress("/t/old"))
        await asyncio.sleep(1)
        assert routes_of(scene.book.views[N]) == {}, "the old channel is not asked any more"
        await scene.end()

    simulate(main)


def test_a_node_that_was_never_seen_stays_so_when_connects_fail() -> None:
    async def main(scene: Scene) -> None:
        scene.network.take_away(N, "no route to host")
        scene.follow()
        await asyncio.sleep(30)
        view = scene.book.views[N]
        assert isinstance(view, NeverSeen)
        assert view.why == "no route to host"

    staged(main)
