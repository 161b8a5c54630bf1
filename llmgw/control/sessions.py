"""One session a node: connect, greet, send the newest order, fold reports; again with backoff when the link breaks.

A slow or dead node delays no other: each session is a task of its own. Every connection has a number, and the book listens
to a node's newest one alone. Ways to engines may outlive a connection (a tunnel of its own, a node's own address): they
are watched until the next one is up. A node that left the catalog keeps its session until it is empty, so that what it
runs is drained and not forgotten.

An order is sent with the values of the secrets that its shards name. They are looked up when it is sent and kept nowhere
here; of what was sent, a salted digest is remembered, so that a value that changed is sent again.
"""

import asyncio
import hashlib
import itertools
import logging
import random
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial

from llmgw import __version__
from llmgw.base.ids import NodeName, ShardId
from llmgw.control.book import FleetBook
from llmgw.fleet.order import NodeOrder
from llmgw.fleet.report import SERVING, Report
from llmgw.fleet.table import Address
from llmgw.fleet.view import report_of
from llmgw.ports.links import Channel, Link, LinkBroken, NoSecrets, SecretSource, Target
from llmgw.runtime.backoff import Backoff
from llmgw.runtime.latest import Latest
from llmgw.runtime.supervisor import Owned, Supervisor
from llmgw.spec.cluster import SshDefaults
from llmgw.spec.node import Node
from llmgw.wire.errors import ProtocolError
from llmgw.wire.frames import frame
from llmgw.wire.messages import PROTOCOL, Hello, LogReply, LogRequest, Order, Said, Using, Welcome, encode
from llmgw.wire.session import Session

log = logging.getLogger(__name__)

SILENCE = 35.0
"""Seconds without a byte after which a connection is dead, for the default `control.unreachable_after`."""
SHORTEST_SILENCE = 15.0
"""Agents report every 10 seconds; less than this, and one late report would end a good connection."""
SEND_AGAIN = 5.0
"""Seconds after which an order is sent again if reports do not show its generation."""
USES_EVERY = 2.0
"""Seconds between two words of what the gateways here do with a node's replicas."""
USES_PAUSE = 0.2
"""Seconds that news of it waits for more."""
FAREWELL = 2.0
"""Seconds for the last word."""
LOG_PATIENCE = 10.0
"""Seconds to wait for a node's reply to a question for logs."""


def silence_limit(unreachable_after: float) -> float:
    """Return after how much silence a connection is dead: a little after its node gets no new work for the same reason."""
    return max(SHORTEST_SILENCE, unreachable_after + 5.0)


