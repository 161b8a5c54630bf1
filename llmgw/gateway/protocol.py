"""`ClientConnection`: HTTP/1.1 towards a client; turns, closing, and flow. Parsing is `reader`'s.

Requests are answered in the order they came. The parser cannot be stopped in the middle of a read, so requests that
came ahead of their turn wait in a queue; once a client has sent much ahead, its socket is not read until its turn.
Otherwise the socket is always read, even while nothing is expected, because that is how a client's going away is
noticed in time to spare the engine its work. A client that closes its sending side has gone away.

A request is read whole before anything is decided: the model's name may be its last key. After the last response what
the client still sends is thrown away for a moment before the connection closes, because closing with unread bytes makes
the kernel send a reset, which can overtake the answer.
"""

import asyncio
from collections.abc import Iterator
from typing import cast

from llmgw.gateway.answers import CALLS, fault_answer, own_answer, render
from llmgw.gateway.bodies import read_call
from llmgw.gateway.errors import Fault
from llmgw.gateway.exchange import SHUTTING_DOWN, Exchange
from llmgw.gateway.heads import CONTINUE, Incoming
from llmgw.gateway.plane import Plane
from llmgw.gateway.reader import RequestReader

AHEAD_LIMIT = 64 << 10
"""Bytes that a client may send ahead of its turn before its socket is left unread."""
LINGER = 2.0
"""Seconds in which a client may still send what nobody reads, after the last response."""


class Clients:
    """The clients of one gateway that are connected."""

    def __init__(self) -> None:
        self._connected: dict[ClientConnection, None] = {}
        self._gone = asyncio.Event()
        self._gone.set()

    def __len__(self) -> int:
        return len(self._connected)

    def __iter__(self) -> Iterator["ClientConnection"]:
        """Go through those connected now, in the order they came; they may leave meanwhile."""
        return iter(tuple(self._connected))

    def add(self, client: "ClientConnection") -> None:
        """Count a client in."""
        self._connected[client] = None
        self._gone.clear()

    def discard(self, client: "ClientConnection") -> None:
        """Count a client out."""
        self._connected.pop(client, None)
        if not self._connected:
            self._gone.set()

    async def gone(self, timeout: float) -> bool:
        """Wait until nobody is connected; return whether that came about in time."""
        try:
            async with asyncio.timeout(timeout):
                await self._gone.wait()
        except TimeoutError:
            return False
        return True


class ClientConnection(asyncio.Protocol):
    """One client's connection. At most one exchange at a time, abandoned when the connection is lost."""

    def __init__(self, plane: Plane, clients: Clients) -> None:
        self._plane = plane
        self._clients = clients
        self._transport: asyncio.Transport | None = None
        self._reader = RequestReader(plane.new_request_id)
        self._exchange: Exchange | None = None
        self._advancing = False
        self._closing = False
        self._ahead = 0
        self._throttled = False
        self._linger: asyncio.TimerHandle | None = None
        self._paused = False
        """Whether the client does not keep up with what was written."""

    # What the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one in all but name
        self._clients.add(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - why a client went makes no difference
        """Stop the engine's work for a client that is gone."""
        self._transport = None
        self._closing = True
        self._clients.discard(self)
        if self._linger is not None:
            self._linger.cancel()
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.abandon()

    def data_received(self, data: bytes) -> None:
        """Parse, and answer what became complete if it is its turn."""
        if self._closing:
            return
        early = self._exchange is not None or bool(self._reader.ready)
        self._reader.feed(data)
        self._advance()
        if not early:
            return
        self._ahead += len(data)
        if self._ahead > AHEAD_LIMIT and self._transport is not None:
            self._throttled = True
            self._transport.pause_reading()

    def pause_writing(self) -> None:
        """Have the engine wait: the client does not keep up."""
        self._paused = True
        if self._exchange is not None:
            self._exchange.pause()

    def resume_writing(self) -> None:
        """Have the engine go on."""
        self._paused = False
        if self._exchange is not None:
            self._exchange.resume()
        else:
            self._catch_up()

    # What the exchange and the gateway call

    def write(self, data: bytes) -> None:
        """Send bytes to the client."""
        if self._transport is not None:
            self._transport.write(data)

    def exchange_done(self, reusable: bool) -> None:
        """Go on with the next request, or close after what was written."""
        self._exchange = None
        self._plane.requests += 1
        if not reusable:
            self._close_lingering()
            return
        if self._plane.stopping:
            self._close()
            return
        self._catch_up()

    def close_if_idle(self) -> None:
        """Close unless a request is being answered; one that is only half received has not begun."""
        if self._exchange is None and self._linger is None:
            self._close()

    def cancel(self) -> None:
        """Break off what is being answered, tell the client, and close."""
        if self._exchange is not None:
            self._exchange.cancel()
        self._close()

    def abort(self) -> None:
        """Close without sending what is still buffered."""
        if self._transport is not None:
            self._transport.abort()

    # Inside

    def _catch_up(self) -> None:
        """Go on with what waits; read on once nothing does."""
        self._advance()
        if not self._reader.ready:
            self._ahead = 0
            if self._throttled and self._transport is not None:
                self._throttled = False
                self._transport.resume_reading()

    def _advance(self) -> None:
        """Serve the requests whose turn it is, unless the client leaves its last answers unread.

        An exchange may be over at once and call back here: hence the flag.
        """
        if self._advancing:
            return
        self._advancing = True
        ready = self._reader.ready
        try:
            while ready and self._exchange is None and not self._paused and not self._closing:
                self._serve(ready.popleft())
        finally:
            self._advancing = False
        if self._reader.awaits_continue and self._exchange is None and not self._closing:
            self._reader.awaits_continue = False
            self.write(CONTINUE)

    def _serve(self, request: Incoming | Fault) -> None:
        if isinstance(request, Fault):
            self.write(render(fault_answer(request), _unread(self._plane.new_request_id()), keep_alive=False))
            self._close_lingering()
            return
        route = CALLS.get(request.path) if request.method == b"POST" else None
        if route is None:
            answer = own_answer(self._plane, request)
        else:
            call = SHUTTING_DOWN if self._plane.stopping else read_call(request.body)
            if not isinstance(call, Fault):
                self._exchange = Exchange(self._plane, self, request, route, call)
                self._exchange.start()
                return
            self._plane.requests += 1
            answer = fault_answer(call)
        keep_alive = request.keep_alive and not self._plane.stopping
        self.write(render(answer, request, keep_alive))
        if not keep_alive:
            self._close_lingering()

    def _close(self) -> None:
        self._closing = True
        if self._transport is not None:
            self._transport.close()

    def _close_lingering(self) -> None:
        self._closing = True
        if self._transport is not None and not self._transport.is_closing():
            if self._throttled:
                self._transport.resume_reading()
            self._transport.write_eof()
            self._linger = asyncio.get_running_loop().call_later(LINGER, self._transport.abort)


def _unread(request_id: bytes) -> Incoming:
    """Return what stands for a request that could not be read."""
    return Incoming(b"", b"", (), request_id, None, None, http11=True, keep_alive=False, body=b"")
