"""llama.cpp's server. Flags, probes and messages read from release b11434 and measured with it on a CPU.

It listens about 20 ms after its start and answers 503 on every path until the weights are loaded; then `/health`
answers 200 without touching the engine. It has no drain: SIGTERM refuses new connections at once and cuts streams, so
the gateway must have drained before. An active stream would delay the exit to the next SSE ping (30 s by default), hence
`--sse-ping-interval`. One name a server is enough: requests are answered whatever model they name.

Without `llama-server` on the node, `llmgw.agent.llamacpp` runs the same C++ server from the `xllamacpp` wheel.
"""

from llmgw.base.ids import ModelName, shard_id
from llmgw.engines.exits import LLAMACPP
from llmgw.engines.placed import Placed
from llmgw.engines.shard import PYTHON, WEIGHTS, Fetch, MetricNames, RestartPolicy, ShardSpec, fetched_name
from llmgw.spec.common import Secret

OWN_PROGRAMS = (("llama-server",), (PYTHON, "-m", "llmgw.agent.llamacpp"))

METRICS = MetricNames(
    path="/metrics",
    running="llamacpp:requests_processing",
    waiting="llamacpp:requests_deferred",
    prompt_tokens="llamacpp:prompt_tokens_total",
    generation_tokens="llamacpp:tokens_predicted_total",
    activity="/slots",
    from_loop=True,
)


class LlamaCpp:
    """The adapter of llama.cpp's server."""

    name = "llamacpp"
    ports = 1

    def shards(self, placed: Placed) -> tuple[ShardSpec, ...]:
        """Return the single shard: llama.cpp serves a replica with one process."""
        model, profile = placed.model, placed.profile
        command = profile.command or (placed.definition.command if placed.definition else None)
        definition_env = placed.definition.env if placed.definition else {}
        threads = ("--threads", str(profile.cpus)) if profile.cpus else ()
        args = (
            *("--model", WEIGHTS, "--alias", model.name),
            *("--host", placed.head.host, "--port", str(placed.head.port)),
            *("--metrics", "--sse-ping-interval", "5"),
            *threads,
            *profile.args,
        )
        backoff = placed.backoff
        env = {**definition_env, **profile.env}
        weights = model.weights
        fetch = Fetch(weights.url, weights.sha256) if weights.url and weights.sha256 else None
        path = fetched_name(fetch.url, fetch.sha256) if fetch else weights.path
        assert path is not None, "the planner places no other weights"
        return (
            ShardSpec(
                shard=shard_id(placed.replica, 0),
                replica=placed.replica,
                model=ModelName(model.name),
                profile=profile.name,
                rank=0,
                hash=placed.hash,
                programs=(tuple(command),) if command else OWN_PROGRAMS,
                args=args,
                env={name: value for name, value in env.items() if isinstance(value, str)},
                weights=path,
                port=placed.head.port,
                served_name=model.name,
                ready_path="/health",
                models_path="/v1/models",
                cpus=profile.cpus,
                memory=profile.memory,
                start_timeout=profile.start_timeout,
                stop_grace=10.0,
                restarts=RestartPolicy(backoff.base, backoff.max, backoff.give_up_after, backoff.reset_after),
                exit_patterns=LLAMACPP,
                host=placed.head.host,
                gpus=placed.head.gpus,
                secrets={name: value.secret for name, value in env.items() if isinstance(value, Secret)},
                stall_after=profile.stall_after,
                metrics=METRICS,
                fetch=fetch,
            ),
        )
