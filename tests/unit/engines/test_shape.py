"""How large a model is by its configuration, against published sizes; and what it keeps of each token."""

import json
from pathlib import Path
from typing import Any

import pytest

from llmgw.engines.shape import Layer, Unsized, of_config

PUBLISHED = json.loads((Path(__file__).parent / "published.json").read_text())["models"]
LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
}


def test_the_table_has_the_twenty_models_that_it_is_there_for() -> None:
    assert len({each["config_of"] for each in PUBLISHED}) >= 20


@pytest.mark.parametrize("row", PUBLISHED, ids=lambda row: row["config_of"])
def test_the_weights_are_within_five_percent_of_what_is_published(row: dict[str, Any]) -> None:
    assert of_config(row["config"]).parameters == pytest.approx(row["parameters"], rel=0.05)


@pytest.mark.parametrize("row", [each for each in PUBLISHED if each["all_counted"]], ids=lambda row: row["config_of"])
def test_nothing_is_missing_where_a_repository_has_no_more_than_a_decoder(row: dict[str, Any]) -> None:
    assert of_config(row["config"]).parameters == pytest.approx(row["parameters"], rel=0.0005)


@pytest.mark.parametrize("row", [each for each in PUBLISHED if "bytes" in each], ids=lambda row: row["config_of"])
def test_bytes_are_those_of_the_published_index(row: dict[str, Any]) -> None:
    assert of_config(row["config"]).weights == pytest.approx(row["bytes"], rel=0.005)


@pytest.mark.parametrize(
    ("said", "bits"),
    [
        ({"quant_method": "fp8"}, 8),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, 4 + 20 / 128),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, 8),
    ],
)
def test_quantized_weights_are_smaller_but_for_the_tables(said: dict[str, Any], bits: float) -> None:
    tables = 2 * 128256 * 4096
    whole = of_config(LLAMA)
    small = of_config({**LLAMA, "quantization_config": said})
    assert small.weights == pytest.approx(tables * 2 + (whole.parameters - tables) * bits / 8, rel=1e-6)


def test_headers_are_believed_over_the_configuration() -> None:
    shape = of_config({**LLAMA, "quantization_config": {"quant_method": "new"}}, weights=5)
    assert (shape.weights, shape.source) == (5, "safetensors headers")
    assert of_config({**LLAMA, "model_type": "new"}, weights=5).weights == 5


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"model_type": "gpt2"}, "the weights of gpt2 cannot be counted from config.json alone"),
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, "quantized by bitsandbytes cannot be counted"),
        ({"hidden_size": None}, "has no hidden_size"),
    ],
)
def test_what_cannot_be_counted_is_refused(change: dict[str, Any], why: str) -> None:
    with pytest.raises(Unsized, match=why):
        of_config({**LLAMA, **change})


FULL, SLIDING = Layer(8, 256), Layer(8, 256, 1024)


@pytest.mark.parametrize(
    ("change", "layers"),
    [
        ({}, (FULL,) * 4),
        ({"sliding_window": 1024}, (SLIDING,) * 4),
        ({"sliding_window": 1024, "use_sliding_window": False}, (FULL,) * 4),
        ({"sliding_window": 1024, "use_sliding_window": True, "max_window_layers": 3}, (FULL, FULL, FULL, SLIDING)),
        ({"sliding_window": 1024, "sliding_window_pattern": 2}, (SLIDING, FULL, SLIDING, FULL)),
        ({"sliding_window": 1024, "layer_types": ["sliding_attention", "full_attention"] * 2}, (SLIDING, FULL) * 2),
        ({"sliding_window": 1024, "model_type": "gemma2"}, (SLIDING, FULL) * 2),
        ({"layer_types": ["linear_attention"] * 3 + ["full_attention"]}, (FULL,)),
        ({"num_key_value_heads": None}, (Layer(32, 256),) * 4),
        ({"head_dim": 64, "v_head_dim": 32}, (Layer(8, 96),) * 4),
        ({"kv_lora_rank": 512, "qk_rope_head_dim": 64}, (Layer(0, 576),) * 4),
        ({"text_config": {"num_key_value_heads": 4}}, (Layer(4, 256),) * 4),
    ],
)
def test_what_each_layer_keeps(change: dict[str, Any], layers: tuple[Layer, ...]) -> None:
    assert of_config({**LLAMA, "num_hidden_layers": 4, **change}, weights=1).layers == layers


def test_layers_that_are_not_counted_are_told() -> None:
    shape = of_config(
        {**LLAMA, "layer_types": ["linear_attention"] * 3 + ["full_attention"], "num_hidden_layers": 4}, 1
    )
    assert shape.notes == ("3 layers keep a state for each sequence, which is not counted",)
