"""`Report`: what an agent says of its node. Whole every time, so that nothing depends on having heard an earlier one."""

from dataclasses import dataclass
from enum import StrEnum

from llmgw.base.ids import BootId, Epoch, Generation, NodeName, ShardId
from llmgw.engines.shard import ShardSpec


class Phase(StrEnum):
    """Where a shard is in its life."""

    WAITING = "waiting"
    """Something it needs is not there (weights, its port, the engine's program); looked at again every few seconds."""
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
class ShardReport:
    """What an agent knows of one shard."""

    spec: ShardSpec
    phase: Phase
    age: float
    """Seconds since it entered the phase."""
    attempt: int
    """Counts the starts of this shard on this node; 0 before the first."""
    failures: int
    """Failed attempts in a row."""
    pid: int | None
    reason: Reason | None
    degraded: str | None
    """What a probe of a ready engine complains of; a busy engine is not dead."""
    draining: bool
    last_end: Ended | None


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

    def shard(self, shard: ShardId) -> ShardReport | None:
        """Return what is said of one shard, or None."""
        return next((one for one in self.shards if one.spec.shard == shard), None)
