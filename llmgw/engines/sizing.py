"""What a replica needs of its cards at the very least: its share of the weights, where a node has said how large they are.

A bound from below and no estimate: the KV cache, activations and the driver come on top. A directory may hold the same
weights in two formats (sharded safetensors beside a consolidated file), so only half of what lies there is counted. llama.cpp
is left out: what does not fit on its cards it keeps in the host's memory (`-fit`); so are profiles that offload by a flag.
"""

from llmgw.spec.profile import Profile

ON_CARDS = frozenset({"vllm", "sglang"})
"""Engines that keep all weights on their cards."""
OFFLOADS = ("--cpu-offload-gb",)
FORMATS = 2


def least_on_a_card(profile: Profile, weights: int) -> int:
    """Return the bytes that every card needs for weights of so many bytes; 0 where nothing is known."""
    if profile.gpu is None or profile.engine not in ON_CARDS:
        return 0
    if any(word.partition("=")[0] in OFFLOADS for word in profile.args):
        return 0
    cards = profile.gpu.count * profile.nodes
    return weights // FORMATS // max(1, cards // profile.data_parallel)
