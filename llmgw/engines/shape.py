"""`Shape`: what of a model decides how much memory it takes: the bytes of its weights, and what a token costs in each layer.

It comes from a repository's `config.json`, with the bytes from its safetensors headers where they are at hand, or from the
header of a GGUF file (`headers`). Without headers the weights are counted from the configuration, by one formula for
decoders with gated feed-forward layers; other model types are refused, since a wrong sum is worse than none. It was compared
with the published sizes of 24 models (`tests/unit/engines/published.json`), of all those types but mistral and qwen2, which
are built as llama is. Not counted are norms and biases (below 0.1 %), vision towers (below 2 % where compared) and layers for
multi-token prediction, which an engine loads only for speculative decoding.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

COUNTED = frozenset(
    {
        *(
            "llama",
            "llama4_text",
            "mistral",
            "mixtral",
            "qwen2",
            "qwen3",
            "qwen3_moe",
            "qwen3_vl_text",
            "qwen3_vl_moe_text",
        ),
        *("deepseek_v3", "deepseek_v32", "kimi_k2", "glm_moe_dsa", "minimax_m2", "gpt_oss"),
    }
)
"""Model types whose weights are counted from the configuration alone."""
MIXED = frozenset({"minimax_m2", "mixtral", "gpt_oss"})
"""Model types whose `intermediate_size` is that of an expert."""
STATELESS = ("linear_attention", "mamba", "recurrent")
"""Kinds of layers without a KV cache; what they keep for a sequence does not grow with it, and is not counted."""
BITS = {"fp8": 8.0, "mxfp4": 4.25}
"""Bits of a quantized weight with its scales; 4.25 are 17 bytes for 32 of them."""
PACKED = frozenset({"awq", "gptq"})


class Unsized(Exception):
    """A model's size cannot be told. The message is one line that says why, and what would do."""


@dataclass(frozen=True, slots=True)
class Layer:
    """What a layer keeps of a token: numbers in keys and values."""

    heads: int
    """Heads that are kept; 0 for a latent, which each GPU keeps whole."""
    numbers: int
    """Numbers of each of them, or of the latent."""
    window: int = 0
    """Tokens it looks back; 0 for all."""
    count: int = 1
    """How many layers of this kind there are; see `packed`."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A model's size. `weights` are the bytes of all its tensors."""

    weights: int
    source: str
    """What the weights were read from."""
    layers: tuple[Layer, ...]
    """The layers that have a KV cache."""
    context: int
    """Tokens it was made for; 0 if that is not said."""
    width: int
    inner: int
    """Width of a feed-forward layer: of all experts that a token sees."""
    parameters: int = 0
    """Counted from the configuration; 0 where the weights were read from headers."""
    on_host: int = 0
    """Bytes of the weights that llama.cpp keeps in the host's memory whatever is offloaded: the embeddings."""
    notes: tuple[str, ...] = ()


def packed(shape: Shape) -> Shape:
    """Return the same shape in few words, to be sent: equal layers as one with their count."""
    kinds = Counter(shape.layers)
    return replace(shape, layers=tuple(replace(layer, count=layer.count * many) for layer, many in kinds.items()))


def of_config(config: Mapping[str, Any], weights: int | None = None) -> Shape:
    """Return the shape that a `config.json` describes; `weights` are the bytes by the safetensors headers, if known.

    Raises Unsized.
    """
    text = {**config, **_mapping(config.get("text_config"))}
    kind = str(text.get("model_type", ""))
    cached = _layers(text)
    left_out = _number(text, "num_hidden_layers") - len(cached)
    notes: tuple[str, ...] = ()
    if left_out:
        notes += (f"{left_out} layers keep a state for each sequence, which is not counted",)
    if "index_head_dim" in text:
        notes += ("what its indexer keeps of each token is not counted",)
    if "attention_chunk_size" in text:
        notes += ("layers with chunked attention are counted as if they kept all tokens",)
    experts = _number(text, "num_experts_per_tok", "experts_per_token", "top_k_experts", default=0)
    shape = Shape(
        weights=weights or 0,
        source="safetensors headers",
        layers=cached,
        context=_number(text, "max_position_embeddings", default=0),
        width=_number(text, "hidden_size"),
        inner=max(_number(text, "intermediate_size", default=0), experts * _expert_width(text, kind)),
        notes=notes,
    )
    if weights is not None:
        return shape
    if kind not in COUNTED:
        raise Unsized(
            f"the weights of {kind or 'a model without model_type'} cannot be counted from config.json alone; "
            "give a directory with its safetensors files"
        )
    plain, quantized = _parameters(text, kind)
    wide = 4 if str(text.get("dtype") or text.get("torch_dtype")) in ("float32", "torch.float32") else 2
    size = plain * wide + round(quantized * _bits(text, wide) / 8)
    return replace(shape, weights=size, parameters=plain + quantized, source="config.json")


