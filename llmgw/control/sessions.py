"""One session a node: connect, greet, send the newest order, fold reports; again with backoff when the link breaks.

A slow or dead node delays no other: each session is a task of its own. A session that ended cannot touch a newer one of
the same node, since only the running task writes to the book. A node that left the catalog keeps its session until it
is empty, so that what it runs is drained and not forgotten.
"""

import asyncio
import itertools
import logging
import random
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from llmgw import __version__
from llmgw.base.ids import NodeName, ShardId
from llmgw.control.book import FleetBook
from llmgw.fleet.order import NodeOrder
from llmgw.fleet.report import SERVING, Report
from llmgw.fleet.table import Address
from llmgw.fleet.view import report_of
from llmgw.ports.links import Channel, Link, LinkBroken
from llmgw.runtime.backoff import Backoff
from llmgw.runtime.latest import Latest
from llmgw.runtime.supervisor import Owned, Supervisor
from llmgw.spec.cluster import SshDefaults
from llmgw.spec.node import Node
from llmgw.wire.errors import ProtocolError
from llmgw.wire.frames import frame
from llmgw.wire.messages import PROTOCOL, Hello, LogReply, LogRequest, Order, Said, Welcome, encode
from llmgw.wire.session import Session

log = logging.getLogger(__name__)

SILENCE = 35.0
"""Seconds without a byte after which a connection is dead; agents report every 10."""
SEND_AGAIN = 5.0
"""Seconds after which an order is sent again if reports do not show its generation."""
LOG_PATIENCE = 10.0
"""Seconds to wait for a node's reply to a question for logs."""


class Sessions:
    """All sessions. Implements `OrderSink`. Use from the event loop's thread."""

    def __init__(self, link: Callable[[Node], Link], book: FleetBook, rng: random.Random) -> None:
        self._link = link
        self._book = book
        self._rng = rng
        self._tasks = Supervisor("sessions")
        self._sessions: dict[NodeName, tuple[NodeSession, Owned]] = {}

    def follow(self, cluster: str, nodes: Mapping[NodeName, Node], defaults: SshDefaults) -> None:
        """Have a session for each of these nodes, and for each other one that is not empty."""
        for name, node in nodes.items():
            running = self._sessions.get(name)
            if running is not None and running[0].reaches(node, defaults):
                continue
            order = None
            if running is not None:
                order = running[0].order.value
                running[1].cancel()
            self._book.expect(name)
            session = NodeSession(
                cluster, name, node, defaults, self._link(node), self._book, random.Random(self._rng.random())
            )
            session.order.set(order)
            self._sessions[name] = (session, self._tasks.loop(name, session.run()))
        for name in [name for name in self._sessions if name not in nodes]:
            session, task = self._sessions[name]
            if session.empty(report_of(self._book.views[name])):
                log.info("node left and is empty", extra={"node": name})
                task.cancel()
                del self._sessions[name]
                self._book.forget(name)

    def remember(
        self, cluster: str, nodes: Mapping[NodeName, Node], held: Iterable[NodeName], defaults: SshDefaults
    ) -> None:
        """Begin with these nodes; those that an earlier control plane had engines on are kept until they say otherwise."""
        self.follow(cluster, nodes, defaults)
        for name in held:
            self._sessions[name][0].held_something = True

    def holding(self, orders: Mapping[NodeName, NodeOrder]) -> dict[NodeName, Node]:
        """Return how to reach every node that has something to run, or that may have and has not said otherwise yet."""
        return {
            name: session.node
            for name, (session, _) in sorted(self._sessions.items())
            if (name in orders and orders[name].shards) or not session.empty(report_of(self._book.views[name]))
        }

    def held(self) -> frozenset[NodeName]:
        """Return the nodes on which an earlier control plane had engines, as it wrote down."""
        return frozenset(name for name, (session, _) in self._sessions.items() if session.held_something)

    def send(self, orders: Mapping[NodeName, NodeOrder]) -> None:
        """Replace the newest order of each node."""
        for name, order in orders.items():
            running = self._sessions.get(name)
            if running is not None and running[0].order.value != order:
                running[0].order.set(order)

    async def logs(self, node: NodeName, shard: ShardId, attempt: int, lines: int) -> LogReply:
        """Ask a node for the end of an engine's log. Raises LinkBroken if it cannot be asked now."""
        running = self._sessions.get(node)
        if running is None:
            raise LinkBroken(f"there is no node {node}")
        return await running[0].logs(shard, attempt, lines)

    async def failure(self) -> None:
        """Wait until a session's loop failed; raises then."""
        await self._tasks.failure()

    async def stop(self) -> None:
        """End all sessions. Nodes keep to their last orders."""
        await self._tasks.stop()


