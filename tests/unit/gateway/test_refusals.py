import asyncio
import json
import random

import pytest

from llmgw.fleet.access import OPEN
from llmgw.fleet.table import EMPTY_TABLE
from llmgw.gateway.server import Gateway
from llmgw.runtime.clock import SystemClock
from tests.unit.gateway.support import CHAT, Serving, gateway_before, serving, table

MAX_BODY = 64 << 20


@pytest.mark.parametrize(
    ("body", "param"),
    [(b"{", None), (b"[1]", None), (b"{}", "model"), (b'{"model": 7}', "model"), (b"\xff", None), (b"", None)],
)
async def test_a_body_that_is_no_call_is_refused(body: bytes, param: str | None) -> None:
    async with serving() as s:
        client = await s.client()
        client.post(body)
        response = await client.response()
        assert response.status == 400
        assert response.json["error"].keys() == {"message", "type", "param", "code"}
        assert (response.code, response.json["error"]["param"]) == ("invalid_request", param)
        client.post(CHAT)
        assert (await client.response()).status == 200
        assert s.engines[0].seen.requests == 1


async def test_models_are_refused_with_their_reason() -> None:
    async with gateway_before() as s:
        unknown = await s.ask({"model": "nope"})
        assert (unknown.status, unknown.code, unknown.header("retry-after")) == (404, "model_not_found", None)
        not_ready = await s.ask({"model": "m"})
        assert (not_ready.status, not_ready.code, not_ready.header("retry-after")) == (503, "model_not_ready", "9")
    async with gateway_before(routed=table(wanted=0)) as s:
        off = await s.ask({"model": "alias"})
        assert (off.status, off.code, off.header("retry-after")) == (503, "model_switched_off", None)


async def test_unknown_paths_and_wrong_methods() -> None:
    async with serving() as s:
        client = await s.client()
        for path, method, status in (
            ("/v2/x", "GET", 404),
            ("/", "POST", 404),
            ("/v1/chat/completions", "GET", 405),
            ("/v1/models", "DELETE", 405),
            ("/v1/models/m", "POST", 405),
            ("/health", "PUT", 405),
        ):
            client.get(path, method)
            response = await client.response()
            assert response.status == status, path
            assert response.json["error"]["type"] == "invalid_request_error"
            assert (response.header("allow") is not None) == (status == 405)


async def test_the_models_that_can_be_served_are_listed_with_their_aliases() -> None:
    async with serving() as s:
        client = await s.client()
        client.get("/v1/models")
        listed = (await client.response()).json
        assert listed["object"] == "list"
        assert [entry["id"] for entry in listed["data"]] == ["m", "alias"]
        assert all(entry["object"] == "model" and entry["owned_by"] == "llmgw" for entry in listed["data"])
        assert all(isinstance(entry["created"], int) for entry in listed["data"])
        client.get("/v1/models/ali%61s")
        assert (await client.response()).json == listed["data"][1]
        client.get("/v1/models/none")
        missing = await client.response()
        assert (missing.status, missing.code) == (404, "model_not_found")
        s.gateway.set_table(table(version=2))
        client.get("/v1/models")
        assert (await client.response()).json["data"] == []


async def test_health_and_readiness() -> None:
    async with serving() as s:
        client = await s.client()
        for path in ("/health", "/ready"):
            client.get(path)
            assert (await client.response()).status == 200
        client.get("/health", "HEAD")
        assert (await client.response(bodiless=True)).header("content-length") == "6"
        client.get("/health?x=1")
        assert (await client.response()).body == b"alive\n"
        s.gateway.set_table(EMPTY_TABLE)
        client.get("/ready")
        assert (await client.response()).status == 200


async def test_a_gateway_without_a_table_is_alive_but_not_ready() -> None:
    gateway = Gateway(SystemClock(), random.Random(1))
    gateway.set_access(OPEN)
    await gateway.start(("127.0.0.1", 0))
    client = await Serving(gateway, ()).client()
    client.get("/health")
    assert (await client.response()).status == 200
    client.get("/ready")
    response = await client.response()
    assert (response.status, response.code, response.header("retry-after")) == (503, "no_table", "1")
    await client.close()
    await gateway.stop(1.0)


