"""Engines that fail and clients that go away: what the client is told, and that nothing is left behind."""

import asyncio
import json
import socket

import pytest

from llmgw.fleet.table import TcpAddress, UnixAddress
from tests.fakes.engine import running_engine
from tests.unit.gateway.support import CHAT, STREAM, address_of, endpoint, gateway_before, serving, table, until


def dead_address() -> TcpAddress:
    """An address where nobody listens."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return TcpAddress("127.0.0.1", sock.getsockname()[1])


def deaf_socket() -> socket.socket:
    """A listening socket whose queue is full: connecting to it takes for ever."""
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    sock.listen(0)
    return sock


# An engine that dies in the middle


@pytest.mark.parametrize("how", ["rst", "fin", "clean_eof"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_a_stream_that_breaks_ends_with_an_error_event_and_no_clean_end(how: str, path: str) -> None:
    async with serving(die_after=2, die_how=how) as s:
        response = await s.ask(STREAM, path)
        assert response.status == 200
        assert not response.whole
        assert b"[DONE]" not in response.body
        assert len(response.events) == 3
        error = json.loads(response.events[-1].removeprefix(b"data: "))["error"]
        assert (error["code"], error["type"]) == ("upstream_failed", "server_error")
        assert s.in_flight == 0


@pytest.mark.parametrize("asked", [STREAM, STREAM | {"stream_options": {"include_usage": True}}])
async def test_a_stream_that_an_engine_cuts_short_in_all_order_is_broken(asked: dict[str, object]) -> None:
    async with serving(abort_after=2, chunk_interval=0.02) as s:
        response = await s.ask(asked)
        assert response.status == 200
        assert not response.whole
        assert b"[DONE]" not in response.body
        assert b'"abort"' not in response.body
        assert len(response.events) == 3
        error = json.loads(response.events[-1].removeprefix(b"data: "))["error"]
        assert (error["code"], error["type"]) == ("upstream_failed", "server_error")
        assert "it was told to end" in error["message"]
        assert s.in_flight == 0


async def test_an_answer_that_an_engine_cuts_short_in_all_order_is_none() -> None:
    async with serving(abort_after=2) as s:
        response = await s.ask(CHAT)
        assert (response.status, json.loads(response.body)["error"]["code"]) == (502, "upstream_failed")
        assert s.in_flight == 0


async def test_text_that_looks_like_an_end_is_text() -> None:
    async with serving(chunk_text='{"finish_reason":"abort"}') as s:
        response = await s.ask(STREAM)
        assert response.whole
        assert b"[DONE]" in response.body


async def test_a_broken_chunk_size_breaks_the_stream() -> None:
    async with serving(bad_chunk_after=2) as s:
        response = await s.ask(STREAM)
        assert not response.whole
        assert len(response.events) == 3
        assert b'"error"' in response.events[-1]
        await until(lambda: s.engines[0].seen.cancelled == 1)


async def test_a_broken_stream_speaks_the_words_of_its_family() -> None:
    async with serving(die_after=1) as s:
        messages = await s.ask(STREAM, "/v1/messages")
        assert messages.events[-1].startswith(b'event: error\ndata: {"type":"error","error":{"type":"api_error"')
        responses = await s.ask(STREAM, "/v1/responses")
        assert responses.events[-1].startswith(b'event: response.failed\ndata: {"type":"response.failed"')


async def test_a_stream_that_ends_as_its_family_should_is_whole() -> None:
    async with serving() as s:
        for path in ("/v1/messages", "/v1/responses"):
            assert (await s.ask(STREAM, path)).whole


async def test_a_stream_without_framing_that_lacks_its_end_is_broken() -> None:
    async with serving(unframed=True, die_after=2) as s:
        response = await s.ask(STREAM)
        assert not response.whole
        assert b'"error"' in response.events[-1]


@pytest.mark.parametrize("asks_for_usage", [True, False])
async def test_an_event_that_was_cut_does_not_swallow_the_error(asks_for_usage: bool) -> None:
    async with running_engine() as engine, gateway_before(engine) as s:
        client = await s.client()
        engine.throw(stall_after=1)
        client.post({**STREAM, "stream_options": {"include_usage": True}} if asks_for_usage else STREAM)
        head = await client.head()
        await client.chunk(head)
        (connection,) = engine.connections
        connection.transport.write(b"5\r\ndata:\r\n")
        connection.transport.close()
        response = await client.body(head)
        if asks_for_usage:
            assert response.body.split(b"\n\n")[1] == b"data:", "what came goes on as it came"
        assert b'data: {"error"' in response.body


@pytest.mark.parametrize("how", ["rst", "fin"])
async def test_an_answer_that_breaks_is_cut_off(how: str) -> None:
    async with serving(die_after=0, die_how=how, body_bytes=1000) as s:
        response = await s.ask(CHAT)
        assert not response.whole
        assert 0 < len(response.body) < int(response.header("content-length") or 0)


# An engine that fails before it answers


async def test_an_engine_that_cannot_be_reached_is_passed_over() -> None:
    async with running_engine("alive") as engine:
        routed = table(*(endpoint(n, dead_address()) for n in range(3)), endpoint(3, address_of(engine)))
        async with gateway_before(engine, routed=routed) as s:
            for _ in range(10):
                assert "alive" in (await s.ask(CHAT)).body.decode()
            assert engine.seen.requests == 10
            assert all(usage.in_flight == 0 for usage in s.gateway.usage())
            used = {str(usage.id): usage.ended_ago is not None for usage in s.gateway.usage()}
            assert sum(used.values()) == 1, "one that was never reached was never used, and is not idle since then"


async def test_an_engine_that_does_not_accept_in_time_is_passed_over() -> None:
    with deaf_socket() as deaf:
        name = deaf.getsockname()
        fillers = [socket.socket() for _ in range(3)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(name)
        async with running_engine("alive") as engine:
            routed = table(endpoint(0, TcpAddress(*name)), endpoint(1, address_of(engine)), connect=0.1)
            async with gateway_before(engine, routed=routed) as s:
                answers = await asyncio.gather(*(s.ask(CHAT) for _ in range(4)))
                assert {answer.status for answer in answers} == {200}
        for filler in fillers:
            filler.close()


async def test_if_no_engine_can_be_reached_the_client_is_told_when_to_come_again() -> None:
    routed = table(*(endpoint(n, dead_address()) for n in range(3)))
    async with gateway_before(routed=routed) as s:
        client = await s.client()
        for _ in range(2):
            client.post(CHAT)
            response = await client.response()
            assert (response.status, response.code) == (503, "upstream_unreachable")
            assert response.header("retry-after") == "9"


async def test_a_missing_socket_is_an_engine_that_cannot_be_reached(tmp_path) -> None:
    async with gateway_before(routed=table(endpoint(0, UnixAddress(str(tmp_path / "none"))))) as s:
        assert (await s.ask(CHAT)).status == 503


async def test_a_request_that_an_engine_may_have_begun_is_not_sent_twice() -> None:
    async with serving(2, die_before_headers=True) as s:
        response = await s.ask(CHAT)
        assert (response.status, response.code) == (502, "upstream_failed")
        assert sum(engine.seen.connections for engine in s.engines) == 1


async def test_what_is_not_http_is_not_passed_on() -> None:
    async def garble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"SSH-2.0-OpenSSH_9.2\r\n")
        await writer.drain()
        await reader.read()
        writer.close()

    server = await asyncio.start_server(garble, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with gateway_before(routed=table(endpoint(0, TcpAddress("127.0.0.1", port)))) as s:
        response = await s.ask(CHAT)
        assert (response.status, response.code) == (502, "upstream_failed")
    server.close()
    await server.wait_closed()
    await asyncio.sleep(0)


async def test_a_reused_connection_that_the_engine_gave_up_gets_a_fresh_one() -> None:
    async with serving(refuse_reused=True) as s:
        for _ in range(4):
            assert (await s.ask(CHAT)).status == 200
        assert s.engines[0].seen.requests == 4
        assert s.engines[0].seen.connections == 4


async def test_if_the_engine_is_gone_too_another_one_is_tried() -> None:
    async with serving(2) as s:
        await asyncio.gather(*(s.ask(STREAM) for _ in range(8)))
        assert all(engine.seen.requests for engine in s.engines)
        first, second = s.engines
        first.refuse_connections()
        first.throw(refuse_reused=True)
        for _ in range(6):
            assert (await s.ask(CHAT)).status == 200
        assert second.seen.requests >= 6


async def test_an_idle_connection_that_the_engine_closes_is_dropped() -> None:
    async with serving(keepalive_close_after=0.01) as s:
        assert (await s.ask(CHAT)).status == 200
        await until(lambda: s.gateway.idle_upstreams == 0)
        assert (await s.ask(CHAT)).status == 200


async def test_an_idle_connection_that_speaks_unasked_is_dropped() -> None:
    async with serving() as s:
        assert (await s.ask(CHAT)).status == 200
        (connection,) = s.engines[0].connections
        connection.transport.write(b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\n\r\n")
        await until(lambda: s.gateway.idle_upstreams == 0)
        assert (await s.ask(CHAT)).status == 200


async def test_two_responses_to_one_request_do_not_answer_the_next() -> None:
    async def twice(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        one = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"
        writer.write(one + one + b"HTTP/1.1 2")
        await writer.drain()
        await reader.read()
        writer.close()

    server = await asyncio.start_server(twice, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with gateway_before(routed=table(endpoint(0, TcpAddress("127.0.0.1", port)))) as s:
        for _ in range(3):
            response = await s.ask(CHAT)
            assert (response.status, response.body) == (200, b"{}")
            assert s.gateway.idle_upstreams == 0
    server.close()
    await server.wait_closed()


async def test_an_interim_response_is_not_the_answer() -> None:
    async def interim(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n")
        await writer.drain()
        writer.write(b"HTTP/1.1 200 OK\r\nconnection: close, x-private\r\nx-private: 1\r\nx-kept: 2\r\n\r\n{}")
        writer.close()

    server = await asyncio.start_server(interim, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with gateway_before(routed=table(endpoint(0, TcpAddress("127.0.0.1", port)))) as s:
        response = await s.ask(CHAT)
        assert (response.status, response.body, response.whole) == (200, b"{}", True)
        assert response.header("x-kept") == "2"
        assert response.header("x-private") is None
        assert response.header("link") is None
    server.close()
    await server.wait_closed()


# A client that goes away


@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.parametrize("body", [CHAT, STREAM])
async def test_a_client_that_goes_before_the_head_stops_the_engine(how: str, body: dict) -> None:
    async with serving(stall_before_headers=True) as s:
        client = await s.client()
        client.post(body)
        await until(lambda: s.engines[0].seen.active == 1)
        await client.close() if how == "close" else client.reset()
        await until(lambda: s.engines[0].seen.cancelled == 1)
        assert s.in_flight == 0


@pytest.mark.parametrize("how", ["close", "reset"])
async def test_a_client_that_goes_in_the_middle_of_a_stream_stops_the_engine(how: str) -> None:
    async with serving(chunks=10_000, chunk_interval=0.002) as s:
        client = await s.client()
        client.post(STREAM)
        head = await client.head()
        await client.chunk(head)
        await client.close() if how == "close" else client.reset()
        await until(lambda: s.engines[0].seen.cancelled == 1)
        assert s.in_flight == 0


async def test_a_client_that_goes_while_the_engine_is_silent_stops_it() -> None:
    async with serving(stall_after=1) as s:
        client = await s.client()
        client.post(STREAM)
        head = await client.head()
        await client.chunk(head)
        await client.close()
        await until(lambda: s.engines[0].seen.cancelled == 1)


async def test_a_client_that_closes_its_sending_side_has_gone() -> None:
    async with serving(stall_after=1) as s:
        client = await s.client()
        client.post(STREAM)
        await until(lambda: s.engines[0].seen.active == 1)
        client.writer.write_eof()
        await until(lambda: s.engines[0].seen.cancelled == 1)


async def test_a_client_that_goes_while_the_engine_is_connected_to_leaves_nothing() -> None:
    with deaf_socket() as deaf:
        name = deaf.getsockname()
        fillers = [socket.socket() for _ in range(3)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(name)
        async with gateway_before(routed=table(endpoint(0, TcpAddress(*name)), connect=60.0)) as s:
            client = await s.client()
            client.post(CHAT)
            await until(lambda: s.in_flight == 1)
            await client.close()
            await until(lambda: s.in_flight == 0)
            await until(lambda: "gateway.connect" not in {task.get_name() for task in asyncio.all_tasks()})
        for filler in fillers:
            filler.close()


async def test_a_client_that_goes_with_requests_waiting_leaves_nothing() -> None:
    async with serving(stall_before_headers=True) as s:
        client = await s.client()
        for _ in range(5):
            client.post(CHAT)
        await until(lambda: s.engines[0].seen.active == 1)
        await client.close()
        await until(lambda: s.engines[0].seen.cancelled == 1)
        assert s.engines[0].seen.requests == 1


async def test_many_clients_that_come_and_go_leave_nothing() -> None:
    async with serving(3, chunks=50, chunk_interval=0.001, refuse_reused=True) as s:

        async def one(number: int) -> None:
            client = await s.client()
            client.post(STREAM if number % 2 else CHAT)
            await asyncio.sleep(0.0007 * (number % 20))
            client.reset() if number % 3 else await client.close()

        await asyncio.gather(*(one(number) for number in range(120)))
        await until(lambda: s.in_flight == 0)
        await until(lambda: sum(engine.seen.active for engine in s.engines) == 0)
