"""`Plan`: what should change and what is held back, each with its reason. What `llmgw plan` prints is this object."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from llmgw.base.cause import Cause
from llmgw.base.ids import ModelName, NodeName, ReplicaId, Revision
from llmgw.base.time import Instant
from llmgw.catalog.catalog import Catalog
from llmgw.fleet.order import NodeOrder
from llmgw.fleet.table import EndpointTable
from llmgw.plan.snapshot import Decided, GaveUp, LeftOut, Rollout
from llmgw.spec.model import Model


class Verb(StrEnum):
    """What is done to a replica."""

    START = "start"
    DRAIN = "drain"
    KEEP = "keep"
    """A drain is called off."""
    STOP = "stop"
    MOVE_PORT = "move port"
    RESTART = "restart"
    """All its shards start anew, since one of them ended."""
    PUBLISH = "publish"
    WITHDRAW = "withdraw"


@dataclass(frozen=True, slots=True)
class Action:
    """One thing that changes for one replica."""

    verb: Verb
    replica: ReplicaId
    model: ModelName
    node: NodeName
    why: str


@dataclass(frozen=True, slots=True)
class Hold:
    """One thing that is not done now, and what it waits for."""

    subject: str
    """`model/NAME` or `replica/ID`."""
    what: str
    waits_for: str


@dataclass(frozen=True, slots=True)
class Plan:
    """The decision. `orders` holds one order for every node that may be commanded, changed or not."""

    based_on: Revision
    orders: Mapping[NodeName, NodeOrder]
    table: EndpointTable
    draining: Mapping[ReplicaId, Instant]
    actions: tuple[Action, ...]
    holds: tuple[Hold, ...]
    settled: bool
    """Every node has spoken, or was waited for long enough."""
    told: bool
    """Whether this table, or one before it of this leader's, is one that gateways go by."""
    cause: Cause
    alarms: tuple[str, ...] = ()
    """What people must know: the brake holds, a rollout failed."""
    rollouts: Mapping[ModelName, Rollout] = field(default_factory=dict)
    gave_up: Mapping[ModelName, tuple[GaveUp, ...]] = field(default_factory=dict)
    good: Mapping[ModelName, Model] = field(default_factory=dict)
    preempted: Mapping[ReplicaId, ModelName] = field(default_factory=dict)
    braked: Mapping[NodeName, Instant] = field(default_factory=dict)
    catalog: Catalog | None = None
    """What the orders were written by."""
    left_out: Mapping[NodeName, tuple[LeftOut, ...]] = field(default_factory=dict)
    owed: Mapping[ReplicaId, ModelName] = field(default_factory=dict)

    @property
    def decided(self) -> Decided:
        """What the next snapshot has as `previous`, once this plan is carried out."""
        return Decided(
            self.orders,
            self.table,
            self.draining,
            self.rollouts,
            self.gave_up,
            self.good,
            self.preempted,
            self.braked,
            self.catalog,
            self.left_out,
            self.owed,
            self.told,
        )
