"""`Tunnel`: a client's connection that becomes a WebSocket to an engine. Bytes are passed both ways and not looked at.

The engine's answer to the upgrade is passed on as it comes, also a refusal: whichever it is, the connection is the two ends'
own from then on. It counts as one request in flight until either side closes. A side that does not keep up stops the other.
"""

import asyncio
import logging
from typing import Protocol, cast

from llmgw.fleet.table import Endpoint
from llmgw.gateway.answers import fault_answer, render
from llmgw.gateway.errors import Fault
from llmgw.gateway.heads import Incoming, upgrade_to_engine
from llmgw.gateway.outcome import Outcome
from llmgw.gateway.plane import Plane
from llmgw.gateway.reader import RequestReader
from llmgw.gateway.routes import Found
from llmgw.gateway.upstream import host_of
from llmgw.routing.choose import Refusal
from llmgw.routing.load import Slot
from llmgw.routing.request import RequestShape
from llmgw.runtime.supervisor import Owned

log = logging.getLogger(__name__)

EARLY = 64 << 10
"""Bytes that a client may send before the engine is connected."""


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

    def start(self, reader: RequestReader) -> None:
        """Choose an endpoint and connect to it; may be over when it returns."""
        self._early += reader.beyond
        taken = self._plane.take(self._shape, frozenset())
        if isinstance(taken, Refusal):
            self._refuse(Fault(taken.status, taken.code, taken.message, None, taken.retry_after))
            return
        self._endpoint, self._slot = taken
        self._connecting = self._plane.supervisor.job("tunnel", self._connect(), self._broke)

    def from_client(self, data: bytes) -> None:
        """Pass on what the client sent."""
        if self._engine is not None:
            self._engine.write(data)
            return
        self._early += data
        if len(self._early) > EARLY:
            self._client.hold(held=True)

    def abandon(self) -> None:
        """The client is gone."""
        self._end(499, "client_gone")

    def cancel(self) -> None:
        """The gateway stops and its patience is over."""
        self._end(101 if self._engine is not None else 503, "shutting_down")
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

    def from_engine(self, data: bytes) -> None:
        """Pass on what the engine sent."""
        self._client.write(data)

    def engine_gone(self) -> None:
        """The engine has closed."""
        if not self._over:
            self._end(101, "")
            self._client.exchange_done(reusable=False)

    def engine_full(self, full: bool) -> None:
        """The engine does not keep up, or does again."""
        self._client.hold(held=full)

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
        target = endpoint.prefix.encode() + self._request.target
        engine.write(upgrade_to_engine(self._request, target, host_of(endpoint.address)) + bytes(self._early))
        self._early.clear()
        self._client.hold(held=False)

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
        if self._connecting is not None:
            self._connecting.cancel()
        if self._engine is not None:
            self._engine.close()
        slot, self._slot = self._slot, None
        if slot is not None:
            self._plane.give_back(slot, reached=self._engine is not None)
        outcome = Outcome(status, reason, duration=self._plane.time() - self._started)
        name = self._endpoint.id if self._endpoint is not None else ""
        self._plane.finished(self._shape, self._request, name, outcome)


class _EngineEnd(asyncio.Protocol):
    """The connection to the engine."""

    def __init__(self, tunnel: Tunnel) -> None:
        self._tunnel = tunnel
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one in all but name

    def data_received(self, data: bytes) -> None:
        """Pass on."""
        self._tunnel.from_engine(data)

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
        """Close after what was written."""
        if self._transport is not None:
            self._transport.close()
