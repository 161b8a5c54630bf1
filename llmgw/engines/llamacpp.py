"""llama.cpp's server. Flags, probes and messages read from release b11434 and measured with it on a CPU.

It listens about 20 ms after its start and answers 503 on every path until the weights are loaded; then `/health`
answers 200 without touching the engine. It has no drain: SIGTERM refuses new connections at once and cuts streams, so
the gateway must have drained before. An active stream would delay the exit to the next SSE ping (30 s by default), hence
`--sse-ping-interval`. One name a server is enough: requests are answered whatever model they name.

The images ghcr.io/ggml-org/llama.cpp:server* and :full* have it in /app; what they set by LLAMA_ARG_HOST, the flag overrides.
Without `llama-server` on the node, `llmgw.agent.llamacpp` runs the same C++ server from the `xllamacpp` wheel.
"""

from llmgw.engines.assembly import Kind, Launch, shard
from llmgw.engines.exits import LLAMACPP
from llmgw.engines.placed import Placed
from llmgw.engines.shard import PYTHON, WEIGHTS, MetricNames, ShardSpec

METRICS = MetricNames(
    path="/metrics",
    running="llamacpp:requests_processing",
    waiting="llamacpp:requests_deferred",
    prompt_tokens="llamacpp:prompt_tokens_total",
    generation_tokens="llamacpp:tokens_predicted_total",
    activity="/slots",
    from_loop=True,
)
KIND = Kind(
    programs=(("llama-server",), (PYTHON, "-m", "llmgw.agent.llamacpp")),
    in_image=("/app/llama-server",),
    ports=1,
    stop_grace=10.0,
    patterns=LLAMACPP,
    metrics=METRICS,
)


class LlamaCpp:
    """The adapter of llama.cpp's server."""

    name = "llamacpp"
    ports = KIND.ports

    def shards(self, placed: Placed) -> tuple[ShardSpec, ...]:
        """Return the single shard: llama.cpp serves a replica with one process."""
        model, profile = placed.model, placed.profile
        threads = ("--threads", str(profile.cpus)) if profile.cpus else ()
        args = (
            *("--model", WEIGHTS, "--alias", model.name),
            *("--host", placed.head.host, "--port", str(placed.head.port)),
            *("--metrics", "--sse-ping-interval", "5"),
            *threads,
            *profile.args,
        )
        return (shard(placed, 0, KIND, Launch(args, {})),)
