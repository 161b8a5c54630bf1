"""`RequestReader`: whole requests out of a client's bytes, however they are cut. Sans-IO: no socket, no loop.

What is refused here is what must not be guessed at: bytes that are not HTTP, two different lengths for one body (the
parser's strict mode), no host or two (RFC 9112, 3.2), a head or a body above its limit. After a fault nothing more is read,
because where the next request would begin is not known.

An offer to upgrade is ignored, as RFC 9110 allows: Java's own HTTP client makes it with every request, and servers that
take it at its word lose the body. The parser stops at such a head, so the request is parsed again without the offer. The one
that is taken is a WebSocket where engines have one; what follows it is kept as it came, in `beyond`.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import replace

from httptools import HttpParserCallbackError, HttpParserError, HttpParserUpgrade, HttpRequestParser

from llmgw.gateway.bodies import too_large
from llmgw.gateway.errors import Fault
from llmgw.gateway.heads import FORWARDED, NOTED, REQUEST_ID, REQUEST_ID_LIMIT, WEBSOCKET, Incoming
from llmgw.gateway.routes import POSTS, REALTIME
from llmgw.gateway.seen import Cut, SeenHeads, cut
from llmgw.routing.request import Route

HEAD_LIMIT = 64 << 10
PIECES = 1000
"""Pieces of a body that are kept as they came."""

HEAD_TOO_LARGE = Fault(431, "headers_too_large", f"The request's head is above the limit of {HEAD_LIMIT >> 10} KiB.")
OTHER_VERSION = Fault(505, "http_version", "This gateway speaks HTTP/1.1.")
CHUNKED_BEFORE_1_1 = Fault(400, "invalid_http", "HTTP/1.0 has no transfer encodings.")
NO_HOST = Fault(400, "invalid_http", "An HTTP/1.1 request names its host; this one has no Host header.")
TWO_HOSTS = Fault(400, "invalid_http", "A request names one host; this one has two Host headers.")
NO_TUNNELS = Fault(405, "method_not_allowed", "This gateway opens no tunnels.")


class _Names(dict[bytes, tuple[bytes, bool, bool | None]]):
    """A header's name as a client writes it -> (in lower case, whether it goes to the engine, whether it is read here).

    Clients write the same few names with every request. The last is None for those that only a WebSocket takes along.
    """

    def __missing__(self, name: bytes) -> tuple[bytes, bool, bool | None]:
        lower = name.lower()
        found = (lower, lower in FORWARDED, None if lower in WEBSOCKET else lower in NOTED)
        if len(self) < MOST_NAMES:
            self[name] = found
        return found


MOST_NAMES = 1000
"""Names that are remembered, at most: clients choose them."""
_NAMES = _Names()
_VARYING = frozenset({REQUEST_ID, b"transfer-encoding", b"expect", b"upgrade"})
"""Headers with which a head is not remembered: ids are another with each request, the rest is the parser's to act on."""