async def test_a_preflight_is_answered_without_credentials() -> None:
    async with serving() as s:
        client = await s.client()
        asked = "origin: https://ui\r\naccess-control-request-method: POST\r\n"
        client.get("/v1/chat/completions", "OPTIONS", asked + "access-control-request-headers: authorization,x-a\r\n")
        response = await client.response()
        assert response.status == 204
        assert response.header("access-control-allow-origin") == "*"
        assert response.header("access-control-allow-headers") == "authorization,x-a"
        assert "POST" in (response.header("access-control-allow-methods") or "")
        client.post(CHAT, headers="origin: https://ui\r\n")
        response = await client.response()
        origins = [value for name, value in response.headers if name == "access-control-allow-origin"]
        assert origins == ["*"]
        client.post(CHAT)
        assert (await client.response()).header("access-control-allow-origin") is None


@pytest.mark.parametrize(
    "raw",
    [
        b"NONSENSE\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nhost: gw\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nhost: gw\r\ntransfer-encoding: chunked\r\ncontent-length: 3\r\n\r\n0\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nhost: gw\r\ncontent-length: 3\r\ncontent-length: 4\r\n\r\nabcd",
        b"POST /v1/completions HTTP/1.1\r\nhost: gw\r\ncontent-length: -3\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nhost: gw\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"POST /v1/completions HTTP/1.1\r\nhost: gw\r\ntransfer-encoding: chunked, gzip\r\n\r\n",
        b"GET /health HTTP/1.1\r\nhost: gw\r\nbad header: x\r\n\r\n",
        b"GET /health HTTP/1.1\r\nhost: gw\r\nx: a\x00b\r\n\r\n",
        b"GET /health HTTP/1.1\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\ncontent-length: 2\r\n\r\n{}",
        b"GET /v1/realtime?model=m HTTP/1.1\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n",
        b"GET /health HTTP/1.1\r\nhost: a\r\nhost: a\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: a\r\nHOST: b\r\n\r\n",
        b"GET http://a/health HTTP/1.0\r\nhost: a\r\nhost: b\r\n\r\n",
    ],
)
async def test_what_is_not_http_is_refused_and_the_connection_closed(raw: bytes) -> None:
    async with serving() as s:
        client = await s.client()
        client.send(raw)
        response = await client.response()
        assert (response.status, response.code) == (400, "invalid_http")
        assert response.header("connection") == "close"
        assert await client.closed()
        assert s.engines[0].seen.requests == 0


@pytest.mark.parametrize("version", [b" HTTP/2.0", b" HTTP/0.9", b""])
async def test_other_versions_of_http_are_refused(version: bytes) -> None:
    async with serving() as s:
        client = await s.client()
        client.send(b"GET /health%b\r\nhost: x\r\n\r\n" % version)
        response = await client.response()
        assert response.status in {400, 505}
        assert await client.closed()


async def test_what_a_client_sends_after_the_last_response_does_not_cost_it_the_response() -> None:
    async with serving() as s:
        for _ in range(5):
            client = await s.client()
            client.post(CHAT, headers="connection: close\r\n")
            for _ in range(20):
                client.send(b"x" * 100_000)
                await asyncio.sleep(0)
            assert (await client.response()).whole
            assert await client.closed()


async def test_a_fault_waits_for_its_turn() -> None:
    async with serving(chunk_interval=0.005) as s:
        client = await s.client()
        client.post({**CHAT, "stream": True})
        client.send(b"NONSENSE\r\n\r\n")
        response = await client.response()
        assert response.whole
        assert (await client.response()).status == 400
        assert await client.closed()


