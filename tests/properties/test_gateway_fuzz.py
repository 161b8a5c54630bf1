"""Bytes that nobody would send: however they are cut or bent, the gateway answers the same, or refuses, and keeps nothing.

`LLMGW_FUZZ=20` makes the seeded torrent twenty times as long: 50,000 requests.
"""

import asyncio
import contextlib
import itertools
import json
import os
import random
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

import uvloop
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmgw.fleet.table import TcpAddress
from llmgw.gateway.errors import Fault
from llmgw.gateway.heads import Incoming
from llmgw.gateway.reader import RequestReader
from llmgw.gateway.seen import SeenHeads
from tests.fakes.engine import FakeEngine, running_engine
from tests.unit.gateway.support import CHAT, STREAM, Client, Serving, endpoint, gateway_before, table, until

SCALE = int(os.environ.get("LLMGW_FUZZ", "1"))
TORRENT = 2500 * SCALE
"""Requests of the torrent."""
AT_ONCE = 50
QUICK = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
PURE = settings(max_examples=300, deadline=None)


def post(body: bytes, path: bytes = b"/v1/chat/completions", more: bytes = b"") -> bytes:
    return b"POST %b HTTP/1.1\r\nhost: gw\r\nx-request-id: fixed\r\n%bcontent-length: %d\r\n\r\n%b" % (
        path,
        more,
        len(body),
        body,
    )


def chunked(body: bytes, size: int) -> bytes:
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    framed = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    head = b"POST /v1/completions HTTP/1.1\r\nhost: gw\r\nx-request-id: fixed\r\ntransfer-encoding: chunked\r\n\r\n"
    return head + framed + b"0\r\n\r\n"


def get(path: bytes) -> bytes:
    return b"GET %b HTTP/1.1\r\nhost: gw\r\nx-request-id: fixed\r\n\r\n" % path


CHAT_BODY, STREAM_BODY = json.dumps(CHAT).encode(), json.dumps(STREAM).encode()
ALIAS_BODY = json.dumps({**CHAT, "model": "alias", "tool": {"model": "alias"}}).encode()
REQUESTS = [
    post(CHAT_BODY),
    post(STREAM_BODY),
    post(ALIAS_BODY, b"/v1/embeddings"),
    post(b"{}"),
    post(b'{"model": "nope"}'),
    post(CHAT_BODY, more=b"connection: upgrade\r\nupgrade: h2c\r\n"),
    post(CHAT_BODY, b"/nowhere"),
    chunked(STREAM_BODY, 9),
    chunked(CHAT_BODY, 200),
    get(b"/v1/models"),
    get(b"/v1/models/alias"),
    get(b"/ready"),
]
requests = st.lists(st.sampled_from(REQUESTS), min_size=1, max_size=5)


@st.composite
def cuts(draw: st.DrawFn) -> tuple[list[bytes], list[bytes]]:
    """Return some requests, and their bytes in pieces."""
    chosen = draw(requests)
    data = b"".join(chosen)
    places = sorted(draw(st.sets(st.integers(1, len(data) - 1), max_size=12)))
    return chosen, [data[start:end] for start, end in itertools.pairwise([0, *places, len(data)])]


@st.composite
def bent(draw: st.DrawFn, originals: list[bytes]) -> bytes:
    """Return some of these with a few bytes changed, dropped, doubled or put in."""
    data = bytearray(b"".join(draw(st.lists(st.sampled_from(originals), min_size=1, max_size=3))))
    spice = [b"\r\n", b"\n", b"\x00", b":", b" ", b"0", b"\xff", b"chunked", b"\r\ncontent-length: 5\r\n", b"HTTP/1.1"]
    for _ in range(draw(st.integers(1, 5))):
        at = draw(st.integers(0, len(data)))
        match draw(st.sampled_from(["drop", "put", "change", "double", "end"])):
            case "drop":
                del data[at : at + draw(st.integers(1, 20))]
            case "put":
                data[at:at] = draw(st.sampled_from(spice) | st.binary(min_size=1, max_size=8))
            case "change":
                data[at : at + 1] = draw(st.binary(min_size=1, max_size=1))
            case "double":
                data[at:at] = data[max(0, at - 20) : at]
            case _:
                del data[max(1, at) :]
    return bytes(data)


# The reader alone: thousands of cuts, no sockets


def read(pieces: list[bytes]) -> list[Incoming | Fault]:
    reader = RequestReader(lambda: b"made", lambda: 64 << 20, SeenHeads())
    for piece in pieces:
        reader.feed(piece)
    return list(reader.ready)


