"""A tiny random llama model as a GGUF file: 120 KB, loaded by real llama.cpp in milliseconds, speaks gibberish."""

from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np

WIDTH = 32
FEED_FORWARD = 64
HEADS = 2
CONTEXT = 4096


@dataclass(frozen=True, slots=True)
class Build:
    """How large the model is."""

    width: int = WIDTH
    inner: int = FEED_FORWARD
    heads: int = HEADS
    kept: int = HEADS
    """Heads of keys and values."""
    layers: int = 1


TINY = Build()


def write_tiny_gguf(path: Path, seed: int = 0, build: Build = TINY) -> Path:
    """Write the file; the same seed and build give the same weights."""
    chance = np.random.default_rng(seed)
    tokens = [b"<unk>", b"<s>", b"</s>", *(f"<0x{byte:02X}>".encode() for byte in range(256))]
    tokens += [bytes([letter]) for letter in range(97, 123)] + ["\u2581".encode()]
    kinds = [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL]
    kinds += [gguf.TokenType.BYTE] * 256 + [gguf.TokenType.NORMAL] * 27
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_name("tiny")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(build.width)
    writer.add_block_count(build.layers)
    writer.add_feed_forward_length(build.inner)
    writer.add_head_count(build.heads)
    writer.add_head_count_kv(build.kept)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(build.width // build.heads)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * len(tokens))
    writer.add_token_types(kinds)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_chat_template("{% for m in messages %}{{ m['content'] }}{% endfor %}")

    def weights(name: str, *shape: int) -> None:
        writer.add_tensor(name, (chance.standard_normal(shape) * 0.1).astype(np.float32))

    def ones(name: str) -> None:
        writer.add_tensor(name, np.ones(build.width, np.float32))

    weights("token_embd.weight", len(tokens), build.width)
    ones("output_norm.weight")
    weights("output.weight", len(tokens), build.width)
    kept = build.width // build.heads * build.kept
    for layer in range(build.layers):
        ones(f"blk.{layer}.attn_norm.weight")
        ones(f"blk.{layer}.ffn_norm.weight")
        for part, rows in (("q", build.width), ("k", kept), ("v", kept), ("output", build.width)):
            weights(f"blk.{layer}.attn_{part}.weight", rows, build.width)
        weights(f"blk.{layer}.ffn_gate.weight", build.inner, build.width)
        weights(f"blk.{layer}.ffn_up.weight", build.inner, build.width)
        weights(f"blk.{layer}.ffn_down.weight", build.width, build.inner)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
