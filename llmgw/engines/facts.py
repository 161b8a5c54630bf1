"""What each engine can do at all, and therefore what the catalog refuses.

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
    no_pipeline_parallel: str = ""
    no_data_parallel: str = ""
    no_data_parallel_over_nodes: str = ""
    no_ray: str = "it has no part in how its shards find each other"
    """Why it takes no `distributed: ray`."""
    no_url: str = ""
    """Why its weights cannot be a `url`, which names one file; empty if they can."""
    needs_file: bool = False
    """It serves one file, so of a repository that is to be named."""
    no_lora: str = ""
    """Why it takes no `adapters`; empty if it does."""
    own_flags: tuple[str, ...] = ()
    """Flags that llmgw sets, and that `args` may therefore not hold."""
    needs_command: bool = False
    """There is no program of its own: the profile or the cluster says what to run, and where its port goes."""


A_DIRECTORY = "it loads a directory with the model's configuration and tokenizer beside the weights; give a `path`"
ONE_CARD = "one process serves one card"
OPERATORS = "llmgw knows nothing of its program; say it in its own `args`"


FACTS: Mapping[str, EngineFacts] = {
    facts.name: facts
    for facts in (
        EngineFacts(
            "llamacpp",
            "llama.cpp",
            serves_without_gpu=True,
            needs_file=True,
            no_nodes="its RPC mode ends the whole replica when one worker goes, and calls itself a proof of concept",
            no_tensor_parallel="it splits a model over the cards of one node by itself; use `--split-mode` in `args`",
            no_pipeline_parallel="it splits a model over the cards of one node by itself; use `--split-mode` in `args`",
            no_data_parallel="it serves several requests in one process; raise `--parallel` in `args`, or `replicas`",
            no_lora="its requests name them by number and not as a model; serve each as a model of its own, with `--lora` "
            "in `args`",
            own_flags=("--host", "--port", "--model", "-m", "--alias", "-a", "--metrics", "--sse-ping-interval"),
        ),
        EngineFacts(
            "vllm",
            "vLLM",
            serves_without_gpu=False,
            no_ray="it needs a Ray cluster that the operator has started on the nodes, of which llmgw knows nothing; "
            "the native way needs vLLM 0.16 or newer and nothing else",
            no_url=A_DIRECTORY,
            own_flags=(
                *("--model", "--served-model-name", "--host", "--port", "--uds", "--headless", "--device-ids"),
                *("--api-server-count", "-asc", "--tensor-parallel-size", "-tp", "--pipeline-parallel-size", "-pp"),
                *("--nnodes", "--node-rank", "--master-addr", "--master-port", "--distributed-executor-backend"),
                *("--data-parallel-size", "-dp", "--data-parallel-size-local", "-dpl", "--data-parallel-address"),
                *("-dpa", "--data-parallel-rpc-port", "-dpp", "--data-parallel-start-rank", "-dpr"),
                *("--data-parallel-rank", "-dpn", "--data-parallel-external-lb", "-dpe", "--data-parallel-hybrid-lb"),
                *("-dph", "--data-parallel-backend", "-dpb", "--data-parallel-multi-port-external-lb", "-dpm"),
                "--lora-modules",
            ),
        ),
        EngineFacts(
            "sglang",
            "SGLang",
            serves_without_gpu=False,
            no_data_parallel_over_nodes="it refuses copies over several nodes; raise `replicas`, or use the data "
            "parallelism of attention in `args`",
            no_ray="its own way of finding the shards needs nothing else",
            no_url=A_DIRECTORY,
            own_flags=(
                *("--model-path", "--model", "--served-model-name", "--host", "--port", "--enable-metrics"),
                *("--tp-size", "--tensor-parallel-size", "--tp", "--pp-size", "--pipeline-parallel-size", "--pp"),
                *("--dp-size", "--data-parallel-size", "--dp", "--nnodes", "--node-rank", "--dist-init-addr"),
                *("--nccl-init-addr", "--nccl-port", "--use-ray", "--base-gpu-id", "--gpu-id-step", "--lora-paths"),
            ),
        ),
        EngineFacts(
            "tei",
            "Text Embeddings Inference",
            serves_without_gpu=True,
            no_nodes=ONE_CARD,
            no_tensor_parallel=f"{ONE_CARD}; raise `replicas`",
            no_pipeline_parallel=f"{ONE_CARD}; raise `replicas`",
            no_data_parallel=f"{ONE_CARD}; raise `replicas`",
            no_lora="it has none",
            no_url=A_DIRECTORY,
            own_flags=(
                *("--model-id", "--served-model-name", "--hostname", "--port", "-p", "--uds-path", "--prometheus-port"),
            ),
        ),
        EngineFacts(
            "command",
            "the command",
            serves_without_gpu=True,
            no_nodes="llmgw does not know how its shards would find each other",
            no_tensor_parallel=OPERATORS,
            no_pipeline_parallel=OPERATORS,
            no_data_parallel=OPERATORS,
            no_lora=OPERATORS,
            needs_command=True,
        ),
    )
}
"""Every engine by the name that profiles use."""
