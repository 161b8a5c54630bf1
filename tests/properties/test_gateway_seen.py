"""A head that was seen before is understood as the parser understands it: nothing that came earlier changes what is read.

The heads are bent where it could matter: two lengths, other framings, odd spaces and line ends, lengths that do not fit.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

from hypothesis import given, settings
from hypothesis import strategies as st

from llmgw.base.time import Instant
from llmgw.fleet.table import TcpAddress
from llmgw.gateway.errors import Fault
from llmgw.gateway.heads import Incoming, ResponseHead
from llmgw.gateway.reader import RequestReader
from llmgw.gateway.seen import MOST, SeenHeads, cut
from llmgw.gateway.upstream import UpstreamConnection, UpstreamPool

OFTEN = settings(max_examples=500, deadline=None)
LIMIT = 40
"""Bytes of a body."""

lengths = st.sampled_from([b"0", b"2", b"5", b"05", b"41", b"+5", b" 5", b"5 ", b"", b"5,5", b"99999999999"])
length_names = st.sampled_from(
    [b"Content-Length", b"content-length", b"CONTENT-LENGTH", b"X-Content-Length", b"Content-Length "]
)
line_ends = st.sampled_from([b"\r\n", b"\r\n", b"\r\n", b"\n"])
bodies = st.sampled_from([b"", b"{}", b"12345", b"0\r\n\r\n", b"1" * 41, b"12345678"])


@st.composite
def messages(draw: st.DrawFn, firsts: list[bytes], others: list[bytes]) -> bytes:
    """Return a message that is in order more often than not."""
    body = draw(bodies)
    lines = draw(st.lists(st.sampled_from(others), max_size=2))
    in_order = draw(st.booleans())
    for _ in range(1 if in_order else draw(st.sampled_from([0, 1, 2]))):
        fits = in_order or draw(st.booleans())
        name = b"Content-Length" if in_order else draw(length_names)
        at = draw(st.integers(0, len(lines)))
        lines.insert(at, b"%b: %b" % (name, b"%d" % len(body) if fits else draw(lengths)))
    end = b"\r\n" if in_order else draw(line_ends)
    return end.join([draw(st.sampled_from(firsts)), *lines]) + end + draw(line_ends) + body


REQUEST_LINES = [
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: gw",
    b"POST /v1/chat/completions HTTP/1.1",
    b"POST /x HTTP/1.0",
    b"GET /v1/models HTTP/1.1\r\nHost: gw",
]
REQUEST_HEADERS = [
    b"Content-Type: application/json",
    b"X-Request-Id: mine",
    b"Connection: close",
    b"Connection: upgrade\r\nUpgrade: h2c",
    b"Transfer-Encoding: chunked",
    b"Expect: 100-continue",
    b"Origin: http://a",
    b"Content-Encoding: gzip",
    b"Host: other",
]
RESPONSE_LINES = [b"HTTP/1.1 200 OK", b"HTTP/1.1 103 Early Hints", b"HTTP/1.1 204 No Content", b"HTTP/1.0 500 Oh"]
RESPONSE_HEADERS = [
    b"Content-Type: application/json",
    b"Content-Type: text/event-stream",
    b"Connection: close",
    b"Transfer-Encoding: chunked",
    b"Content-Encoding: gzip",
    b"X-Request-Id: theirs",
]
requests = st.lists(messages(REQUEST_LINES, REQUEST_HEADERS), min_size=1, max_size=6)
responses = st.lists(messages(RESPONSE_LINES, RESPONSE_HEADERS), min_size=1, max_size=6)


def read(data: bytes, seen: SeenHeads[Incoming]) -> list[Incoming | Fault]:
    reader = RequestReader(lambda: b"made", lambda: LIMIT, seen)
    reader.feed(data)
    return [*reader.ready, Fault(100, "continue", "")] if reader.awaits_continue else list(reader.ready)


@OFTEN
@given(requests)
def test_requests_are_read_the_same_whatever_came_before(chosen: list[bytes]) -> None:
    seen: SeenHeads[Incoming] = SeenHeads()
    for data in [*chosen, *chosen]:
        assert read(data, seen) == read(data, SeenHeads())


@dataclass
class Wire:
    """The transport of a connection to an engine."""

    aborted: bool = False

    def write(self, data: bytes) -> None:
        pass

    def abort(self) -> None:
        self.aborted = True

    def is_closing(self) -> bool:
        return self.aborted

    def get_write_buffer_size(self) -> int:
        return 0


@dataclass
class Sink:
    """What an exchange would have been told."""

    told: list[object] = field(default_factory=list)

    def response_data(self, head: ResponseHead | None, body: bytes, complete: bool, framed: bytes = b"") -> None:
        self.told.append((head, body, complete))

    def response_broken(self, reason: str) -> None:
        self.told.append(reason)


class StoppedClock:
    def now(self) -> Instant:
        return Instant(0.0)


def answered(data: bytes, seen: SeenHeads[ResponseHead] | None) -> tuple[list[object], bool, bool]:
    """Return what an exchange is told of a response, whether its connection is closed, and whether it is kept."""
    pool = UpstreamPool(StoppedClock())
    if seen is not None:
        pool.seen = seen
    connection, wire, sink = UpstreamConnection(pool, TcpAddress("e", 1)), Wire(), Sink()
    connection.connection_made(cast("asyncio.Transport", wire))
    connection.send(sink, b"POST / HTTP/1.1\r\n\r\n", b"")
    connection.data_received(data)
    kept = pool.idle == 1
    pool.close()
    return sink.told, wire.aborted and not kept, kept


@OFTEN
@given(responses)
def test_responses_are_told_the_same_whatever_came_before(chosen: list[bytes]) -> None:
    async def compare() -> None:
        seen: SeenHeads[ResponseHead] = SeenHeads()
        for data in [*chosen, *chosen]:
            assert answered(data, seen) == answered(data, None)

    asyncio.run(compare())


def counted(made: list[bytes]) -> Callable[[], bytes]:
    def new() -> bytes:
        made.append(b"id-%d" % len(made))
        return made[-1]

    return new


def test_each_request_behind_a_known_head_has_its_own_id_body_and_limit() -> None:
    seen: SeenHeads[Incoming] = SeenHeads()
    limit = 1000
    reader = RequestReader(counted([]), lambda: limit, seen)
    for number in range(3):
        body = b"x" * 10**number
        reader.feed(b"POST /v1/completions HTTP/1.1\r\nHost: gw\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
    found = [(one.request_id, len(one.body)) for one in reader.ready if isinstance(one, Incoming)]
    assert found == [(b"id-0", 1), (b"id-1", 10), (b"id-2", 100)]
    limit = 5
    reader.feed(b"POST /v1/completions HTTP/1.1\r\nHost: gw\r\nContent-Length: 6\r\n\r\n123456")
    assert isinstance(reader.ready[-1], Fault), "the limit is that of now"


def test_a_body_above_the_limit_is_refused_though_an_upgrade_is_offered() -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nHost: gw\r\nContent-Length: 41\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n"
    (fault,) = read(head, SeenHeads())
    assert isinstance(fault, Fault)
    assert fault.status == 413


def test_what_is_kept_is_bounded() -> None:
    seen: SeenHeads[int] = SeenHeads()
    for number in range(3 * MOST):
        whole = cut(b"POST /%d HTTP/1.1\r\nContent-Length: 0\r\n\r\n" % number)
        assert whole is not None
        seen.keep(whole, number)
        assert seen.get(whole) == number
    assert len(seen) <= MOST
    assert cut(b"POST / HTTP/1.1\r\na: %b\r\nContent-Length: 0\r\n\r\n" % (b"x" * 3000)) is None
