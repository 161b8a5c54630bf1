"""`Exchange`: one request's life, from the choice of an endpoint to the last byte of its response.

It is driven by callbacks of two connections and by the plane's sweep, and owns no task; only a new connection to an engine
takes one. Whatever happens, it ends in one place (`_settle`): the slot is given back there and nowhere else.

What may be tried again is only what no engine can have begun: a refused connection goes to another endpoint (each at most
once), a reused connection that ended without a byte gets one fresh connection, since the engine had only tired of waiting,
and an engine that says 429 or 503 has said that it did nothing, so another endpoint is asked while the budget for that lasts.
After a time limit nothing is tried again: the engine may still be at work. Once a byte went to the client, nothing is.

A stream that breaks is told to the client twice: by an error event of its own family, and by a connection that ends
without the closing chunk. A clean end would pass half an answer off as a whole one.
"""

import logging
from typing import Protocol

from llmgw.base.ids import ReplicaId
from llmgw.fleet.table import Endpoint, GatewaySettings
from llmgw.gateway.answers import fault_answer, render
from llmgw.gateway.bodies import Call, body_for
from llmgw.gateway.endings import ABORTED, lacks_last_word, over_limit
from llmgw.gateway.errors import Fault, error_event, message_in
from llmgw.gateway.heads import (
    Framing,
    Incoming,
    ResponseHead,
    early_stream_head,
    request_to_engine,
    response_to_client,
)
from llmgw.gateway.outcome import Outcome
from llmgw.gateway.plane import Plane, Taken
from llmgw.gateway.routes import Found, target_for
from llmgw.gateway.upstream import UpstreamConnection
from llmgw.gateway.usage import TAIL, UsageTap, tokens_in
from llmgw.routing.choose import Refusal, Wait
from llmgw.routing.load import Slot
from llmgw.routing.request import RequestShape, Route
from llmgw.runtime.supervisor import Owned

log = logging.getLogger(__name__)

SHORT = 64
"""Bytes of a stream's piece below which it is joined to the one before, to see whether the end says that it is complete."""
ELSEWHERE = frozenset({429, 503})
"""Statuses by which an engine says that it did not take a request."""
BOUNDARIES = (b"\n\n", b"\r\n\r\n")
TIRED = 0.05
"""Seconds after a request within which a kept connection's end means that the engine had closed it before the request came.

Later, it may have died of this very request, which would then go through all replicas, one after the other.
"""
ERROR_KEPT = 64 << 10
"""Bytes of an engine's error that are kept for a client that was promised a stream."""
SSE_ROUTES: frozenset[Route] = frozenset({"chat", "completions", "messages", "responses"})
"""Routes whose streams are server-sent events."""
COMMENT = b": keep-alive\n\n"

SHUTTING_DOWN = Fault(503, "shutting_down", "This gateway is shutting down.", retry_after=1)


