"""`Fit`: the sum of what one card needs for a model by a profile, and how much context there is room for.

An estimate, unlike `sizing`, which is a bound from below by which the planner refuses. Each engine has its own budget:

- vLLM takes a share of the whole card (`--gpu-memory-utilization`, 0.92 from 0.17 on, 0.9 before: the smaller is used) and
  must find room in it for one request of full length. Activations and CUDA graphs are a rule of thumb, 3 GiB.
- SGLang keeps a reserve by its size of chunks and of the gang, at least 10 GiB on cards above 60 GiB
  (`--mem-fraction-static` says otherwise). Its reserve for CUDA graphs is not known here and not counted.
- llama.cpp needs its buffers and the CUDA context, 0.5 GiB by rule of thumb. Its compute buffer was measured on a CPU for
  twelve shapes with xllamacpp 2026.10: a mask of 2 bytes for each cell and 3 times the inner width and 3 to 5 times the
  width as floats, for each token of a micro-batch; 5 is used. Layers are split evenly over the cards here.

Not counted: LoRA adapters, speculative decoding, vision towers' activations.
"""

import math
from dataclasses import dataclass, replace

from llmgw.engines.context import FLAGS, SLOTS
from llmgw.engines.shape import Layer, Shape, Unsized
from llmgw.spec.profile import Profile

