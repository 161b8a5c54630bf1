"""The heads of requests and responses: which headers cross the gateway, and how a body is framed on the other side.

Towards an engine goes an allow-list, so a client's credentials cannot reach it by a header that nobody thought of.
Towards a client goes everything but what belongs to one connection only (RFC 9110, 7.6.1), what the gateway frames
anew, and the cross-origin headers, which are the gateway's to give.
"""

from dataclasses import dataclass
from http import HTTPStatus
from typing import Literal, NamedTuple

from llmgw.ports.traces import Span
from llmgw.routing.access import ANYBODY, Caller

REQUEST_ID = b"x-request-id"
REQUEST_ID_LIMIT = 128
"""Bytes; a longer id from a client is replaced, as is one that is not ASCII."""

FORWARDED = frozenset({b"content-type", b"accept", b"traceparent", b"tracestate"})
"""Request headers that an engine gets as they came; the request id goes too, made where it is absent."""
NOTED = frozenset(
    {
        REQUEST_ID,
        b"host",
        b"content-length",
        b"transfer-encoding",
        b"expect",
        b"origin",
        b"access-control-request-headers",
        b"content-type",
        b"content-encoding",
        b"upgrade",
        b"authorization",
        b"x-api-key",
    }
)
"""Request headers that the gateway itself reads."""
WEBSOCKET = frozenset(
    {
        b"sec-websocket-key",
        b"sec-websocket-version",
        b"sec-websocket-protocol",
        b"sec-websocket-extensions",
    }
)
"""Request headers that go to the engine where a connection becomes a WebSocket."""

_DROPPED = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"content-length",
        REQUEST_ID,
    }
)
_BODILESS = frozenset({204, 304})

Header = tuple[bytes, bytes]
Framing = Literal["none", "length", "chunked", "close"]
"""How a body ends: there is none, after so many bytes, with a zero chunk, or with the connection."""

REASONS = {status.value: status.phrase.encode() for status in HTTPStatus}
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


@dataclass(slots=True)
class Incoming:
    """A whole request of a client."""

    method: bytes
    target: bytes
    """Path and query, as they came."""
    forwarded: tuple[bytes, ...]
    """Header lines for the engine."""
    request_id: bytes
    origin: bytes | None
    asked_headers: bytes | None
    """Of a cross-origin preflight."""
    http11: bool
    keep_alive: bool
    body: bytes
    content_type: bytes = b""
    content_encoding: bytes = b""
    """In lower case."""
    websocket: tuple[bytes, ...] | None = None
    """Header lines of an offer to become a WebSocket, which is the last request on its connection; None for any other."""
    span: Span | None = None
    """Its span, where there is tracing."""
    credential: bytes = b""
    """What the client presents, as it came; no engine gets it, and no log."""
    caller: Caller = ANYBODY
    """Who asks, once it was let in."""

    @property
    def path(self) -> bytes:
        """The target without its query."""
        return self.target.partition(b"?")[0]


class ResponseHead(NamedTuple):
    """The head of an engine's response."""

    status: int
    lines: bytes
    """Status line and header lines for the client."""
    framing: Framing
    """How the engine ends the body."""
    length: bytes | None
    """Of the body, where the engine said it."""
    event_stream: bool
    """Whether the body is a series of server-sent events."""
    encoded: bool = False
    """Whether the body is compressed, so that nothing can be read in it."""

    def with_length(self, length: bytes) -> "ResponseHead":
        """Return the same head for a body of another length."""
        return ResponseHead(self.status, self.lines, self.framing, length, self.event_stream, self.encoded)


class _Names(dict[bytes, bytes]):
    """A header's name as an engine writes it -> in lower case, or nothing if it goes nowhere and says nothing.

    Engines write the same few names with every response: looking them up costs a fraction of working them out.
    """

    def __missing__(self, name: bytes) -> bytes:
        lower = name.lower()
        read = (b"content-length", b"transfer-encoding", b"connection")
        kept = lower in read or (lower not in _DROPPED and not lower.startswith(b"access-control-"))
        if len(self) < MOST_NAMES:
            self[name] = lower if kept else b""
        return lower if kept else b""


MOST_NAMES = 1000
"""Names that are remembered, at most."""
_NAMES = _Names()