@PURE
@given(cuts())
def test_the_reader_does_not_mind_where_bytes_are_cut(cut: tuple[list[bytes], list[bytes]]) -> None:
    chosen, pieces = cut
    whole = [ready for request in chosen for ready in read([request])]
    assert read([b"".join(chosen)]) == whole
    assert read(pieces) == whole


@PURE
@given(bent(REQUESTS), st.integers(1, 400))
def test_bent_bytes_are_read_or_refused_the_same_however_they_are_cut(data: bytes, size: int) -> None:
    whole = read([data])
    pieces = read([data[at : at + size] for at in range(0, len(data), size)])
    assert [type(item) for item in pieces] == [type(item) for item in whole]
    assert [item for item in pieces if isinstance(item, Incoming)] == [
        item for item in whole if isinstance(item, Incoming)
    ]
    assert all(not isinstance(item, Fault) for item in whole[:-1])


# The whole gateway, over sockets


class World:
    """One gateway and engine for all examples of a test; whatever an example leaves behind is found at its end."""

    def __init__(self, runner: asyncio.Runner, serving: Serving, engine: FakeEngine | None) -> None:
        self.runner = runner
        self.serving = serving
        self.engine = engine
        self.errors: list[dict] = []
        runner.get_loop().set_exception_handler(lambda _loop, context: self.errors.append(context))

    async def settled(self) -> None:
        await until(lambda: self.serving.in_flight == 0)
        await until(lambda: self.serving.gateway.clients == 0)
        if self.engine is not None:
            await until(lambda: self.engine.seen.active == 0)
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert self.errors == []


@contextmanager
def world(raw_engine: int | None = None) -> Iterator[World]:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        stack = AsyncExitStack()

        async def enter() -> tuple[Serving, FakeEngine | None]:
            if raw_engine is not None:
                routed = table(endpoint(0, TcpAddress("127.0.0.1", raw_engine)))
                return await stack.enter_async_context(gateway_before(routed=routed)), None
            engine = await stack.enter_async_context(running_engine())
            return await stack.enter_async_context(gateway_before(engine)), engine

        serving, engine = runner.run(enter())
        made = World(runner, serving, engine)
        yield made
        runner.run(stack.aclose())


def test_a_request_in_pieces_gets_the_same_answer() -> None:
    with world() as made:

        @QUICK
        @given(cuts())
        def check(cut: tuple[list[bytes], list[bytes]]) -> None:
            chosen, pieces = cut
            made.runner.run(same_answers(made, chosen, pieces))

        check()


async def same_answers(made: World, chosen: list[bytes], pieces: list[bytes]) -> None:
    one_by_one = [await answers(made, [request], 1) for request in chosen]
    assert await answers(made, pieces, len(chosen)) == [answer for single in one_by_one for answer in single]
    await made.settled()


async def answers(made: World, pieces: list[bytes], count: int) -> list[tuple[int, list[tuple[str, str]], bytes]]:
    client = Client(*await asyncio.open_connection("127.0.0.1", made.serving.port))
    for piece in pieces:
        client.send(piece)
        await asyncio.sleep(0)
    responses = [await client.response() for _ in range(count)]
    assert all(response.whole for response in responses)
    await client.close()
    return [(response.status, response.headers, bytes(response.body)) for response in responses]


def test_bent_requests_crash_nothing_and_leave_nothing() -> None:
    with world() as made:

        @QUICK
        @given(bent(REQUESTS), st.randoms(use_true_random=False))
        def check(data: bytes, rng: random.Random) -> None:
            made.runner.run(survives(made, data, rng))

        check()


async def survives(made: World, data: bytes, rng: random.Random) -> None:
    client = Client(*await asyncio.open_connection("127.0.0.1", made.serving.port))
    try:
        at = 0
        while at < len(data) and not client.writer.is_closing():
            step = rng.choice([1, 7, 100, len(data)])
            client.send(data[at : at + step])
            at += step
            await asyncio.sleep(0)
        assert (await answers(made, [get(b"/health")], 1))[0][0] == 200
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.01):
                while True:
                    try:
                        head = await client.head()
                    except asyncio.IncompleteReadError as end:
                        if end.partial:
                            raise  # half a head
                        break
                    assert head.status in {100, 200, 204, 400, 404, 405, 413, 431, 503, 505}, head
                    await client.body(head, bodiless=data[:4] == b"HEAD")
                    if head.status >= 400 and head.body:
                        assert head.code
    finally:
        client.reset()
        await client.close()
    await made.settled()


