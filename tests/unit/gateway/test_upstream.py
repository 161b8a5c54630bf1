"""The pool of idle connections, by a clock that the test moves."""

import asyncio
import socket

from llmgw.base.time import Instant
from llmgw.fleet.table import TcpAddress
from llmgw.gateway.heads import ResponseHead
from llmgw.gateway.upstream import UpstreamConnection, UpstreamPool
from tests.fakes.engine import FakeEngine, running_engine
from tests.unit.gateway.support import address_of, until

REQUEST = b"POST /v1/completions HTTP/1.1\r\nhost: e\r\ncontent-length: 2\r\n\r\n"


class HandClock:
    def __init__(self) -> None:
        self.instant = 100.0

    def now(self) -> Instant:
        return Instant(self.instant)


class Sink:
    """Takes a response and remembers it."""

    def __init__(self) -> None:
        self.head: ResponseHead | None = None
        self.body = b""
        self.outcome = ""

    def response_data(self, head: ResponseHead | None, body: bytes, complete: bool, framed: bytes = b"") -> None:
        self.head = self.head or head
        self.body += body
        if complete:
            self.outcome = "complete"

    def response_broken(self, reason: str) -> None:
        self.outcome = reason


async def ask(connection: UpstreamConnection) -> Sink:
    sink = Sink()
    connection.send(sink, REQUEST, b"{}")
    await until(lambda: sink.outcome)
    return sink


async def idle_connection(pool: UpstreamPool, engine: FakeEngine) -> UpstreamConnection:
    connection = await pool.connect(address_of(engine), 1.0)
    assert (await ask(connection)).outcome == "complete"
    return connection


async def test_the_newest_idle_connection_is_taken_first() -> None:
    async with running_engine() as engine:
        pool = UpstreamPool(HandClock())
        first, second = await pool.connect(address_of(engine), 1.0), await pool.connect(address_of(engine), 1.0)
        await ask(first)
        await ask(second)
        assert pool.take(address_of(engine)) is second
        assert second.reused
        assert pool.take(address_of(engine)) is first
        assert pool.take(address_of(engine)) is None
        first.discard()
        second.discard()
        pool.close()


async def test_a_connection_that_was_idle_too_long_is_not_used() -> None:
    async with running_engine() as engine:
        clock = HandClock()
        pool = UpstreamPool(clock)
        await idle_connection(pool, engine)
        clock.instant += 3.9
        taken = pool.take(address_of(engine))
        assert taken is not None
        await ask(taken)
        clock.instant += 4.0
        assert pool.take(address_of(engine)) is None
        await until(lambda: not engine.connections)
        pool.close()


async def test_old_connections_are_swept_away_without_traffic() -> None:
    async with running_engine() as engine:
        clock = HandClock()
        pool = UpstreamPool(clock)
        await idle_connection(pool, engine)
        clock.instant += 4.0
        await until(lambda: pool.idle == 0)
        await until(lambda: not engine.connections)
        pool.close()


async def test_connections_to_other_addresses_are_closed() -> None:
    async with running_engine() as kept, running_engine() as dropped:
        pool = UpstreamPool(HandClock())
        await idle_connection(pool, kept)
        await idle_connection(pool, dropped)
        pool.keep(frozenset({address_of(kept)}))
        assert pool.idle == 1
        await until(lambda: not dropped.connections)
        assert len(kept.connections) == 1
        pool.close()
        await until(lambda: not kept.connections)


async def test_a_closed_pool_keeps_nothing() -> None:
    async with running_engine() as engine:
        pool = UpstreamPool(HandClock())
        connection = await pool.connect(address_of(engine), 1.0)
        pool.close()
        await ask(connection)
        assert pool.idle == 0
        await until(lambda: not engine.connections)


async def test_small_writes_are_not_held_back() -> None:
    async with running_engine() as engine:
        pool = UpstreamPool(HandClock())
        connection = await pool.connect(address_of(engine), 1.0)
        assert connection.transport is not None
        sock = connection.transport.get_extra_info("socket")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0
        connection.discard()
        pool.close()
        await until(lambda: not engine.connections)


async def test_a_cancelled_connect_leaves_nothing_open() -> None:
    async with running_engine() as engine:
        pool = UpstreamPool(HandClock())
        for turns in range(6):
            async with asyncio.TaskGroup() as group:
                task = group.create_task(pool.connect(address_of(engine), 1.0))
                for _ in range(turns):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait((task,))
                if not task.cancelled():
                    task.result().discard()
        await until(lambda: not engine.connections)
        pool.close()


async def test_connecting_gives_up_in_time() -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        fillers = [socket.socket() for _ in range(3)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(deaf.getsockname())
        pool = UpstreamPool(HandClock())
        try:
            await pool.connect(TcpAddress(*deaf.getsockname()), 0.05)
        except TimeoutError:
            outcome = "late"
        else:
            outcome = "connected"
        assert outcome == "late"
        pool.close()
        for filler in fillers:
            filler.close()
