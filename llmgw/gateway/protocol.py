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
import select
import socket
import struct
from collections.abc import Iterator
from typing import cast

from llmgw.gateway.access import NOT_AN_ADMIN, not_for
from llmgw.gateway.answers import fault_answer, own_answer, render
from llmgw.gateway.bodies import decoded, read_call
from llmgw.gateway.errors import Fault
from llmgw.gateway.exchange import Exchange
from llmgw.gateway.heads import CONTINUE, Incoming
from llmgw.gateway.pace import Pace
from llmgw.gateway.plane import Plane
from llmgw.gateway.reader import RequestReader
from llmgw.gateway.routes import Found, route_of
from llmgw.gateway.tunnel import Tunnel

AHEAD = 64 << 10
"""Bytes beside one body that a client may send ahead of its turn. One that sends more is not read on, but let go: whether a
client has gone away is only seen by reading, and the engine's work for it must end then."""
UNSENT = 64 << 10
"""Bytes written and not taken by the client above which the engine waits."""
UNREAD = 300.0
"""Seconds in which a client must take something of what was written."""
LINGER = 2.0
"""Seconds in which a client may still send what nobody reads, after the last response."""
NOT_A_WEBSOCKET = Fault(426, "not_a_websocket", "This URL is a WebSocket: ask to upgrade the connection.")


SLOW_HEAD = 30.0
"""Seconds in which the head of a request must have come, from its first byte on."""
SLOW_BODY = 60.0
"""Seconds in which something more of a request's body must come."""
IDLE = 120.0
"""Seconds after which a connection without a request is closed."""
LOOKS = 4
"""Looks at every client within the shortest of these."""
TOO_SLOW = Fault(408, "request_timeout", "The request did not come in time.")


