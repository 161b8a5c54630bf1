"""What a response cost, and the usage event that a client did not ask for: taken out however the stream is cut."""

import json
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmgw.gateway.usage import HELD, Tokens, UsageTap, tokens_in


def event(document: object, end: bytes = b"\n\n") -> bytes:
    return b"data: " + json.dumps(document, ensure_ascii=False).encode() + end


def chunk(text: str, end: bytes = b"\n\n", **more: object) -> bytes:
    return event({"choices": [{"delta": {"content": text}}], **more}, end)


USAGE = {
    "choices": [],
    "usage": {"prompt_tokens": 3, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 1}},
}
TRICKS = [
    chunk('a "usage":{"x":1} in text'),
    chunk("b", usage=None),
    chunk("c", usage={"prompt_tokens": 9, "completion_tokens": 9}),
    b": a comment\n\n",
    event({"choices": []}),
    event({"choices": [], "usage": "none"}),
    b'data: "usage":{ this is no JSON "choices":[] }\n\n',
    b"data: [DONE]\n\n",
]


def through(pieces: Iterable[bytes]) -> tuple[bytes, Tokens | None]:
    tap = UsageTap()
    said = b"".join(tap.pass_on(piece) for piece in pieces)
    return said + tap.rest(), tap.tokens


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.sampled_from(TRICKS), max_size=6),
    st.lists(st.sampled_from(TRICKS), max_size=3),
    st.sampled_from([b"\n\n", b"\r\n\r\n"]),
    st.lists(st.integers(1, 90), min_size=1, max_size=30),
)
def test_exactly_the_usage_event_is_taken_out_however_the_stream_is_cut(before, after, end, sizes) -> None:
    stream = b"".join(before) + event(USAGE, end) + b"".join(after)
    pieces, at = [], 0
    while at < len(stream):
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(stream[at : at + size])
        at += size
    assert through(pieces) == (b"".join(before + after), Tokens(3, 2, 1))
    assert through([stream]) == (b"".join(before + after), Tokens(3, 2, 1))


def test_an_event_that_is_not_over_is_held_back_but_not_for_ever() -> None:
    tap = UsageTap()
    assert tap.pass_on(b"data: half") == b""
    assert tap.pass_on(b" of it") == b""
    assert tap.pass_on(b"\n\ndata: x") == b"data: half of it\n\n"
    long = b"y" * (HELD + 1)
    assert tap.pass_on(long) == b"data: x" + long
    assert tap.pass_on(b"z") == b"z", "it is passed on in pieces from then on"
    assert tap.pass_on(b"\n\n" + event(USAGE) + b"data: [DONE]\n\n") == b"\n\ndata: [DONE]\n\n"
    assert tap.tokens == Tokens(3, 2, 1)


@pytest.mark.parametrize(
    ("tail", "tokens"),
    [
        (b'{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":5,"total_tokens":8},"x":1}', Tokens(3, 5)),
        (b'"usage": {"input_tokens": 4, "output_tokens": 6, "cache_read_input_tokens": 2}', Tokens(4, 6, 2)),
        (b'"usage":{"prompt_tokens":3,"total_tokens":3}', Tokens(3, 0)),
        (b'"text":"\\"usage\\":{\\"prompt_tokens\\":1}"', None),
        (b'"usage":{"prompt_tokens":true}', None),
        (b'"usage":{"prompt_tokens":-1}', None),
        (b'"usage":{"prompt_tokens":9300000000000000000}', None),
        (b'"usage":{"prompt_tokens":7,"completion_tokens":9300000000000000000}', Tokens(7, 0)),
        (b'"usage":null', None),
        (b'"usage":{"prompt_tokens":1', None),
        (b"", None),
    ],
)
def test_the_last_usage_that_an_answer_states_is_read(tail: bytes, tokens: Tokens | None) -> None:
    assert tokens_in(tail) == tokens
