"""What can happen to an agent, and what it can be told to do about it: two closed unions of frozen values."""

from dataclasses import dataclass

from llmgw.base.ids import ShardId
from llmgw.engines.shard import ShardSpec
from llmgw.fleet.order import NodeOrder
from llmgw.fleet.report import Reason


@dataclass(frozen=True, slots=True)
class OrderStored:
    """A newer order arrived and is on disk."""

    order: NodeOrder


@dataclass(frozen=True, slots=True)
class Found:
    """At its start the agent found a process that is proven to be this attempt of this shard."""

    spec: ShardSpec
    attempt: int
    pid: int
    ready: bool


@dataclass(frozen=True, slots=True)
class LeftOver:
    """At its start the agent found the record of an attempt whose process is gone."""

    spec: ShardSpec
    attempt: int


@dataclass(frozen=True, slots=True)
class Started:
    """The process of an attempt runs."""

    spec: ShardSpec
    attempt: int
    pid: int


@dataclass(frozen=True, slots=True)
class NotStarted:
    """There is something missing or in the way; nothing was started and no attempt is counted."""

    shard: ShardId
    reason: Reason


@dataclass(frozen=True, slots=True)
class Exited:
    """The main process of an attempt ended by itself; others of its session may still run."""

    shard: ShardId
    attempt: int
    code: str
    text: str
    tail: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Gone:
    """Nothing of an attempt runs any more; this was verified. Or `holdouts` pids could not be ended."""

    shard: ShardId
    attempt: int
    holdouts: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Probed:
    """A look at an engine's port. `text` says what was wrong, if not ready."""

    shard: ShardId
    attempt: int
    ready: bool
    text: str


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


Event = OrderStored | Found | LeftOver | Started | NotStarted | Exited | Gone | Probed | Tick


@dataclass(frozen=True, slots=True)
class Start:
    """Start an attempt, if all it needs is there."""

    spec: ShardSpec
    attempt: int
    cause: str


@dataclass(frozen=True, slots=True)
class Probe:
    """Ask the engine whether it can serve; with `proof`, also whether it is the one that was started."""

    spec: ShardSpec
    attempt: int
    pid: int
    proof: bool = True


@dataclass(frozen=True, slots=True)
class Stop:
    """End everything that belongs to an attempt: ask, wait `grace` seconds, kill, verify."""

    shard: ShardId
    attempt: int
    pid: int
    grace: float


@dataclass(frozen=True, slots=True)
class Reap:
    """Forget the record of a shard that is gone."""

    shard: ShardId


@dataclass(frozen=True, slots=True)
class Say:
    """Something that others should know has changed: send a report."""


Instruction = Start | Probe | Stop | Reap | Say
