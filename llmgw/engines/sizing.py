"""What a replica needs of its cards at the very least, so that what cannot run is not placed.

A bound from below and no estimate (that is `fit`): activations, graphs and the driver come on top. Where a node has read the
headers of the weights, it is their exact share, and for vLLM the KV cache of one request of full length, without which it
does not start. Where only the size of a directory is known, half of that: it may hold the same weights in two formats (sharded
safetensors beside a consolidated file). llama.cpp is left out: what does not fit on its cards it keeps in the host's memory
(`-fit`); so are profiles that offload by a flag. What is quantized while it is loaded may be half as large, or less.
"""

from llmgw.engines.fit import GIB, least, most_of
from llmgw.engines.shape import Shape, Unsized
from llmgw.spec.common import size_text
from llmgw.spec.profile import Profile

ON_CARDS = frozenset({"vllm", "sglang"})
"""Engines that keep all weights on their cards."""
OFFLOADS = frozenset({"--cpu-offload-gb", "--kv-offloading-size"})
CHANGES = frozenset(
    {
        "--quantization",
        "-q",
        "--load-format",
        "--hf-overrides",
        "--json-model-override-args",
        "--torchao-config",
        "--dtype",
    }
)
"""Flags that make of the weights on the disk something of another size."""
FORMATS = 2


def too_small(profile: Profile, card: int, size: int, shape: Shape | None) -> str:
    """Return why a card of so many bytes cannot hold its part of a replica; empty if it may.

    `size` are the bytes that lie on a disk, `shape` is what their headers say, if they could be read.
    """
    flags = {word.partition("=")[0] for word in profile.args}
    if profile.gpu is None or profile.engine not in ON_CARDS or flags & OFFLOADS:
        return ""
    if shape is not None and not flags & CHANGES:
        try:
            weights, cache = least(shape, profile)
        except Unsized:
            pass
        else:
            return _by_shape(profile, card, weights, cache)
    cards = profile.gpu.count * profile.nodes
    need = size // FORMATS // max(1, cards // profile.data_parallel)
    return _alone(card, need) if card < need else ""


def _by_shape(profile: Profile, card: int, weights: int, cache: int) -> str:
    if card < weights:
        return _alone(card, weights)
    usable = most_of(profile, card)
    if weights + cache <= usable:
        return ""
    taken = f"its weights take {_gib(weights)} of the {_gib(usable)} that the engine may have"
    if not cache:
        return f"a card of {_gib(card)} is too small: {taken}"
    return f"a card of {_gib(card)} is too small: {taken}, and a request of full length {_gib(cache)} (see `llmgw fit`)"


def _alone(card: int, need: int) -> str:
    share = f"its share of the weights alone is {size_text(need >> 20 << 20)}"
    return f"a card of {size_text(card >> 20 << 20)} is too small: {share}"


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"