async def test_a_tunnel_is_not_opened() -> None:
    async with serving() as s:
        client = await s.client()
        client.send(b"CONNECT 10.0.0.1:22 HTTP/1.1\r\nhost: x\r\n\r\nSSH-2.0")
        response = await client.response()
        assert response.status == 405
        assert await client.closed()


@pytest.mark.parametrize(
    "head",
    [
        b"GET /health HTTP/1.1\r\nhost: gw\r\n"
        + b"".join(b"x-%d: %b\r\n" % (n, b"v" * 1000) for n in range(70))
        + b"\r\n",
        b"GET /health HTTP/1.1\r\nhost: gw\r\nx: " + b"v" * 300_000 + b"\r\n\r\n",
        b"GET /health HTTP/1.1\r\nhost: gw\r\n" + b"n" * 500_000,
        b"GET /" + b"u" * 500_000,
    ],
)
async def test_a_head_above_its_limit_is_refused(head: bytes) -> None:
    async with serving() as s:
        client = await s.client()
        client.send(head)
        response = await client.response()
        assert (response.status, response.code) == (431, "headers_too_large")
        assert await client.closed()


async def test_endless_trailers_are_refused() -> None:
    async with serving() as s:
        client = await s.client()
        client.send(
            b"POST /v1/completions HTTP/1.1\r\nhost: gw\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nx: "
        )
        client.send(b"t" * 600_000)
        assert (await client.response()).status == 431


@pytest.mark.parametrize(
    "head",
    [
        b"GET /health HTTP/1.0\r\n\r\n",
        b"GET /health HTTP/1.1\r\nhost:\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHoSt: x\r\n\r\n",
    ],
)
async def test_only_of_http_1_1_a_host_is_asked_and_it_may_be_empty(head: bytes) -> None:
    async with serving() as s:
        client = await s.client()
        client.send(head)
        assert (await client.response()).status == 200


async def test_a_head_within_its_limit_is_taken() -> None:
    async with serving() as s:
        client = await s.client()
        client.get("/health", headers=f"x: {'v' * 60_000}\r\n")
        assert (await client.response()).status == 200


async def test_a_body_above_its_limit_is_refused_before_it_is_sent() -> None:
    async with serving() as s:
        client = await s.client()
        client.send(
            b"POST /v1/completions HTTP/1.1\r\nhost: gw\r\nexpect: 100-continue\r\ncontent-length: %d\r\n\r\n"
            % (MAX_BODY + 1)
        )
        response = await client.response()
        assert (response.status, response.code) == (413, "request_too_large")
        assert await client.closed()


async def test_a_chunked_body_above_its_limit_is_refused_on_the_way() -> None:
    async with serving() as s:
        client = await s.client()
        client.send(b"POST /v1/completions HTTP/1.1\r\nhost: gw\r\ntransfer-encoding: chunked\r\n\r\n")
        chunk = b"100000\r\n" + b"x" * (1 << 20) + b"\r\n"
        for _ in range((MAX_BODY >> 20) + 4):
            client.send(chunk)
            await client.writer.drain()
        response = await client.response()
        assert (response.status, response.code) == (413, "request_too_large")


async def test_a_body_at_its_limit_is_taken() -> None:
    async with serving() as s:
        start = b'{"model":"m","pad":"'
        body = start + b"x" * (MAX_BODY - len(start) - 2) + b'"}'
        assert len(body) == MAX_BODY
        assert (await s.ask(body)).status == 200


async def test_a_client_that_waits_to_be_told_is_told_to_go_on() -> None:
    async with serving() as s:
        client = await s.client()
        body = json.dumps(CHAT).encode()
        head = (
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: gw\r\nexpect: 100-Continue\r\ncontent-length: %d\r\n\r\n"
            % len(body)
        )
        client.send(head)
        assert (await client.response()).status == 100
        client.send(body)
        assert (await client.response()).status == 200
        client.post({**CHAT, "stream": True})
        client.send(head)
        assert (await client.response()).whole
        assert (await client.response()).status == 100
        client.send(body + head + body)
        assert [(await client.response()).status for _ in range(2)] == [200, 200]
