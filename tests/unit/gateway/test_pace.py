"""A body that trickles."""

import asyncio

import pytest

from llmgw.gateway import pace, protocol
from llmgw.gateway.pace import GRACE, LEAST, Pace
from tests.unit.gateway.support import serving, until

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: gw\r\ncontent-length: 1000\r\n\r\n"


def test_one_byte_a_minute_is_too_slow_and_the_least_rate_is_not() -> None:
    trickle, least = Pace(), Pace()
    said = [
        (trickle.is_too_slow(1, 1 + int(now / 59), now), least.is_too_slow(1, int(LEAST * now), now))
        for now in (100.0 + step * 7.5 for step in range(20))
    ]
    assert [one for one, _ in said] == [step * 7.5 >= GRACE for step in range(20)]
    assert not any(other for _, other in said)


def test_each_request_has_its_own_time_and_without_a_body_there_is_none() -> None:
    one = Pace()
    assert not one.is_too_slow(1, 0, 0.0)
    assert not one.is_too_slow(0, 0, GRACE + 1)
    assert not one.is_too_slow(2, 0, 2 * GRACE)
    assert not one.is_too_slow(2, 0, 3 * GRACE - 1)
    assert one.is_too_slow(2, 0, 3 * GRACE)


async def test_a_body_that_trickles_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "GRACE", 0.2)
    monkeypatch.setattr(protocol, "SLOW_HEAD", 0.2)  # how often clients are looked at goes by it
    async with serving() as s:
        client = await s.client()
        client.send(HEAD)

        async def trickle() -> None:
            while True:
                client.send(b" ")
                await asyncio.sleep(0.02)

        trickling = asyncio.get_running_loop().create_task(trickle())
        response = await client.response()
        trickling.cancel()
        assert (response.status, response.code) == (408, "request_timeout")
        await until(lambda: s.gateway.clients == 0)
        assert s.engines[0].seen.requests == 0
