"""`Report`: what an agent says of its node. Whole every time, so that nothing depends on having heard an earlier one."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from llmgw.base.ids import BootId, Epoch, Generation, NodeName, ReplicaId, ShardId
from llmgw.engines.shape import Shape
from llmgw.engines.shard import ShardSpec


class Phase(StrEnum):
    """Where a shard is in its life."""

    WAITING = "waiting"
    """Something it needs is not there (weights, its port, the engine's program); looked at again every few seconds."""
    FETCHING = "fetching"
    """Its weights are on their way to the node."""
    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    """Ready, and nothing new may be sent to it."""
    STOPPING = "stopping"
    BACKOFF = "backoff"
    """It ended or never became ready; it will be started again."""
    FAILED = "failed"
    """It ended too often in a row; it stays down until its spec changes."""


SERVING = (Phase.READY, Phase.DRAINING)


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a shard is where it is: a code for programs, a sentence for people."""

    code: str
    text: str


@dataclass(frozen=True, slots=True)
class Ended:
    """How an attempt ended. `age` is in seconds at the time of the report; `tail` is the end of its log."""

    attempt: int
    code: str
    text: str
    age: float
    tail: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AdapterReport:
    """What an agent knows of a LoRA adapter that an engine is to have."""

    name: str
    loaded: bool
    """The engine has one of this name; while `reason` says otherwise, perhaps the one of before."""
    reason: str = ""
    """Why it has not the one that is wanted."""


@dataclass(frozen=True, slots=True)
class ShardReport:
    """What an agent knows of one shard."""

    spec: ShardSpec
    """That of the attempt that runs; else the one that is wanted."""
    phase: Phase
    age: float
    """Seconds since it entered the phase."""
    attempt: int
    """Counts the starts of this shard on this node; 0 before the first."""
    failures: int
    """Failed attempts in a row."""
    pid: int | None
    """The leader of the attempt's session, from its start until nothing of it is left."""
    reason: Reason | None
    """Why it is in its phase; None where the phase says all."""
    degraded: str | None
    """What a probe of a ready engine complains of; a busy engine is not dead."""
    draining: bool
    """The order says that nothing new may be sent to it, whatever its phase."""
    last_end: Ended | None
    """How the last attempt ended that was not asked to; None before the first."""
    progress: str = ""
    """How far the phase has come, for people ("12 MiB of 98 MiB"); empty if nothing says."""
    in_flight: int | None = None
    """Requests running or queued, as the engine itself says; None if it does not say."""
    quiet_for: float | None = None
    """Seconds seen without a token while something is in flight; None if nothing is, or if that is not known."""
    spent: int = -1
    """Highest incarnation of its replica that ended here, of a replica of several shards; -1 if none did.

    It is not started again before it is ordered in a higher one.
    """
    adapters: tuple[AdapterReport, ...] = ()
    """Its LoRA adapters, once it is ready."""

    def has_adapter(self, name: str) -> bool:
        """Whether its engine answers requests for an adapter."""
        return any(one.name == name and one.loaded for one in self.adapters)


@dataclass(frozen=True, slots=True)
class GpuUser:
    """A process that holds memory of a card."""

    pid: int
    memory: int | None
    """Bytes; None where the driver does not say."""
    command: str
    shard: ShardId | None
    """The shard of this agent that it belongs to; None for a stranger."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One card. Its identity is the UUID: indices change when a card falls off the bus."""

    uuid: str
    index: int
    """Its place in the order of PCI addresses, as CUDA counts with CUDA_DEVICE_ORDER=PCI_BUS_ID."""
    name: str
    memory: int
    """Bytes in all."""
    memory_used: int
    """Bytes in use, by whomever."""
    users: tuple[GpuUser, ...] = ()
    unhealthy: str = ""
    """Why nothing may be placed on it; empty if it is well. Such a card is neither used nor free."""
    numa: int | None = None
    """The NUMA node that its slot hangs on; None if that is not known."""
    links: tuple[str, ...] = ()
    """UUIDs of the cards it has a direct NVLink (or xGMI) to."""
    bus: str = ""
    """PCI address, `DOMAIN:BUS:DEVICE.FUNCTION`."""


@dataclass(frozen=True, slots=True)
class Program:
    """An engine's program found on the node."""

    engine: str
    version: str
    path: str


@dataclass(frozen=True, slots=True)
class Containers:
    """A program on the node that runs containers."""

    name: str
    """`docker` or `podman`."""
    version: str
    """Empty where it does not say."""
    trouble: str = ""
    """Why the agent can run nothing with it now; empty if it can."""


@dataclass(frozen=True, slots=True)
class Adoptions:
    """What an agent made of the records it found at its start."""

    adopted: int = 0
    stale: int = 0
    """Recorded processes that were gone."""
    foreign: int = 0
    """Recorded pids that another process has now, and engines that carry another agent's marker; not touched."""
    gone: int = 0
    """Processes with our marker that nothing wanted, ended."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What the node is."""

    hostname: str
    cpus: int
    memory: int
    """Bytes."""
    kernel: str
    agent_version: str
    agent_pid: int
    weights_dir: str | None
    foreign_ports: tuple[int, ...]
    """TCP ports that something other than the agent's engines listens on."""
    complaint: str = ""
    """What keeps the agent from doing its work, such as a full disk; empty if nothing does."""
    driver: str = ""
    """Version of the GPU driver; empty without one."""
    gpu_trouble: str = ""
    """Why the cards are not known, or not all of them; empty if they are, or if there is no driver."""
    disk_free: int | None = None
    """Bytes free where weights lie (else where the agent keeps its state)."""
    programs: tuple[Program, ...] = ()
    """Engines found in the agent's PATH, and the wheel beside it."""
    weights: Mapping[str, int] = field(default_factory=dict)
    """Path below the weights directory -> bytes, of what lies there."""
    shapes: Mapping[str, Shape] = field(default_factory=dict)
    """Path -> what its headers say of the model's size, of those that could be read."""
    cgroups: str = ""
    """How engines are confined: `v2`, `v1`, or empty where the process session alone must do."""
    adoptions: Adoptions = Adoptions()
    containers: tuple[Containers, ...] | None = None
    """What runs containers here; None if that was not looked at yet, or the agent is of a version that runs none."""


@dataclass(frozen=True, slots=True)
class Use:
    """What the gateways of one control plane have to do with one replica."""

    replica: ReplicaId
    in_flight: int | None
    """Requests in flight or queued; None if that is not known."""
    ended_ago: float | None
    """Seconds since the last response ended; None if none has yet, or if something is in flight."""
    routed: bool
    """It may get new requests."""


@dataclass(frozen=True, slots=True)
class User:
    """The gateways of one control plane, and what they have to do with the replicas whose heads are on this node."""

    gateways: str
    """What they are known by."""
    age: float
    """Seconds since they were heard of."""
    epoch: Epoch
    generation: Generation
    """Of the order by which they go: what a newer one says of draining they may not know yet."""
    uses: tuple[Use, ...]
    """A replica that is not in it is not used by them."""
    routers: tuple[str, ...] = ()
    """Routers on other hosts that are among them now, and so no other control plane's any more."""


@dataclass(frozen=True, slots=True)
class Report:
    """All that an agent says of its node; newer means a greater sequence in the same boot, or another boot."""

    node: NodeName
    boot: BootId
    sequence: int
    epoch: Epoch
    """Highest epoch obeyed so far; 0 before any order."""
    generation: Generation
    """Generation of the order in force."""
    refused: int
    """Orders refused because they were older."""
    facts: Facts
    shards: tuple[ShardReport, ...]
    gpus: tuple[Gpu, ...] = ()
    users: tuple[User, ...] = ()
    """Who sends requests to its shards, as control planes say."""

    def shard(self, shard: ShardId) -> ShardReport | None:
        """Return what is said of one shard, or None."""
        return next((one for one in self.shards if one.spec.shard == shard), None)
