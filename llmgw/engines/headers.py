"""Headers of files with weights: what tensors are in them, without reading those.

A safetensors file begins with its header's length (u64, little endian) and the header as JSON. A GGUF file has key-value
pairs, where lists of tokens take megabytes, then a line for each tensor; lists are skipped unless they are short. Both are
read from the beginning, in one direction, so that a reader over HTTP needs the first part of a file only.
"""

import json
import struct
from collections.abc import Callable
from typing import Any, BinaryIO

from llmgw.engines.shape import Layer, Shape, Unsized

LONGEST = 100 << 20
"""Bytes of a safetensors header, as the format's own library bounds it."""
MANY = 1 << 20
"""Pairs, tensors or short lists that a GGUF header may have; more is a broken file."""

QUANTS: dict[int, tuple[int, int]] = {
    0: (1, 4),
    1: (1, 2),
    2: (32, 18),
    3: (32, 20),
    6: (32, 22),
    7: (32, 24),
    8: (32, 34),
    9: (32, 40),
    10: (256, 84),
    11: (256, 110),
    12: (256, 144),
    13: (256, 176),
    14: (256, 210),
    15: (256, 292),
    16: (256, 66),
    17: (256, 74),
    18: (256, 98),
    19: (256, 50),
    20: (32, 18),
    21: (256, 110),
    22: (256, 82),
    23: (256, 136),
    24: (1, 1),
    25: (1, 2),
    26: (1, 4),
    27: (1, 8),
    28: (1, 8),
    29: (256, 56),
    30: (1, 2),
    34: (256, 54),
    35: (256, 66),
    39: (32, 17),
    40: (64, 36),
    41: (128, 18),
}
"""GGUF's type of a tensor -> weights in a block, bytes of it."""
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _LIST = 8, 9


def safetensors_bytes(file: BinaryIO) -> int:
    """Return the bytes of all tensors of a safetensors file. Raises Unsized."""
    length = _unpack(file, "Q")
    if length > LONGEST:
        raise Unsized("it is no safetensors file, or a broken one")
    try:
        header = json.loads(_exactly(file, length))
        ends = [entry["data_offsets"] for name, entry in header.items() if name != "__metadata__"]
        return sum(int(end) - int(begin) for begin, end in ends)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise Unsized("the header of a safetensors file cannot be read; fetch it again") from error


def gguf(file: BinaryIO) -> Shape:
    """Return the shape of a GGUF file, of a split one's first part. Raises Unsized."""
    return _shape(*_read(file))


def gguf_bytes(file: BinaryIO) -> int:
    """Return the bytes of all tensors of a GGUF file, also of one that is a later part of a split one. Raises Unsized."""
    return sum(_read(file)[1].values())


def _read(file: BinaryIO) -> tuple[dict[str, Any], dict[str, int]]:
    """Return the header's pairs, and the bytes of each tensor."""
    if _exactly(file, 4) != b"GGUF":
        raise Unsized("it is no GGUF file")
    version = _unpack(file, "I")
    if version not in (2, 3):
        raise Unsized(f"it is a GGUF file of version {version}; 2 and 3 are known")
    tensors, pairs = _unpack(file, "Q"), _unpack(file, "Q")
    if max(tensors, pairs) > MANY:
        raise Unsized("it is no GGUF file, or a broken one")
    said = {_string(file): _value(file, _unpack(file, "I")) for _ in range(pairs)}
    return said, dict(_tensor(file) for _ in range(tensors))


