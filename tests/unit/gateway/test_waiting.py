"""Requests that wait for a place: who goes on first, who is turned away, and that one that leaves leaves nothing behind."""

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from llmgw.base.ids import ModelName
from llmgw.fleet.access import Access, KnownKey, TenantRight, hash_of
from llmgw.fleet.table import EndpointTable, GatewaySettings, RoutedModel
from tests.fakes.engine import FakeEngine, running_engine
from tests.unit.gateway.support import CHAT, STREAM, Client, Serving, address_of, endpoint, gateway_before, until

OTHER = {**CHAT, "model": "n"}


def limited(
    *engines: Any, places: int | None = 1, models: dict[str, dict[str, int]] | None = None, **limits: Any
) -> EndpointTable:
    """A table of the models m, n, … with one engine each, each given so many requests at once."""
    names = "mnop"[: len(engines)]
    routed = [RoutedModel(ModelName(name), (f"{name}-too",), 1, 9, **(models or {}).get(name, {})) for name in names]
    endpoints = [
        replace(endpoint(0, address_of(engine), name), max_inflight=places)
        for name, engine in zip(names, engines, strict=True)
    ]
    return EndpointTable(1, tuple(routed), tuple(endpoints), GatewaySettings(**{"connect": 2.0, **limits}))


def queued(s: Serving) -> dict[str, float]:
    return {one.labels[0]: one.value for one in s.gateway.samples() if one.name == "llmgw_gateway_queued"}


async def asking(s: Serving, body: object = CHAT, waiting: int | None = None) -> Client:
    """Send a request; with `waiting`, return once so many wait for its model."""
    client = await s.client()
    client.post(body)
    if waiting is not None:
        model = body["model"][0] if isinstance(body, dict) else ""
        await until(lambda: queued(s).get(model) == waiting)
    return client


@asynccontextmanager
async def two_engines(**limits: Any) -> AsyncIterator[tuple[FakeEngine, FakeEngine, Serving]]:
    """One of the model m, one of n, and the gateway before them."""
    async with contextlib.AsyncExitStack() as stack:
        one, two = [await stack.enter_async_context(running_engine(name)) for name in "mn"]
        yield one, two, await stack.enter_async_context(gateway_before(one, two, routed=limited(one, two, **limits)))


async def test_more_than_a_replica_is_given_at_once_wait_and_go_on_in_the_order_they_came() -> None:
    async with running_engine() as engine, gateway_before(engine, routed=limited(engine)) as s:
        engine.throw(stall_before_headers=True)
        holder = await asking(s)
        await until(lambda: engine.seen.requests == 1)
        waiting = [
            await asking(s, {"model": name, "messages": [], "n": number}, number + 1)
            for number, name in enumerate(("m", "m-too", "m"))
        ]
        assert (engine.seen.requests, s.in_flight) == (1, 1)
        engine.throw(stall_before_headers=False)
        await holder.close()
        assert [(await client.response()).status for client in waiting] == [200] * 3
        assert [json.loads(body).get("n") for body in engine.seen.bodies] == [None, 0, 1, 2]
        assert queued(s) == {}


async def test_nobody_overtakes_who_waits() -> None:
    async with running_engine() as engine, gateway_before(engine, routed=limited(engine)) as s:
        engine.throw(stall_before_headers=True)
        holder = await asking(s)
        await until(lambda: engine.seen.requests == 1)
        first = await asking(s, {**CHAT, "n": 1}, 1)
        engine.throw(stall_before_headers=False)
        await holder.close()
        second = await asking(s, {**CHAT, "n": 2})
        assert {(await one.response()).status for one in (first, second)} == {200}
        assert [json.loads(body).get("n") for body in engine.seen.bodies] == [None, 1, 2]


async def test_one_that_goes_away_while_it_waits_never_reaches_an_engine() -> None:
    async with running_engine() as engine, gateway_before(engine, routed=limited(engine)) as s:
        engine.throw(stall_before_headers=True)
        holder = await asking(s)
        await until(lambda: engine.seen.requests == 1)
        gone = await asking(s, CHAT, 1)
        last = await asking(s, CHAT, 2)
        gone.reset()
        await until(lambda: queued(s) == {"m": 1})
        engine.throw(stall_before_headers=False)
        await holder.close()
        assert (await last.response()).status == 200
        assert engine.seen.requests == 2
        seen = {one.labels[2:]: one.value for one in s.gateway.samples() if one.name == "llmgw_gateway_requests_total"}
        assert seen["499", "client_gone"] == 2


