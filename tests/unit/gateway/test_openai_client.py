"""The official client, unmodified, against the gateway: what it understands is what counts."""

import asyncio
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


async def test_embeddings() -> None:
    async with serving() as s, client_of(s) as client:
        found = await client.embeddings.create(model="alias", input="hi", encoding_format="float")
        assert found.data[0].embedding == [0.25, 0.5]


async def test_responses_whole_and_streamed() -> None:
    async with serving() as s, client_of(s) as client:
        whole = await client.responses.create(model="alias", input="hi")
        assert whole.output_text.startswith("e0 ")
        stream = await client.responses.create(model="m", input="hi", stream=True)
        kinds = [event.type async for event in stream]
        assert kinds == ["response.created", *["response.output_text.delta"] * 3, "response.completed"]
        samples = {(one.name, one.labels): one.value for one in s.gateway.samples()}
        assert samples["llmgw_gateway_tokens_total", ("m", "completion")] == 10
        s.engines[0].throw(knows="resp_1")
        assert (await client.responses.retrieve("resp_1")).id != ""
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve("resp_2")


async def test_a_broken_response_is_told_as_failed() -> None:
    async with serving(die_after=2) as s, client_of(s) as client:
        stream = await client.responses.create(model="m", input="hi", stream=True)
        events = stream.__aiter__()
        for _ in range(3):
            await anext(events)
        last = await anext(events)
        with pytest.raises(openai.APIError):  # the connection ends without a clean end
            await anext(events)
        assert last.type == "response.failed"
        assert "broke off its response" in last.response.error.message


async def test_audio_and_images() -> None:
    async with serving() as s, client_of(s) as client:
        sound = ("a.wav", b"RIFF\x00\r\n--x", "audio/wav")
        text = await client.audio.transcriptions.create(model="alias", file=sound)
        assert text.text.startswith("e0 ")
        assert 'name="model"' in s.engines[0].seen.last_body
        assert "alias" not in s.engines[0].seen.last_body
        with pytest.deprecated_call():
            translated = await client.audio.translations.create(model="m", file=sound)
        assert translated.text.startswith("e0 ")
        spoken = await client.audio.speech.create(model="alias", input="hi", voice="alloy")
        assert spoken.content.startswith(b"e0 ")
        assert spoken.response.headers["content-type"] == "audio/mpeg"
        drawn = await client.images.generate(model="alias", prompt="a cat")
        assert drawn.data is not None
        assert drawn.data[0].b64_json == "AAAA"
        edited = await client.images.edit(model="alias", image=("a.png", b"\x89PNG", "image/png"), prompt="a hat")
        assert edited.created


async def test_the_synchronous_client() -> None:
    async with serving(chunks=4) as s:
        with openai.OpenAI(base_url=f"http://127.0.0.1:{s.port}/v1", api_key="x", max_retries=0, timeout=10) as client:

            def ask() -> int:
                stream = client.chat.completions.create(model="m", messages=MESSAGES, stream=True)
                return sum(1 for event in stream if event.choices[0].delta.content)

            assert await asyncio.to_thread(ask) == 4
