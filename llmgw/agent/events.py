"""What can happen to an agent, and what it can be told to do about it: two closed unions of frozen values."""

from collections.abc import Mapping
from dataclasses import dataclass

from llmgw.agent.liveness import Pulse
from llmgw.agent.lora import AdapterLook
from llmgw.base.ids import ShardId
from llmgw.engines.shard import LoraAdapter, ShardSpec
from llmgw.engines.weights import Source
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
    """Nothing of an attempt runs any more; this was verified. Or `holdouts` pids could not be ended, or a card is held."""

    shard: ShardId
    attempt: int
    holdouts: tuple[int, ...] = ()
    gpu_held: str = ""
    """Who still holds memory of its cards; empty if it is free."""
    tail: tuple[str, ...] = ()
    """The end of its log, for an attempt that was ended by us."""


@dataclass(frozen=True, slots=True)
class Probed:
    """A look at an engine's port. `text` says what was wrong, if not ready."""

    shard: ShardId
    attempt: int
    ready: bool
    text: str
    lost: Reason | None = None
    """Proof that what answers there is not the engine that was started."""
    pulse: Pulse | None = None
    """What its own figures said; None if they were not asked for."""
    log: int = 0
    """Bytes of its log so far, without the lines that our own looks put there."""
    last_line: str = ""
    """The last such line."""
    adapters: AdapterLook | None = None
    """Which LoRA adapters it has; None if it was not asked, or did not say."""


@dataclass(frozen=True, slots=True)
class Adapted:
    """Adapters were given to an engine, and taken from it; what it has now, the next look says."""

    shard: ShardId
    attempt: int
    failed: Mapping[str, str]
    """Adapter -> why the engine did not take it."""


@dataclass(frozen=True, slots=True)
class FetchProgress:
    """So many bytes of a shard's weights are here; `total` is None where the server does not say. Also a sign of life."""

    shard: ShardId
    source: Source
    done: int
    total: int | None


@dataclass(frozen=True, slots=True)
class Fetched:
    """A shard's weights are here, whole and verified."""

    shard: ShardId
    source: Source


@dataclass(frozen=True, slots=True)
class NotFetched:
    """A shard's weights could not be had now."""

    shard: ShardId
    source: Source
    reason: Reason


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


Event = (
    OrderStored
    | Found
    | LeftOver
    | Started
    | NotStarted
    | Exited
    | Gone
    | Probed
    | Adapted
    | FetchProgress
    | Fetched
    | NotFetched
    | Tick
)


@dataclass(frozen=True, slots=True)
class Start:
    """Start an attempt, if all it needs is there."""

    spec: ShardSpec
    attempt: int
    cause: str


@dataclass(frozen=True, slots=True)
class Probe:
    """Ask the engine whether it can serve; with `proof`, also whether it is the one that was started.

    With `figures`, ask what it has in flight; without, look at its log.
    """

    spec: ShardSpec
    attempt: int
    pid: int
    proof: bool = True
    figures: bool = False
    adapters: tuple[LoraAdapter, ...] | None = None
    """Those that it is to have, to look for them with the proof; None not to look."""


@dataclass(frozen=True, slots=True)
class Adapt:
    """Give an engine LoRA adapters, and take others away."""

    spec: ShardSpec
    attempt: int
    load: tuple[LoraAdapter, ...]
    unload: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Stop:
    """End everything that belongs to an attempt: ask, wait `grace` seconds, kill, verify."""

    shard: ShardId
    attempt: int
    pid: int
    grace: float
    gpus: tuple[str, ...] = ()
    """Cards whose memory must be seen free before it is gone."""


@dataclass(frozen=True, slots=True)
class Fetch:
    """Get a shard's weights, or find that they are here."""

    spec: ShardSpec


@dataclass(frozen=True, slots=True)
class CancelFetch:
    """End a fetch that nobody waits for; what has come so far is kept, to go on from."""

    shard: ShardId


@dataclass(frozen=True, slots=True)
class Reap:
    """Forget the record of a shard that is gone."""

    shard: ShardId


@dataclass(frozen=True, slots=True)
class Say:
    """Something that others should know has changed: send a report."""


Instruction = Fetch | CancelFetch | Start | Probe | Adapt | Stop | Reap | Say