class NodeSession:
    """The session of one node, over as many connections as it takes."""

    def __init__(
        self,
        cluster: str,
        name: NodeName,
        node: Node,
        defaults: SshDefaults,
        link: Link,
        book: FleetBook,
        rng: random.Random,
    ) -> None:
        self._cluster = cluster
        self._name = name
        self._node = node
        self._defaults = defaults
        self._link = link
        self._book = book
        self._backoff = Backoff(0.25, 15.0, rng)
        self._routes: dict[ShardId, Address] = {}
        self._channel: Channel | None = None
        self._questions: dict[int, asyncio.Future[LogReply]] = {}
        self._numbers = itertools.count(1)
        self._sent_at = 0.0
        self.order: Latest[NodeOrder | None] = Latest(None)
        self.held_something = False

    @property
    def node(self) -> Node:
        """The node as this session knows it."""
        return self._node

    def reaches(self, node: Node, defaults: SshDefaults) -> bool:
        """Whether this session would go to the same place for this spec."""
        return _way(self._node, self._defaults) == _way(node, defaults)

    def empty(self, report: Report | None) -> bool:
        """Whether the node holds nothing and shall hold nothing.

        One that never spoke is taken to be empty, unless an earlier control plane had engines there.
        """
        order = self.order.value
        holds = self.held_something if report is None else bool(report.shards)
        return not holds and (order is None or not order.shards)

    async def run(self) -> None:
        """Keep a connection up, for ever."""
        while True:
            try:
                await self._connection()
            except (LinkBroken, ProtocolError) as error:
                surviving = self._routes if self._channel is not None and self._channel.routes_survive else {}
                self._book.lost(self._name, str(error), dict(surviving))
                log.warning("node does not answer: %s", error, extra={"node": self._name})
            finally:
                await self._drop()
            await asyncio.sleep(self._backoff.next())

    async def logs(self, shard: ShardId, attempt: int, lines: int) -> LogReply:
        """Ask for the end of an engine's log. Raises LinkBroken."""
        channel = self._channel
        if channel is None:
            raise LinkBroken(f"node {self._name} is not connected now")
        number = next(self._numbers)
        question: asyncio.Future[LogReply] = asyncio.get_running_loop().create_future()
        self._questions[number] = question
        try:
            async with asyncio.timeout(LOG_PATIENCE):
                await channel.send(frame(encode(LogRequest(number, shard, attempt, lines))))
                return await question
        except TimeoutError as error:
            raise LinkBroken(f"node {self._name} did not answer within {LOG_PATIENCE:.0f} s") from error
        finally:
            del self._questions[number]

    async def _connection(self) -> None:
        channel = await self._link.connect(self._node, self._defaults)
        self._channel = channel
        session = Session("control_of_agent")
        await channel.send(frame(encode(Hello(PROTOCOL, __version__, self._cluster, self._name))))
        sender: Owned | None = None
        tasks = Supervisor(f"session.{self._name}")
        broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        try:
            while True:
                for message in session.feed(await self._receive(channel)):
                    match message:
                        case Welcome():
                            log.info("node connected", extra={"node": self._name, "version": message.version})
                            if sender is None:
                                sender = tasks.job(
                                    "orders", self._orders(channel), partial(_sender_died, channel, broken, tasks)
                                )
                        case Said():
                            self._backoff.reset()
                            await self._report(channel, message.report)
                        case LogReply():
                            self._answer(message)
                        case _:
                            raise ProtocolError(f"{message.type!r} is not for a control plane")
                if broken.done():
                    broken.result()
        finally:
            await tasks.stop()
            if broken.done():
                broken.exception()

    async def _receive(self, channel: Channel) -> bytes:
        try:
            async with asyncio.timeout(SILENCE):
                return await channel.receive()
        except TimeoutError as error:
            raise LinkBroken(f"silent for {SILENCE:.0f} s") from error

    async def _orders(self, channel: Channel) -> None:
        while True:
            version = self.order.version
            order = self.order.value
            if order is not None:
                await channel.send(frame(encode(Order(order))))
                self._sent_at = asyncio.get_running_loop().time()
            await self.order.newer(version)

    async def _report(self, channel: Channel, report: Report) -> None:
        serving = {one.spec.shard: one.spec.port for one in report.shards if one.phase in SERVING}
        self._routes = await channel.routes(serving)
        self._book.heard(self._name, report, dict(self._routes))
        order = self.order.value
        late = asyncio.get_running_loop().time() - self._sent_at > SEND_AGAIN
        if order is not None and (report.epoch, report.generation) < order.rank and late:
            self.order.set(order)

    def _answer(self, reply: LogReply) -> None:
        question = self._questions.get(reply.id)
        if question is not None and not question.done():
            question.set_result(reply)

    async def _drop(self) -> None:
        channel, self._channel = self._channel, None
        for question in self._questions.values():
            if not question.done():
                question.set_exception(LinkBroken(f"node {self._name} is not connected any more"))
        if channel is not None:
            if not channel.routes_survive:
                self._routes = {}
            await channel.close()


def _way(node: Node, defaults: SshDefaults) -> object:
    """All that decides how a node is reached; a default that it overrides is not a part of it."""
    if node.ssh is None:
        return (node.local, node.agent_socket)
    user, identity = node.ssh.user or defaults.user, node.ssh.identity_file or defaults.identity_file
    return (node.ssh.host, node.ssh.port, node.ssh.host_key, user, identity, node.agent_socket)


def _sender_died(channel: Channel, broken: asyncio.Future[None], tasks: Supervisor, error: BaseException) -> None:
    """End the connection at once: orders would stand still until the node speaks next."""
    if not broken.done():
        broken.set_exception(error)
    tasks.job("close", channel.close())
