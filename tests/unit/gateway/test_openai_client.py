"""The official client, unmodified, against the gateway: what it understands is what counts."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import openai
import pytest

from tests.unit.gateway.support import Serving, serving, table, until

MESSAGES: list = [{"role": "user", "content": "hi"}]


@asynccontextmanager
async def client_of(s: Serving) -> AsyncIterator[openai.AsyncOpenAI]:
    base = f"http://127.0.0.1:{s.port}/v1"
    async with openai.AsyncOpenAI(base_url=base, api_key="sk-secret", max_retries=0, timeout=10) as client:
        yield client


async def test_a_completion() -> None:
    async with serving() as s, client_of(s) as client:
        completion = await client.chat.completions.create(model="m", messages=MESSAGES)
        assert (completion.choices[0].message.content or "").startswith("e0 ")
        assert completion.usage is not None
        assert completion.usage.total_tokens == 8
        assert "authorization" not in {name.lower() for name, _ in s.engines[0].seen.last_headers}


async def test_a_stream_with_usage() -> None:
    async with serving(chunks=4) as s, client_of(s) as client:
        options = {"include_usage": True}
        stream = await client.chat.completions.create(
            model="m",
            messages=MESSAGES,
            stream=True,
            stream_options=options,  # type: ignore[call-overload]
        )
        events = [event async for event in stream]
        text = "".join(event.choices[0].delta.content or "" for event in events if event.choices)
        assert text.count("token") == 4
        assert events[-1].usage.completion_tokens == 4


async def test_an_alias() -> None:
    async with serving() as s, client_of(s) as client:
        completion = await client.chat.completions.create(model="alias", messages=MESSAGES)
        assert completion.choices[0].finish_reason == "stop"
        assert '"model":"m"' in s.engines[0].seen.last_body


async def test_the_list_of_models() -> None:
    async with serving() as s, client_of(s) as client:
        listed = [model async for model in client.models.list()]
        assert [model.id for model in listed] == ["m", "alias"]
        assert (await client.models.retrieve("alias")).owned_by == "llmgw"


async def test_an_unknown_model() -> None:
    async with serving() as s, client_of(s) as client:
        with pytest.raises(openai.NotFoundError) as caught:
            await client.chat.completions.create(model="gpt", messages=MESSAGES)
        assert caught.value.code == "model_not_found"
        assert "`gpt` does not exist" in caught.value.message
        assert caught.value.request_id


async def test_a_model_that_is_not_ready() -> None:
    async with serving() as s, client_of(s) as client:
        s.gateway.set_table(table(version=2))
        with pytest.raises(openai.InternalServerError) as caught:
            await client.chat.completions.create(model="m", messages=MESSAGES)
        assert (caught.value.status_code, caught.value.code) == (503, "model_not_ready")
        assert caught.value.response.headers["retry-after"] == "9"


async def test_a_stream_that_breaks_raises() -> None:
    async with serving(die_after=2) as s, client_of(s) as client:
        stream = await client.chat.completions.create(model="m", messages=MESSAGES, stream=True)
        with pytest.raises(openai.APIError, match="broke off its response"):
            async for _ in stream:
                pass


async def test_a_stream_that_the_client_leaves_stops_the_engine() -> None:
    async with serving(chunks=10_000, chunk_interval=0.002) as s, client_of(s) as client:
        stream = await client.chat.completions.create(model="m", messages=MESSAGES, stream=True)
        async for _ in stream:
            break
        await stream.close()
        await until(lambda: s.engines[0].seen.cancelled == 1)
