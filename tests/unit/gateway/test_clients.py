"""Clients that take too long are let go, in words where there is a request; the log of those that were answered."""

import asyncio
import json
import time
from pathlib import Path

import pytest

from llmgw.gateway import access_log, protocol
from llmgw.gateway.access_log import AccessLog
from llmgw.gateway.heads import Incoming
from llmgw.gateway.outcome import Outcome
from llmgw.gateway.usage import Tokens
from llmgw.routing.request import RequestShape
from llmgw.runtime.clock import SystemClock
from tests.unit.gateway.support import CHAT, STREAM, serving, until


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLOW_HEAD", "SLOW_BODY", "IDLE"):
        monkeypatch.setattr(protocol, name, 0.15)


@pytest.mark.parametrize(
    "dripped",
    [b"POST /v1/chat/completions HTTP/1.1\r\nhost: gw\r\nx-slow: " + b"a" * 500, b"GET /v1/models HTTP/1.1\r\n" * 3],
)
async def test_a_head_that_drips_is_not_waited_for(quick: None, dripped: bytes) -> None:
    async with serving() as s:
        client = await s.client()

        async def drip() -> None:
            for byte in dripped:
                client.send(bytes([byte]))
                await asyncio.sleep(0.01)

        dripping = asyncio.get_running_loop().create_task(drip())
        response = await client.response()
        assert response.status in (408, 400)
        dripping.cancel()
        assert await client.closed()


async def test_a_body_that_stops_coming_is_not_waited_for(quick: None) -> None:
    async with serving() as s:
        client = await s.client()
        client.send(b"POST /v1/chat/completions HTTP/1.1\r\nhost: gw\r\ncontent-length: 100\r\n\r\nxx")
        response = await client.response()
        assert (response.status, response.code) == (408, "request_timeout")
        assert await client.closed()
        assert s.engines[0].seen.requests == 0


async def test_a_connection_without_a_request_is_closed_without_a_word(quick: None) -> None:
    async with serving() as s:
        silent, used = await s.client(), await s.client()
        used.post(CHAT)
        assert (await used.response()).status == 200
        assert await silent.closed()
        assert await used.closed()


async def test_who_waits_for_an_answer_is_not_too_slow(quick: None) -> None:
    async with serving(chunks=8, chunk_interval=0.06) as s:
        assert (await s.ask(STREAM)).whole


async def test_a_line_is_written_for_every_request_and_has_no_text_of_it(tmp_path: Path) -> None:
    log = AccessLog(str(tmp_path / "access.log"), SystemClock())
    async with serving(chunks=3) as s:
        s.gateway.record(log)
        await s.ask(
            {**STREAM, "messages": [{"role": "user", "content": "a secret"}]}, headers="authorization: Bearer k\r\n"
        )
        await s.ask({**CHAT, "model": "nobody"})
        client = await s.client()
        s.engines[0].throw(stall_after=1)
        client.post(STREAM)
        await client.head()
        await client.close()
        await until(lambda: s.engines[0].seen.cancelled == 1)
    log.close()
    text = (tmp_path / "access.log").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert [(one["status"], one["reason"], one["model"], one["endpoint"]) for one in lines] == [
        (200, None, "m", "m-0"),
        (404, "model_not_found", "nobody", None),
        (499, "client_gone", "m", "m-0"),
    ]
    assert (lines[0]["prompt_tokens"], lines[0]["completion_tokens"], lines[0]["stream"]) == (3, 3, True)
    assert lines[0]["seconds"] >= lines[0]["first_byte"] >= 0
    assert "secret" not in text
    assert "Bearer" not in text


def a_request() -> tuple[RequestShape, Incoming, str, Outcome]:
    request = Incoming(b"POST", b"/v1/x", (), b"id", None, None, http11=True, keep_alive=True, body=b"")
    return RequestShape("chat", "m", stream=False, prompt_bytes=1), request, "m-0", Outcome(200, tokens=Tokens(1, 2))


def test_a_disk_that_is_full_costs_lines_and_says_how_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = access_log.os.write
    full = [True]

    def write(file: int, data: bytes) -> int:
        if full[0]:
            raise OSError(28, "No space left on device")
        return real(file, data)

    monkeypatch.setattr(access_log.os, "write", write)
    log = AccessLog(str(tmp_path / "access.log"), SystemClock())
    log.record(*a_request())
    for _ in range(5000):
        if log._lost:
            break
        time.sleep(0.001)
    assert log._lost, "the thread has tried"
    full[0] = False
    log.record(*a_request())
    log.close()
    (line,) = [json.loads(line) for line in (tmp_path / "access.log").read_text().splitlines()]
    assert line["dropped_before"] == 1


def test_a_file_that_cannot_be_opened_is_an_error_at_once(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        AccessLog(str(tmp_path / "nothing/access.log"), SystemClock())
