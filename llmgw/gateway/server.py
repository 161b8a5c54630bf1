"""`Gateway`: the listening side, as one object that its owner starts, feeds tables, asks for usage, and stops.

It knows no control plane: who gets tables from where is `worker`'s business, or the embedding server's.
"""

import asyncio
import logging
import random
import select
import socket
import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial

from llmgw.base.time import Clock
from llmgw.fleet.access import Access
from llmgw.fleet.table import EndpointTable
from llmgw.gateway.access_log import AccessLog
from llmgw.gateway.plane import Plane
from llmgw.gateway.protocol import ClientConnection, Clients
from llmgw.gateway.records import Ledger
from llmgw.gateway.tracing import Tracing
from llmgw.ports.traces import SpanSink
from llmgw.runtime.supervisor import Supervisor
from llmgw.wire.messages import EndpointUsage, Sample

log = logging.getLogger(__name__)

BACKLOG = 4096
FLUSH = 1.0
"""Seconds in which a client that was broken off may take what it is still sent."""

NEW = 1.0
"""Seconds at a stop in which a client that has just connected may begin to ask."""
ROUNDS = 5
"""Rounds of the event loop in which it makes a client of a connection that it accepted."""
SHAKING = 0.25
"""Seconds at a stop in which a TLS handshake may end: before, nobody counts as a client."""
HANDSHAKE = 10.0
"""Seconds that a TLS handshake may take."""

Listen = socket.socket | tuple[str, int]


class Gateway:
    """Serves clients by the newest table. Use from one event loop; start once, stop once."""

    def __init__(self, clock: Clock, rng: random.Random) -> None:
        self._supervisor = Supervisor("gateway")
        self._plane = Plane(clock, rng, self._supervisor)
        self._clients = Clients()
        self._server: asyncio.Server | None = None
        self._listening = ""
        self._tls = False

    async def bind(self, listen: Listen, tls: ssl.SSLContext | None = None) -> None:
        """Take a bound socket, or a host and port, without listening yet; clients speak TLS if told so. Raises OSError."""
        self._tls = tls is not None
        listening = partial(
            asyncio.get_running_loop().create_server,
            self._connection,
            backlog=BACKLOG,
            start_serving=False,
            ssl=tls,
            ssl_handshake_timeout=HANDSHAKE if tls else None,
            ssl_shutdown_timeout=FLUSH if tls else None,
        )
        if isinstance(listen, socket.socket):
            self._server = await listening(sock=listen)
        else:
            host, port = listen
            self._server = await listening(host, port)
        name = self._server.sockets[0].getsockname()
        self._listening = f"{name[0]}:{name[1]}" if isinstance(name, tuple) else str(name)

    async def accept(self) -> None:
        """Accept clients from now on, unless it is stopping."""
        assert self._server is not None
        if not self._plane.stopping:
            await self._server.start_serving()

    async def start(self, listen: Listen, tls: ssl.SSLContext | None = None) -> None:
        """Bind, and accept at once. Raises OSError."""
        await self.bind(listen, tls)
        await self.accept()

    async def stop(self, drain: float) -> None:
        """Accept nobody, let running requests finish for so many seconds, break off the rest, close everything.

        Another process may serve at the port already, so whoever was let in by the kernel before it knew is served: what
        waits to be accepted is, and who has just come may ask.
        """
        plane = self._plane
        plane.stopping = True
        plane.ready = False
        if self._server is not None:
            await self._take_in(self._server)
            self._server.close()
            if self._tls:
                await asyncio.sleep(min(drain, SHAKING))
        for client in self._clients:
            client.close_if_idle(new_too=False)
        first = min(drain, NEW)
        gone = await self._clients.gone(first)
        if not gone:
            for client in self._clients:
                client.close_if_idle(new_too=True)
            gone = await self._clients.gone(drain - first)
        self._clients.stop_sweeping()
        if not gone:
            log.warning("drain deadline passed", extra={"clients": len(self._clients)})
            for client in self._clients:
                client.cancel()
            if not await self._clients.gone(FLUSH):
                for client in self._clients:
                    client.abort()
                await self._clients.gone(FLUSH)
        plane.close()
        plane.pool.close()
        await self._supervisor.stop()
        if self._server is not None:
            with suppress(TimeoutError):  # a handshake that does not go on is no client yet, and nobody waits for it
                async with asyncio.timeout(FLUSH):
                    await self._server.wait_closed()

    async def _take_in(self, server: asyncio.Server) -> None:
        """Accept who waits at the listening sockets: closing them would reset those connections."""
        waiting = select.poll()
        for one in server.sockets:
            waiting.register(one.fileno(), select.POLLIN)
        rounds = ROUNDS
        while rounds > 0:
            someone = any(event & select.POLLIN for _, event in waiting.poll(0))
            rounds = ROUNDS if someone else rounds - 1
            await asyncio.sleep(0)

    def set_table(self, table: EndpointTable, keys: Mapping[str, str] | None = None) -> None:
        """Go by this table from now on, and by the keys that it names; requests in flight are not touched."""
        self._plane.keys.replace(keys or {})
        self._plane.set_table(table)

    def set_access(self, access: Access) -> None:
        """Let in who may come by this from now on; before the first, nobody is."""
        self._plane.door.set_access(access)

    @property
    def open(self) -> bool:
        """Whether it knows who is to be let in."""
        return not self._plane.door.closed

    @property
    def ledger(self) -> Ledger:
        """What requests cost that the control plane does not have yet."""
        return self._plane.ledger

    @property
    def table_version(self) -> int:
        """The version of the table that new requests go by; 0 before the first."""
        return self._plane.index.version

    @property
    def address(self) -> str:
        """Where it listens: `host:port`, or a Unix socket's path."""
        return self._listening

    @property
    def requests(self) -> int:
        """How many requests to models were answered, refusals included."""
        return self._plane.requests

    @property
    def clients(self) -> int:
        """How many clients are connected."""
        return len(self._clients)

    @property
    def idle_upstreams(self) -> int:
        """How many idle connections to engines are kept."""
        return self._plane.pool.idle

    def samples(self) -> list[Sample]:
        """Return what was counted since the start, and what is so now."""
        return [*self._plane.meter.samples(), *self._plane.samples()]

    def record(self, access_log: AccessLog) -> None:
        """Write every request that is over into this log. Once, before start."""
        self._plane.on_finished(access_log.record)

    def trace(self, spans: SpanSink) -> None:
        """Give every request to a model a span. Once, before start."""
        tracing = self._plane.tracing = Tracing(spans)
        self._plane.on_finished(tracing.finished)

    def usage(self) -> tuple[EndpointUsage, ...]:
        """Return what is in flight at every endpoint of the table, then at those withdrawn that are still busy."""
        return self._plane.usage()

    def on_withdrawn_quiet(self, callback: Callable[[], None]) -> None:
        """Have this called when an endpoint that left the table has nothing in flight any more. Once, before start."""
        self._plane.on_withdrawn_quiet(callback)

    def _connection(self) -> ClientConnection:
        return ClientConnection(self._plane, self._clients)
