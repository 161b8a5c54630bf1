import asyncio
import json

import pytest

from tests.fakes.engine import running_engine
from tests.unit.gateway.support import CHAT, STREAM, address_of, endpoint, gateway_before, serving, table, until


async def test_an_answer_comes_back_as_the_engine_wrote_it() -> None:
    async with serving() as s:
        response = await s.ask(CHAT)
        assert response.status == 200
        assert response.whole
        assert response.json["choices"][0]["message"]["content"].startswith("e0 ")
        assert response.header("content-type") == "application/json; charset=utf-8"
        assert response.header("server") == "llama.cpp"


async def test_the_body_reaches_the_engine_byte_for_byte() -> None:
    body = b'{ "model" :"m",\t"temperature":1.00, "n":9007199254740993123, "s":"\\u00e9\xc3\xa9 \\/" }'
    async with serving() as s:
        await s.ask(body)
        assert s.engines[0].seen.last_body.encode() == body


async def test_an_alias_is_replaced_and_nothing_else() -> None:
    body = b'{"tools":[{"model":"alias"}],  "model": "alias", "t":1.0}'
    async with serving() as s:
        assert (await s.ask(body)).status == 200
        assert s.engines[0].seen.last_body.encode() == b'{"tools":[{"model":"alias"}],  "model": "m", "t":1.0}'
        headers = dict(s.engines[0].seen.last_headers)
        assert int(headers["content-length"]) == len(body) - len("alias") + len("m")


async def test_only_headers_of_the_allow_list_reach_the_engine() -> None:
    sent = (
        "authorization: Bearer sk-secret\r\ncookie: a=b\r\nx-api-key: secret\r\nContent-Type: application/json\r\n"
        "accept: text/event-stream\r\naccept-encoding: gzip\r\ntraceparent: 00-1\r\ntracestate: v=1\r\n"
        "x-request-id: req-7\r\nx-forwarded-for: 1.2.3.4\r\nconnection: keep-alive\r\nte: trailers\r\nuser-agent: u\r\n"
    )
    async with serving() as s:
        response = await s.ask(CHAT, headers=sent)
        assert response.header("x-request-id") == "req-7"
        seen = dict(s.engines[0].seen.last_headers)
        assert sorted(seen) == [
            *("accept", "content-length", "content-type", "host", "traceparent", "tracestate", "x-request-id"),
        ]
        assert seen["x-request-id"] == "req-7"
        assert seen["content-type"] == "application/json"
        assert seen["host"] == f"127.0.0.1:{s.engines[0].port}"


async def test_a_request_without_a_usable_id_gets_one() -> None:
    async with serving() as s:
        for headers in ("", f"x-request-id: {'x' * 500}\r\n", "x-request-id: \u00e9\r\n"):
            response = await s.ask(CHAT, headers=headers)
            given = response.header("x-request-id")
            assert given is not None
            assert len(given) == 16
            assert dict(s.engines[0].seen.last_headers)["x-request-id"] == given


@pytest.mark.parametrize(
    "path",
    [
        *("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses", "/v1/messages"),
        *("/v1/rerank", "/tokenize", "/detokenize", "/v1/messages?beta=true"),
    ],
)
async def test_every_route_is_passed_on_with_its_query(path: str) -> None:
    async with serving() as s:
        assert (await s.ask(CHAT, path)).status == 200
        assert s.engines[0].seen.last_path == path


async def test_an_absolute_target_is_understood() -> None:
    async with serving() as s:
        assert (await s.ask(CHAT, "http://elsewhere/v1/completions?x=1")).status == 200
        assert s.engines[0].seen.last_path == "/v1/completions?x=1"


async def test_a_stream_is_relayed_event_by_event_with_its_framing_made_anew() -> None:
    async with serving(chunks=5) as s:
        client = await s.client()
        client.post(STREAM)
        response = await client.response()
        assert response.whole
        assert response.header("transfer-encoding") == "chunked"
        assert response.header("content-length") is None
        assert len(response.events) == 7
        assert response.events[-1] == b"data: [DONE]"


async def test_an_event_is_relayed_before_the_next_one_exists() -> None:
    async with serving(chunks=5, stall_after=1) as s:
        client = await s.client()
        client.post(STREAM)
        head = await client.head()
        assert b"token0" in await client.chunk(head)
        assert s.in_flight == 1


async def test_characters_split_over_chunks_arrive_whole() -> None:
    async with serving(chunks=2, chunk_text="\u4e2d\u6587 \U0001f600", split_utf8=True) as s:
        response = await s.ask(STREAM)
        assert response.whole
        first = json.loads(response.events[0].removeprefix(b"data: "))
        assert first["choices"][0]["delta"]["content"] == "\u4e2d\u6587 \U0001f600"


async def test_a_stream_that_ends_with_its_connection_becomes_a_chunked_one() -> None:
    async with serving(unframed=True) as s:
        client = await s.client()
        for _ in range(2):
            client.post(STREAM)
            response = await client.response()
            assert response.whole
            assert response.header("transfer-encoding") == "chunked"
            assert response.events[-1] == b"data: [DONE]"


