"""Time limits, what is tried elsewhere, and endpoints that are left alone for a while."""

import asyncio
import json

import pytest

from llmgw.gateway import plane
from llmgw.routing import breaker
from tests.fakes.engine import running_engine
from tests.unit.gateway.support import CHAT, STREAM, address_of, endpoint, gateway_before, serving, table, until
from tests.unit.gateway.test_failures import dead_address


@pytest.mark.parametrize(
    ("switches", "limits", "says"),
    [
        ({"stall_before_headers": True}, {"headers": 0.1}, "did not answer within 0.1 s"),
        ({"stall_before_first_byte": True}, {"first_byte": 0.1}, "sent no byte of its answer within 0.1 s"),
        ({"stall_after": 2}, {"inter_chunk": 0.1}, "was silent for 0.1 s in the middle of its answer"),
    ],
)
async def test_an_engine_that_falls_silent_is_not_waited_for_for_ever(switches, limits, says) -> None:
    async with running_engine(**switches) as engine, gateway_before(engine, routed=None) as s:
        s.gateway.set_table(table(endpoint(0, address_of(engine)), version=2, **limits))
        response = await s.ask(STREAM)
        assert says in bytes(response.body).decode()
        assert (response.status, response.whole) == ((504, True) if "headers" in limits else (200, False))
        await until(lambda: engine.seen.cancelled == 1)


async def test_no_limit_counts_what_the_client_does_not_take_and_none_the_whole() -> None:
    async with running_engine(chunks=100, chunk_text="z" * 100_000) as engine, gateway_before(engine) as s:
        s.gateway.set_table(table(endpoint(0, address_of(engine)), version=2, inter_chunk=0.5, headers=0.5))
        client = await s.client()
        client.post(STREAM)
        head = await client.head()
        client.writer.transport.pause_reading()
        await asyncio.sleep(1.2)
        client.writer.transport.resume_reading()
        assert (await client.body(head)).whole
    async with running_engine(chunks=8, chunk_interval=0.1) as engine, gateway_before(engine) as s:
        s.gateway.set_table(table(endpoint(0, address_of(engine)), version=2, inter_chunk=0.6, headers=0.6))
        assert (await s.ask(STREAM)).whole, "it took longer than any limit, and was never silent for so long"


async def test_a_request_that_timed_out_is_not_tried_again() -> None:
    async with serving(2, stall_before_headers=True) as s:
        listed = [endpoint(n, address_of(one)) for n, one in enumerate(s.engines)]
        s.gateway.set_table(table(*listed, version=2, headers=0.1))
        assert (await s.ask(CHAT)).code == "upstream_timeout"
        assert sum(one.seen.requests for one in s.engines) == 1


@pytest.mark.parametrize("status", [429, 503])
async def test_an_engine_that_is_too_busy_is_asked_once_and_then_another_one(status: int) -> None:
    async with (
        running_engine("busy", status=status) as busy,
        running_engine("free") as free,
        gateway_before(busy, free) as s,
    ):
        for _ in range(6):
            assert (await s.ask(CHAT)).status == 200
        assert free.seen.requests == 6
        assert busy.seen.requests >= 1


async def test_if_all_are_too_busy_the_client_is_told_what_the_engine_said() -> None:
    async with serving(2, status=429, error_body='{"error":{"message":"slow down"}}') as s:
        response = await s.ask(CHAT)
        assert (response.status, response.header("retry-after")) == (429, "7")
        assert response.json["error"]["message"] == "slow down"
        assert [one.seen.requests for one in s.engines] == [1, 1]


async def test_retries_have_a_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plane, "RETRY_BURST", 2.0)
    async with (
        running_engine("busy", status=503) as busy,
        running_engine("free", stall_before_headers=True) as free,
        gateway_before(busy, free) as s,
    ):
        s.gateway.set_table(table(endpoint(0, address_of(busy)), version=2))
        for _ in range(3):
            await s.ask(CHAT)
        listed = [endpoint(n, address_of(one)) for n, one in enumerate((busy, free))]
        s.gateway.set_table(table(*listed, version=3))
        clients = [await s.client() for _ in range(30)]
        for client in clients:
            client.post(CHAT)
        await until(lambda: free.seen.active + busy.seen.requests >= 30)
        await asyncio.sleep(0.05)
        assert free.seen.active < 25, "not everybody was sent on"


async def test_statuses_of_the_client_s_making_are_passed_on_as_they_are() -> None:
    for status in (400, 401, 404, 409, 413, 422, 500, 302):
        async with serving(2, status=status) as s:
            assert (await s.ask(CHAT)).status == status
            assert sum(one.seen.requests for one in s.engines) == 1


async def test_an_endpoint_that_cannot_be_reached_is_left_alone_for_a_while() -> None:
    async with running_engine() as engine, gateway_before(engine) as s:
        dead = endpoint(1, dead_address())
        s.gateway.set_table(table(endpoint(0, address_of(engine)), dead, version=2))
        for _ in range(20):
            assert (await s.ask(CHAT)).status == 200
        alone = endpoint(2, dead.address)
        s.gateway.set_table(table(alone, version=3))
        for _ in range(breaker.FAILURES):
            refused = await s.ask(CHAT)
            assert (refused.status, refused.code) == (503, "upstream_unreachable")
        refused = await s.ask(CHAT)
        assert (refused.status, refused.code, refused.header("retry-after")) == (503, "model_unreachable", "1")


async def test_a_client_is_given_a_sign_of_life_where_the_policy_says_so() -> None:
    async with running_engine(stall_before_headers=True) as engine, gateway_before(engine) as s:
        s.gateway.set_table(table(endpoint(0, address_of(engine)), version=2, keep_alive=0.05))
        client = await s.client()
        client.post(STREAM)
        head = await client.head()
        assert (head.status, head.header("content-type")) == (200, "text/event-stream")
        assert await client.chunk(head) == b": keep-alive\n\n"
        assert await client.chunk(head) == b": keep-alive\n\n"
        await client.close()
        await until(lambda: engine.seen.cancelled == 1)


async def test_a_stream_that_began_early_goes_on_as_the_engine_s_or_ends_with_its_error() -> None:
    async with running_engine(chunks=2, load_seconds=0.0) as engine, gateway_before(engine) as s:
        s.gateway.set_table(table(endpoint(0, address_of(engine)), version=2, keep_alive=0.04))
        engine.throw(stall_after=1)
        client = await s.client()
        client.post(STREAM)
        head = await client.head()
        first = await client.chunk(head)
        assert b"token0" in first
        assert await client.chunk(head) == b": keep-alive\n\n"
        engine.throw(stall_after=None)
        next(iter(engine.connections)).step()
        whole = await client.body(head)
        assert whole.whole
        assert bytes(whole.body).endswith(b"data: [DONE]\n\n")
        await client.close()
    async with running_engine(stall_before_headers=True) as engine, gateway_before(engine) as s:
        s.gateway.set_table(table(endpoint(0, address_of(engine)), version=2, keep_alive=0.04))
        client = await s.client()
        client.post(STREAM)
        head = await client.head()
        assert await client.chunk(head) == b": keep-alive\n\n"
        text = json.dumps({"error": {"message": "too long a prompt"}}).encode()
        next(iter(engine.connections)).transport.write(
            b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(text)
            + text
        )
        response = await client.body(head)
        assert not response.whole
        assert json.loads(response.events[-1].removeprefix(b"data: "))["error"]["message"] == "too long a prompt"