def _shape(said: dict[str, Any], sizes: dict[str, int]) -> Shape:
    arch = said.get("general.architecture")

    def number(name: str, default: int | None = None) -> int:
        value = said.get(f"{arch}.{name}", default)
        if isinstance(value, list):
            value = max((each for each in value if isinstance(each, int)), default=default)
        if not isinstance(value, int):
            raise Unsized(f"its header has no {arch}.{name}; is it a language model's?")
        return value

    width, count, heads = number("embedding_length"), number("block_count"), number("attention.head_count")
    inner = max(
        number("feed_forward_length", 0), number("expert_feed_forward_length", 0) * number("expert_used_count", 0)
    )
    table = sizes.get("token_embd.weight", 0)
    states = {name.split(".")[1] for name in sizes if ".ssm_" in name}
    notes = (f"{len(states)} layers keep a state for each sequence, which is not counted",) if states else ()
    return Shape(
        weights=sum(sizes.values()),
        source="GGUF header",
        layers=_kept(said, str(arch), number, (width // max(1, heads), count)),
        context=number("context_length", 0),
        width=width,
        inner=inner,
        # a tied table is needed on the card, too, for the output
        on_host=table if "output.weight" in sizes else 0,
        notes=notes,
    )


def _kept(said: dict[str, Any], arch: str, number: Callable[..., int], plain: tuple[int, int]) -> tuple[Layer, ...]:
    """Return the layers with a KV cache."""
    each, count = plain
    if number("attention.kv_lora_rank", 0) and number("attention.key_length_mla", 0):
        return (Layer(0, number("attention.kv_lora_rank") + number("rope.dimension_count", 0)),) * count
    heads = said.get(f"{arch}.attention.head_count_kv", number("attention.head_count"))
    by_layer = heads if isinstance(heads, list) else [heads] * count
    numbers = number("attention.key_length", each) + number("attention.value_length", each)
    window = number("attention.sliding_window", 0)
    pattern = said.get(f"{arch}.attention.sliding_window_pattern")
    every = number("full_attention_interval", 0)
    found = []
    for place, kept in enumerate(by_layer[:count]):
        if not kept or (every and (place + 1) % every):
            continue
        slides = bool(pattern[place]) if isinstance(pattern, list) and place < len(pattern) else False
        if isinstance(pattern, int) and not isinstance(pattern, bool) and pattern > 0:
            slides = (place + 1) % pattern != 0
        found.append(Layer(kept, numbers, window if slides else 0))
    return tuple(found)


def _tensor(file: BinaryIO) -> tuple[str, int]:
    name = _string(file)
    dimensions = _unpack(file, "I")
    if dimensions > 8:
        raise Unsized("it is no GGUF file, or a broken one")
    weights = 1
    for _ in range(dimensions):
        weights *= _unpack(file, "Q")
    kind = _unpack(file, "I")
    _unpack(file, "Q")
    if kind not in QUANTS:
        raise Unsized(f"its tensor {name} has type {kind}, which is not known; a newer llmgw may know it")
    block, size = QUANTS[kind]
    return name, weights // block * size


def _value(file: BinaryIO, kind: int) -> Any:
    """Return a value; None for a list that is no short one of numbers."""
    if kind in _SCALARS:
        return _unpack(file, _SCALARS[kind])
    if kind == _STRING:
        return _string(file).strip()
    if kind != _LIST:
        raise Unsized("it is no GGUF file, or a broken one")
    inner, count = _unpack(file, "I"), _unpack(file, "Q")
    if inner in _SCALARS:
        size = struct.calcsize("<" + _SCALARS[inner])
        if count > MANY:
            _skip(file, size * count)
            return None
        return list(struct.unpack(f"<{count}{_SCALARS[inner]}", _exactly(file, size * count)))
    for _ in range(count):
        if inner == _STRING:
            _skip(file, _unpack(file, "Q"))
        else:
            _value(file, inner)
    return None


def _string(file: BinaryIO) -> str:
    return _exactly(file, _unpack(file, "Q")).decode(errors="replace")


def _unpack(file: BinaryIO, kind: str) -> Any:
    return struct.unpack("<" + kind, _exactly(file, struct.calcsize("<" + kind)))[0]


def _exactly(file: BinaryIO, count: int) -> bytes:
    if count > LONGEST:
        raise Unsized("it is no file of weights, or a broken one")
    data = file.read(count)
    if len(data) != count:
        raise Unsized("the file ends within its header; fetch it again")
    return data


def _skip(file: BinaryIO, count: int) -> None:
    while count > 0:
        count -= len(_exactly(file, min(count, 1 << 20)))