class ClientSide(Protocol):
    """What an exchange asks of the connection that its request came by."""

    def write(self, data: bytes) -> None:
        """Send bytes to the client."""
        ...

    def reset(self) -> None:
        """Close so that the client cannot take it for an end."""
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
        "_early",
        "_endpoint",
        "_first",
        "_found",
        "_fresh",
        "_head",
        "_joined",
        "_keep_alive",
        "_last",
        "_line",
        "_paused",
        "_pieces",
        "_plane",
        "_reason",
        "_request",
        "_retries",
        "_sent",
        "_slot",
        "_spoke",
        "_started",
        "_tail",
        "_tap",
        "_told",
        "_upstream",
        "shape",
        "tried",
    )

    def __init__(self, plane: Plane, client: ClientSide, request: Incoming, found: Found, call: Call) -> None:
        self._plane = plane
        self._client = client
        self._request = request
        self._found = found
        self._call = call
        self.shape = RequestShape(
            found.route, call.model, call.stream, len(request.body), None if call.model else request.caller.models
        )
        self.tried: set[ReplicaId] = set()
        """Endpoints that it was sent to in vain, and the one it is at."""
        self._endpoint: Endpoint | None = None
        self._slot: Slot | None = None
        self._connecting: Owned | None = None
        self._upstream: UpstreamConnection | None = None
        self._head: ResponseHead | None = None
        self._tap = UsageTap() if call.ask_usage else None
        self._chunked = False
        self._early = False
        """Whether the client was sent the head of a stream before the engine had sent one."""
        self._keep_alive = request.keep_alive
        self._tail = b""
        self._pieces = 0
        self._started: float = plane.time()
        self._last: float = self._started
        """When it began, and when something came last. Seconds of the loop's clock; the latter as old as a sweep."""
        self._first = 0.0
        self._sent = 0.0
        """When the request was sent last."""
        self._told = b""
        """An engine's error, for a client that was promised a stream."""
        self._spoke = 0.0
        """When the client was last sent a comment."""
        self._fresh = False
        """Whether something came since the last sweep."""
        self._paused = False
        self._line = ""
        """The model for a place at which it waits; empty if it does not."""
        self._joined = 0.0
        """When it began to wait."""
        self._reason = ""
        """Why the gateway itself ended it."""
        self._retries = 0

    # What the client's connection calls

    def start(self) -> None:
        """Choose an endpoint and send the request there; may be over when it returns."""
        if not self.tried:
            self._plane.watch(self)
        taken = self._plane.take(self.shape, self.tried)
        if isinstance(taken, Refusal):
            self._refuse(taken)
        elif isinstance(taken, Wait):
            refusal = self._plane.wait(self, taken.model)
            if refusal is None:
                self._line, self._joined = taken.model.name, self._plane.time()
            else:
                self._refuse(refusal)
        else:
            self._go(taken)

    def admitted(self, taken: Taken | Refusal) -> None:
        """The wait is over."""
        self._line = ""
        if isinstance(taken, Refusal):
            self._refuse(taken)
            return
        fault = self._plane.door.look_again(self._request, self._call.model)
        if fault is None:
            self._go(taken)
            return
        self._endpoint, self._slot = taken
        self._release(reached=False)
        self._fail(fault)

    def _go(self, taken: Taken) -> None:
        self._endpoint, self._slot = taken
        self.tried.add(self._endpoint.id)
        connection = self._plane.pool.take(self._endpoint.address)
        if connection is not None:
            self._send(connection)
        else:
            self._connect(self._endpoint)

    def abandon(self) -> None:
        """The client is gone: stop the engine's work at once."""
        self._reason = "client_gone"
        self._settle()
        self._finish(499)

    def cancel(self) -> None:
        """The gateway stops and its patience is over: tell the client, in whatever form is still possible."""
        self._fail(SHUTTING_DOWN)

    def pause(self) -> None:
        """The client does not keep up."""
        self._paused = True
        if self._upstream is not None:
            self._upstream.pause()

    def resume(self) -> None:
        """The client keeps up again."""
        self._paused = False
        self._fresh = True
        if self._upstream is not None:
            self._upstream.resume()

    # What the plane's line and sweep call

    @property
    def model(self) -> str:
        """The model that it was asked for."""
        return self._call.model

    def look(self, now: float, limits: GatewaySettings, keep_alive: float | None) -> None:
        """See whether the engine has been silent for too long, and whether the client needs a sign of life."""
        if self._fresh or self._paused:
            self._fresh = False
            self._last = now
            return
        silent = now - self._last
        if self._line and now - self._joined >= limits.queue:
            model, self._line = self._line, ""
            seconds = self._plane.wait_no_more(self, model)
            message = f"No place became free at the model `{model}` within {limits.queue:g} s."
            self._fail(Fault(503, "queue_timeout", message, retry_after=seconds))
            return
        if self._upstream is not None:
            over = over_limit(silent, limits, answered=self._head is not None, begun=bool(self._pieces))
            if over:
                self._plane.failed(self._endpoint)
                self._fail(Fault(504, "upstream_timeout", f"The replica `{self._id}` {over}."))
                return
        quiet = now - max(self._last, self._spoke)
        streams = self._call.stream and self._request.http11 and self.shape.route in SSE_ROUTES
        if keep_alive is not None and quiet >= keep_alive and streams:
            self._comment(now)

    def _comment(self, now: float) -> None:
        if self._head is None and not self._early:
            self._early = self._chunked = True
            self._client.write(early_stream_head(self._request, self._keep_alive))
        elif self._head is not None and not (self._head.event_stream and self._chunked):
            return
        if self._tail and not self._tail.endswith(BOUNDARIES):
            return
        self._client.write(b"%x\r\n%b\r\n" % (len(COMMENT), COMMENT))
        self._spoke = now  # the engine's time runs on

    # What the connection to the engine calls

    def response_data(self, head: ResponseHead | None, body: bytes, complete: bool, framed: bytes = b"") -> None:
        """Send on what came, in one write. For most events of a stream, this is all the work there is."""
        self._fresh = True
        if ABORTED in body:
            self._upstream = None if complete else self._upstream
            self._plane.failed(self._endpoint)
            self._fail(self._stream_fault("it was told to end"))
            return
        data = b""
        if head is not None:
            self._plane.answered(self._endpoint, head.status)
            if self._goes_elsewhere(head.status, complete):
                return
            data = self._begin(head)
        if body:
            self._pieces += 1
            self._first = self._first or self._plane.time()
            small = len(body) < (SHORT if self.shape.stream else TAIL)
            self._tail = (self._tail + body)[-TAIL:] if small else body
            if self._early and self._is_told_otherwise():
                self._told = (self._told + body)[:ERROR_KEPT]
                body = b""
            elif self._tap is not None:
                whole, body = body, self._tap.pass_on(body)
                if whole is not body:
                    framed = b""
            if framed and body and self._chunked:
                data += framed
            elif body:
                data += b"%x\r\n%b\r\n" % (len(body), body) if self._chunked else body
        if not complete:
            if data:
                self._client.write(data)
            return
        self._upstream = None
        self._end(data)

    def response_broken(self, reason: str) -> None:
        """Try again where that is safe, else tell the client."""
        connection, self._upstream = self._upstream, None
        assert connection is not None
        assert self._endpoint is not None
        if self._head is not None:
            self._plane.failed(self._endpoint)
            self._fail(self._stream_fault(reason))
        elif connection.reused and not connection.answered and self._plane.time() - self._sent < TIRED:
            self._connect(self._endpoint)
        else:
            self._plane.failed(self._endpoint)
            self._fail(Fault(502, "upstream_failed", f"The replica `{self._id}` failed before it answered: {reason}."))

    # Inside

    @property
    def _id(self) -> str:
        return self._endpoint.id if self._endpoint is not None else ""

    def _begin(self, head: ResponseHead) -> bytes:
        """Decide how the response is framed; from here on nothing can be retried."""
        self._head = head
        self._request.body = b""
        if self._early:
            return b""
        if head.encoded or not head.event_stream:
            self._tap = None
        framing: Framing = head.framing
        if framing in {"chunked", "close"} or (framing == "length" and self._tap is not None):
            self._chunked = self._request.http11
            framing = "chunked" if self._chunked else "close"
            self._keep_alive = self._keep_alive and self._chunked
        if self._plane.stopping:
            self._keep_alive = False
        return response_to_client(head, self._request, framing, self._keep_alive)

    def _is_told_otherwise(self) -> bool:
        """Whether the client was promised a stream, and the engine answers with something else."""
        head = self._head
        return self._early and head is not None and not (head.status == 200 and head.event_stream)

    def _end(self, data: bytes) -> None:
        """The engine's response is complete; so is the client's, unless it lacks its last word."""
        if self._is_told_otherwise():
            head = self._head
            assert head is not None
            self._fail(Fault(head.status if head.status >= 400 else 502, "upstream_error", message_in(self._told)))
            return
        if self._tap is not None:
            rest = self._tap.rest()
            if rest:
                data += b"%x\r\n%b\r\n" % (len(rest), rest) if self._chunked else rest
        if lacks_last_word(self.shape.route, self._head, self._tail):
            self._client.write(data)
            self._plane.failed(self._endpoint)
            self._fail(self._stream_fault("it ended the stream without its last event"))
            return
        self._client.write(data + b"0\r\n\r\n" if self._chunked else data)
        head = self._head
        assert head is not None
        self._plane.ended_well(self._endpoint)
        self._settle()
        self._finish(head.status)
        self._client.exchange_done(self._keep_alive)

    def _goes_elsewhere(self, status: int, complete: bool) -> bool:
        """Ask another endpoint, if there is one and the budget for it lasts, instead of one that is too busy."""
        if status not in ELSEWHERE and (status != 404 or self._call.model):
            return False
        slot = self._slot
        assert slot is not None
        if not self._plane.may_retry(self.shape, slot, self.tried):
            return False
        if not complete and self._upstream is not None:
            self._upstream.discard()
        self._upstream = None
        self._retries += 1
        self._release()
        self.start()
        return True

    def _connect(self, endpoint: Endpoint) -> None:
        self._connecting = self._plane.supervisor.job("connect", self._connected(endpoint), self._connect_failed)

    async def _connected(self, endpoint: Endpoint) -> None:
        try:
            connection = await self._plane.pool.connect(endpoint.address, self._plane.index.settings.connect)
        except (OSError, TimeoutError) as error:
            self._connecting = None
            log.warning("replica unreachable", extra={"endpoint": endpoint.id, "error": str(error) or repr(error)})
            self._plane.failed(endpoint)
            self._retries += 1
            self._release(reached=False)
            self.start()
            return
        self._connecting = None
        self._send(connection)

    def _connect_failed(self, error: BaseException) -> None:
        log.error("connecting raised", extra={"request": self._request.request_id.decode()}, exc_info=error)
        self._fail(Fault(502, "upstream_failed", "The gateway could not send this request on."))

    def _send(self, connection: UpstreamConnection) -> None:
        endpoint = self._endpoint
        assert endpoint is not None
        self._upstream = connection
        self._fresh = True
        self._sent = self._plane.time()
        body = body_for(self._call, self._request.body, endpoint.served_name)
        target = target_for(self._found, self._request.target, endpoint.served_name)
        if endpoint.prefix:
            target = endpoint.prefix.encode() + target
        head = request_to_engine(self._request, target, connection.host, len(body))
        if endpoint.key:
            head = self._plane.keys.put_into(head, endpoint, self.shape.route)
        connection.send(self, head, body)
        if self._paused:
            connection.pause()

    def _refuse(self, refusal: Refusal) -> None:
        if self.tried and self._call.model and refusal.code != "queue_full":
            message = f"None of the {len(self.tried)} replicas of the model `{self._call.model}` could be reached."
            fault = Fault(503, "upstream_unreachable", message, None, refusal.retry_after or 1)
        else:
            param = "model" if refusal.status == 404 else None
            fault = Fault(refusal.status, refusal.code, refusal.message, param, refusal.retry_after)
        self._fail(fault)

    def _fail(self, fault: Fault) -> None:
        """Tell the client, in the form that is still possible, and end."""
        self._reason = fault.code
        self._settle()
        self._finish(fault.status)
        if self._head is not None or self._early:
            self._break_off(fault)
            return
        keep_alive = self._keep_alive and not self._plane.stopping
        self._client.write(render(fault_answer(fault, self.shape.route), self._request, keep_alive))
        self._client.exchange_done(keep_alive)

    def _stream_fault(self, reason: str) -> Fault:
        return Fault(502, "upstream_failed", f"The replica `{self._id}` broke off its response: {reason}.")

    def _break_off(self, fault: Fault) -> None:
        head = self._head
        log.warning("response broken off", extra={"request": self._request.request_id.decode(), "why": fault.message})
        streams = self._early or (head is not None and head.event_stream and not head.encoded)
        if streams and (self._chunked or (head is not None and head.framing in {"chunked", "close"})):
            event = error_event(self.shape.route, fault)
            whole = self._tail.endswith(BOUNDARIES) or (self._tap is not None and not self._tap.torn)
            torn = self._tail and not whole
            if torn and not self._is_told_otherwise():
                event = b"\n\n" + event
            self._client.write(b"%x\r\n%b\r\n" % (len(event), event) if self._chunked else event)
        elif not self._chunked and head is not None and head.framing in {"chunked", "close"}:
            self._client.reset()  # nothing else tells a client that the end of the connection is not the end of the answer
        self._client.exchange_done(reusable=False)

    def _settle(self) -> None:
        """End this exchange towards the engine: exactly once whatever is held, and again without effect."""
        self._plane.unwatch(self)
        if self._line:
            self._plane.wait_no_more(self, self._line)
            self._line = ""
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
        assert self._endpoint is not None
        self._plane.released(self._endpoint)
        self._plane.give_back(slot, reached=reached)

    def _finish(self, status: int) -> None:
        """Have what became of it counted and logged."""
        head, tokens, length = self._head, None, 0
        worked = head is None and status == 499 and bool(self._sent)
        if head is not None and head.status == 200:
            worked, length = True, int(head.length) if head.length and head.length.isdigit() else 0
            if not head.encoded:
                tap = self._tap
                tokens = (tap.tokens if tap is not None else None) or tokens_in(self._tail)
        first = self._first - self._started if self._pieces else None
        duration = self._plane.time() - self._started
        outcome = Outcome(status, self._reason, first, duration, self._pieces, self._retries, tokens, worked, length)
        self._plane.finished(self.shape, self._request, self._id, outcome)
