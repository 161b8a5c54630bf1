"""The messages, one frozen dataclass each, told apart by `type`; unknown fields are ignored, so a newer peer may add some.

The values they carry (`NodeOrder`, `Report`, `EndpointTable`) are the domain's own dataclasses: pydantic reads and
writes them as they are. Rejected: a second set of classes for the wire, which would have to be kept equal by hand.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from llmgw.base.ids import Epoch, Generation, NodeName, ReplicaId, ShardId
from llmgw.fleet.access import Access
from llmgw.fleet.order import NodeOrder
from llmgw.fleet.report import Report, Use
from llmgw.fleet.spent import SpentBatch
from llmgw.fleet.table import EndpointTable
from llmgw.wire.errors import ProtocolError

PROTOCOL = 1
"""Version of the protocol. A change that an older peer would misread raises it."""


@dataclass(frozen=True, slots=True)
class Hello:
    """First word of the control plane to an agent: who calls, for which cluster, and what this node is called there."""

    protocol: int
    version: str
    cluster: str
    node: NodeName
    type: Literal["hello"] = "hello"


@dataclass(frozen=True, slots=True)
class Welcome:
    """The agent's answer to `Hello`."""

    protocol: int
    version: str
    users: bool = False
    """It takes `Using`, and passes it on in reports."""
    type: Literal["welcome"] = "welcome"


@dataclass(frozen=True, slots=True)
class Refused:
    """The answer to a `Hello` or `RouterHello` that is not followed; the connection is closed then."""

    reason: str
    type: Literal["refused"] = "refused"


@dataclass(frozen=True, slots=True)
class Order:
    """The node's whole wanted state, and the values of the secrets its shards name (which no order holds)."""

    order: NodeOrder
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    type: Literal["order"] = "order"


@dataclass(frozen=True, slots=True)
class Using:
    """What the control plane's gateways have to do with the node's replicas. Whole every time; renewed, or it is unknown.

    It goes by orders up to `epoch` and `generation`.
    """

    gateways: str
    epoch: Epoch
    generation: Generation
    uses: tuple[Use, ...]
    leaving: bool = False
    """They have ended: nothing is in flight there any more."""
    routers: tuple[str, ...] = ()
    """Routers on other hosts that are among them, connected now."""
    type: Literal["using"] = "using"


@dataclass(frozen=True, slots=True)
class Said:
    """A report."""

    report: Report
    type: Literal["report"] = "report"


@dataclass(frozen=True, slots=True)
class LogRequest:
    """Asks for the end of a shard's log, or for what follows `offset` in it; attempt 0 means the newest."""

    id: int
    shard: ShardId
    attempt: int
    lines: int
    offset: int | None = None
    """Byte to read from; None asks for the last lines."""
    wait: float = 0.0
    """Seconds that the answer may wait for something to follow `offset`."""
    type: Literal["log_request"] = "log_request"


@dataclass(frozen=True, slots=True)
class LogReply:
    """The asked-for lines, or why there are none."""

    id: int
    attempt: int
    attempts: tuple[int, ...]
    lines: tuple[str, ...]
    error: str | None = None
    start: int = 0
    """Byte of the log that the lines begin at; beyond the asked-for offset if the bytes there were dropped."""
    next: int = 0
    """Offset to ask for next."""
    ended: bool = False
    """The attempt writes no more."""
    type: Literal["log_reply"] = "log_reply"


@dataclass(frozen=True, slots=True)
class WorkerHello:
    """First word of a gateway worker to the control plane."""

    protocol: int
    version: str
    pid: int
    listen: str
    keys: bool = False
    """Whether it asks for keys where it is told to; one of an earlier version does not."""
    type: Literal["worker_hello"] = "worker_hello"


@dataclass(frozen=True, slots=True)
class RouterHello:
    """First word of a router on another host to the control plane."""

    protocol: int
    version: str
    name: str
    """What it is known by, also after a restart."""
    run: str
    """Another one after each start: tells its own new connection from a second router of the same name."""
    listen: str
    """Its gateway's URL."""
    network: str
    """The same for processes that reach each other's loopback; empty if that cannot be told."""
    serving: bool
    """Whether it has a table already, which it should not give up for one of a part of the fleet."""
    keys: bool = False
    """As a worker's."""
    type: Literal["router_hello"] = "router_hello"


@dataclass(frozen=True, slots=True)
class RouterLeaves:
    """Last word of a router: all of its workers have ended, and nothing is in flight there."""

    type: Literal["router_leaves"] = "router_leaves"


@dataclass(frozen=True, slots=True)
class Table:
    """The endpoint table to use from now on, and the values of the keys that its endpoints name (which no table holds).

    Keys go to workers of this host, over a socket that is this user's alone; to routers, none.
    """

    table: EndpointTable
    keys: Mapping[str, str] = field(default_factory=dict, repr=False)
    type: Literal["table"] = "table"


@dataclass(frozen=True, slots=True)
class AccessTable:
    """Who may ask for what from now on. The first one comes before the first table."""

    access: Access
    type: Literal["access"] = "access"


@dataclass(frozen=True, slots=True)
class Spending:
    """What requests cost; said again, with the same number, until it is confirmed."""

    batch: SpentBatch
    type: Literal["spending"] = "spending"


@dataclass(frozen=True, slots=True)
class SpendingKept:
    """Confirms a batch: it is in the store."""

    source: str
    sequence: int
    type: Literal["spending_kept"] = "spending_kept"


@dataclass(frozen=True, slots=True)
class EndpointUsage:
    """What one worker, or one router, knows of one endpoint; `ended_ago` in seconds, None if no response has ended here yet."""

    id: ReplicaId
    in_flight: int
    ended_ago: float | None


@dataclass(frozen=True, slots=True)
class WorkerUsage:
    """All that a worker has in flight, and the table it goes by. Whole every time."""

    table_version: int
    endpoints: tuple[EndpointUsage, ...]
    requests: int
    """Requests answered since the worker started."""
    type: Literal["worker_usage"] = "worker_usage"


@dataclass(frozen=True, slots=True)
class Sample:
    """One value that a worker has counted; `name` as Prometheus shows it, `labels` in the order of their names' definition."""

    name: str
    labels: tuple[str, ...]
    value: float


@dataclass(frozen=True, slots=True)
class WorkerCounts:
    """All that a worker has counted since it started."""

    samples: tuple[Sample, ...]
    type: Literal["worker_counts"] = "worker_counts"


ToAgent = Hello | Order | Using | LogRequest
FromAgent = Welcome | Refused | Said | LogReply
ToWorker = Table | AccessTable | SpendingKept
FromWorker = WorkerHello | WorkerUsage | WorkerCounts | Spending
ToRouter = Table | AccessTable | SpendingKept | Refused
FromRouter = RouterHello | WorkerUsage | Spending | RouterLeaves
Message = ToAgent | FromAgent | ToWorker | FromWorker | RouterHello | RouterLeaves


@cache
def _adapter() -> TypeAdapter[Any]:
    return TypeAdapter(Annotated[Message, Field(discriminator="type")])


def encode(message: Message) -> bytes:
    """Return the message as JSON."""
    return _adapter().dump_json(message)


def decode(payload: bytes) -> Message:
    """Return the message that the payload holds. Raises ProtocolError for anything else."""
    try:
        message: Message = _adapter().validate_json(payload)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        # without the cause, which repeats what it could not read: that may be a secret
        raise ProtocolError(f"unreadable message: {first['msg']} at {where or 'its start'}") from None
    return message
