"""`Tunnel`: a client's connection that becomes a WebSocket to an engine. Bytes are passed both ways and not looked at.

Only an engine that answers 101 has agreed: until then nothing of what the client sends goes to it, since an engine that has not
would take it for a request that nobody has looked at. A refusal is told to the client, and its connection is closed. A
WebSocket counts as one request in flight until either side closes. A side that does not keep up stops the other.
"""

import asyncio
import logging
from typing import Protocol, cast

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from llmgw.fleet.table import Endpoint, GatewaySettings
from llmgw.gateway.answers import Answer, fault_answer, render
from llmgw.gateway.errors import Fault
from llmgw.gateway.heads import Incoming, upgrade_to_engine
from llmgw.gateway.outcome import Outcome
from llmgw.gateway.plane import Plane
from llmgw.gateway.reader import RequestReader
from llmgw.gateway.routes import Found, target_for
from llmgw.gateway.upstream import host_of
from llmgw.routing.choose import Refusal, Wait
from llmgw.routing.load import Slot
from llmgw.routing.request import RequestShape
from llmgw.runtime.supervisor import Owned

log = logging.getLogger(__name__)

EARLY = 64 << 10
"""Bytes that a client may send before the engine has agreed."""
REFUSAL = 64 << 10
"""Bytes of a refusal that are told."""


class ClientSide(Protocol):
    """What a tunnel asks of the connection that its request came by."""

    def write(self, data: bytes) -> None:
        """Send bytes to the client."""
        ...

    def exchange_done(self, reusable: bool) -> None:
        """Learn that it is over; close after what was written."""
        ...

    def hold(self, held: bool) -> None:
        """Read nothing from the client, or read on."""
        ...

    @property
    def is_gone(self) -> bool:
        """Whether the client has closed, as far as can be seen without reading from it."""
        ...


class Tunnel:
    """One WebSocket. Its client's connection starts it, and abandons it if the client goes away."""

    def __init__(self, plane: Plane, client: ClientSide, request: Incoming, found: Found) -> None:
        self._plane = plane
        self._client = client
        self._request = request
        self._found = found
        self._shape = RequestShape(found.route, found.model, stream=True, prompt_bytes=0)
        self._endpoint: Endpoint | None = None
        self._slot: Slot | None = None
        self._engine: _EngineEnd | None = None
        self._connecting: Owned | None = None
        self._early = bytearray()
        self._started = plane.time()
        self._over = False
        self._open = False
        """Whether the engine has agreed."""
        self._held = False
        self.model = found.model

    def start(self, reader: RequestReader) -> None:
        """Choose an endpoint and connect to it; may be over when it returns."""
        self._plane.watch(self)
        self._early += reader.beyond
        taken = self._plane.take(self._shape, frozenset())
        if isinstance(taken, Wait):
            text = f"The model `{taken.model.name}` has as many requests as it is given at once; come again in 1 s."
            self._refuse(Fault(503, "model_busy", text, retry_after=1))
            return
        if isinstance(taken, Refusal):
            self._refuse(Fault(taken.status, taken.code, taken.message, None, taken.retry_after))
            return
        self._endpoint, self._slot = taken
        self._connecting = self._plane.supervisor.job("tunnel", self._connect(), self._broke)

    def from_client(self, data: bytes) -> None:
        """Pass on what the client sent."""
        if self._open and self._engine is not None:
            self._engine.write(data)
            return
        self._early += data
        if len(self._early) > EARLY:
            self._hold(held=True)

    def look(self, now: float, limits: GatewaySettings, keep_alive: float | None) -> None:  # noqa: ARG002 - the port's
        """See whether the engine agrees in time, and whether a client that is not read from has gone."""
        if self._held and self._client.is_gone:
            self.abandon()
            self._client.exchange_done(reusable=False)
        elif not self._open and self._engine is not None and now - self._started >= limits.headers:
            self._plane.failed(self._endpoint)
            self._refuse(Fault(504, "upstream_timeout", f"The replica did not answer within {limits.headers:g} s."))

    def abandon(self) -> None:
        """The client is gone."""
        self._end(499, "client_gone")

    def cancel(self) -> None:
        """The gateway stops and its patience is over."""
        self._end(101 if self._open else 503, "shutting_down")
        self._client.exchange_done(reusable=False)

    def pause(self) -> None:
        """The client does not keep up."""
        if self._engine is not None:
            self._engine.hold(held=True)

    def resume(self) -> None:
        """The client keeps up again."""
        if self._engine is not None:
            self._engine.hold(held=False)

    # What the engine's end calls

    def agreed(self, answer: bytes) -> None:
        """The engine has become a WebSocket; its answer, and what it may have said since, goes to the client."""
        self._open = True
        self._plane.answered(self._endpoint, 101)
        self._client.write(answer)
        assert self._engine is not None
        self._engine.write(bytes(self._early))
        self._early.clear()
        self._hold(held=False)

    def refused(self, status: int, content_type: bytes, body: bytes) -> None:
        """The engine has not: the client is told what it said."""
        self._plane.answered(self._endpoint, status)
        self._end(status, "")
        answer = Answer(status, body, ((b"content-type", content_type),)) if content_type else Answer(status, body, ())
        self._client.write(render(answer, self._request, keep_alive=False))
        self._client.exchange_done(reusable=False)

    def from_engine(self, data: bytes) -> None:
        """Pass on what the engine sent."""
        self._client.write(data)

    def engine_gone(self) -> None:
        """The engine has closed."""
        if self._over:
            return
        if not self._open:
            self._plane.failed(self._endpoint)
            self._refuse(Fault(502, "upstream_failed", "The replica closed the connection before it answered."))
            return
        self._end(101, "")
        self._client.exchange_done(reusable=False)

    def engine_full(self, full: bool) -> None:
        """The engine does not keep up, or does again."""
        self._hold(held=full)

    # Inside

    async def _connect(self) -> None:
        endpoint = self._endpoint
        assert endpoint is not None
        try:
            engine = await self._plane.pool.open(
                endpoint.address, lambda: _EngineEnd(self), self._plane.index.settings.connect
            )
        except (OSError, TimeoutError) as error:
            self._connecting = None
            self._plane.failed(endpoint)
            log.warning("replica unreachable", extra={"endpoint": endpoint.id, "error": str(error) or repr(error)})
            self._refuse(Fault(503, "upstream_unreachable", f"The replica `{endpoint.id}` cannot be reached.", None, 1))
            return
        self._connecting = None
        self._engine = engine
        target = endpoint.prefix.encode() + target_for(self._found, self._request.target, endpoint.served_name)
        head = upgrade_to_engine(self._request, target, host_of(endpoint.address))
        engine.write(self._plane.keys.put_into(head, endpoint, self._shape.route) if endpoint.key else head)

    def _hold(self, held: bool) -> None:
        self._held = held
        self._client.hold(held)

    def _broke(self, error: BaseException) -> None:
        log.error("a tunnel raised", exc_info=error)
        self._refuse(Fault(502, "upstream_failed", "The gateway could not open this connection."))

    def _refuse(self, fault: Fault) -> None:
        self._end(fault.status, fault.code)
        self._client.write(render(fault_answer(fault, self._found.route), self._request, keep_alive=False))
        self._client.exchange_done(reusable=False)

    def _end(self, status: int, reason: str) -> None:
        if self._over:
            return
        self._over = True
        self._plane.unwatch(self)
        if self._connecting is not None:
            self._connecting.cancel()
        if self._engine is not None:
            self._engine.close()
        slot, self._slot = self._slot, None
        if slot is not None:
            assert self._endpoint is not None
            self._plane.released(self._endpoint)
            self._plane.give_back(slot, reached=self._engine is not None)
        outcome = Outcome(status, reason, duration=self._plane.time() - self._started)
        name = self._endpoint.id if self._endpoint is not None else ""
        self._plane.finished(self._shape, self._request, name, outcome)


