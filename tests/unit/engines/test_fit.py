"""The sum of what one card needs: the worked examples of the fact sheet, and what each knob does to it."""

from dataclasses import replace
from typing import Any

import pytest

from llmgw.engines.fit import GIB, MIB, Fit, fit, smallest
from llmgw.engines.shape import Layer, Shape, Unsized, packed
from llmgw.spec.profile import Profile

LLAMA_8B = Shape(16060522496, "headers", (Layer(8, 256),) * 32, 131072, 4096, 14336)
LLAMA_70B = Shape(141107412992, "headers", (Layer(8, 256),) * 80, 131072, 8192, 28672)
DEEPSEEK = Shape(688 * 10**9, "headers", (Layer(0, 576),) * 61, 163840, 7168, 18432)


def by(engine: str = "vllm", *args: str, cards: int = 1, **more: Any) -> Profile:
    gpu = {"gpu": {"class": "h100", "count": cards}} if cards else {}
    return Profile.model_validate({"engine": engine, "args": list(args), **gpu, **more})


def size(found: Fit, what: str) -> int:
    return next(line.size for line in found.lines if line.what == what)


@pytest.mark.parametrize(
    ("shape", "profile", "each"),
    [
        (LLAMA_8B, by(), 131072),
        (LLAMA_70B, by(), 327680),
        (LLAMA_70B, by(tensor_parallel=4, cards=4), 81920),
        (LLAMA_70B, by(tensor_parallel=16, cards=16), 40960),  # each keeps a whole head of the eight
        (LLAMA_70B, by(pipeline_parallel=2, cards=2), 163840),
        (DEEPSEEK, by(tensor_parallel=8, cards=8), 70272),  # a latent is not divided
        (LLAMA_8B, by("vllm", "--kv-cache-dtype=fp8"), 65536),
        (LLAMA_8B, by("llamacpp", "--cache-type-k", "q8_0", "--cache-type-v", "q8_0"), 69632),
        (LLAMA_8B, by("llamacpp", "-ctk", "q8_0"), 100352),
        (LLAMA_8B, by("llamacpp", cards=4), 32768),
    ],
)
def test_a_token_costs_what_the_fact_sheet_says(shape: Shape, profile: Profile, each: int) -> None:
    assert size(fit(shape, profile, context=8192), "KV cache") == 8192 * each


def test_weights_are_spread_over_the_cards_of_a_copy() -> None:
    assert size(fit(LLAMA_70B, by(tensor_parallel=2, pipeline_parallel=2, cards=4)), "weights") == 141107412992 // 4
    assert size(fit(LLAMA_70B, by(data_parallel=4, cards=4)), "weights") == 141107412992


def test_windows_bound_what_is_kept() -> None:
    slides = Shape(0, "headers", (Layer(1, 2), Layer(1, 2, 128)), 65536, 1, 1)
    assert size(fit(slides, by()), "KV cache") == (65536 + 128 + 16) * 2 * 2
    assert size(fit(slides, by(), context=64), "KV cache") == (64 + 64) * 2 * 2
    # llama.cpp keeps a micro-batch beside the window, and rounds up to 256 cells
    assert size(fit(slides, by("llamacpp")), "KV cache") == (65536 + 768) * 2 * 2


def test_requests_at_once_each_have_their_cache() -> None:
    one, four = (size(fit(LLAMA_8B, by(), context=1000, concurrency=count), "KV cache") for count in (1, 4))
    assert (one, four) == (1008 * 131072, 4 * one)


@pytest.mark.parametrize(
    ("profile", "usable"),
    [
        (by(), 72 * GIB),
        (by("vllm", "--gpu-memory-utilization", "0.5"), 40 * GIB),
        (by("sglang"), 70 * GIB),
        (by("sglang", "--mem-fraction-static=0.25"), 20 * GIB),
        (by("llamacpp"), 80 * GIB),
    ],
)
def test_each_engine_takes_its_part_of_a_card(profile: Profile, usable: int) -> None:
    assert fit(LLAMA_8B, profile, 80 * GIB).usable == usable


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llamacpp"])
@pytest.mark.parametrize("card", [18 * GIB, 24 * GIB, 27 * GIB])
def test_the_longest_context_fits_and_a_longer_one_does_not(engine: str, card: int) -> None:
    longest = fit(LLAMA_8B, by(engine), card).longest
    assert longest is not None
    if longest:
        assert fit(LLAMA_8B, by(engine), card, context=longest).fits
    if longest < LLAMA_8B.context:
        assert not fit(LLAMA_8B, by(engine), card, context=longest + 256).fits


def test_the_longest_context_is_no_longer_than_the_model_was_made_for() -> None:
    assert fit(LLAMA_8B, by(), 1000 * GIB).longest == 131072
    assert fit(LLAMA_8B, by(), 16 * GIB).longest == 0


def test_the_smallest_class_that_would_do() -> None:
    classes = {"h100": 80 * GIB, "l40s": 48 * GIB, "t4": 16 * GIB}
    assert smallest(LLAMA_8B, by(), classes, context=8192, concurrency=1) == "l40s"
    assert smallest(LLAMA_8B, by(), classes, context=131072, concurrency=2) == "h100"
    assert smallest(LLAMA_70B, by(), classes, context=8192, concurrency=1) is None


def test_context_and_requests_are_those_of_the_arguments() -> None:
    assert fit(LLAMA_8B, by("vllm", "--max-model-len", "5000")).context == 5000
    found = fit(LLAMA_8B, by("llamacpp", "--ctx-size", "8192", "--parallel", "4"))
    assert (found.context, found.concurrency) == (2048, 4)
    assert size(found, "KV cache") == 8192 * 131072


def test_a_card_that_is_not_known_has_no_answer() -> None:
    found = fit(LLAMA_8B, by())
    assert (found.fits, found.longest) == (None, None)


def test_without_cards_llamacpp_needs_no_cuda_and_keeps_all_on_the_host() -> None:
    shape = Shape(100 * MIB, "GGUF header", (Layer(1, 2),), 4096, 16, 16, on_host=30 * MIB)
    assert [line.what for line in fit(shape, by("llamacpp", cards=0)).lines] == [
        "weights",
        "KV cache",
        "compute buffer",
    ]
    assert size(fit(shape, by("llamacpp", cards=0)), "weights") == 100 * MIB
    assert size(fit(shape, by("llamacpp")), "weights") == 70 * MIB


@pytest.mark.parametrize(
    ("profile", "shape", "why"),
    [
        (by("tei", cards=0), LLAMA_8B, "what tei needs cannot be told"),
        (by("vllm", "--kv-cache-dtype", "odd"), LLAMA_8B, "as odd is not known"),
        (by(), Shape(1, "headers", (), 0, 1, 1), "give --context"),
    ],
)
def test_what_cannot_be_told_is_said(profile: Profile, shape: Shape, why: str) -> None:
    with pytest.raises(Unsized, match=why):
        fit(shape, profile)


@pytest.mark.parametrize("profile", [by(), by(pipeline_parallel=3, cards=3), by("llamacpp")])
def test_equal_layers_as_one_with_their_count_make_the_same_sum(profile: Profile) -> None:
    layers = (Layer(8, 256), Layer(8, 256, 1024), Layer(8, 256, 1024)) * 10
    shape = replace(LLAMA_8B, layers=layers)
    small = packed(shape)
    assert small.layers == (Layer(8, 256, count=10), Layer(8, 256, 1024, count=20))
    assert fit(small, profile) == fit(shape, profile)