GIB = 1 << 30
MIB = 1 << 20
BLOCK = 16
"""Tokens of a block of vLLM's cache."""
CELLS = 256
"""llama.cpp rounds the cells of a cache up to this."""
MICRO_BATCH = 512
UTILIZATION = 0.9
MOST_UTILIZATION = 0.92
ACTIVATIONS = 3 * GIB
CUDA_CONTEXT = GIB // 2
SIZED = ("vllm", "sglang", "llamacpp")
KV_FLAGS = (("--kv-cache-dtype", "--cache-type-k", "-ctk"), ("--kv-cache-dtype", "--cache-type-v", "-ctv"))
"""The flags for keys, and for values."""
KV_BYTES = {
    "auto": 2.0,
    "bfloat16": 2.0,
    "bf16": 2.0,
    "f16": 2.0,
    "float16": 2.0,
    "f32": 4.0,
    "q8_0": 34 / 32,
    "q4_0": 18 / 32,
}


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the sum."""

    what: str
    size: int
    how: str


@dataclass(frozen=True, slots=True)
class Fit:
    """What one card (or, without cards, the host) needs."""

    lines: tuple[Line, ...]
    context: int
    """Tokens of one request."""
    concurrency: int
    card: int
    """Bytes of a card; 0 if not known."""
    usable: int
    """Bytes of it that the engine takes; 0 if not known."""
    longest: int | None
    """Most tokens of a request that fit with as many at once; 0 if none do, None if the card is not known."""

    @property
    def needed(self) -> int:
        """Bytes in all."""
        return sum(line.size for line in self.lines)

    @property
    def fits(self) -> bool | None:
        """Whether it fits; None if the card is not known."""
        return self.needed <= self.usable if self.card else None


def fit(shape: Shape, profile: Profile, card: int = 0, *, context: int = 0, concurrency: int = 0) -> Fit:
    """Return the sum for one card of so many bytes. Without `context` and `concurrency`, those of the profile's arguments.

    Raises Unsized.
    """
    if profile.engine not in SIZED:
        raise Unsized(f"what {profile.engine} needs cannot be told; known are {', '.join(SIZED)}")
    at_once = concurrency or (_whole(profile, *SLOTS) or 1 if profile.engine == "llamacpp" else 1)
    wanted = context or _context(shape, profile, at_once)
    usable = _usable(profile, card) if card else 0
    longest = _longest(shape, profile, usable, at_once, shape.context or wanted) if card else None
    return Fit(_lines(shape, profile, wanted, at_once), wanted, at_once, card, usable, longest)


def least(shape: Shape, profile: Profile) -> tuple[int, int]:
    """Return the bytes that a card needs at the very least: of weights, and of the KV cache without which vLLM does not start.

    No rule of thumb is in it, so what is more than a card has is certain not to run. Raises Unsized.
    """
    weights = math.ceil(shape.weights / _parts(profile))
    sure = (
        profile.engine == "vllm" and not shape.notes and _said(profile, *FLAGS["vllm"]) in (None, str(_asked(profile)))
    )
    if not sure or not (_asked(profile) or shape.context):
        return weights, 0
    return weights, _cache(shape, profile, _asked(profile) or shape.context, 1)[0]


def most_of(profile: Profile, card: int) -> int:
    """Return the bytes of a card that an engine takes at the most, by the release that takes most."""
    share = {"vllm": "--gpu-memory-utilization", "sglang": "--mem-fraction-static"}.get(profile.engine, "")
    return math.ceil(card * (_share(profile, share) or (MOST_UTILIZATION if profile.engine == "vllm" else 1.0)))


def smallest(shape: Shape, profile: Profile, classes: dict[str, int], *, context: int, concurrency: int) -> str | None:
    """Return the class with the smallest cards, of those with known memory, that would do; None if none would."""
    for name, memory in sorted(classes.items(), key=lambda each: (each[1], each[0])):
        if fit(shape, profile, memory, context=context, concurrency=concurrency).fits:
            return name
    return None


def _lines(shape: Shape, profile: Profile, context: int, at_once: int) -> tuple[Line, ...]:
    parts = _parts(profile)
    weights = shape.weights
    how = f"{_gib(shape.weights)} by {shape.source}"
    if profile.engine == "llamacpp" and profile.gpu is not None and shape.on_host:
        weights -= shape.on_host
        how += f", {_gib(shape.on_host)} of it stays on the host"
    if parts > 1:
        how += f", over {parts} cards"
    cache, tokens = _cache(shape, profile, context, at_once)
    layers = f"{sum(each.count for each in shape.layers)} layers, {at_once} x {context} tokens, {tokens} bytes for each"
    return (
        Line("weights", math.ceil(weights / parts), how),
        Line("KV cache", cache, layers),
        *_overhead(shape, profile, context, at_once),
    )


def _overhead(shape: Shape, profile: Profile, context: int, at_once: int) -> tuple[Line, ...]:
    if profile.engine == "vllm":
        return (Line("overhead", ACTIVATIONS, "activations and CUDA graphs, a rule of thumb"),)
    if profile.engine == "sglang":
        return ()  # its reserve is outside of what it takes
    batch = min(_whole(profile, "--ubatch-size", "-ub") or MICRO_BATCH, context * at_once)
    compute = batch * (2 * _padded(context * at_once, CELLS) + 4 * (3 * shape.inner + 5 * shape.width))
    lines = (Line("compute buffer", compute, f"for {batch} tokens at a time"),)
    if profile.gpu is None:
        return lines
    return (*lines, Line("overhead", CUDA_CONTEXT, "the CUDA context, a rule of thumb"))


def _cache(shape: Shape, profile: Profile, context: int, at_once: int) -> tuple[int, int]:
    """Return the bytes of the KV cache on the fullest card, and those of a token in layers that keep all."""
    size = _kv_bytes(profile)
    if profile.engine == "llamacpp":
        cells = _padded(context * at_once, CELLS)
        batch = _whole(profile, "--ubatch-size", "-ub") or MICRO_BATCH
        total = size * sum(
            each.count * _of(each, 1) * _seen_llamacpp(each, cells, at_once, batch) for each in shape.layers
        )
        each_token = sum(each.count * _of(each, 1) for each in shape.layers if not each.window) * size
        return math.ceil(total / _parts(profile)), round(each_token)
    layers = _fullest(shape.layers, profile.pipeline_parallel)
    tokens = _padded(context, BLOCK)
    seen = [
        (each.count * _of(each, profile.tensor_parallel), min(tokens, each.window + BLOCK) if each.window else tokens)
        for each in layers
    ]
    each_token = sum(each.count * _of(each, profile.tensor_parallel) for each in layers if not each.window) * size
    return math.ceil(sum(numbers * kept for numbers, kept in seen) * size * at_once), round(each_token)


def _of(layer: Layer, tensor_parallel: int) -> int:
    """Return the numbers that a card keeps of a token: its share of the heads, at least one; a latent whole."""
    return max(1, math.ceil(layer.heads / tensor_parallel)) * layer.numbers if layer.heads else layer.numbers


def _seen_llamacpp(layer: Layer, cells: int, at_once: int, batch: int) -> int:
    return min(cells, _padded(layer.window * at_once + batch, CELLS)) if layer.window else cells


def _fullest(layers: tuple[Layer, ...], stages: int) -> tuple[Layer, ...]:
    """Return the layers of the stage that has most of those that cost most."""
    left = math.ceil(sum(each.count for each in layers) / stages)
    taken = []
    for layer in sorted(layers, key=lambda each: (each.window == 0, each.window), reverse=True):
        if left > 0:
            taken.append(replace(layer, count=min(layer.count, left)))
            left -= layer.count
    return tuple(taken)


def _longest(shape: Shape, profile: Profile, usable: int, at_once: int, most: int) -> int:
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if sum(line.size for line in _lines(shape, profile, middle, at_once)) <= usable:
            low = middle
        else:
            high = middle - 1
    return low


def _usable(profile: Profile, card: int) -> int:
    if profile.engine == "vllm":
        return math.ceil(card * (_share(profile, "--gpu-memory-utilization") or UTILIZATION))
    if profile.engine == "sglang":
        share = _share(profile, "--mem-fraction-static")
        if share is not None:
            return int(card * share)
        chunk = max(_whole(profile, "--chunked-prefill-size") or 0, 2048)
        reserve = int((512 + chunk * 1.5 + profile.tensor_parallel * profile.pipeline_parallel / 8 * 1024) * MIB)
        return max(0, card - (max(reserve, 10 * GIB) if card > 60 * GIB else reserve))
    return card


def _context(shape: Shape, profile: Profile, at_once: int) -> int:
    said = _whole(profile, *FLAGS[profile.engine])
    found = said // at_once if said and profile.engine == "llamacpp" else said
    if not found and profile.engine == "llamacpp" and shape.context:
        found = max(1, shape.context // at_once)
    if not (found or shape.context):
        raise Unsized("neither the model nor the profile says how long a context may be; give --context")
    return found or shape.context


def _parts(profile: Profile) -> int:
    """Return over how many cards the weights of one copy are spread."""
    if profile.gpu is None:
        return 1
    if profile.engine == "llamacpp":
        return profile.gpu.count
    return profile.tensor_parallel * profile.pipeline_parallel


def _kv_bytes(profile: Profile) -> float:
    """Return the bytes of a number of the cache; keys and values are taken as equally many."""
    return sum(_kv_size(_said(profile, *flags) or "auto") for flags in KV_FLAGS) / len(KV_FLAGS)


def _kv_size(said: str) -> float:
    if said.startswith("fp8"):
        return 1.0
    if said not in KV_BYTES:
        raise Unsized(f"how many bytes a number of the cache takes as {said} is not known")
    return KV_BYTES[said]


def _padded(tokens: int, step: int) -> int:
    return -(-tokens // step) * step


def _said(profile: Profile, *flags: str) -> str | None:
    """Return the last value of a flag among the profile's arguments."""
    found = None
    for place, word in enumerate(profile.args):
        flag, equals, value = word.partition("=")
        if flag in flags:
            found = value if equals else "".join(profile.args[place + 1 : place + 2])
    return found


def _asked(profile: Profile) -> int:
    """Return the tokens of a request that the arguments say; 0 if they do not say a plain number."""
    return _whole(profile, *FLAGS[profile.engine]) or 0


def _whole(profile: Profile, *flags: str) -> int | None:
    said = _said(profile, *flags) or ""
    return int(said) if said.isascii() and said.isdigit() else None


def _share(profile: Profile, flag: str) -> float | None:
    said = _said(profile, flag)
    try:
        value = float(said) if said is not None else None
    except ValueError:
        return None
    return value if value is not None and 0 < value <= 1 else None


def _gib(size: int) -> str:
    return f"{size / GIB:.2f} GiB"
