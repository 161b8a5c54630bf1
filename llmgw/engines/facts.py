"""What each engine can do at all, and therefore what the catalog refuses; known for engines without an adapter, too.

Read from vLLM 0.33, SGLang 0.5.23, llama.cpp b11434 and Text Embeddings Inference 1.9.3.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What one engine can do. A reason is a half sentence that follows "because"."""

    name: str
    title: str
    serves_without_gpu: bool
    no_nodes: str = ""
    """Why a replica cannot span nodes; empty if it can."""
    no_tensor_parallel: str = ""
    """Why it takes no `tensor_parallel`; empty if it does."""
    no_data_parallel: str = ""
    own_flags: tuple[str, ...] = ()
    """Flags that llmgw sets, and that `args` may therefore not hold."""
    needs_command: bool = False
    """There is no program of its own: the profile or the cluster says what to run."""


FACTS: Mapping[str, EngineFacts] = {
    facts.name: facts
    for facts in (
        EngineFacts(
            "llamacpp",
            "llama.cpp",
            serves_without_gpu=True,
            no_nodes="its RPC mode ends the whole replica when one worker goes, and calls itself a proof of concept",
            no_tensor_parallel="it splits a model over the cards of one node by itself; use `--split-mode` in `args`",
            no_data_parallel="it serves several requests in one process; raise `--parallel` in `args`, or `replicas`",
            own_flags=("--host", "--port", "--model", "-m", "--alias", "-a", "--metrics", "--sse-ping-interval"),
        ),
        EngineFacts("vllm", "vLLM", serves_without_gpu=False),
        EngineFacts("sglang", "SGLang", serves_without_gpu=False),
        EngineFacts(
            "tei",
            "Text Embeddings Inference",
            serves_without_gpu=True,
            no_nodes="one process serves one card",
            no_tensor_parallel="one process serves one card; raise `replicas`",
            no_data_parallel="one process serves one card; raise `replicas`",
        ),
        EngineFacts("command", "the command", serves_without_gpu=True, needs_command=True),
    )
}
"""Every engine by the name that profiles use."""
