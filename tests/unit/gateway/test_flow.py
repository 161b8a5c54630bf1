"""Backpressure: nobody's bytes pile up in the gateway because somebody else is slow."""

import asyncio
import json

from tests.unit.gateway.support import CHAT, STREAM, address_of, endpoint, serving, settled_size, table, until


async def test_a_slow_client_makes_the_engine_wait() -> None:
    async with serving(chunks=200, chunk_text="z" * 200_000) as s:
        client = await s.client()
        client.writer.transport.pause_reading()
        client.post(STREAM)
        await until(lambda: s.engines[0].seen.requests == 1)
        (connection,) = s.engines[0].connections
        held = await settled_size(connection.transport)
        assert held > 20_000_000, "the engine could write nearly all of 40 MB to a gateway whose client reads nothing"
        client.writer.transport.resume_reading()
        response = await client.response()
        assert response.whole
        assert len(response.events) == 202


async def test_a_client_that_falls_behind_does_not_stop_its_neighbour() -> None:
    async with serving(chunks=100, chunk_text="z" * 200_000) as s:
        slow = await s.client()
        slow.writer.transport.pause_reading()
        slow.post(STREAM)
        await until(lambda: s.engines[0].seen.requests == 1)
        assert (await s.ask(STREAM)).whole
        assert s.in_flight == 1
        slow.reset()
        await until(lambda: len(s.engines[0].connections) == 1)


async def test_a_connection_that_was_paused_serves_the_next_request() -> None:
    async with serving(chunks=40, chunk_text="z" * 100_000) as s:
        for _ in range(3):
            client = await s.client()
            client.writer.transport.pause_reading()
            client.post(STREAM)
            await until(lambda: s.in_flight == 1)
            await asyncio.sleep(0.05)
            client.writer.transport.resume_reading()
            assert (await client.response()).whole
            await client.close()


async def test_an_upload_ahead_of_its_turn_is_kept_and_more_than_one_is_not_waited_for() -> None:
    async with serving(stall_after=1) as s:
        client = await s.client()
        client.post(STREAM)
        head = await client.head()
        await client.chunk(head)
        client.post({**CHAT, "pad": "y" * (30 << 20)})
        assert await settled_size(client.writer.transport) == 0, "a client's going away is only seen by reading"
        s.engines[0].throw(stall_after=None)
        (connection,) = s.engines[0].connections
        connection.step()
        assert (await client.body(head)).whole
        assert (await client.response()).status == 200
        assert len(json.loads(s.engines[0].seen.last_body)["pad"]) == 30 << 20
    async with serving(stall_after=1) as s:
        s.gateway.set_table(table(endpoint(0, address_of(s.engines[0])), version=2, max_body=1 << 20))
        client = await s.client()
        client.post(STREAM)
        await client.chunk(await client.head())
        for _ in range(3):
            client.post({**CHAT, "pad": "y" * (1 << 19)})
        await until(lambda: s.engines[0].seen.cancelled == 1)


async def test_a_client_that_leaves_after_much_ahead_of_its_turn_ends_the_engine_s_work() -> None:
    async with serving(stall_before_headers=True) as s:
        client = await s.client()
        client.post(CHAT)
        await until(lambda: s.engines[0].seen.active == 1)
        client.send(b"x" * 200_000)
        await asyncio.sleep(0.05)
        client.reset()
        await until(lambda: s.engines[0].seen.cancelled == 1)


async def test_a_client_that_reads_nothing_gets_no_further_requests_answered() -> None:
    async with serving(body_bytes=200_000) as s:
        client = await s.client()
        client.writer.transport.pause_reading()
        for _ in range(200):
            client.post(CHAT)
        requests = -1
        while requests != (requests := s.engines[0].seen.requests):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        assert requests < 150
        client.writer.transport.resume_reading()
        for _ in range(200):
            assert (await client.response()).whole
        assert s.engines[0].seen.connections == 1


async def test_a_client_that_asks_much_and_reads_nothing_is_not_read_either() -> None:
    async with serving() as s:
        client = await s.client()
        client.writer.transport.pause_reading()
        ask = b"GET /v1/models HTTP/1.1\r\nhost: gw\r\n\r\n"
        client.send(ask * 1_000_000)
        assert await settled_size(client.writer.transport) > 15_000_000
        client.reset()


async def test_an_engine_that_reads_slowly_gets_all() -> None:
    async with serving(read_slowly=True) as s:
        client = await s.client()
        client.post({**CHAT, "pad": "y" * (20 << 20)})
        await until(lambda: s.in_flight == 1)
        await asyncio.sleep(0.05)
        assert s.engines[0].seen.requests == 0
        s.engines[0].throw(read_slowly=False)
        assert (await client.response()).status == 200
        assert len(json.loads(s.engines[0].seen.last_body)["pad"]) == 20 << 20
