"""vLLM. Flags read from releases 0.10.2, 0.16.0, 0.22.1 and 0.33.0, behaviour measured with 0.32 on a CPU.

A control plane does not know which version a node has, so only what all of these take is passed. Therefore no
`--shutdown-timeout` (0.22 and newer): the gateway drains before, and what it would do besides is answer new requests with
500. Nor `--disable-access-log-for-endpoints` (0.16). `--nnodes`, and so a replica over several nodes, needs 0.16; an older
one ends with "unrecognized arguments". `--api-server-count 1` is said because several API servers share their port
with SO_REUSEPORT, and then with any other vLLM, too; up to 0.22.1 even a single one does, which is why the agent proves
whose socket answers. A follower has no API server, and is refused the flag.

While it loads, connections are refused; then `/health` answers 200 without touching the engine, and 503 for up to 5 s after
the engine has died, before the server ends with status 0. It gives up a load after 600 s by itself, so that is raised to
where the agent gives up. Told to end while requests run, it does one of two things: it finishes them with
`finish_reason: abort` and all in order, which the gateway takes for the break that it is, or it closes its port and then waits
for their connections without an end, which the agent finds out. Killed, it leaves its engine and workers, and segments of
shared memory that its resource tracker frees unless that is killed, too.

Over several nodes rank 0 serves HTTP and the others have no port at all. Tensor and pipeline parallelism use the `mp`
backend's `--nnodes`; data parallelism has its own flags, and gives each node whole copies. Ray is refused by the
catalog: it needs a cluster that the operator starts. NCCL and gloo open ports of their own choice between the nodes of a
gang, so the nodes must reach each other on all of them. A head whose follower is gone answers `/health` with 200 until the
next request, which it fails, and ends; a follower never notices that its head is gone: so the planner ends both. On a CPU
`tensor_parallel` works over nodes, by gloo, and `pipeline_parallel` fails at the first request. Not passed: the port by which
the copies of data parallelism meet inside one node (29500 and up, searched for by vLLM itself); no flag for it is known.

A LoRA adapter is loaded once the model is served, so that one that is missing or broken keeps nothing from starting; vLLM
allows that only with `VLLM_ALLOW_RUNTIME_LORA_UPDATING`, and opens four more paths then (`/adapters` among them), which the
gateway passes on for admins alone. Its rank must not be above `--max-lora-rank` (16), and `--max-loras` (1) are computed at
once: both are for `args` to say.

In an image `vllm serve` is run by name: the entry point of vllm/vllm-openai is that now, and was
`python3 -m vllm.entrypoints.openai.api_server`, which takes no positional model; the script is in both, being the package's.
"""

from llmgw.engines.assembly import OFFLINE, Kind, Launch, is_ip, lora_adapters, network, shard
from llmgw.engines.exits import VLLM
from llmgw.engines.placed import Placed
from llmgw.engines.shard import WEIGHTS, LoraPaths, MetricNames, ShardSpec

MASTER = 1
DATA_PARALLEL = 2
"""Places of the rendezvous ports in a shard's block."""
LONGEST_START = 4
"""Times `start_timeout` after which the agent ends any start."""

METRICS = MetricNames(
    path="/metrics",
    running="vllm:num_requests_running",
    waiting="vllm:num_requests_waiting",
    prompt_tokens="vllm:prompt_tokens_total",
    generation_tokens="vllm:generation_tokens_total",
)
"""The same from 0.10.2 to 0.33. One series a rank of data parallelism, so they are added up; they move with every token."""
CACHED = "--enable-prompt-tokens-details"
"""Without it, no usage says how many tokens of a prompt were cached. From 0.10.2, at least, to 0.33."""
KIND = Kind(
    programs=(("vllm", "serve"),),
    in_image=("vllm", "serve"),
    ports=3,
    stop_grace=10.0,
    patterns=VLLM,
    metrics=METRICS,
    lora=LoraPaths("/v1/load_lora_adapter", "/v1/unload_lora_adapter"),
)


class Vllm:
    """The adapter of vLLM."""

    name = "vllm"
    ports = KIND.ports

    def shards(self, placed: Placed) -> tuple[ShardSpec, ...]:
        """Return a shard for each seat; the first serves HTTP, the others only work."""
        return tuple(
            shard(
                *(placed, rank, KIND),
                Launch(_args(placed, rank), _env(placed, rank), serves=rank == 0, adapters=lora_adapters(placed)),
            )
            for rank in range(len(placed.seats))
        )


def _args(placed: Placed, rank: int) -> tuple[str, ...]:
    profile, seat = placed.profile, placed.seats[rank]
    serves = ("--host", seat.host, "--port", str(seat.port), "--api-server-count", "1", CACHED) if rank == 0 else ()
    return (
        *(WEIGHTS, "--served-model-name", placed.model.name),
        *serves,
        *("--tensor-parallel-size", str(profile.tensor_parallel)),
        *("--pipeline-parallel-size", str(profile.pipeline_parallel)),
        *(("--enable-lora",) if placed.model.adapters else ()),
        *(_copies(placed, rank) if profile.data_parallel > 1 else _gang(placed, rank)),
        *profile.args,
    )


def _gang(placed: Placed, rank: int) -> tuple[str, ...]:
    """Return how the shards of one model copy find each other."""
    if len(placed.seats) == 1:
        return ()
    head = placed.head
    return (
        *("--distributed-executor-backend", "mp", "--nnodes", str(len(placed.seats)), "--node-rank", str(rank)),
        *("--master-addr", head.address, "--master-port", str(head.port + MASTER)),
        *(("--headless",) if rank else ()),
    )


def _copies(placed: Placed, rank: int) -> tuple[str, ...]:
    """Return how the copies of the model find each other; each node has as many."""
    copies, head = placed.profile.data_parallel, placed.head
    both = ("--data-parallel-size", str(copies), "--data-parallel-rpc-port", str(head.port + DATA_PARALLEL))
    if len(placed.seats) == 1:
        return both
    here = copies // len(placed.seats)
    return (
        *both,
        *("--data-parallel-size-local", str(here), "--data-parallel-address", head.address),
        *(("--data-parallel-start-rank", str(here * rank), "--headless") if rank else ()),
    )


def _env(placed: Placed, rank: int) -> dict[str, str]:
    seat = placed.seats[rank]
    patience = round(placed.profile.start_timeout * LONGEST_START)
    env = {**OFFLINE, "VLLM_NO_USAGE_STATS": "1", "VLLM_ENGINE_READY_TIMEOUT_S": str(patience)}
    if placed.model.adapters:
        env["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
    if len(placed.seats) > 1 and is_ip(seat.address):
        env["VLLM_HOST_IP"] = seat.address
    return env | network(placed, seat)