class Sessions:
    """All sessions. Implements `OrderSink`. Use from the event loop's thread."""

    def __init__(
        self,
        link: Callable[[Node], Link],
        book: FleetBook,
        rng: random.Random,
        secrets: SecretSource | None = None,
        silence: Callable[[], float] = lambda: SILENCE,
    ) -> None:
        self._link = link
        self._book = book
        self._rng = rng
        self._secrets = secrets or NoSecrets()
        self._silence = silence
        self._tasks = Supervisor("sessions")
        self._sessions: dict[NodeName, tuple[NodeSession, Owned]] = {}
        self._using: Callable[[NodeName], Using | None] = lambda _: None
        self._news = Latest(0)

    def told_by(self, using: Callable[[NodeName], Using | None]) -> None:
        """Tell every agent what this returns for it. Once, before the first session."""
        self._using = using

    def _using_of(self, name: NodeName) -> Using | None:
        return self._using(name)

    def say_uses(self) -> None:
        """Tell every agent of uses now rather than later."""
        self._news.set(self._news.value + 1)

    async def farewell(self, using: Using) -> None:
        """Tell every agent that answers a last word, for a limited time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(FAREWELL):
                await asyncio.gather(*(session.tell(using) for session, _ in self._sessions.values()))

    def stand_down(self) -> None:
        """Order nothing any more: another control plane does. Nodes keep to their last orders."""
        for session, _ in self._sessions.values():
            if session.order.value is not None:
                session.order.set(None)

    def follow(self, cluster: str, nodes: Mapping[NodeName, Node], defaults: SshDefaults) -> None:
        """Have a session for each of these nodes, and for each other one that is not empty."""
        for name, node in nodes.items():
            running = self._sessions.get(name)
            if running is not None and running[0].reaches(node):
                running[0].take(node, defaults)
                continue
            order, held_something = None, False
            if running is not None:
                order, held_something = running[0].order.value, running[0].held_something
                running[0].replaced = True
                running[1].cancel()
            self._book.expect(name)
            session = NodeSession(
                cluster,
                name,
                node,
                defaults,
                self._link(node),
                self._book,
                random.Random(self._rng.random()),
                self._secrets,
                self._silence,
                using=partial(self._using_of, name),
                news=self._news,
            )
            session.order.set(order)
            session.held_something = held_something
            self._sessions[name] = (session, self._tasks.loop(name, session.run()))
        for name in [name for name in self._sessions if name not in nodes]:
            session, _ = self._sessions[name]
            if session.empty(report_of(self._book.views[name])):
                log.info("node left and is empty", extra={"node": name})
                self.forget(name)

    def forget(self, name: NodeName) -> None:
        """End a node's session and cease to know of it; a later `follow` with it begins anew."""
        session, task = self._sessions.pop(name)
        session.replaced = True
        task.cancel()
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
        """Replace the newest order of each node; one that stays is sent again if the value of a secret changed."""
        for name, order in orders.items():
            running = self._sessions.get(name)
            if running is not None and (running[0].order.value != order or running[0].has_other_secrets(order)):
                running[0].order.set(order)

    @property
    def alarms(self) -> tuple[str, ...]:
        """What keeps requests from engines though their nodes may answer."""
        troubles = {name: session.trouble for name, (session, _) in sorted(self._sessions.items())}
        return tuple(f"engines of node {name} cannot be reached: {text}" for name, text in troubles.items() if text)

    async def logs(self, node: NodeName, request: LogRequest) -> LogReply:
        """Ask a node for an engine's log. Raises LinkBroken if it cannot be asked now."""
        running = self._sessions.get(node)
        if running is None:
            raise LinkBroken(f"there is no node {node}")
        return await running[0].logs(request)

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
        secrets: SecretSource,
        silence: Callable[[], float],
        *,
        using: Callable[[], Using | None],
        news: Latest[int],
    ) -> None:
        self._using = using
        self._news = news
        self._cluster = cluster
        self._name = name
        self._node = node
        self._defaults = defaults
        self._link = link
        self._book = book
        self._backoff = Backoff(0.25, 15.0, rng)
        self._secrets = secrets
        self._silence = silence
        self._salt = rng.randbytes(16)
        self._sent_secrets = b""
        self._number = 0
        self._targets: dict[ShardId, Target] = {}
        self._way: Channel | None = None
        """The newest channel that there was, for the routes that outlive it."""
        self._watch: Owned | None = None
        self._watching = Supervisor(f"routes.{name}")
        self._channel: Channel | None = None
        self._questions: dict[int, asyncio.Future[LogReply]] = {}
        self._numbers = itertools.count(1)
        self._sent_at = 0.0
        self._heeds = False
        self.order: Latest[NodeOrder | None] = Latest(None)
        self.held_something = False
        self.replaced = False
        """Whether another session has this node now, or none; this one makes no further connection."""

    @property
    def node(self) -> Node:
        """The node as this session knows it."""
        return self._node

    @property
    def trouble(self) -> str:
        """Why a way to an engine is not there; empty if all are."""
        return self._way.trouble if self._way is not None else ""

    def reaches(self, node: Node) -> bool:
        """Whether this session would go to the same place for this spec."""
        return _place(self._node) == _place(node)

    def take(self, node: Node, defaults: SshDefaults) -> None:
        """Know the node by this spec from now on. Who logs in with which key matters at the next connect, and cuts nothing."""
        self._node = node
        self._defaults = defaults

    def has_other_secrets(self, order: NodeOrder) -> bool:
        """Whether secrets of this order, which was sent, have other values by now."""
        return bool(self._sent_secrets) and self._digest(self._values(order)) != self._sent_secrets

    def empty(self, report: Report | None) -> bool:
        """Whether the node holds nothing and shall hold nothing.

        One that never spoke is taken to be empty, unless an earlier control plane had engines there. One that has not
        obeyed its newest order may still obey the one before, which a broken link can have left on its way.
        """
        order = self.order.value
        holds = self.held_something if report is None else bool(report.shards)
        obeyed = report is None or order is None or (report.epoch, report.generation) >= order.rank
        return not holds and obeyed and (order is None or not order.shards)

    async def run(self) -> None:
        """Keep a connection up, for ever."""
        self._number = self._book.connecting(self._name)
        self._book.rerouted(self._name, self._number, {})  # those of an earlier session went with it
        try:
            while True:
                try:
                    await self._connection()
                except (LinkBroken, ProtocolError) as error:
                    self._book.lost(self._name, self._number, str(error), self._surviving())
                    log.warning("node does not answer: %s", error, extra={"node": self._name})
                finally:
                    await self._drop()
                await asyncio.sleep(self._backoff.next())
                if self.replaced:
                    raise asyncio.CancelledError  # a library on the way kept ours to itself
                self._number = self._book.connecting(self._name)
        finally:
            await self._watching.stop()
            await self._link.close()

    async def logs(self, request: LogRequest) -> LogReply:
        """Ask for an engine's log; the request's id is set here. Raises LinkBroken."""
        channel = self._channel
        if channel is None:
            raise LinkBroken(f"node {self._name} is not connected now")
        number = next(self._numbers)
        question: asyncio.Future[LogReply] = asyncio.get_running_loop().create_future()
        self._questions[number] = question
        try:
            async with asyncio.timeout(LOG_PATIENCE + request.wait):
                await channel.send(frame(encode(replace(request, id=number))))
                return await question
        except TimeoutError as error:
            raise LinkBroken(f"node {self._name} did not answer within {LOG_PATIENCE + request.wait:.0f} s") from error
        finally:
            del self._questions[number]

    async def _connection(self) -> None:
        channel = await self._link.connect(self._node, self._defaults)
        if self._watch is not None:
            self._watch.cancel()
        self._channel = self._way = channel
        broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        died = partial(_part_died, channel, broken, self._watching)
        self._watch = self._watching.job("ways", self._follow_ways(channel), died)
        session = Session("control_of_agent")
        await channel.send(frame(encode(Hello(PROTOCOL, __version__, self._cluster, self._name))))
        sender: Owned | None = None
        tasks = Supervisor(f"session.{self._name}")
        try:
            while True:
                for message in session.feed(await self._receive(channel)):
                    match message:
                        case Welcome():
                            log.info("node connected", extra={"node": self._name, "version": message.version})
                            if sender is None:
                                died = partial(_part_died, channel, broken, tasks)
                                sender = tasks.job("orders", self._orders(channel), died)
                                if message.users:
                                    self._heeds = True
                                    tasks.job("uses", self._uses(channel), died)
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
        silence = self._silence()
        try:
            async with asyncio.timeout(silence):
                return await channel.receive()
        except TimeoutError as error:
            raise LinkBroken(f"silent for {silence:.0f} s") from error

    async def _orders(self, channel: Channel) -> None:
        while True:
            version = self.order.version
            order = self.order.value
            if order is not None:
                values = self._values(order)
                self._sent_secrets = self._digest(values)
                await channel.send(frame(encode(Order(order, values))))
                del values
                self._sent_at = asyncio.get_running_loop().time()
            await self.order.newer(version)

    async def _uses(self, channel: Channel) -> None:
        while True:
            version = self._news.version
            using = self._using()
            if using is not None:
                await channel.send(frame(encode(using)))
            await asyncio.sleep(USES_PAUSE)
            with suppress(TimeoutError):
                async with asyncio.timeout(USES_EVERY):
                    await self._news.newer(version)

    async def tell(self, using: Using) -> None:
        """Send a word of uses, if there is a connection to an agent that heeds it."""
        if self._channel is not None and self._heeds:
            with suppress(LinkBroken):
                await self._channel.send(frame(encode(using)))

    async def _report(self, channel: Channel, report: Report) -> None:
        self._targets = {
            one.spec.shard: Target(one.spec.port, one.spec.host) for one in report.shards if one.phase in SERVING
        }
        routes = await channel.routes(self._targets)
        self._book.heard(self._name, self._number, report, routes)
        order = self.order.value
        late = asyncio.get_running_loop().time() - self._sent_at > SEND_AGAIN
        if order is not None and (report.epoch, report.generation) < order.rank and late:
            self.order.set(order)

    async def _follow_ways(self, channel: Channel) -> None:
        """Tell the book when ways come or go by themselves, also after the connection's end, until there is another one."""
        while True:
            await channel.stirred()
            try:
                routes = await channel.routes(self._targets) if channel is self._channel else channel.surviving()
            except LinkBroken:  # the connection's own task is told the same, and says so
                routes = channel.surviving()
            self._book.rerouted(self._name, self._number, routes)

    def _surviving(self) -> dict[ShardId, Address]:
        return self._way.surviving() if self._way is not None else {}

    def _values(self, order: NodeOrder) -> dict[str, str]:
        """Look up the secrets that an order's shards name; one that is not known is left out, and the agent says so."""
        names = sorted({name for wanted in order.shards for name in wanted.spec.secrets.values()})
        found = {name: self._secrets.get(name) for name in names}
        return {name: value for name, value in found.items() if value is not None}

    def _digest(self, values: Mapping[str, str]) -> bytes:
        digest = hashlib.blake2b(key=self._salt)
        for name, value in sorted(values.items()):
            digest.update(f"{name}={len(value)}:{value}".encode())
        return digest.digest()

    def _answer(self, reply: LogReply) -> None:
        question = self._questions.get(reply.id)
        if question is not None and not question.done():
            question.set_result(reply)

    async def _drop(self) -> None:
        channel, self._channel = self._channel, None
        self._heeds = False
        for question in self._questions.values():
            if not question.done():
                question.set_exception(LinkBroken(f"node {self._name} is not connected any more"))
        if channel is not None:
            await channel.close()


def _place(node: Node) -> object:
    """All that decides where a node is, and not how it is logged in to."""
    if node.ssh is None:
        return (node.local, node.agent_socket)
    hops = [(hop.host, hop.port, hop.host_key) for hop in node.ssh.proxy_jump]
    return (node.ssh.host, node.ssh.port, node.ssh.host_key, hops, node.agent_socket)


def _part_died(channel: Channel, broken: asyncio.Future[None], tasks: Supervisor, error: BaseException) -> None:
    """End the connection at once: orders, or the ways to engines, would stand still until the node speaks next."""
    if not broken.done():
        broken.set_exception(error)
    tasks.job("close", channel.close())