def mutated(rng: random.Random) -> bytes:
    """Return one to three requests, most of them bent, and some with a body of up to 64 KiB."""
    body = json.dumps({**CHAT, "pad": "x" * rng.choice([0, 0, 10, 5_000, 64_000])}).encode()
    chosen = [*rng.sample(REQUESTS, rng.randint(0, 2)), post(body, rng.choice(PATHS))]
    data = bytearray(b"".join(chosen))
    for _ in range(rng.choice([0, 1, 1, 2, 5])):
        at = rng.randrange(len(data))
        match rng.randrange(5):
            case 0:
                data[at] = rng.randrange(256)
            case 1:
                del data[at : at + rng.randint(1, 40)]
            case 2:
                data[at:at] = rng.randbytes(rng.randint(1, 20))
            case 3:
                data[at:at] = data[max(0, at - rng.randint(1, 60)) : at]
            case _:
                data[at:at] = rng.choice(SPICE)
        if not data:
            data += b"G"
    return bytes(data)


PATHS = [
    b"/v1/chat/completions",
    b"/v1/messages",
    b"/v1/responses",
    b"/v1/embeddings",
    b"/engines/m/x",
    b"/v1/responses/r",
]
SPICE = [
    b"\r\n",
    b"\n",
    b"transfer-encoding: chunked\r\n",
    b"content-length: 7\r\n",
    b"expect: 100-continue\r\n",
    b"content-encoding: gzip\r\n",
    b"connection: close\r\n",
    b"upgrade: websocket\r\nconnection: upgrade\r\n",
]


def test_a_torrent_of_mutated_requests_leaves_nothing_behind_and_gets_no_500() -> None:
    rng = random.Random(SCALE)
    with world() as made:
        files = len(list(Path("/proc/self/fd").iterdir()))

        async def one(number: int) -> None:
            data = mutated(rng)
            client = Client(*await asyncio.open_connection("127.0.0.1", made.serving.port, limit=1 << 20))
            pieces = rng.choice([1, 13, 1000, 65536])
            if pieces == 1 and len(data) > 2000:
                pieces = 13 if len(data) < 20_000 else 4096
            for at in range(0, len(data), pieces):
                client.send(data[at : at + pieces])
                if at % (pieces * 64) == 0:
                    await asyncio.sleep(0)
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(rng.choice([0.002, 0.05])):
                    while received := await client.reader.read(1 << 16):
                        assert b"HTTP/1.1 500" not in received, (number, data)
            client.reset()
            await client.close()

        async def flood() -> None:
            for start in range(0, TORRENT, AT_ONCE):
                await asyncio.gather(*(one(start + n) for n in range(AT_ONCE)))
            await made.settled()
            answer = await answers(made, [post(CHAT_BODY)], 1)
            assert answer[0][0] == 200

        made.runner.run(flood())
        assert len(list(Path("/proc/self/fd").iterdir())) <= files + 2, "no socket is left open"


SSE = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
RESPONSES = [
    b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 13\r\n\r\n{"id": "one"}',
    SSE + b"a\r\ndata: {}\n\n\r\ne\r\ndata: [DONE]\n\n\r\n0\r\n\r\n",
    b"HTTP/1.1 503 Loading\r\nretry-after: 3\r\ncontent-length: 2\r\n\r\n{}",
    b"HTTP/1.1 100 Continue\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n{}",
    b"HTTP/1.1 204 No Content\r\n\r\n",
]


def test_bent_responses_crash_nothing_and_leave_nothing() -> None:
    sent: list[bytes] = [b""]

    async def engine(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(sent[0])
            await writer.drain()
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    async def start() -> asyncio.Server:
        return await asyncio.start_server(engine, "127.0.0.1", 0)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        errors: list[dict] = []
        runner.get_loop().set_exception_handler(lambda _loop, context: errors.append(context))
        server = runner.run(start())
        port = server.sockets[0].getsockname()[1]

        async def survives_engine() -> None:
            async with gateway_before(routed=table(endpoint(0, TcpAddress("127.0.0.1", port)))) as s:
                response = await s.ask(STREAM)
                assert response.status != 500 or b"500" in sent[0]
                if not response.whole and response.header("content-type") == "text/event-stream":
                    assert not response.body.endswith(b"data: [DONE]\n\n")
                await until(lambda: s.in_flight == 0)
            assert errors == []

        @QUICK
        @given(bent(RESPONSES))
        def check(data: bytes) -> None:
            sent[0] = data
            runner.run(settle(survives_engine()))

        async def settle(example) -> None:
            await example
            others = asyncio.all_tasks() - {asyncio.current_task()}
            if others:
                await asyncio.wait(others, timeout=1)

        check()
        server.close()
        runner.run(server.wait_closed())
