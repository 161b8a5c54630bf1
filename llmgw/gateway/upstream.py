"""Connections to engines, and the pool that keeps them while they are idle.

An engine closes an idle connection after 5 s (uvicorn's and cpp-httplib's default), so the pool lets go after 4: a pool
that is more patient than the engine sends requests into connections that are just being closed. The race that is
left is the caller's to retry: a reused connection that ends before its first byte has carried no answer.

One parser a connection, its body callback the append of a list: no Python frame per piece. What arrived in one read is
handed on in one piece; a whole response behind a head that was seen before is not parsed at all, and neither is a read that is
just one chunk, as most events of a stream are. The pool starts no task; it is told the time, and one timer sweeps it while
something is idle.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from typing import Protocol, TypeVar, cast

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from llmgw.base.time import Clock, Instant
from llmgw.fleet.table import Address, TcpAddress, UnixAddress
from llmgw.gateway.heads import Header, ResponseHead, read_response_head
from llmgw.gateway.seen import Cut, SeenHeads, cut

IDLE_LIMIT = 4.0
"""Seconds."""
SWEEP_INTERVAL = 1.0
JOINED = 16 << 10
"""Bytes of a body below which copying it behind its head costs less than a gathering write."""

LONGEST_SIZE = 8
"""Digits of a chunk's size that are read here."""
HEX = b"0123456789abcdefABCDEF"

P = TypeVar("P", bound=asyncio.Protocol)


class ResponseSink(Protocol):
    """Takes one response, a read at a time; or `broken` at any point, after which nothing follows."""

    def response_data(self, head: ResponseHead | None, body: bytes, complete: bool, framed: bytes = b"") -> None:
        """Take what one read brought: the head if it ended there, bytes of the body without their framing, the end.

        `framed` is the body as the one chunk that it came as, if it did. When the response is complete, the connection is
        already back in the pool.
        """
        ...

    def response_broken(self, reason: str) -> None:
        """Learn that the response will not be whole; the connection is closed."""
        ...