class _EngineEnd(asyncio.Protocol):
    """The connection to the engine: its answer is parsed, and what follows an agreement is not."""

    def __init__(self, tunnel: Tunnel) -> None:
        self._tunnel = tunnel
        self._transport: asyncio.Transport | None = None
        self._parser: HttpResponseParser | None = HttpResponseParser(self)
        self._answer = bytearray()
        self._content_type = b""
        self._body = bytearray()
        self._complete = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one in all but name

    def data_received(self, data: bytes) -> None:
        """Pass on, once the engine has agreed."""
        parser = self._parser
        if parser is None:
            self._tunnel.from_engine(data)
            return
        self._answer += data
        try:
            parser.feed_data(data)
        except HttpParserUpgrade:
            pass
        except HttpParserError:
            self.close()
            self._tunnel.engine_gone()
            return
        if parser.get_status_code() == 101 and b"\r\n\r\n" in self._answer:
            self._parser = None
            self._tunnel.agreed(bytes(self._answer))
        elif self._complete or len(self._body) > REFUSAL:
            self._parser = None
            self._tunnel.refused(parser.get_status_code(), self._content_type, bytes(self._body[:REFUSAL]))
        elif len(self._answer) > REFUSAL + EARLY:
            self.close()
            self._tunnel.engine_gone()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep what kind of text a refusal is."""
        if name.lower() == b"content-type":
            self._content_type = value

    def on_body(self, body: bytes) -> None:
        """Keep a refusal's text."""
        self._body += body

    def on_message_complete(self) -> None:
        """Note that a refusal is whole."""
        self._complete = True

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - why makes no difference
        """Tell the tunnel."""
        self._transport = None
        self._tunnel.engine_gone()

    def pause_writing(self) -> None:
        """Have the client wait."""
        self._tunnel.engine_full(full=True)

    def resume_writing(self) -> None:
        """Have the client go on."""
        self._tunnel.engine_full(full=False)

    def write(self, data: bytes) -> None:
        """Send."""
        if self._transport is not None:
            self._transport.write(data)

    def hold(self, held: bool) -> None:
        """Read nothing, or read on."""
        if self._transport is not None:
            (self._transport.pause_reading if held else self._transport.resume_reading)()

    def close(self) -> None:
        """Close at once: an engine that reads nothing would be waited for for ever."""
        if self._transport is not None:
            self._transport.abort()
