"""Table swaps and stopping: what is in flight goes on, and is counted until it ends."""

import asyncio
import errno
import socket

import pytest

from tests.unit.gateway.support import CHAT, PATIENCE, STREAM, address_of, endpoint, serving, table, until


async def test_a_table_swap_drops_nothing_and_the_withdrawn_stay_counted() -> None:
    async with serving(2, chunks=3, stall_after=2) as s:
        quiet: list[int] = []
        s.gateway.on_withdrawn_quiet(lambda: quiet.append(s.in_flight))
        first, second = s.engines
        s.gateway.set_table(table(endpoint(0, address_of(first)), version=2))
        client = await s.client()
        client.post(STREAM)
        head = await client.head()
        s.gateway.set_table(table(endpoint(1, address_of(second)), version=3))
        assert s.gateway.table_version == 3
        assert [(usage.id, usage.in_flight) for usage in s.gateway.usage()] == [("m-1", 0), ("m-0", 1)]
        second.throw(stall_after=None)
        assert "e1" in (await s.ask(CHAT)).body.decode()
        assert quiet == []
        first.throw(stall_after=None)
        (connection,) = first.connections
        connection.step()
        assert (await client.body(head)).whole
        assert quiet == [0]
        assert [usage.id for usage in s.gateway.usage()] == ["m-1"]


async def test_an_endpoint_that_comes_back_was_never_used() -> None:
    async with serving() as s:
        both = table(endpoint(0, address_of(s.engines[0])))
        await s.ask(CHAT)
        assert s.gateway.usage()[0].ended_ago is not None
        s.gateway.set_table(table(version=2))
        assert s.gateway.usage() == ()
        assert s.gateway.idle_upstreams == 0
        s.gateway.set_table(both)
        assert s.gateway.usage()[0].ended_ago is None


async def test_an_endpoint_withdrawn_while_busy_and_quiet_since_was_never_used_either() -> None:
    async with serving(stall_before_headers=True) as s:
        listed = table(endpoint(0, address_of(s.engines[0])))
        client = await s.client()
        client.post(CHAT)
        await until(lambda: s.in_flight == 1)
        s.gateway.set_table(table(version=2))
        await client.close()
        await until(lambda: s.in_flight == 0)
        s.gateway.set_table(listed)
        assert s.gateway.usage()[0].ended_ago is None


async def test_many_swaps_under_load_lose_no_request() -> None:
    async with serving(3, chunks=10, chunk_interval=0.002) as s:
        listed = [endpoint(number, address_of(engine)) for number, engine in enumerate(s.engines)]
        over = asyncio.Event()

        async def swap() -> None:
            version = 1
            while not over.is_set():
                version += 1
                s.gateway.set_table(table(*(listed[n] for n in range(3) if n != version % 3), version=version))
                await asyncio.sleep(0.001)

        async def ask() -> None:
            for _ in range(5):
                assert (await s.ask(STREAM)).whole

        async with asyncio.TaskGroup() as group:
            swapping = group.create_task(swap())
            await asyncio.gather(*(ask() for _ in range(20)))
            over.set()
            await swapping
        assert s.gateway.requests == 100


async def test_stopping_lets_running_requests_finish() -> None:
    async with serving(chunks=20, chunk_interval=0.005) as s:
        idle = await s.client()
        busy = await s.client()
        idle.get("/health")
        await idle.response()
        busy.post(STREAM)
        head = await busy.head()
        async with asyncio.TaskGroup() as group:
            group.create_task(s.gateway.stop(5.0))
            assert await idle.closed()
            response = await busy.body(head)
            assert response.whole
            assert await busy.closed()


async def test_what_outlasts_the_drain_is_broken_off_with_a_reason() -> None:
    async with serving(stall_after=1) as s:
        streaming, waiting = await s.client(), await s.client()
        streaming.post(STREAM)
        head = await streaming.head()
        await streaming.chunk(head)
        s.engines[0].throw(stall_before_headers=True)
        waiting.post(CHAT)
        await until(lambda: s.engines[0].seen.active == 2)
        await s.gateway.stop(0.05)
        response = await streaming.body(head)
        assert not response.whole
        assert b"shutting_down" in response.events[-1]
        refused = await waiting.response()
        assert (refused.status, refused.code, refused.header("retry-after")) == (503, "shutting_down", "1")
        await until(lambda: s.engines[0].seen.cancelled == 2)


async def test_a_stopping_gateway_accepts_nobody_and_serves_what_was_asked_ahead() -> None:
    async with serving(chunks=20, chunk_interval=0.005) as s:
        client = await s.client()
        client.post(STREAM)
        client.post(CHAT)
        client.post(CHAT)
        head = await client.head()
        async with asyncio.TaskGroup() as group:
            group.create_task(s.gateway.stop(5.0))
            await until(lambda: refuses(s.port))
            assert (await client.body(head)).whole
            last = await client.response()
            assert (last.status, last.header("connection")) == (200, "close")
            assert await client.closed()
        assert s.engines[0].seen.requests == 2


def refuses(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == errno.ECONNREFUSED


async def test_who_was_let_in_by_the_kernel_is_served_though_the_gateway_stops() -> None:
    async with serving() as s:
        with socket.create_connection(("127.0.0.1", s.port)) as waiting:  # the loop could not accept it yet
            waiting.sendall(b"GET /v1/models HTTP/1.1\r\nhost: gw\r\n\r\n")
            waiting.setblocking(False)
            await s.gateway.stop(5.0)
            async with asyncio.timeout(PATIENCE):
                answer = await asyncio.get_running_loop().sock_recv(waiting, 1 << 16)
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert b"connection: close" in answer.lower()


async def test_who_has_just_come_may_ask_while_the_gateway_stops_and_half_a_request_may_become_whole() -> None:
    async with serving() as s:
        new, half, asked = await s.client(), await s.client(), await s.client()
        asked.get("/health")
        await asked.response()
        half.send(b"GET /v1/models HTTP/1.1\r\nhost:")
        await until(lambda: s.gateway.clients == 3)
        half.send(b" gw\r\n")
        async with asyncio.TaskGroup() as group:
            group.create_task(s.gateway.stop(5.0))
            assert await asked.closed()
            new.post(CHAT)
            half.send(b"\r\n")
            for client in (new, half):
                answer = await client.response()
                assert (answer.status, answer.header("connection")) == (200, "close")


async def test_who_asks_for_nothing_does_not_hold_up_a_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llmgw.gateway.server.NEW", 0.05)
    async with serving() as s:
        silent = await s.client()
        await until(lambda: s.gateway.clients == 1)
        async with asyncio.timeout(PATIENCE):
            await s.gateway.stop(3600.0)
        assert await silent.closed()
