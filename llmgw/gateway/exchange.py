"""`Exchange`: one request's life, from the choice of an endpoint to the last byte of its response.

It is driven by callbacks of two connections and owns no task; only a new connection to an engine takes one. Whatever
happens, it ends in one place (`_settle`): the slot is given back there and nowhere else. Nothing is retried once a byte
of an answer came, because a generation that ran half is not the same as one that did not; before that, a refused
connection goes to another endpoint (each at most once), and a reused connection that ended without a byte gets one
fresh connection, since the engine had only tired of waiting.

A stream that breaks is told to the client twice: by an error event of its own family, and by a connection that ends
without the closing chunk. A clean end would pass half an answer off as a whole one.
"""

import logging
from typing import Protocol

from llmgw.base.ids import ReplicaId
from llmgw.fleet.table import Endpoint
from llmgw.gateway.answers import Answer, fault_answer, render
from llmgw.gateway.bodies import Call, with_model
from llmgw.gateway.errors import Fault, error_event
from llmgw.gateway.heads import Framing, Incoming, ResponseHead, request_to_engine, response_to_client
from llmgw.gateway.plane import Plane
from llmgw.gateway.upstream import UpstreamConnection
from llmgw.routing.choose import Refusal
from llmgw.routing.load import Slot
from llmgw.routing.request import RequestShape, Route
from llmgw.runtime.supervisor import Owned

log = logging.getLogger(__name__)

TAIL = 64
"""Bytes of a stream's end that are kept to see whether it says that it is complete."""
TERMINALS: dict[Route, bytes] = {
    "chat": b"[DONE]",
    "completions": b"[DONE]",
    "messages": b"message_stop",
}
"""What the end of a stream must contain. The Responses API has no short last word, so its framing must do."""

SHUTTING_DOWN = Fault(503, "shutting_down", "This gateway is shutting down.", retry_after=1)


class ClientSide(Protocol):
    """What an exchange asks of the connection that its request came by."""

    def write(self, data: bytes) -> None:
        """Send bytes to the client."""
        ...

    def exchange_done(self, reusable: bool) -> None:
        """Learn that the response is over; if the connection cannot be reused, close it after what was written."""
        ...