async def test_a_full_line_turns_away_with_when_to_come_again() -> None:
    limits = {"m": {"queue": 1}}
    async with running_engine() as engine, gateway_before(engine, routed=limited(engine, models=limits)) as s:
        engine.throw(stall_before_headers=True)
        await asking(s)
        await until(lambda: engine.seen.requests == 1)
        await asking(s, CHAT, 1)
        refused = await s.ask(CHAT)
        assert (refused.status, refused.code, refused.header("retry-after")) == (429, "queue_full", "1")
        assert "1 requests wait for it already" in refused.json["error"]["message"]


async def test_the_line_of_all_models_together_has_an_end_too() -> None:
    async with two_engines(waiting=1) as (one, _, s):
        one.throw(stall_before_headers=True)
        await asking(s)
        await until(lambda: one.seen.requests == 1)
        await asking(s, CHAT, 1)
        assert (await s.ask(CHAT)).code == "queue_full"
        assert (await s.ask(OTHER)).status == 200, "one that need not wait does not mind"


async def test_one_that_has_waited_for_too_long_is_told_so_and_a_stream_by_an_event() -> None:
    async with running_engine() as engine, gateway_before(engine, routed=limited(engine, queue=0.1)) as s:
        engine.throw(stall_before_headers=True)
        await asking(s)
        await until(lambda: engine.seen.requests == 1)
        late = await s.ask(CHAT)
        assert (late.status, late.code, late.header("retry-after")) == (503, "queue_timeout", "1")
        assert queued(s) == {}
        s.gateway.set_table(replace(limited(engine, queue=0.4, models={"m": {"keep_alive": 0.05}}), version=2))  # type: ignore[dict-item]
        stream = await s.ask(STREAM)
        assert stream.status == 200
        assert stream.events[0] == b": keep-alive"
        assert b"queue_timeout" in stream.events[-1]
        assert not stream.whole
        assert engine.seen.requests == 1


async def test_a_model_may_have_a_limit_over_all_its_replicas() -> None:
    async with running_engine() as engine:
        routed = limited(engine, places=None, models={"m": {"inflight": 2}})
        second = replace(routed.endpoints[0], id=endpoint(1, routed.endpoints[0].address).id)
        async with gateway_before(engine, routed=replace(routed, endpoints=(*routed.endpoints, second))) as s:
            engine.throw(stall_before_headers=True)
            holders = [await asking(s) for _ in range(2)]
            await until(lambda: engine.seen.requests == 2)
            third = await asking(s, CHAT, 1)
            engine.throw(stall_before_headers=False)
            await holders[0].close()
            assert (await third.response()).status == 200


async def test_of_a_limit_over_all_models_the_place_goes_to_who_waited_longest() -> None:
    async with two_engines(places=None, inflight=1) as (one, two, s):
        one.throw(stall_before_headers=True)
        holder = await asking(s)
        await until(lambda: one.seen.requests == 1)
        first = await asking(s, OTHER, 1)
        second = await asking(s, CHAT, 1)
        two.throw(stall_before_headers=True)
        await holder.close()
        await until(lambda: two.seen.requests == 1)
        assert (one.seen.requests, queued(s)) == (1, {"m": 1})
        one.throw(stall_before_headers=False)
        await first.close()
        assert (await second.response()).status == 200


async def test_while_somebody_waits_for_a_model_its_replicas_are_not_idle() -> None:
    async with two_engines(places=None, inflight=1) as (one, _, s):
        assert (await s.ask(OTHER)).status == 200
        one.throw(stall_before_headers=True)
        holder = await asking(s)
        await until(lambda: one.seen.requests == 1)
        await asyncio.sleep(0.05)
        idle = {usage.id: usage.ended_ago for usage in s.gateway.usage()}["n-0"]
        assert idle is not None
        assert idle >= 0.05
        await asking(s, OTHER, 1)
        assert {usage.id: usage.ended_ago for usage in s.gateway.usage()}["n-0"] == 0.0
        await holder.close()


async def test_a_new_table_lets_those_go_on_that_it_has_a_place_for_and_ends_the_hope_of_others() -> None:
    async with two_engines() as (one, two, s):
        before = limited(one, two)
        one.throw(stall_before_headers=True)
        two.throw(stall_before_headers=True)
        for body in (CHAT, OTHER):
            await asking(s, body)
        await until(lambda: (one.seen.requests, two.seen.requests) == (1, 1))
        helped = await asking(s, CHAT, 1)
        hopeless = await asking(s, OTHER, 1)
        one.throw(stall_before_headers=False)
        roomy = replace(before.endpoints[0], max_inflight=2)
        s.gateway.set_table(replace(before, version=2, endpoints=(roomy,)))
        assert (await helped.response()).status == 200
        refused = await hopeless.response()
        assert (refused.status, refused.code) == (503, "model_not_ready")


