"""`ShardSpec`: all that an agent needs to know to run one shard, so that a new engine needs no new agent.

Two things only the node can know are left open and named by tokens that stand for a whole argument: where the weights
lie (`WEIGHTS`) and which Python runs the agent (`PYTHON`). `programs` is a list of alternatives, first found wins,
because the control plane does not know what is installed on the node.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from llmgw.base.ids import ModelName, ReplicaId, RestartHash, ShardId
from llmgw.engines.weights import Source

LOOPBACK = "127.0.0.1"
"""Where an engine listens that only its own node shall reach."""
WEIGHTS = "{weights}"
"""Argument that the agent replaces by the resolved path of the weights."""
PYTHON = "{python}"
"""Argument that the agent replaces by its own interpreter."""
INTERFACE = "{interface}"
"""In a variable's value: the agent replaces it, and the address after it, by the name of the interface with that address."""


Runtime = Literal["process", "docker", "podman"]
"""How an engine is run on its node."""


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """When a crashed engine is started again. Times in seconds."""

    base: float
    maximum: float
    give_up_after: int
    reset_after: float

    def delay(self, failures: int) -> float:
        """Return the wait before the next start after so many failures in a row (1 or more): base · 2^(n-1)."""
        return float(min(self.maximum, self.base * 2 ** min(max(0, failures - 1), 30)))


@dataclass(frozen=True, slots=True)
class ExitPattern:
    """What a line of an engine's log says about why it ended."""

    pattern: str
    """Regular expression, searched in each of the last lines."""
    code: str
    text: str


@dataclass(frozen=True, slots=True)
class MetricNames:
    """What an engine calls its own metrics, in Prometheus text at `path`; empty where it has none of that meaning."""

    path: str
    running: str
    waiting: str
    prompt_tokens: str
    """Counter of prompt tokens read."""
    generation_tokens: str
    """Counter of tokens generated."""
    activity: str = ""
    """Path whose answer changes with every token while a request runs, for engines whose counters move only at its end."""
    from_loop: bool = False
    """The engine's own loop answers these paths, so silence there is the loop's; where a separate front answers, it is not."""
    progress: tuple[str, ...] = ()
    """Further figures that move while tokens are made, where the counters move only at a request's end."""
    only: str = ""
    """Label and value (`pp_rank="0"`) of the series that count, where several tell the same; those without it count, too."""


@dataclass(frozen=True, slots=True)
class LoraPaths:
    """Where an engine takes and drops LoRA adapters while it runs: POST of `lora_name`, and `lora_path` to take one.

    What it has, `/v1/models` says: an adapter there has a `parent`, and its path for a `root`.
    """

    load: str
    unload: str


@dataclass(frozen=True, slots=True)
class LoraAdapter:
    """A LoRA adapter that a running engine is to have."""

    name: str
    asked_as: str
    """What a request for it names as its model."""
    weights: str
    """Path on the node, as `ShardSpec.weights`."""


@dataclass(frozen=True, slots=True)
class ShardSpec:
    """One shard of a replica: what to run, where it listens, how to know that it is ready, how to stop it.

    Times are in seconds, sizes in bytes. A field that a newer control plane adds has a default, so that an agent reads the
    orders and records of an older one.
    """

    shard: ShardId
    replica: ReplicaId
    model: ModelName
    profile: str
    rank: int
    """Its place in the replica, from 0."""
    hash: RestartHash
    """Of all that needs a restart: a running attempt with another one is replaced."""
    programs: tuple[tuple[str, ...], ...]
    """The program and its first arguments, in alternatives: the first that is installed."""
    args: tuple[str, ...]
    """What follows; `WEIGHTS` stands for the path of the weights."""
    env: Mapping[str, str]
    """Set over what the agent passes on of its own environment; `secrets` and the agent's marks are set over it."""
    weights: str
    """Path on the node; a relative one starts from its weights directory."""
    port: int
    """Where requests go; the first of `ports`."""
    served_name: str
    """What `/v1/models` of a ready engine must name; the proof that the port answers for this model."""
    ready_path: str
    """Answers 200 when the engine can serve, 503 or a refused connection while it loads.

    Empty for a shard without HTTP: it is judged by its process, and by the shard that serves for both.
    """
    models_path: str
    """Empty where nothing names the models: then the listening socket alone is the proof."""
    cpus: int | None
    """Its weight when cores are short; not a limit."""
    memory: int | None
    """Limit of its cgroup, where there is one; None sets none."""
    start_timeout: float
    """How long a start may take that nothing is seen of; one that visibly advances may take longer."""
    stop_grace: float
    """From SIGTERM to SIGKILL, for an engine that was ready."""
    restarts: RestartPolicy
    exit_patterns: tuple[ExitPattern, ...]
    """The engine's own; those of all engines are tried after them."""
    host: str = LOOPBACK
    """Address that the engine listens on: loopback, or the node's own for `traffic: direct`."""
    ports: int = 1
    """How many consecutive ports from `port` on belong to the shard; all of them must be free before it starts."""
    gpus: tuple[str, ...] = ()
    """UUIDs of the cards it gets. The agent turns them into the indices that engines understand."""
    secrets: Mapping[str, str] = field(default_factory=dict)
    """Environment variable -> name of the secret whose value it gets. The values never enter an order."""
    stall_after: float = 300.0
    """Seconds with requests in flight and no token after which the engine counts as stalled."""
    metrics: MetricNames | None = None
    """Where it says what it has in flight; without, it is never called stalled."""
    fetch: Source | None = None
    """Where the weights come from, if the node is to get them; `weights` is then below its weights directory.

    It begins with `stored_name(fetch)`, and may go on to a file in that.
    """
    lora: LoraPaths | None = None
    """How it takes adapters; None if it takes none while it runs."""
    adapters: tuple[LoraAdapter, ...] = ()
    """Those that it is to have. What it has besides, llmgw once gave it, and takes away."""
    shards: int = 1
    """How many shards the replica has."""
    incarnation: int = 0
    """Counts the starts of a replica of several shards, of which none goes on without the others.

    What ended in one incarnation is not started again in it: the agent waits for the planner, which sees all shards, to
    raise the number for all of them, and an agent whose engine runs in a lower one replaces it. So no agent needs to know
    another's engines, and a shard that starts never meets peers of an earlier life. Rejected: agents that restart their
    shard by themselves and a planner that counts attempts, since a count says nothing of who was there at the time.
    """
    runtime: Runtime = "process"
    image: str = ""
    """Of the container; empty for a process. In a container `programs` is the entry point: one, or none for the image's own."""