class Exchange:
    """One request. Its client connection starts it, and abandons it if the client goes away first."""

    __slots__ = (
        "_call",
        "_chunked",
        "_client",
        "_connecting",
        "_endpoint",
        "_head",
        "_keep_alive",
        "_plane",
        "_request",
        "_shape",
        "_slot",
        "_tail",
        "_tried",
        "_upstream",
    )

    def __init__(self, plane: Plane, client: ClientSide, request: Incoming, route: Route, call: Call) -> None:
        self._plane = plane
        self._client = client
        self._request = request
        self._call = call
        self._shape = RequestShape(route, call.model, call.stream, len(request.body))
        self._tried: set[ReplicaId] = set()
        self._endpoint: Endpoint | None = None
        self._slot: Slot | None = None
        self._connecting: Owned | None = None
        self._upstream: UpstreamConnection | None = None
        self._head: ResponseHead | None = None
        self._chunked = False
        self._keep_alive = request.keep_alive
        self._tail = b""

    # What the client's connection calls

    def start(self) -> None:
        """Choose an endpoint and send the request there; may be over when it returns."""
        taken = self._plane.take(self._shape, self._tried)
        if isinstance(taken, Refusal):
            self._refuse(taken)
            return
        self._endpoint, self._slot = taken
        self._tried.add(self._endpoint.id)
        connection = self._plane.pool.take(self._endpoint.address)
        if connection is not None:
            self._send(connection)
        else:
            self._connect(self._endpoint)

    def abandon(self) -> None:
        """The client is gone: stop the engine's work at once."""
        self._settle()

    def cancel(self) -> None:
        """The gateway stops and its patience is over: tell the client, in whatever form is still possible."""
        if self._head is None:
            self._answer(SHUTTING_DOWN, keep_alive=False)
        else:
            self._break_off(SHUTTING_DOWN)

    def pause(self) -> None:
        """The client does not keep up."""
        if self._upstream is not None:
            self._upstream.pause()

    def resume(self) -> None:
        """The client keeps up again."""
        if self._upstream is not None:
            self._upstream.resume()

    # What the connection to the engine calls

    def response_data(self, head: ResponseHead | None, body: bytes, complete: bool) -> None:
        """Send on what came, in one write. For most events of a stream, this is all the work there is."""
        data = b"" if head is None else self._begin(head)
        if body:
            self._tail = body if len(body) >= TAIL else (self._tail + body)[-TAIL:]
            data += b"%x\r\n%b\r\n" % (len(body), body) if self._chunked else body
        if not complete:
            self._client.write(data)
            return
        self._upstream = None
        if self._lacks_last_word():
            self._client.write(data)
            self._break_off(self._stream_fault("it ended the stream without its last event"))
            return
        self._client.write(data + b"0\r\n\r\n" if self._chunked else data)
        self._settle()
        self._client.exchange_done(self._keep_alive)

    def response_broken(self, reason: str) -> None:
        """Try again where that is safe, else tell the client."""
        connection, self._upstream = self._upstream, None
        assert connection is not None
        assert self._endpoint is not None
        if self._head is not None:
            self._break_off(self._stream_fault(reason))
        elif connection.reused and not connection.answered:
            self._connect(self._endpoint)
        else:
            message = f"The replica `{self._endpoint.id}` failed before it answered: {reason}."
            self._answer(Fault(502, "upstream_failed", message))

    # Inside

    def _begin(self, head: ResponseHead) -> bytes:
        """Decide how the response is framed; from here on nothing can be retried."""
        self._head = head
        framing: Framing = head.framing
        if framing in {"chunked", "close"}:
            self._chunked = self._request.http11
            framing = "chunked" if self._chunked else "close"
            self._keep_alive = self._keep_alive and self._chunked
        if self._plane.stopping:
            self._keep_alive = False
        return response_to_client(head, self._request, framing, self._keep_alive)

    def _lacks_last_word(self) -> bool:
        head = self._head
        terminal = TERMINALS.get(self._shape.route)
        if head is None or terminal is None or not head.event_stream or head.status != 200:
            return False
        return terminal not in self._tail

    def _connect(self, endpoint: Endpoint) -> None:
        self._connecting = self._plane.supervisor.job("connect", self._connected(endpoint), self._connect_failed)

    async def _connected(self, endpoint: Endpoint) -> None:
        try:
            connection = await self._plane.pool.connect(endpoint.address, self._plane.index.settings.connect)
        except (OSError, TimeoutError) as error:
            self._connecting = None
            log.warning("replica unreachable", extra={"endpoint": endpoint.id, "error": str(error) or repr(error)})
            self._release(reached=False)
            self.start()
            return
        self._connecting = None
        self._send(connection)

    def _connect_failed(self, error: BaseException) -> None:
        log.error("connecting raised", extra={"request": self._request.request_id.decode()}, exc_info=error)
        self._answer(Fault(502, "upstream_failed", "The gateway could not send this request on."))

    def _send(self, connection: UpstreamConnection) -> None:
        endpoint = self._endpoint
        assert endpoint is not None
        self._upstream = connection
        body = self._request.body
        if self._call.model != endpoint.served_name:
            body = with_model(body, endpoint.served_name)
        connection.send(self, request_to_engine(self._request, connection.host, len(body)), body)

    def _refuse(self, refusal: Refusal) -> None:
        if self._tried:
            message = f"None of the {len(self._tried)} replicas of the model `{self._call.model}` could be reached."
            fault = Fault(503, "upstream_unreachable", message, None, refusal.retry_after or 1)
        else:
            param = "model" if refusal.status == 404 else None
            fault = Fault(refusal.status, refusal.code, refusal.message, param, refusal.retry_after)
        self._answer(fault)

    def _answer(self, fault: Fault, keep_alive: bool = True) -> None:
        self._settle()
        keep_alive = keep_alive and self._keep_alive and not self._plane.stopping
        answer: Answer = fault_answer(fault)
        self._client.write(render(answer, self._request, keep_alive))
        self._client.exchange_done(keep_alive)

    def _stream_fault(self, reason: str) -> Fault:
        assert self._endpoint is not None
        return Fault(502, "upstream_failed", f"The replica `{self._endpoint.id}` broke off its response: {reason}.")

    def _break_off(self, fault: Fault) -> None:
        head = self._head
        assert head is not None
        log.warning("response broken off", extra={"request": self._request.request_id.decode(), "why": fault.message})
        if head.event_stream and head.framing in {"chunked", "close"}:
            event = error_event(self._shape.route, fault)
            if self._tail and not self._tail.endswith((b"\n\n", b"\r\n\r\n")):
                event = b"\n\n" + event
            self._client.write(b"%x\r\n%b\r\n" % (len(event), event) if self._chunked else event)
        self._settle()
        self._client.exchange_done(reusable=False)

    def _settle(self) -> None:
        """End this exchange towards the engine: exactly once whatever is held, and again without effect."""
        if self._connecting is not None:
            self._connecting.cancel()
            self._connecting = None
        if self._upstream is not None:
            self._upstream.discard()
            self._upstream = None
        if self._slot is not None:
            self._release()

    def _release(self, *, reached: bool = True) -> None:
        slot, self._slot = self._slot, None
        assert slot is not None
        self._plane.give_back(slot, reached=reached)
