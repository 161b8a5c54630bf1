"""`run_worker`: a gateway as a process of its own, following a control plane over a Unix socket.

The control plane is where tables come from, not what serving depends on: without it the worker goes on with its last
table and keeps trying to reach it. Usage is said whole every time, twice a second, so a lost message costs half a
second; it is said at once when a table was taken or a withdrawn endpoint became quiet, because a drain waits for just
that. It goes on being said while the worker itself drains: a silent worker's counts become unknown, and unknown blocks
stops.

What requests cost is said every second, and again until the control plane has kept it; at a stop the worker waits for that.

It listens once it has a table: beside workers that share its port it would otherwise refuse what they can answer.
"""

import asyncio
import logging
import os
import random
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import cast

from llmgw import __version__
from llmgw.base.time import Clock
from llmgw.gateway.access_log import AccessLog
from llmgw.gateway.server import Gateway, Listen
from llmgw.gateway.tls import ServerTls
from llmgw.ports.traces import SpanSink
from llmgw.runtime.backoff import Backoff
from llmgw.runtime.supervisor import Supervisor
from llmgw.wire.errors import ProtocolError
from llmgw.wire.frames import frame
from llmgw.wire.messages import (
    PROTOCOL,
    AccessTable,
    Spending,
    SpendingKept,
    Table,
    WorkerCounts,
    WorkerHello,
    WorkerUsage,
    encode,
)
from llmgw.wire.session import Session

log = logging.getLogger(__name__)

USAGE_INTERVAL = 0.5
"""Seconds."""
SPENDING_EVERY = 2
"""Usage is said so often for once that what requests cost is said."""
SAID_AGAIN = 5.0
"""Seconds without a word after which a batch is said again: the store may have been away."""
LAST_WORDS = 3.0
"""Seconds at a stop in which the control plane is to confirm what requests cost."""
COUNTS_EVERY = 4
"""Usage is said so often for once that counts are said."""
LOOK_AGAIN = 0.02
"""Seconds between two looks at whether it is confirmed."""
FIRST_TABLE = 5.0
"""Seconds to wait for a table before listening without one: then a refusal says more than a closed port."""
RETRY_BASE = 0.2
RETRY_MAXIMUM = 5.0


async def run_worker(
    *,
    listen: Listen,
    control: Path,
    drain: float,
    clock: Clock,
    rng: random.Random,
    stop: asyncio.Event,
    tls: ServerTls | None = None,
    access_log: AccessLog | None = None,
    spans: SpanSink | None = None,
) -> None:
    """Serve on `listen` by the tables that come from the socket `control`, until `stop` is set.

    Then running requests have `drain` seconds to finish. Raises OSError if it cannot listen, LoopEnded on a bug.
    """
    gateway = Gateway(clock, rng)
    run = f"{rng.getrandbits(64):016x}"
    link = ControlLink(control, gateway, run, Backoff(RETRY_BASE, RETRY_MAXIMUM, rng))
    gateway.on_withdrawn_quiet(link.say_usage)
    if access_log is not None:
        gateway.record(access_log)
    if spans is not None:
        gateway.trace(spans)
    await gateway.bind(listen, tls.context if tls is not None else None)
    supervisor = Supervisor("worker")
    over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def accept() -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(FIRST_TABLE):
                await link.first_table.wait()
        await gateway.accept()

    async def stopped() -> None:
        await stop.wait()
        if not over.done():
            over.set_result(None)

    def failed(error: BaseException) -> None:
        if not over.done():
            over.set_exception(error)

    supervisor.loop("control", link.run())
    if tls is not None:
        supervisor.loop("certificate", tls.follow())
    supervisor.job("accept", accept())
    supervisor.job("stop", stopped())
    supervisor.job("watch", supervisor.failure(), failed)
    try:
        await over
    finally:
        await gateway.stop(drain)
        await link.close()
        await supervisor.stop()