class Clients:
    """The clients of one gateway that are connected. Those that are too slow are found by one sweep over all of them."""

    def __init__(self) -> None:
        self._connected: dict[ClientConnection, None] = {}
        self._gone = asyncio.Event()
        self._gone.set()
        self._sweep: asyncio.TimerHandle | None = None
        self._stopped = False

    def __len__(self) -> int:
        return len(self._connected)

    def __iter__(self) -> Iterator["ClientConnection"]:
        """Go through those connected now, in the order they came; they may leave meanwhile."""
        return iter(tuple(self._connected))

    def add(self, client: "ClientConnection") -> None:
        """Count a client in."""
        self._connected[client] = None
        self._gone.clear()
        if self._sweep is None and not self._stopped:
            wait = min(SLOW_HEAD, SLOW_BODY, IDLE) / LOOKS
            self._sweep = asyncio.get_running_loop().call_later(wait, self._look)

    def stop_sweeping(self) -> None:
        """Look no more: the gateway stops."""
        self._stopped = True
        if self._sweep is not None:
            self._sweep.cancel()

    def _look(self) -> None:
        self._sweep = None
        now = asyncio.get_running_loop().time()
        clients = tuple(self._connected)
        for client in clients:
            client.look(now)
        if self._connected and not self._stopped:
            wait = min(SLOW_HEAD, SLOW_BODY, IDLE) / LOOKS
            self._sweep = asyncio.get_running_loop().call_later(wait, self._look)

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
        self._reader = RequestReader(plane.new_request_id, plane.max_body, plane.seen)
        self._exchange: Exchange | Tunnel | None = None
        self._advancing = False
        self._closing = False
        self._ahead = 0
        self._linger: asyncio.TimerHandle | None = None
        self._left = 0
        """Bytes that were not taken at the last look of a connection that closes."""
        self._paused = False
        """Whether the client does not keep up with what was written."""
        self._new = True
        """Whether nothing came yet."""
        self._heard = True
        """Whether something came, or a response ended, since the last look."""
        self._since = 0.0
        """When that was seen last, by the loop's clock."""
        self._unread_since = 0.0
        """Since when nothing was taken of what was written, of a client that does not keep up."""
        self._head = 0
        self._head_since = 0.0
        """Which request's head is not whole yet, and since when."""
        self._pace = Pace()

    # What the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one in all but name
        self._transport.set_write_buffer_limits(UNSENT)  # with TLS it would be 512 KiB
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
        self._new = False
        self._heard = True
        if isinstance(self._exchange, Tunnel):
            self._exchange.from_client(data)
            return
        early = self._exchange is not None or bool(self._reader.ready)
        self._reader.feed(data)
        self._advance()
        if not early:
            return
        self._ahead += len(data)
        if self._ahead > self._plane.max_body() + AHEAD:
            self.abort()

    def pause_writing(self) -> None:
        """Have the engine wait: the client does not keep up."""
        self._paused = True
        self._left, self._unread_since = -1, asyncio.get_running_loop().time()
        if self._exchange is not None:
            self._exchange.pause()

    def resume_writing(self) -> None:
        """Have the engine go on."""
        self._paused = False
        if self._exchange is not None:
            self._exchange.resume()
        else:
            self._catch_up()

    # What the sweep, the exchange and the gateway call

    def look(self, now: float) -> None:
        """See whether the client takes too long to say what it wants; one that waits for an answer does not."""
        if self._exchange is not None or self._heard:
            self._heard = False
            self._since = now
        if self._paused and self._transport is not None:
            left = self._transport.get_write_buffer_size()
            if left != self._left:
                self._left, self._unread_since = left, now
            elif now - self._unread_since >= UNREAD:
                self.abort()
            return
        if self._exchange is not None or self._reader.ready or self._closing:
            return
        number = self._reader.unfinished_head
        if number != self._head:
            self._head, self._head_since = number, now
        silent = now - self._since
        slow = self._pace.is_too_slow(self._reader.unfinished_body, self._reader.received, now)
        if (
            slow
            or (number and now - self._head_since >= SLOW_HEAD)
            or (self._reader.unfinished and silent >= SLOW_BODY)
        ):
            self._serve(TOO_SLOW)
        elif not self._reader.unfinished and silent >= IDLE:
            self._close()

    def write(self, data: bytes) -> None:
        """Send bytes to the client."""
        if self._transport is not None:
            self._transport.write(data)

    def hold(self, held: bool) -> None:
        """Read nothing from the client, or read on."""
        if self._transport is not None and not self._transport.is_closing():
            (self._transport.pause_reading if held else self._transport.resume_reading)()

    def exchange_done(self, reusable: bool) -> None:
        """Go on with the next request, or close after what was written."""
        self._exchange = None
        self._heard = True
        self._plane.requests += 1
        if not reusable:
            self._close_lingering()
            return
        if self._plane.stopping and not self._begins_another():
            self._close()
            return
        self._catch_up()

    def close_if_idle(self, *, new_too: bool) -> None:
        """Close if nothing of a request is under way; with `new_too`, also one that has asked for nothing yet."""
        if (
            self._exchange is None
            and self._linger is None
            and (new_too or not self._new)
            and not self._begins_another()
        ):
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

    def reset(self) -> None:
        """Close so that the client cannot take it for an end: with a reset instead of the usual last packet."""
        sock = self._transport.get_extra_info("socket") if self._transport is not None else None
        if sock is not None and sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.abort()

    @property
    def is_gone(self) -> bool:
        """Whether the client has closed, as far as can be seen without reading from it."""
        return self._sees(select.POLLRDHUP)

    # Inside

    def _begins_another(self) -> bool:
        """Whether some of a request that is not served yet is here, be it in the kernel."""
        return bool(self._reader.ready) or self._reader.unfinished or self._sees(select.POLLIN)

    def _sees(self, event: int) -> bool:
        """Whether the kernel says so of the socket now; whatever is asked of one that is gone."""
        sock = self._transport.get_extra_info("socket") if self._transport is not None else None
        if sock is None:
            return True
        poll = select.poll()
        poll.register(sock.fileno(), event)
        return bool(poll.poll(0))

    def _catch_up(self) -> None:
        """Go on with what waits; read on once nothing does."""
        self._advance()
        if not self._reader.ready:
            self._ahead = 0

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
            route, unread = self._reader.route, _unread(self._plane.new_request_id())
            if route is not None:
                self._plane.refused(route, unread, request)
            self.write(render(fault_answer(request, route), unread, keep_alive=False))
            self._close_lingering()
            return
        found = route_of(request)
        fault = self._plane.door.admit(request, found, self._address)
        if found is None:
            answer = own_answer(self._plane, request) if fault is None else fault_answer(fault)
        else:
            fault = fault or self._begin(request, found)
            if fault is None:
                return
            self._plane.refused(found.route, request, fault)
            answer = fault_answer(fault, found.route)
        keep_alive = request.keep_alive and not self._plane.stopping
        self.write(render(answer, request, keep_alive))
        if not keep_alive:
            self._close_lingering()

    def _begin(self, request: Incoming, found: Found) -> Fault | None:
        """Begin to answer a request that goes to a model; return what is wrong with it instead."""
        if self._plane.tracing is not None:
            self._plane.tracing.begin(request, found.route)
        if found.route == "engine" and self._plane.door.is_shut_to(request, self._is_near):
            return NOT_AN_ADMIN
        if request.content_encoding:
            body = decoded(request.body, request.content_encoding, self._plane.max_body())
            if isinstance(body, Fault):
                return body
            request.body = body
        call = read_call(found, request.body, request.content_type)
        if isinstance(call, Fault):
            return call
        hidden = not_for(request, call.model)
        if hidden is not None:
            return hidden
        if found.route == "realtime":
            if request.websocket is None:
                return NOT_A_WEBSOCKET
            self._exchange = tunnel = Tunnel(self._plane, self, request, found)
            tunnel.start(self._reader)
            return None
        self._exchange = exchange = Exchange(self._plane, self, request, found, call)
        exchange.start()
        return None

    def _address(self) -> str:
        """Return where the client is; empty for one that is gone, or that came by a Unix socket."""
        peer = self._transport.get_extra_info("peername") if self._transport is not None else None
        return str(peer[0]) if isinstance(peer, tuple) else ""

    def _is_near(self) -> bool:
        """Whether the client is on this host."""
        if self._transport is None:
            return False
        own, peer = self._transport.get_extra_info("sockname"), self._transport.get_extra_info("peername")
        if not isinstance(own, tuple):
            return own is not None  # a Unix socket
        # a client that has gone already has no name, and is nobody
        return isinstance(peer, tuple) and (peer[0].startswith("127.") or peer[0] in ("::1", "::ffff:127.0.0.1"))

    def _close(self) -> None:
        self._closing = True
        if self._transport is not None:
            self._transport.close()

    def _close_lingering(self) -> None:
        self._closing = True
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if not transport.can_write_eof():  # TLS has no half of a connection; closing it sends what was written first
            transport.close()
            return
        transport.write_eof()
        self._left = transport.get_write_buffer_size()
        self._linger = asyncio.get_running_loop().call_later(LINGER, self._lingered)

    def _lingered(self) -> None:
        """Close, unless the client still takes what was written."""
        transport = self._transport
        if transport is None:
            return
        left = transport.get_write_buffer_size()
        if 0 < left < self._left:
            self._left = left
            self._linger = asyncio.get_running_loop().call_later(LINGER, self._lingered)
        else:
            transport.abort()


def _unread(request_id: bytes) -> Incoming:
    """Return what stands for a request that could not be read."""
    return Incoming(b"", b"", (), request_id, None, None, http11=True, keep_alive=False, body=b"")