def _layers(text: Mapping[str, Any]) -> tuple[Layer, ...]:
    count = _number(text, "num_hidden_layers")
    if text.get("kv_lora_rank"):
        return (Layer(0, _number(text, "kv_lora_rank") + _number(text, "qk_rope_head_dim")),) * count
    heads = _number(text, "num_attention_heads")
    kept = _number(text, "num_key_value_heads", default=heads)
    key = _number(text, "head_dim", default=_number(text, "hidden_size") // heads)
    full = Layer(kept, key + _number(text, "v_head_dim", default=key))
    kinds = text.get("layer_types")
    window = _number(text, "sliding_window", default=0)
    if isinstance(kinds, list):
        found = {"sliding_attention": replace(full, window=window), "full_attention": _global(text, full)}
        return tuple(found.get(str(each), full) for each in kinds[:count] if not str(each).startswith(STATELESS))
    if not window or text.get("use_sliding_window") is False:
        return (full,) * count
    sliding = replace(full, window=window)
    if text.get("model_type") == "gemma2":
        return tuple(sliding if number % 2 == 0 else full for number in range(count))
    every = _number(text, "sliding_window_pattern", default=0)
    if every:
        return tuple(full if (number + 1) % every == 0 else sliding for number in range(count))
    first = _number(text, "max_window_layers", default=0) if text.get("use_sliding_window") else 0
    return (full,) * min(first, count) + (sliding,) * max(0, count - first)


def _global(text: Mapping[str, Any], full: Layer) -> Layer:
    """Return a layer of full attention where those have heads of their own, as Gemma 4's."""
    if not text.get("global_head_dim"):
        return full
    return Layer(_number(text, "num_global_key_value_heads", default=full.heads), 2 * _number(text, "global_head_dim"))


def _parameters(text: Mapping[str, Any], kind: str) -> tuple[int, int]:
    """Return the numbers of weights that stay as they are, and of those that a quantization makes smaller."""
    width, count = _number(text, "hidden_size"), _number(text, "num_hidden_layers")
    tables = _number(text, "vocab_size") * width * (1 if text.get("tie_word_embeddings") else 2)
    attention = count * _attention(text, width)
    experts = _number(text, "num_local_experts", "num_experts", "n_routed_experts", default=0)
    dense = 3 * width * _number(text, "intermediate_size_mlp", "intermediate_size", default=0)
    if not experts:
        return tables, attention + count * dense
    sparse = _sparse(text, count)
    expert = 3 * width * _expert_width(text, kind)
    shared = _number(text, "n_shared_experts", default=1 if kind == "llama4_text" else 0)
    feed = sparse * expert * (experts + shared) + (count - sparse) * dense
    plain = tables + sparse * experts * width
    if kind == "gpt_oss":  # its attention is left as it is
        return plain + attention, feed
    return plain, attention + feed


def _attention(text: Mapping[str, Any], width: int) -> int:
    heads = _number(text, "num_attention_heads")
    if not text.get("kv_lora_rank"):
        size = _number(text, "head_dim", default=width // heads)
        value = _number(text, "v_head_dim", default=size)
        kept = _number(text, "num_key_value_heads", default=heads)
        return width * (heads * (size + value) + kept * (size + value))
    rank, rope = _number(text, "kv_lora_rank"), _number(text, "qk_rope_head_dim")
    plain, value = _number(text, "qk_nope_head_dim"), _number(text, "v_head_dim")
    low = _number(text, "q_lora_rank", default=0)
    query = low * (width + heads * (plain + rope)) if low else width * heads * (plain + rope)
    looked, size = _number(text, "index_n_heads", default=0), _number(text, "index_head_dim", default=0)
    index = looked * size * low + width * (size + looked)
    return query + width * (rank + rope) + rank * heads * (plain + value) + heads * value * width + index


def _sparse(text: Mapping[str, Any], count: int) -> int:
    """Return how many layers have experts."""
    step = _number(text, "decoder_sparse_step", "interleave_moe_layer_step", default=1)
    dense = text.get("mlp_only_layers") or []
    first = _number(text, "first_k_dense_replace", default=0)
    return sum((number + 1) % step == 0 and number >= first and number not in dense for number in range(count))


def _expert_width(text: Mapping[str, Any], kind: str) -> int:
    own = "intermediate_size" if kind in MIXED or kind == "llama4_text" else "moe_intermediate_size"
    return _number(text, own, default=0)


def _bits(text: Mapping[str, Any], wide: int) -> float:
    """Return the bits of a weight that is quantized, where the repository says how. Raises Unsized."""
    said = _mapping(text.get("quantization_config"))
    if not said:
        return wide * 8.0
    method = str(said.get("quant_method", ""))
    if method in BITS:
        return BITS[method]
    if method in PACKED:
        bits, group = _number(said, "bits"), said.get("group_size", 128)
        return bits + (16 + bits) / group if isinstance(group, int) and group > 0 else float(bits)
    raise Unsized(
        f"weights quantized by {method or 'an unnamed method'} cannot be counted from config.json alone; "
        "give a directory with its safetensors files"
    )


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _number(text: Mapping[str, Any], *names: str, default: int | None = None) -> int:
    """Return the first of the fields that is a number. Raises Unsized if none is and there is no default."""
    for name in names:
        value = text.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
    if default is None:
        raise Unsized(f"its config.json has no {names[0]}; is it a language model's?")
    return default
