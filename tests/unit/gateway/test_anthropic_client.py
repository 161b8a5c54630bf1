"""Anthropic's official client, unmodified, against the gateway."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anthropic
import pytest

from tests.unit.gateway.support import Serving, serving, until

MESSAGES: list = [{"role": "user", "content": "hi"}]


@asynccontextmanager
async def client_of(s: Serving) -> AsyncIterator[anthropic.AsyncAnthropic]:
    base = f"http://127.0.0.1:{s.port}"
    async with anthropic.AsyncAnthropic(base_url=base, api_key="sk-secret", max_retries=0, timeout=10) as client:
        yield client


async def test_a_message() -> None:
    async with serving() as s, client_of(s) as client:
        message = await client.messages.create(model="alias", messages=MESSAGES, max_tokens=8)
        assert message.content[0].text.startswith("e0 ")
        assert message.usage.output_tokens == 5
        names = {name.lower() for name, _ in s.engines[0].seen.last_headers}
        assert not names & {"x-api-key", "authorization"}


async def test_a_stream() -> None:
    async with serving(chunks=4) as s, client_of(s) as client:
        async with client.messages.stream(model="m", messages=MESSAGES, max_tokens=8) as stream:
            text = "".join([piece async for piece in stream.text_stream])
            final = await stream.get_final_message()
        assert text.count("token") == 4
        assert (final.stop_reason, final.usage.output_tokens) == ("end_turn", 4)


async def test_tokens_are_counted() -> None:
    async with serving() as s, client_of(s) as client:
        assert (await client.messages.count_tokens(model="alias", messages=MESSAGES)).input_tokens == 3


async def test_errors_are_in_its_words() -> None:
    async with serving() as s, client_of(s) as client:
        with pytest.raises(anthropic.NotFoundError) as missing:
            await client.messages.create(model="nobody", messages=MESSAGES, max_tokens=8)
        assert missing.value.body == {
            "type": "error",
            "error": {
                "type": "not_found_error",
                "message": "The model `nobody` does not exist or you do not have access to it.",
            },
        }


async def test_a_stream_that_breaks_raises() -> None:
    async with (
        serving(die_after=2) as s,
        client_of(s) as client,
        client.messages.stream(model="m", messages=MESSAGES, max_tokens=8) as stream,
    ):
        with pytest.raises(anthropic.APIError, match="broke off its response"):
            await stream.until_done()


async def test_a_stream_that_the_client_leaves_stops_the_engine() -> None:
    async with serving(chunks=10_000, chunk_interval=0.002) as s, client_of(s) as client:
        async with client.messages.stream(model="m", messages=MESSAGES, max_tokens=8) as stream:
            async for _ in stream:
                break
        await until(lambda: s.engines[0].seen.cancelled == 1)