class UpstreamConnection(asyncio.Protocol):
    """One connection to an engine. Carries one request at a time; knows nothing of clients."""

    __slots__ = (
        "_between",
        "_complete",
        "_ended",
        "_head",
        "_headers",
        "_interim",
        "_parser",
        "_pieces",
        "_pool",
        "_reason",
        "_reusable",
        "_sink",
        "_surplus",
        "address",
        "answered",
        "host",
        "idle_since",
        "on_body",
        "reused",
        "transport",
    )

    def __init__(self, pool: "UpstreamPool", address: Address) -> None:
        self._pool = pool
        self.address = address
        self.host = host_of(address)
        """What the engine is called in requests."""
        self.idle_since = Instant(0.0)
        self.reused = False
        """Whether it carried a request before the present one."""
        self.answered = False
        """Whether a first byte of the present response came."""
        self.transport: asyncio.Transport | None = None
        self._sink: ResponseSink | None = None
        self._pieces: list[bytes] = []
        self.on_body = self._pieces.append
        self._head: ResponseHead | None = None
        self._headers: list[Header] = []
        self._reason = b""
        self._interim = False
        self._complete = False
        self._between = False
        """Whether all that came ends with a chunk's end, so that the next one's size is what comes next."""
        self._ended = 0
        """Pieces of the body when the response was complete."""
        self._reusable = False
        self._surplus = False
        self._parser = HttpResponseParser(self)

    # What the exchange calls

    def send(self, sink: ResponseSink, head: bytes, body: bytes) -> None:
        """Send a request; its response goes to the sink."""
        assert self.transport is not None
        self._sink = sink
        self.answered = self._complete = self._between = False
        self._head = None
        if len(body) < JOINED:
            self.transport.write(head + body)
        else:
            self.transport.writelines((head, body))

    def pause(self) -> None:
        """Stop reading until `resume`: the client does not keep up."""
        if self.transport is not None:
            self.transport.pause_reading()

    def resume(self) -> None:
        """Read on."""
        if self.transport is not None:
            self.transport.resume_reading()

    def discard(self) -> None:
        """Close at once; nobody is told."""
        self._sink = None
        if self.transport is not None:
            self.transport.abort()

    # What the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is one in all but name

    def data_received(self, data: bytes) -> None:
        """Parse, and hand on what came of the response."""
        sink = self._sink
        if sink is None:
            self._pool.forget(self)
            self.discard()
            return
        if self._between:
            chunk = only_chunk(data)
            if chunk:
                sink.response_data(None, chunk, False, data)
                return
            self._between = False
        whole = None if self.answered else cut(data)
        if whole is not None and (known := self._pool.seen.get(whole)) is not None:
            self.answered = self._complete = self._reusable = True
            self._let_go(intact=True)
            sink.response_data(known.with_length(whole.length), whole.body, complete=True)
            return
        failure = ""
        headless = self._head is None
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade:
            failure = "it switched protocols"
        except HttpParserError as error:
            failure = f"it sent what is not HTTP: {error}"
        if self._between and data[-2:] != b"\r\n":
            self._between = False
        body = self._gathered() if self._pieces else b""
        head = self._head if headless else None
        if self._complete:
            if whole is not None and head is not None and not failure:
                self._remember(whole, head)
            self._let_go(intact=not failure)
            sink.response_data(head, body, complete=True)
            return
        if body or head is not None:
            sink.response_data(head, body, complete=False)
        if failure and self._sink is sink:
            self.answered = True
            self.discard()
            sink.response_broken(failure)

    def connection_lost(self, exc: Exception | None) -> None:
        """Learn that the engine, or this side, closed."""
        sink, self._sink = self._sink, None
        if sink is None:
            self._pool.forget(self)
        elif exc is None and self._head is not None and self._head.framing == "close":
            sink.response_data(None, b"", complete=True)
        else:
            sink.response_broken("it closed the connection" if exc is None else f"the connection failed: {exc}")

    # What the parser calls; `on_body` is the append above

    def on_message_begin(self) -> None:
        """Start a head, or notice a response that nobody asked for."""
        if self._complete or self._sink is None:
            self._surplus = True
        self.answered = True
        self._headers = []
        self._reason = b""

    def on_status(self, reason: bytes) -> None:
        """Take the reason phrase, which may come in parts."""
        self._reason += reason

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; a trailer comes here too, after the head was made, and goes nowhere."""
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Make the head, unless it is an interim one."""
        status = self._parser.get_status_code()
        self._interim = 100 <= status < 200
        if not self._interim and not self._surplus:
            self._head = read_response_head(status, self._reason, self._headers)

    def on_chunk_header(self) -> None:
        """Note that a chunk begins."""
        self._between = False

    def on_chunk_complete(self) -> None:
        """Note that it ended."""
        self._between = True

    def on_message_complete(self) -> None:
        """Note the end, and what only now the parser can tell; the rest is done when the whole read is parsed."""
        if not self._interim:
            if not self._complete:
                self._ended = len(self._pieces)
            self._complete = True
            self._reusable = self._parser.should_keep_alive()

    def _gathered(self) -> bytes:
        """Return what the parser found of the body."""
        pieces = self._pieces
        if self._surplus and self._complete:
            del pieces[self._ended :]  # of a response that nobody asked for
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        return body

    def _remember(self, whole: Cut, head: ResponseHead) -> None:
        if head.framing == "length" and self._reusable and not self._surplus:
            self._pool.seen.keep(whole, head)

    def _let_go(self, intact: bool) -> None:
        self._sink = None
        assert self.transport is not None
        sent = self.transport.get_write_buffer_size() == 0
        if intact and sent and self._reusable and not self._surplus:
            self._pool.put(self)
        else:
            self.transport.abort()