def read_response_head(status: int, reason: bytes, headers: list[Header]) -> ResponseHead:
    """Return the head with these headers."""
    lines: list[bytes] = []
    length = encoding = connection = None
    event_stream = encoded = False
    for written, value in headers:
        name = _NAMES[written]
        if not name:
            continue
        if name == b"content-length":
            length = value
        elif name == b"transfer-encoding":
            encoding = value
        elif name == b"connection":
            connection = value
        else:
            lines.append(b"%b: %b\r\n" % (name, value))
            if name == b"content-type":
                event_stream = value.lower().startswith(b"text/event-stream")
            elif name == b"content-encoding":
                encoded = value.lower() != b"identity"
    if connection is not None and connection.lower() not in {b"close", b"keep-alive"}:
        nominated = tuple(token.strip().lower() + b":" for token in connection.split(b","))
        lines = [line for line in lines if not line.startswith(nominated)]
    framing: Framing
    if status in _BODILESS:
        framing = "none"
    elif encoding is not None:
        framing = "chunked" if encoding.lower().endswith(b"chunked") else "close"
    else:
        framing = "close" if length is None else "length"
    reason = reason or REASONS.get(status, b"")
    block = b"HTTP/1.1 %d %b\r\n%b" % (status, reason, b"".join(lines))
    return ResponseHead(status, block, framing, length, event_stream, encoded)


def request_to_engine(request: Incoming, target: bytes, host: bytes, length: int) -> bytes:
    """Return the head of the request that an engine gets; `length` is that of its body in bytes."""
    framed = b"content-length: %d\r\n" % length if length or request.method == b"POST" else b""
    return b"%b %b HTTP/1.1\r\nhost: %b\r\n%bx-request-id: %b\r\n%b\r\n" % (
        request.method,
        target,
        host,
        b"".join(request.forwarded),
        request.request_id,
        framed,
    )


def upgrade_to_engine(request: Incoming, target: bytes, host: bytes) -> bytes:
    """Return the head of the request by which an engine is asked to become a WebSocket."""
    return (
        b"GET %b HTTP/1.1\r\nhost: %b\r\nconnection: upgrade\r\nupgrade: websocket\r\n%b%bx-request-id: %b\r\n\r\n"
        % (
            target,
            host,
            b"".join(request.forwarded),
            b"".join(request.websocket or ()),
            request.request_id,
        )
    )


def response_to_client(head: ResponseHead, request: Incoming, framing: Framing, keep_alive: bool) -> bytes:
    """Return the head that the client gets; `framing` is how its body will be ended on this side."""
    framed = b""
    if framing == "chunked":
        framed = b"transfer-encoding: chunked\r\n"
    elif framing == "length" and head.length is not None:
        framed = b"content-length: %b\r\n" % head.length
    return head.lines + framed + _ending(request, keep_alive)


def early_stream_head(request: Incoming, keep_alive: bool) -> bytes:
    """Return the head of a stream that begins before the engine has said anything."""
    fixed = b"content-type: text/event-stream\r\ncache-control: no-cache\r\ntransfer-encoding: chunked\r\n"
    return b"HTTP/1.1 200 OK\r\n%b%b" % (fixed, _ending(request, keep_alive))


def own_response(status: int, headers: tuple[Header, ...], body: bytes, request: Incoming, keep_alive: bool) -> bytes:
    """Return a whole response of the gateway's own; the body is left out where the method or the status forbids one."""
    lines = [b"%b: %b\r\n" % header for header in headers]
    if status not in _BODILESS:
        lines.append(b"content-length: %d\r\n" % len(body))
    head = b"HTTP/1.1 %d %b\r\n%b%b" % (status, REASONS[status], b"".join(lines), _ending(request, keep_alive))
    return head if request.method == b"HEAD" or status in _BODILESS else head + body


def _ending(request: Incoming, keep_alive: bool) -> bytes:
    """Return the header lines that the gateway adds to every response, and the empty line."""
    origin = b"access-control-allow-origin: *\r\n" if request.origin is not None else b""
    connection = b""
    if not keep_alive:
        connection = b"connection: close\r\n"
    elif not request.http11:
        connection = b"connection: keep-alive\r\n"
    return b"x-request-id: %b\r\n%b%b\r\n" % (request.request_id, origin, connection)
