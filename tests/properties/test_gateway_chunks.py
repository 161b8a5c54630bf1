"""A read that is just one chunk is not parsed; what an exchange is told is the same as if it were, however reads are cut."""

import asyncio
from typing import cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from llmgw.fleet.table import TcpAddress
from llmgw.gateway.heads import ResponseHead
from llmgw.gateway.upstream import UpstreamConnection, UpstreamPool, only_chunk
from tests.properties.test_gateway_seen import OFTEN, StoppedClock, Wire

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def framed(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


bodies = st.one_of(
    st.binary(min_size=1, max_size=40),
    st.sampled_from([b"data: {}\n\n", b"\r\n", b"0\r\n\r\n", b"5\r\nhello\r\n", b"a" * 300]),
)
chunks = st.one_of(
    bodies.map(framed),
    bodies.map(lambda body: b"%04X;why=not\r\n%b\r\n" % (len(body), body)),
    bodies.map(lambda body: b"%X\r\n%b\r\n" % (len(body), body)),
)
odd = st.sampled_from(
    [
        *(b"zz\r\nhello\r\n", b"+5\r\nhello\r\n", b" 5\r\nhello\r\n", b"0x5\r\nhello\r\n", b"5\r\nhelloXX"),
        b"1_0\r\n" + b"x" * 16 + b"\r\n",
    ]
)
streams = st.lists(chunks, min_size=1, max_size=6).flatmap(
    lambda whole: st.sampled_from([[*whole, b"0\r\n\r\n"], whole, [*whole, b"0\r\nx: y\r\n\r\n"]])
)


@st.composite
def reads(draw: st.DrawFn) -> list[bytes]:
    """A stream, mostly a chunk a read, else cut anywhere or joined."""
    parts = draw(streams)
    if draw(st.booleans()):
        parts.insert(draw(st.integers(0, len(parts))), draw(odd))
    if draw(st.booleans()):
        return [HEAD, *parts]
    data = HEAD + b"".join(parts)
    cuts = sorted(draw(st.sets(st.integers(1, len(data) - 1), max_size=8)))
    return [data[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]


class Sink:
    def __init__(self) -> None:
        self.head: ResponseHead | None = None
        self.body = b""
        self.ends: list[str] = []
        self.unparsed = 0

    def response_data(self, head: ResponseHead | None, body: bytes, complete: bool, framed: bytes = b"") -> None:
        self.head = self.head or head
        self.body += body
        if framed:
            self.unparsed += 1
            assert only_chunk(framed) == body
        if complete:
            self.ends.append("complete")

    def response_broken(self, reason: str) -> None:
        self.ends.append(reason)


def told(data: list[bytes], *, parsed: bool) -> Sink:
    async def run() -> Sink:
        pool = UpstreamPool(StoppedClock())
        sink = _told(pool, data, parsed=parsed)
        pool.close()
        return sink

    return asyncio.run(run())


def _told(pool: UpstreamPool, data: list[bytes], *, parsed: bool) -> Sink:
    connection, sink = UpstreamConnection(pool, TcpAddress("e", 1)), Sink()
    connection.connection_made(cast("asyncio.Transport", Wire()))
    connection.send(sink, b"POST / HTTP/1.1\r\n\r\n", b"")
    for one in data:
        if parsed:
            connection._between = False
        if not sink.ends:
            connection.data_received(one)
    if not sink.ends:
        connection.connection_lost(None)
    return sink


CHUNK_LIKE = b"5\r\nhello\r\n"


@OFTEN
@given(reads())
@example([HEAD + framed(b"x") + b"1", CHUNK_LIKE, b"a" * 14 + b"\r\n0\r\n\r\n"])
@example([HEAD + framed(b"x") + b"a\r\n", CHUNK_LIKE, b"\r\n0\r\n\r\n"])
@example([HEAD + framed(b"x"), b"a\r\n", CHUNK_LIKE, b"\r\n0\r\n\r\n"])
@example([HEAD + framed(b"x"), b"a", b"\r\n" + CHUNK_LIKE, b"\r\n", CHUNK_LIKE, b"0\r\n\r\n"])
def test_what_is_told_is_the_same_as_if_all_were_parsed(data: list[bytes]) -> None:
    quick, slow = told(data, parsed=False), told(data, parsed=True)
    assert (quick.head, quick.body, quick.ends) == (slow.head, slow.body, slow.ends)
    assert slow.unparsed == 0


def test_most_events_of_a_stream_are_not_parsed() -> None:
    sink = told([HEAD, *(framed(b"data: %d\n\n" % n) for n in range(10)), b"0\r\n\r\n"], parsed=False)
    assert (sink.unparsed, sink.ends) == (9, ["complete"]), "the first shows where chunks begin"


NOT_ONE = [
    *(b"", b"5", b"5\r\n", b"5\r\nhell\r\n", b"5\r\nhello\r", b"5\r\nhelloXX", b"0\r\n\r\n", b"\r\nhello\r\n"),
    *(b"+5\r\nhello\r\n", b"0x5\r\nhello\r\n", b"5;a\r\nhello\r\n", b"5 \r\nhello\r\n", b"000000005\r\nhello\r\n"),
    *(b"5\r\nhello\r\n0\r\n\r\n", b"1_0\r\n0123456789abcdef\r\n"),
]


@pytest.mark.parametrize("data", NOT_ONE)
def test_what_is_not_just_one_chunk_is_left_to_the_parser(data: bytes) -> None:
    assert only_chunk(data) == b""
    assert only_chunk(b"5\r\nhello\r\n") == b"hello"