class UpstreamPool:
    """Idle connections by address, newest first, so that the rest grow old and are let go."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.seen: SeenHeads[ResponseHead] = SeenHeads()
        """Heads of responses with a length, after which their connections could be used again."""
        self._idle: dict[Address, deque[UpstreamConnection]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._trust: ssl.SSLContext | None = None

    def take(self, address: Address) -> UpstreamConnection | None:
        """Return an idle connection; None if there is none that the engine can be trusted to hold open still."""
        idle = self._idle.get(address)
        while idle:
            connection = idle.pop()
            fresh = self._clock.now() - connection.idle_since < IDLE_LIMIT
            if fresh and connection.transport is not None and not connection.transport.is_closing():
                connection.reused = True
                return connection
            connection.discard()
        return None

    async def connect(self, address: Address, timeout: float) -> UpstreamConnection:
        """Return a new connection. Raises OSError, TimeoutError. Cancelled, it leaves nothing open: the loops see to it."""
        connection = await self.open(address, lambda: UpstreamConnection(self, address), timeout)
        if connection.transport is None or connection.transport.is_closing():
            raise ConnectionResetError("the engine closed the connection as soon as it was open")
        return connection

    async def open(self, address: Address, factory: Callable[[], P], timeout: float) -> P:
        """Return a protocol of one's own, connected. Raises OSError, TimeoutError."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(timeout):
            if isinstance(address, UnixAddress):
                return (await loop.create_unix_connection(factory, address.path))[1]
            if address.tls:
                host, trust = address.host, self._trusting()
                return (await loop.create_connection(factory, host, address.port, ssl=trust, server_hostname=host))[1]
            return (await loop.create_connection(factory, address.host, address.port))[1]

    def put(self, connection: UpstreamConnection) -> None:
        """Keep a connection whose response is complete."""
        if self._closed:
            connection.discard()
            return
        connection.idle_since = self._clock.now()
        self._idle.setdefault(connection.address, deque()).append(connection)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(SWEEP_INTERVAL, self._sweep)

    def forget(self, connection: UpstreamConnection) -> None:
        """Drop a connection that closed while it was idle."""
        idle = self._idle.get(connection.address)
        if idle and connection in idle:
            idle.remove(connection)

    def keep(self, addresses: frozenset[Address]) -> None:
        """Close the idle connections to every other address."""
        for address in [known for known in self._idle if known not in addresses]:
            for connection in self._idle.pop(address):
                connection.discard()

    def close(self) -> None:
        """Close all that is idle and keep nothing from now on."""
        self._closed = True
        self.keep(frozenset())
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def idle(self) -> int:
        """How many connections are idle."""
        return sum(map(len, self._idle.values()))

    def _trusting(self) -> ssl.SSLContext:
        """Return what engines' certificates are checked by: the system's authorities, or those of `SSL_CERT_FILE`.

        Made at the first use: a few MiB and 20 ms that a gateway without such endpoints does not spend.
        """
        if self._trust is None:
            self._trust = ssl.create_default_context()
            self._trust.minimum_version = ssl.TLSVersion.TLSv1_2
            self._trust.set_alpn_protocols(["http/1.1"])
        return self._trust

    def _sweep(self) -> None:
        oldest = self._clock.now() - IDLE_LIMIT
        for address, idle in list(self._idle.items()):
            while idle and idle[0].idle_since <= oldest:
                idle.popleft().discard()
            if not idle:
                del self._idle[address]
        self._timer = asyncio.get_running_loop().call_later(SWEEP_INTERVAL, self._sweep) if self._idle else None


def host_of(address: Address) -> bytes:
    """Return what an engine sees as its own name; without a port that goes without saying, which some fronts insist on."""
    match address:
        case TcpAddress(host, port, tls):
            name = f"[{host}]" if ":" in host else host
            return (name if port == (443 if tls else 80) else f"{name}:{port}").encode()
        case UnixAddress():
            return b"localhost"


def only_chunk(data: bytes) -> bytes:
    """Return what a chunk holds that is all of `data`; empty for anything else, the last chunk and extensions included."""
    end = data.find(b"\r\n", 1, LONGEST_SIZE + 2)
    if end < 0 or data[:end].strip(HEX):
        return b""
    begin = end + 2
    if len(data) != begin + int(data[:end], 16) + 2 or data[-2:] != b"\r\n":
        return b""
    return data[begin:-2]
