"""SGLang. Flags and behaviour read from the source of 0.5.23 (and compared with 0.4.10 to 0.5.10); never run here.

It binds its port only after the load, so connections are refused; then all health paths answer 503 until a warm-up
request has passed. `/health` would put a token through the engine for every probe and take up to 20 s on a busy one, which
`SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION=0` ends; `/ready` would say more, but releases up to 0.5.10 do not have it. Metrics
are off unless asked for. Its token counters move only when a request ends, so a long answer would look like a stall: the
gauges that its scheduler sets every 40 steps count as progress, too. Of a pipeline every stage reports the same requests,
hence only that of rank 0 counts.

A stop takes up to 5 s until it is noticed and 15 s for the schedulers, idle as it may be. A crash ends with SIGKILL, as if
the kernel had done it.

Over several nodes all run the same command; rank 0 serves, and the others have a dummy server at their own port whose
`/health` answers 200 once their schedulers are ready. They ignore SIGTERM until rank 0 tells them. Data parallelism over
nodes is refused by SGLang itself unless it is that of attention, which is set in `args`. The rendezvous port is passed:
`--nccl-port` on one node, `--dist-init-addr` over several (from which on attention's data parallelism takes 8 more). Not for
`--dp-size` above 1: every copy would be given the same one, so SGLang must choose by itself, from 22000 to 29999.

A LoRA adapter is asked for as `MODEL:ADAPTER` (0.5.5 and newer, in chats, completions and embeddings; its `/v1/responses`
looks at no adapter and answers from the model itself). It is loaded once the model is served; without one at the start SGLang
must be told the highest rank and the modules: 64 and all of them, unless `args` says otherwise.

Its image (lmsysorg/sglang) starts nothing by itself, so `sglang serve` is run by name; older than 0.5.5 there is no such
command, and the profile's `command` has to say another.
"""

from llmgw.engines.assembly import OFFLINE, Kind, Launch, is_ip, join, lora_adapters, network, shard
from llmgw.engines.exits import SGLANG
from llmgw.engines.placed import Placed
from llmgw.engines.shard import LOOPBACK, WEIGHTS, LoraPaths, MetricNames, ShardSpec

NCCL = 1
DIST_INIT = 2
"""Places of the rendezvous ports in a shard's block; from DIST_INIT on the rest of the block."""

METRICS = MetricNames(
    path="/metrics",
    running="sglang:num_running_reqs",
    waiting="sglang:num_queue_reqs",
    prompt_tokens="sglang:prompt_tokens_total",
    generation_tokens="sglang:generation_tokens_total",
    progress=("sglang:num_used_tokens", "sglang:token_usage", "sglang:gen_throughput"),
    only='pp_rank="0"',
)
"""The same from 0.4.10 to 0.5.23."""
CACHED = "--enable-cache-report"
"""Without it, no usage says how many tokens of a prompt were cached."""
KIND = Kind(
    programs=(("sglang", "serve"),),
    in_image=("sglang", "serve"),
    ports=16,
    stop_grace=30.0,
    patterns=SGLANG,
    metrics=METRICS,
    lora=LoraPaths("/load_lora_adapter", "/unload_lora_adapter"),
)
LORA = ("--enable-lora", "--max-lora-rank", "64", "--lora-target-modules", "all")


class Sglang:
    """The adapter of SGLang."""

    name = "sglang"
    ports = KIND.ports

    def shards(self, placed: Placed) -> tuple[ShardSpec, ...]:
        """Return a shard for each seat; the first serves."""
        adapters = lora_adapters(placed, "{model}:{adapter}")
        return tuple(
            shard(placed, rank, KIND, Launch(_args(placed, rank), _env(placed, rank), adapters=adapters))
            for rank in range(len(placed.seats))
        )


def _args(placed: Placed, rank: int) -> tuple[str, ...]:
    profile, seat, head = placed.profile, placed.seats[rank], placed.head
    several = len(placed.seats) > 1
    meet: tuple[str, ...] = ()
    if several:
        at = join(head.address, head.port + DIST_INIT)
        meet = ("--nnodes", str(len(placed.seats)), "--node-rank", str(rank), "--dist-init-addr", at)
    elif profile.data_parallel == 1:
        meet = ("--nccl-port", str(head.port + NCCL))
    return (
        *("--model-path", WEIGHTS, "--served-model-name", placed.model.name),
        *("--host", seat.host, "--port", str(seat.port)),
        *("--tp-size", str(profile.tensor_parallel), "--pp-size", str(profile.pipeline_parallel)),
        *("--dp-size", str(profile.data_parallel)),
        *meet,
        *("--enable-metrics", CACHED),
        *(LORA if placed.model.adapters else ()),
        *profile.args,
    )


def _env(placed: Placed, rank: int) -> dict[str, str]:
    env = {**OFFLINE, "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "0"}
    addresses = sorted({seat.address for seat in placed.seats})
    if len(placed.seats) > 1 and all(is_ip(address) for address in addresses):
        # its own sockets between the nodes would else take orders from anybody
        env["SGLANG_ZMQ_ALLOWED_PEERS"] = ",".join(dict.fromkeys([LOOPBACK, *addresses]))
    return env | network(placed, placed.seats[rank])