async def test_a_gateway_that_stops_tells_those_who_still_wait() -> None:
    async with running_engine() as engine, gateway_before(engine, routed=limited(engine)) as s:
        engine.throw(stall_before_headers=True)
        await asking(s)
        await until(lambda: engine.seen.requests == 1)
        waiting = await asking(s, CHAT, 1)
        await s.gateway.stop(0.05)
        refused = await waiting.response()
        assert (refused.status, refused.code) == (503, "shutting_down")


async def test_one_whose_replica_could_not_be_reached_waits_for_another_one() -> None:
    async with running_engine("e0") as dead, running_engine("e1") as busy:
        routed = limited(busy)
        unreachable = replace(endpoint(1, address_of(dead)), max_inflight=1)
        await dead.stop()
        async with gateway_before(busy, routed=replace(routed, endpoints=(*routed.endpoints, unreachable))) as s:
            busy.throw(stall_before_headers=True)
            holders = []
            while busy.seen.requests == 0:  # the first to come may be sent to the dead one first
                holders.append(await asking(s))
                await until(lambda: busy.seen.requests == 1 or queued(s))
            waiting = await asking(s, CHAT, 1)
            busy.throw(stall_before_headers=False)
            await holders[0].close()
            assert (await waiting.response()).status == 200


async def test_a_key_that_is_revoked_while_its_request_waits_opens_nothing() -> None:
    async with running_engine() as engine, gateway_before(engine, routed=limited(engine)) as s:
        mine = Access(1, True, (KnownKey("t", hash_of("s3cret"), "t"),), (TenantRight("t", ("m",)),))
        s.gateway.set_access(mine)
        shown = "authorization: Bearer sk-llmgw-t-s3cret\r\n"
        for change, status in ((replace(mine, version=2, keys=()), 401), (replace(mine, version=3, tenants=()), 404)):
            s.gateway.set_access(mine)
            seen = engine.seen.requests
            engine.throw(stall_before_headers=True)
            holder, waiting = await s.client(), await s.client()
            holder.post(CHAT, headers=shown)
            await until(lambda seen=seen: engine.seen.requests == seen + 1)
            waiting.post(CHAT, headers=shown)
            await until(lambda: queued(s) == {"m": 1})
            s.gateway.set_access(change)
            engine.throw(stall_before_headers=False)
            await holder.close()
            assert (await waiting.response()).status == status
            assert engine.seen.requests == seen + 1


@pytest.mark.parametrize("limits", [{}, {"models": {"m": {"inflight": 1}}}, {"inflight": 1}])
async def test_a_request_is_not_in_its_own_way_when_another_replica_can_be_asked(limits: dict[str, Any]) -> None:
    async with running_engine("a", status=503) as busy, running_engine("b") as idle:
        routed = limited(busy, places=None, **limits)
        second = endpoint(1, address_of(idle))
        async with gateway_before(busy, idle, routed=replace(routed, endpoints=(*routed.endpoints, second))) as s:
            assert [(await s.ask(CHAT)).status for _ in range(6)] == [200] * 6
            assert busy.seen.requests > 0


async def test_a_websocket_does_not_wait() -> None:
    async with running_engine() as engine, gateway_before(engine, routed=limited(engine)) as s:
        engine.throw(stall_before_headers=True)
        await asking(s)
        await until(lambda: engine.seen.requests == 1)
        client = await s.client()
        client.get("/v1/realtime?model=m", headers="connection: upgrade\r\nupgrade: websocket\r\n")
        refused = await client.response()
        assert (refused.status, refused.code) == (503, "model_busy")


async def test_however_many_come_and_go_no_place_is_given_twice_and_none_is_lost() -> None:
    rng = random.Random(5)
    async with (
        running_engine(chunk_interval=0.002) as engine,
        gateway_before(engine, routed=limited(engine, places=3)) as s,
    ):
        most = 0

        async def one(number: int) -> int | None:
            nonlocal most
            await asyncio.sleep(rng.random() * 0.2)
            client = await s.client()
            client.post({**(STREAM if number % 2 else CHAT), "n": number})
            if number % 5 == 0:
                await asyncio.sleep(rng.random() * 0.1)
                client.reset()
                return None
            response = await client.response()
            most = max(most, s.in_flight)
            return response.status

        def counted() -> float:
            return sum(one.value for one in s.gateway.samples() if one.name == "llmgw_gateway_requests_total")

        async def swap() -> None:
            nonlocal most
            for version in range(2, 40):
                await asyncio.sleep(0.005)
                s.gateway.set_table(replace(limited(engine, places=3), version=version))
                most = max(most, s.in_flight)

        found = await asyncio.gather(swap(), *(one(number) for number in range(200)))
        assert [status for status in found if status is not None] == [200] * 160
        await until(lambda: counted() == 200)
        assert most == 3
        assert queued(s) == {}
