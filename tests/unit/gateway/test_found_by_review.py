"""What a review of the gateway found: framing, retries, circuits and refusals in the corners, each seen to go wrong before."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from llmgw.fleet.table import TcpAddress
from llmgw.routing import breaker
from tests.fakes.engine import running_engine
from tests.unit.gateway.support import CHAT, STREAM, address_of, endpoint, gateway_before, serving, table, until

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], object]


@asynccontextmanager
async def raw_engine(answer: bytes, *, close: bool = False) -> AsyncIterator[tuple[TcpAddress, list[bytes]]]:
    """Run an engine that answers every read with the same bytes; yield its address and what it heard."""
    heard: list[bytes] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                heard.append(data)
                writer.write(answer)
                await writer.drain()
                if close:
                    break
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    try:
        yield TcpAddress("127.0.0.1", server.sockets[0].getsockname()[1]), heard
    finally:
        server.close()


async def test_nothing_goes_through_to_an_engine_that_did_not_become_a_websocket() -> None:
    refusal = b"HTTP/1.1 404 Not Found\r\ncontent-type: text/plain\r\ncontent-length: 2\r\n\r\nno"
    async with raw_engine(refusal) as (address, heard), gateway_before(routed=table(endpoint(0, address))) as s:
        client = await s.client()
        upgrade = "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-key: x\r\n"
        client.get("/v1/realtime?model=alias", headers=upgrade)
        client.send(b"POST /admin HTTP/1.1\r\nauthorization: Bearer x\r\ncontent-length: 0\r\n\r\n")
        response = await client.response()
        assert (response.status, bytes(response.body), response.header("content-type")) == (404, b"no", "text/plain")
        assert await client.closed()
        assert b"admin" not in b"".join(heard)
        assert b"GET /v1/realtime?model=m HTTP/1.1" in b"".join(heard), "the alias is not what the engine knows"


async def test_a_websocket_is_waited_for_as_long_as_an_answer() -> None:
    async with raw_engine(b"") as (address, _), gateway_before(routed=table(endpoint(0, address), headers=0.1)) as s:
        client = await s.client()
        client.get("/v1/realtime?model=m", headers="connection: upgrade\r\nupgrade: websocket\r\n")
        assert (await client.response()).code == "upstream_timeout"
        assert s.in_flight == 0


async def test_an_engine_s_paths_are_closed_to_pages_of_other_origins() -> None:
    async with serving(echo_headers=True) as s:
        refused = await s.ask({}, "/engines/m/x", "origin: http://evil.example\r\n")
        assert (refused.status, refused.code) == (403, "not_an_admin")


async def test_a_response_that_nobody_asked_for_is_not_part_of_the_one_before() -> None:
    one = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"
    evil = b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nEVIL-EVIL"
    async with raw_engine(one + evil) as (address, _), gateway_before(routed=table(endpoint(0, address))) as s:
        client = await s.client()
        for _ in range(3):
            client.post(CHAT)
            response = await client.response()
            assert (response.whole, bytes(response.body)) == (True, b"{}")


async def test_a_request_that_kills_its_engine_does_not_go_on_to_the_next() -> None:
    died: list[int] = []

    async def engine(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                body = await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]))
                if b"poison" in body:
                    died.append(1)
                    await asyncio.sleep(0.2)
                    break
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
        writer.close()

    servers = [await asyncio.start_server(engine, "127.0.0.1", 0) for _ in range(2)]
    addresses = [TcpAddress("127.0.0.1", one.sockets[0].getsockname()[1]) for one in servers]
    async with gateway_before(routed=table(*(endpoint(n, one) for n, one in enumerate(addresses)))) as s:
        for _ in range(6):
            assert (await s.ask(CHAT)).status == 200
        assert (await s.ask({**CHAT, "messages": "poison"})).code == "upstream_failed"
    assert len(died) == 1
    for one in servers:
        one.close()


async def test_streams_that_break_after_their_head_open_the_circuit() -> None:
    async with serving(die_after=1) as s:
        for _ in range(breaker.FAILURES):
            assert not (await s.ask(STREAM)).whole
        assert (await s.ask(STREAM)).code == "model_unreachable"


async def test_an_error_that_the_engine_tells_itself_is_its_last_word() -> None:
    event = b'data: {"error":{"message":"out of blocks"}}\n\n'
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    answer = head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(event), event)
    async with raw_engine(answer) as (address, _), gateway_before(routed=table(endpoint(0, address))) as s:
        for _ in range(breaker.FAILURES + 1):
            response = await s.ask(STREAM)
            assert (response.whole, bytes(response.body)) == (True, event)


async def test_half_an_answer_is_not_passed_off_as_whole_to_old_clients() -> None:
    answer = b'HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n8\r\n{"half":\r\n'
    async with raw_engine(answer, close=True) as (address, _), gateway_before(routed=table(endpoint(0, address))) as s:
        client = await s.client()
        client.post(CHAT, version="1.0")
        with pytest.raises(ConnectionResetError):
            await client.reader.read(-1)


async def test_an_event_of_which_a_part_was_passed_on_is_closed_before_the_error() -> None:
    async with running_engine() as engine, gateway_before(engine) as s:
        client = await s.client()
        engine.throw(stall_after=1)
        client.post(STREAM)
        head = await client.head()
        await client.chunk(head)
        (connection,) = engine.connections
        connection.transport.write(b"%x\r\ndata: %b\r\n" % (100_006, b"z" * 100_000))
        await client.chunk(head)
        connection.transport.close()
        response = await client.body(head)
        assert b'z\n\ndata: {"error"' in response.body


async def test_an_error_in_pieces_is_told_whole_in_a_stream_that_began_early() -> None:
    async with running_engine(stall_before_headers=True) as engine, gateway_before(engine) as s:
        s.gateway.set_table(table(endpoint(0, address_of(engine)), version=2, keep_alive=0.03))
        client = await s.client()
        client.post(STREAM)
        head = await client.head()
        await client.chunk(head)
        text = json.dumps({"error": {"message": "x" * 5000}}).encode()
        transport = next(iter(engine.connections)).transport
        transport.write(b"HTTP/1.1 400 Bad\r\ncontent-length: %d\r\n\r\n" % len(text) + text[:1000])
        await asyncio.sleep(0.05)
        transport.write(text[1000:])
        response = await client.body(head)
        assert json.loads(response.events[-1].removeprefix(b"data: "))["error"]["message"] == "x" * 5000


async def test_what_is_no_event_stream_does_not_begin_early() -> None:
    async with running_engine(stall_before_headers=True) as engine, gateway_before(engine) as s:
        s.gateway.set_table(table(endpoint(0, address_of(engine)), version=2, keep_alive=0.03))
        client = await s.client()
        client.post({**STREAM, "input": "hi", "voice": "x"}, "/v1/audio/speech")
        await until(lambda: engine.seen.active == 1)
        await asyncio.sleep(0.15)
        assert not client.reader._buffer  # type: ignore[attr-defined]
        await client.close()


async def test_tiny_chunks_do_not_cost_a_hundred_times_their_size() -> None:
    async with serving(echo_headers=True) as s:
        body = json.dumps({**CHAT, "pad": "y" * 20_000}).encode()
        client = await s.client()
        client.send(b"POST /v1/chat/completions HTTP/1.1\r\nhost: gw\r\ntransfer-encoding: chunked\r\n\r\n")
        client.send(
            b"".join(b"2\r\n%b\r\n" % body[at : at + 2].ljust(2) for at in range(0, len(body), 2)) + b"0\r\n\r\n"
        )
        assert json.loads((await client.response()).json["body"])["pad"] == "y" * 20_000


async def test_old_clients_get_no_interim_answer_and_have_no_transfer_encodings() -> None:
    async with serving() as s:
        client = await s.client()
        client.post(CHAT, headers="expect: 100-continue\r\n", version="1.0")
        assert (await client.head()).status == 200
        client = await s.client()
        client.send(b"POST /v1/completions HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n")
        assert (await client.response()).code == "invalid_http"


async def test_what_is_refused_before_it_reaches_a_model_is_counted_and_told_in_its_family_s_words() -> None:
    async with serving() as s:
        s.gateway.set_table(table(endpoint(0, address_of(s.engines[0])), version=2, max_body=100))
        refused = await s.ask(b"x" * 200, "/v1/messages")
        assert (refused.status, refused.json["error"]["type"]) == (413, "request_too_large")
        assert (await s.ask(b"{", "/v1/messages")).status == 400
        counted = {one.labels: one.value for one in s.gateway.samples() if one.name == "llmgw_gateway_requests_total"}
        assert counted["messages", "", "413", "request_too_large"] == 1
        assert counted["messages", "", "400", "invalid_request"] == 1


async def test_a_head_above_its_limit_is_refused_in_two_reads_too() -> None:
    async with serving() as s:
        client = await s.client()
        client.send(b"GET /v1/models HTTP/1.1\r\nhost: gw\r\nx: " + b"a" * 60_000)
        await asyncio.sleep(0.05)
        client.send(b"\r\ny: " + b"b" * 60_000 + b"\r\n\r\n")
        assert (await client.response()).status == 431
