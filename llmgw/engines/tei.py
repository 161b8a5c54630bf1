"""Text Embeddings Inference. Flags and behaviour read from the source of 1.9.3; never run here.

It binds after its warm-up, so connections are refused until then; `/health` then asks the backend. It has no `/v1/models`,
so that the listening socket alone proves who answers. It says how many requests wait, not how many run, and counts no
tokens: a stall is not seen. One process serves one card, the first that it sees.

`--prometheus-port` and `--uds-path` are unique on a node, although this version hardly uses them (its metrics are at the main
port); their defaults are the same for every process.

In an image its own entry point is left alone: that for all cards is a script which picks the program built for the card's
architecture, and there is no `text-embeddings-router` beside it.
"""

from llmgw.base.ids import shard_id
from llmgw.engines.assembly import OFFLINE, Kind, Launch, shard
from llmgw.engines.exits import TEI
from llmgw.engines.placed import Placed
from llmgw.engines.shard import WEIGHTS, MetricNames, ShardSpec

PROMETHEUS = 1
"""Place of that port in a shard's block."""

METRICS = MetricNames("/metrics", running="", waiting="te_queue_size", prompt_tokens="", generation_tokens="")
KIND = Kind(
    programs=(("text-embeddings-router",),),
    in_image=(),
    ports=2,
    stop_grace=10.0,
    patterns=TEI,
    metrics=METRICS,
    models_path="",
)


class Tei:
    """The adapter of Text Embeddings Inference."""

    name = "tei"
    ports = KIND.ports

    def shards(self, placed: Placed) -> tuple[ShardSpec, ...]:
        """Return the single shard: one process serves one card, or the CPU."""
        seat = placed.head
        args = (
            *("--model-id", WEIGHTS, "--served-model-name", placed.model.name),
            *("--hostname", seat.host, "--port", str(seat.port)),
            *("--prometheus-port", str(seat.port + PROMETHEUS)),
            *("--uds-path", f"/tmp/llmgw-{shard_id(placed.replica, 0)}.sock"),  # noqa: S108 - a name of its own
            *placed.profile.args,
        )
        return (shard(placed, 0, KIND, Launch(args, OFFLINE)),)