async def test_an_old_client_gets_no_chunks() -> None:
    async with serving() as s:
        client = await s.client()
        client.post(STREAM, version="1.0")
        response = await client.response()
        assert response.header("transfer-encoding") is None
        assert response.header("connection") == "close"
        assert response.events[-1] == b"data: [DONE]"
        client = await s.client()
        client.post(CHAT, version="1.0", headers="connection: keep-alive\r\n")
        response = await client.response()
        assert response.header("connection") == "keep-alive"
        client.post(CHAT, version="1.0")
        assert (await client.response()).header("connection") == "close"
        assert await client.closed()


async def test_engine_errors_are_passed_through() -> None:
    body = '{"error":{"message":"too long","type":"invalid_request_error","code":400}}'
    async with serving(status=400, error_body=body) as s:
        response = await s.ask(CHAT)
        assert (response.status, response.body.decode(), response.header("retry-after")) == (400, body, "7")


async def test_connections_are_kept_on_both_sides() -> None:
    async with serving() as s:
        client = await s.client()
        for body in (CHAT, STREAM, CHAT):
            client.post(body)
            assert (await client.response()).whole
        assert s.engines[0].seen.connections == 1
        assert s.gateway.idle_upstreams == 1


async def test_a_client_that_asks_for_it_is_let_go() -> None:
    async with serving() as s:
        client = await s.client()
        client.post(CHAT, headers="connection: close\r\n")
        assert (await client.response()).header("connection") == "close"
        assert await client.closed()


async def test_pipelined_requests_are_answered_in_order() -> None:
    async with serving(chunk_interval=0.005) as s:
        client = await s.client()
        for number in range(4):
            client.post(STREAM, headers=f"x-request-id: r{number}\r\n")
            client.get("/v1/models", headers=f"x-request-id: m{number}\r\n")
        ids = [(await client.response()).header("x-request-id") for _ in range(8)]
        assert ids == ["r0", "m0", "r1", "m1", "r2", "m2", "r3", "m3"]


async def test_a_chunked_upload_reaches_the_engine_with_its_length() -> None:
    async with serving() as s:
        client = await s.client()
        body = json.dumps(CHAT).encode()
        client.send(b"POST /v1/chat/completions HTTP/1.1\r\nhost: gw\r\ntransfer-encoding: chunked\r\n\r\n")
        for at in range(0, len(body), 7):
            piece = body[at : at + 7]
            client.send(b"%x;ext=1\r\n%b\r\n" % (len(piece), piece))
        client.send(b"0\r\nx-trailer: dropped\r\n\r\n")
        assert (await client.response()).status == 200
        assert s.engines[0].seen.last_body.encode() == body
        assert "x-trailer" not in dict(s.engines[0].seen.last_headers)


async def test_large_bodies_pass_in_both_directions() -> None:
    async with serving(body_bytes=8 << 20) as s:
        response = await s.ask({**CHAT, "pad": "y" * (8 << 20)})
        assert response.whole
        assert len(response.body) > 8 << 20
        assert len(s.engines[0].seen.last_body) > 8 << 20


async def test_an_engine_is_reached_over_a_unix_socket(tmp_path) -> None:
    async with running_engine("tunnelled", path=str(tmp_path / "e")) as engine, gateway_before(engine) as s:
        assert "tunnelled" in (await s.ask(CHAT)).body.decode()


async def test_an_offer_to_upgrade_is_ignored_and_the_body_is_kept() -> None:
    async with serving() as s:
        client = await s.client()
        offer = "connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAE\r\nx-request-id: up\r\n"
        client.post(CHAT, headers=offer)
        client.post(CHAT)
        first = await client.response()
        assert (first.status, first.header("x-request-id")) == (200, "up")
        assert (await client.response()).status == 200
        assert [json.loads(body) for body in s.engines[0].seen.bodies] == [CHAT, CHAT]


async def test_requests_spread_over_the_replicas() -> None:
    async with serving(3, chunk_interval=0.01, chunks=20) as s:
        answers = await asyncio.gather(*(s.ask(STREAM) for _ in range(9)))
        assert all(answer.whole for answer in answers)
        assert [engine.seen.requests for engine in s.engines] == [3, 3, 3]


async def test_the_name_is_replaced_by_what_the_engine_calls_the_model() -> None:
    async with running_engine() as engine:
        plain = endpoint(0, address_of(engine))
        served = type(plain)(plain.id, plain.model, plain.address, "org/served-name")
        async with gateway_before(engine, routed=table(served)) as s:
            await s.ask({"model": "m"})
            assert json.loads(engine.seen.last_body) == {"model": "org/served-name"}


async def test_usage_says_what_is_in_flight_and_when_it_ended() -> None:
    async with serving(2, chunks=2, stall_after=1) as s:
        client = await s.client()
        client.post(STREAM)
        await client.head()
        assert sorted(usage.in_flight for usage in s.gateway.usage()) == [0, 1]
        assert [usage.ended_ago for usage in s.gateway.usage()] == [None, None]
        await client.close()
        await until(lambda: s.in_flight == 0)
        ended = [usage.ended_ago for usage in s.gateway.usage() if usage.ended_ago is not None]
        assert len(ended) == 1
        assert ended[0] < 5