class ControlLink:
    """The way to the control plane, tried for ever. One connection at a time."""

    def __init__(self, control: Path, gateway: Gateway, run: str, backoff: Backoff) -> None:
        self._control = control
        self._gateway = gateway
        self._run = run
        self._backoff = backoff
        self._connection: ControlConnection | None = None
        self._closed = False
        self.first_table = asyncio.Event()
        """Set when a table was taken, and who may use it is known."""

    async def run(self) -> None:
        """Connect, and connect again whenever that is over, until cancelled."""
        loop = asyncio.get_running_loop()
        down = False
        while True:
            lost: asyncio.Future[str] = loop.create_future()
            try:
                connect = partial(ControlConnection, self._gateway, self._run, self.first_table, lost)
                _, connection = await loop.create_unix_connection(connect, str(self._control))
            except OSError as error:
                why = str(error)
            else:
                if not self._closed:
                    self._connection = connection
                why = await lost
                self._connection = None
                if connection.heard:
                    self._backoff.reset()
                    down = False
            if not down:
                log.warning("control plane lost; serving on", extra={"socket": str(self._control), "why": why})
                down = True
            await asyncio.sleep(self._backoff.next())

    def say_usage(self) -> None:
        """Say now what is in flight, if somebody listens."""
        if self._connection is not None:
            self._connection.say_usage()

    async def close(self) -> None:
        """Say the last usage, have what requests cost confirmed, and close; nothing of it for long, if nobody answers."""
        await self._have_it_kept()
        self._closed = True
        connection = self._connection
        if connection is not None:
            connection.say_usage()
            connection.say_counts()
            await connection.close(timeout=1.0)

    async def _have_it_kept(self) -> None:
        ledger = self._gateway.ledger
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS):
                while not ledger.empty:
                    if self._connection is not None:
                        self._connection.say_spending()
                    await asyncio.sleep(LOOK_AGAIN)
        if not ledger.empty:
            log.error("what some requests cost is lost: nobody confirmed it", extra={"requests": ledger.requests})


class ControlConnection(asyncio.Protocol):
    """One connection to the control plane; `lost` gets the reason of its end."""

    def __init__(self, gateway: Gateway, run: str, first_table: asyncio.Event, lost: asyncio.Future[str]) -> None:
        self._gateway = gateway
        self._run = run
        self._said: tuple[int, float] = (0, 0.0)
        """Number of the batch that was said last, and when, by the loop's clock."""
        self._first_table = first_table
        self._lost = lost
        self._session = Session("worker")
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._paused = False
        self._ticks = 0
        self._why = "it closed the connection"
        self.heard = False
        """Whether the control plane has said anything that could be understood."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Greet, and say at once what is in flight: after a reconnect that may be much."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one in all but name
        hello = WorkerHello(PROTOCOL, __version__, os.getpid(), self._gateway.address, keys=True)
        self._transport.write(frame(encode(hello)))
        self._tick()

    def data_received(self, data: bytes) -> None:
        """Take tables, and say that they are in force; who may ask for what; and what is confirmed."""
        try:
            messages = self._session.feed(data)
        except ProtocolError as error:
            self._why = str(error)
            assert self._transport is not None
            self._transport.abort()
            return
        tables = [message for message in messages if isinstance(message, Table)]
        for message in messages:
            if isinstance(message, AccessTable):
                self._gateway.set_access(message.access)
            elif isinstance(message, SpendingKept) and message.source == self._run:
                self._gateway.ledger.kept(message.sequence)
        if tables:
            self.heard = True
            self._gateway.set_table(tables[-1].table, tables[-1].keys)
            self.say_usage()
        if self.heard and self._gateway.open:
            self._first_table.set()

    def pause_writing(self) -> None:
        """Say nothing while the control plane does not read; what is said then is whole and newer."""
        self._paused = True

    def resume_writing(self) -> None:
        """Go on."""
        self._paused = False

    def connection_lost(self, exc: Exception | None) -> None:
        """Report the end."""
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()
        if not self._lost.done():
            self._lost.set_result(str(exc) if exc is not None else self._why)

    def say_counts(self) -> None:
        """Say what was counted."""
        if self._transport is not None and not self._paused and not self._transport.is_closing():
            self._transport.write(frame(encode(WorkerCounts(tuple(self._gateway.samples())))))

    def say_spending(self) -> None:
        """Say what requests cost, unless that was said a moment ago and is still to be confirmed."""
        if self._transport is None or self._paused or self._transport.is_closing():
            return
        batch = self._gateway.ledger.batch(self._run)
        now = asyncio.get_running_loop().time()
        if batch is not None and (self._said[0] != batch.sequence or now - self._said[1] >= SAID_AGAIN):
            self._said = (batch.sequence, now)
            self._transport.write(frame(encode(Spending(batch))))

    def say_usage(self) -> None:
        """Say now what is in flight."""
        if self._transport is None or self._paused or self._transport.is_closing():
            return
        gateway = self._gateway
        self._transport.write(frame(encode(WorkerUsage(gateway.table_version, gateway.usage(), gateway.requests))))

    async def close(self, timeout: float) -> None:
        """Close after what was written, and wait for that."""
        if self._transport is not None:
            self._transport.close()
        await asyncio.wait((self._lost,), timeout=timeout)

    def _tick(self) -> None:
        self.say_usage()
        self._ticks += 1
        if self._ticks % SPENDING_EVERY == 0:
            self.say_spending()
        if self._ticks % COUNTS_EVERY == 0:
            self.say_counts()
        self._timer = asyncio.get_running_loop().call_later(USAGE_INTERVAL, self._tick)
