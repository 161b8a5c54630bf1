"""A tiny random llama model as a GGUF file: 120 KB, loaded by real llama.cpp in milliseconds, speaks gibberish."""

from pathlib import Path

import gguf
import numpy as np

WIDTH = 32
FEED_FORWARD = 64
HEADS = 2
CONTEXT = 4096


def write_tiny_gguf(path: Path, seed: int = 0) -> Path:
    """Write the file; the same seed gives the same weights."""
    chance = np.random.default_rng(seed)
    tokens = [b"<unk>", b"<s>", b"</s>", *(f"<0x{byte:02X}>".encode() for byte in range(256))]
    tokens += [bytes([letter]) for letter in range(97, 123)] + ["\u2581".encode()]
    kinds = [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL]
    kinds += [gguf.TokenType.BYTE] * 256 + [gguf.TokenType.NORMAL] * 27
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_name("tiny")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(1)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH // HEADS)
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
        writer.add_tensor(name, np.ones(WIDTH, np.float32))

    weights("token_embd.weight", len(tokens), WIDTH)
    ones("output_norm.weight")
    weights("output.weight", len(tokens), WIDTH)
    ones("blk.0.attn_norm.weight")
    ones("blk.0.ffn_norm.weight")
    for part in ("q", "k", "v", "output"):
        weights(f"blk.0.attn_{part}.weight", WIDTH, WIDTH)
    weights("blk.0.ffn_gate.weight", FEED_FORWARD, WIDTH)
    weights("blk.0.ffn_up.weight", FEED_FORWARD, WIDTH)
    weights("blk.0.ffn_down.weight", WIDTH, FEED_FORWARD)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