class Refused(Exception):
    """Raised in a callback to stop the parser at a request that gets a fault."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.code)
        self.fault = fault


class RequestReader:
    """One a connection. `ready` fills in the order of the bytes; a `Fault` in it is the last that comes."""

    def __init__(
        self, new_request_id: Callable[[], bytes], max_body: Callable[[], int], seen: SeenHeads[Incoming]
    ) -> None:
        """`max_body` returns the limit of a body in bytes, as it is now; `seen` is shared by all connections."""
        self._seen = seen
        self._max_body = max_body
        self.beyond = b""
        """What a client sent after a request to become a WebSocket."""
        self.tunnels = False
        self.ready: deque[Incoming | Fault] = deque()
        self.awaits_continue = False
        """Whether the client holds back a body until it is told to go on."""
        self._new_request_id = new_request_id
        self._parser = HttpRequestParser(self)
        self._broken = False
        self._begun = 0
        self._in_head = False
        self._partial = False
        self._in_trailers = False
        self._unparsed = 0
        """Bytes of whole reads that brought a head or trailers no nearer to their end, as far as callbacks show."""
        self._url = b""
        self._forwarded: list[bytes] = []
        self._noted: dict[bytes, bytes] = {}
        self._websocket: list[bytes] = []
        self._head_size = 0
        self._http11 = True
        self._body: list[bytes] = []
        self._rest = bytearray()
        """What follows the first `PIECES` pieces."""
        self._body_size = 0

    @property
    def route(self) -> Route | None:
        """Where the request that comes, or came last, goes; None if that is not known or not to a model."""
        found = POSTS.get(_origin_form(self._url).partition(b"?")[0]) if self._url else None
        return found.route if found is not None else None

    @property
    def unfinished(self) -> bool:
        """Whether a request has begun to come and is not whole."""
        return self._partial

    @property
    def unfinished_head(self) -> int:
        """The number of the request whose head is not whole yet; 0 if there is none."""
        return self._begun if self._in_head else 0

    @property
    def unfinished_body(self) -> int:
        """The number of the request whose body is not whole yet; 0 if there is none."""
        return self._begun if self._partial and not self._in_head else 0

    @property
    def received(self) -> int:
        """Bytes of that body that are there."""
        return self._body_size

    def feed(self, data: bytes) -> None:
        """Take bytes as they came. After a fault they are thrown away."""
        if self.tunnels:
            self.beyond += data
            return
        if self._broken:
            return
        whole = cut(data) if not self._partial and data.startswith(b"POST ") else None
        if whole is not None and self._take_known(whole):
            return
        begun = self._begun
        self._feed_parser(data)
        if whole is not None and self._begun == begun + 1 and not self._partial:
            self._remember(whole)

    def _feed_parser(self, data: bytes) -> None:
        begun = self._begun
        try:
            self._parse(data)
        except Refused as refused:
            self._refuse(refused.fault)
        except HttpParserError as error:
            self._refuse(_fault_of(error))
        if (self._in_head or self._in_trailers) and self._begun == begun:
            self._unparsed += len(data)
            if self._unparsed > HEAD_LIMIT and not self._broken:
                self._refuse(HEAD_TOO_LARGE)

    def _take_known(self, whole: Cut) -> bool:
        """Take a request whose head was parsed before, on whatever connection; return whether this is one."""
        known = self._seen.get(whole)
        if known is None or len(whole.body) > self._max_body():
            return False
        self._url = known.target
        self.ready.append(
            Incoming(
                known.method,
                known.target,
                known.forwarded,
                self._new_request_id(),
                known.origin,
                known.asked_headers,
                known.http11,
                known.keep_alive,
                whole.body,
                known.content_type,
                known.content_encoding,
                credential=known.credential,
            )
        )
        return True

    def _remember(self, whole: Cut) -> None:
        """Keep what the parser made of a request, if another one with this head would be the same."""
        request = self.ready[-1] if self.ready else None
        if not isinstance(request, Incoming) or not self._noted.keys().isdisjoint(_VARYING):
            return
        if not any(line.startswith(b"traceparent") for line in request.forwarded):  # another one with each request
            self._seen.keep(whole, replace(request, body=b"", request_id=b""))

    def _parse(self, data: bytes) -> None:
        rest: bytes | memoryview = data
        while rest:
            try:
                self._parser.feed_data(rest)
            except HttpParserUpgrade as upgrade:
                rest = memoryview(rest)[upgrade.args[0] :]
            else:
                return
            # not while the exception is handled: it would take the place of a callback's own (see `_fault_of`)
            if self._is_websocket():
                self.tunnels, self.beyond = True, bytes(rest)
                self.ready.append(self._incoming(b"", keep_alive=False))
                return
            self._start_without_upgrade()

    def _is_websocket(self) -> bool:
        offered = self._noted.get(b"upgrade", b"").lower() == b"websocket"
        return (
            offered and self._parser.get_method() == b"GET" and _origin_form(self._url).partition(b"?")[0] == REALTIME
        )

    def _start_without_upgrade(self) -> None:
        offered, self._parser = self._parser, HttpRequestParser(self)
        method = offered.get_method()
        if method == b"CONNECT":
            raise Refused(NO_TUNNELS)
        noted = [
            b"%b: %b\r\n" % header
            for header in self._noted.items()
            if header[0] not in FORWARDED and header[0] != b"upgrade"
        ]
        lines = b"".join(self._forwarded + noted)
        version = offered.get_http_version().encode()
        self._parser.feed_data(b"%b %b HTTP/%b\r\n%b\r\n" % (method, self._url, version, lines))

    def _refuse(self, fault: Fault) -> None:
        self._broken = True
        self.awaits_continue = False
        self._body, self._rest = [], bytearray()
        self.ready.append(fault)

    # What the parser calls

    def on_message_begin(self) -> None:
        """Start a request."""
        self._begun += 1
        self._in_head = self._partial = True
        self._unparsed = 0
        self._url = b""
        self._forwarded = []
        self._noted = {}
        self._websocket = []
        self._head_size = 0
        self._body = []
        self._body_size = 0

    def on_url(self, url: bytes) -> None:
        """Take the target, which may come in parts."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header that goes to the engine or that the gateway reads. A trailer comes here too, and is dropped."""
        if not self._in_head:
            return
        self._head_size += len(name) + len(value) + 4
        lower, forwarded, noted = _NAMES[name]
        if forwarded:
            self._forwarded.append(b"%b: %b\r\n" % (lower, value))
        elif noted is None:
            self._websocket.append(b"%b: %b\r\n" % (lower, value))
        if noted:
            if lower not in self._noted:
                self._noted[lower] = value
            elif lower == b"host":  # whoever stands before us may go by the other one
                raise Refused(TWO_HOSTS)

    def on_headers_complete(self) -> None:
        """Check what the head alone can tell."""
        self._in_head = False
        self._unparsed = 0
        version = self._parser.get_http_version()
        self._http11 = version == "1.1"
        if not self._http11 and version != "1.0":
            raise Refused(OTHER_VERSION)
        if self._head_size + len(self._url) > HEAD_LIMIT:
            raise Refused(HEAD_TOO_LARGE)
        if self._http11 and b"host" not in self._noted:
            raise Refused(NO_HOST)
        if self._parser.should_upgrade():
            return
        length = self._noted.get(b"content-length")
        if length is not None and int(length) > self._max_body():
            raise Refused(too_large(self._max_body()))
        if not self._http11 and b"transfer-encoding" in self._noted:
            raise Refused(CHUNKED_BEFORE_1_1)
        if self._http11 and b"expect" in self._noted:
            self.awaits_continue = self._noted[b"expect"].lower() == b"100-continue"

    def on_chunk_header(self) -> None:
        """Suppose that this was the last chunk and trailers follow, until a byte of the body says otherwise."""
        self._in_trailers = True

    def on_body(self, data: bytes) -> None:
        """Keep a piece of the body."""
        self._in_trailers = False
        self._unparsed = 0
        if len(self._body) < PIECES:
            self._body.append(data)
        else:  # tiny chunks would cost a hundred times their size, each as an object of its own
            self._rest += data
        self._body_size += len(data)
        if self._body_size > self._max_body():
            raise Refused(too_large(self._max_body()))

    def on_message_complete(self) -> None:
        """Hand over the request."""
        self._in_trailers = False
        if self._parser.should_upgrade():
            return
        self._partial = False
        self.awaits_continue = False
        body = self._body
        self._body = []
        if self._rest:
            body.append(bytes(self._rest))
            self._rest = bytearray()
        whole = body[0] if len(body) == 1 else b"".join(body)
        self.ready.append(self._incoming(whole, self._parser.should_keep_alive()))

    def _incoming(self, body: bytes, keep_alive: bool) -> Incoming:
        noted = self._noted
        request_id = noted.get(REQUEST_ID, b"")
        if not (0 < len(request_id) <= REQUEST_ID_LIMIT and request_id.isascii()):
            request_id = self._new_request_id()
        return Incoming(
            self._parser.get_method(),
            self._url if self._url.startswith(b"/") else _origin_form(self._url),
            tuple(self._forwarded),
            request_id,
            noted.get(b"origin"),
            noted.get(b"access-control-request-headers"),
            self._http11,
            keep_alive,
            body,
            noted.get(b"content-type", b""),
            noted[b"content-encoding"].lower() if b"content-encoding" in noted else b"",
            tuple(self._websocket) if self.tunnels else None,
            credential=noted.get(b"x-api-key") or noted.get(b"authorization", b""),
        )


def _origin_form(url: bytes) -> bytes:
    """Return path and query of a target, which a client of a proxy writes with scheme and host."""
    if url.startswith((b"/", b"*")):
        return url
    authority = url.partition(b"://")[2]
    slash = authority.find(b"/")
    return b"/" if slash < 0 else authority[slash:]


def _fault_of(error: HttpParserError) -> Fault:
    """Return what a client is told of a parser's error. An error in a callback that is no refusal is a bug: raised."""
    if isinstance(error, HttpParserCallbackError):
        if isinstance(error.__context__, Refused):
            return error.__context__.fault
        raise error
    return Fault(400, "invalid_http", f"This is not a valid HTTP/1.1 request: {error}")
