"""The official clients against real llama.cpp behind a real server."""

import anthropic
import openai
import pytest

from tests.live.lab import Lab, model_yaml


@pytest.fixture
def chat(lab: Lab) -> openai.OpenAI:
    lab.write("models/m.yaml", model_yaml("m", aliases="[gpt]"))
    lab.commit()
    lab.start_agent()
    lab.start_server()
    lab.until(lambda: lab.ready("m"), "the model")
    return lab.client()


def test_both_families_are_answered_by_real_llama_cpp(lab: Lab, chat: openai.OpenAI) -> None:
    messages: list = [{"role": "user", "content": "hi"}]
    with chat:
        whole = chat.chat.completions.create(model="gpt", messages=messages, max_tokens=4)
        assert whole.usage is not None
        assert whole.usage.completion_tokens == 4
        chunks = list(chat.chat.completions.create(model="gpt", messages=messages, max_tokens=4, stream=True))
        assert chunks[-1].choices[0].finish_reason == "length"
        assert all(one.usage is None for one in chunks), "it was not asked for"
        options: dict = {"stream_options": {"include_usage": True}}
        asked = list(chat.chat.completions.create(model="m", messages=messages, max_tokens=4, stream=True, **options))
        assert asked[-1].usage.completion_tokens == 4
        text = chat.completions.create(model="gpt", prompt="hi", max_tokens=4)
        assert text.usage is not None
        with pytest.raises(openai.BadRequestError):
            chat.chat.completions.create(model="m", messages=messages, max_tokens=4, temperature="hot")  # type: ignore[arg-type]
    with anthropic.Anthropic(base_url=f"http://127.0.0.1:{lab.port}", api_key="x", max_retries=0) as claude:
        message = claude.messages.create(model="gpt", messages=messages, max_tokens=4)
        assert message.usage.output_tokens == 4
        # a random model's first bytes may be half a letter, for which llama.cpp leaves out `message_start`
        kinds = [one.type for one in claude.messages.create(model="gpt", messages=messages, max_tokens=4, stream=True)]
        assert kinds[-2:] == ["message_delta", "message_stop"]
        with pytest.raises(anthropic.NotFoundError):
            claude.messages.create(model="nobody", messages=messages, max_tokens=4)
    lab.until(
        lambda: 'llmgw_gateway_tokens_total{kind="completion",model="m"}' in lab.metrics(), "the tokens to be counted"
    )
    counted = {
        line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lab.metrics().splitlines() if "{" in line
    }
    assert counted['llmgw_gateway_tokens_total{kind="completion",model="m"}'] == 24
