"""`Snapshot`: all that a decision may see, time included. And `Decided`, what was decided before."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from llmgw.base.cause import Cause
from llmgw.base.ids import Epoch, Generation, ModelName, NodeName, ReplicaId, RestartHash
from llmgw.base.time import Instant
from llmgw.catalog.catalog import Catalog
from llmgw.engines.adapter import ENGINES, Engine
from llmgw.engines.shard import ShardSpec
from llmgw.fleet.order import NodeOrder
from llmgw.fleet.table import EMPTY_TABLE, EndpointTable
from llmgw.fleet.usage import UsageView
from llmgw.fleet.view import NeverSeen, NodeView
from llmgw.spec.model import Model

TABLES_PER_EPOCH = 1_000_000
"""Versions of endpoint tables start at epoch times this, so that no two leaders give one version to different tables."""


@dataclass(frozen=True, slots=True)
class Act:
    """What an operator asked for on the command line, besides the cluster directory."""

    kind: Literal["cordon", "drain", "restart"]
    """`cordon`: nothing new there. `drain`: what is there moves away, too. `restart`: replaced by new ones in place."""
    target: str
    """`node/NAME`, `gpu/UUID` or `replica/ID`."""
    reason: str
    at: Instant
    until: Instant | None = None
    by: str = ""

    def holds(self, now: Instant) -> bool:
        """Whether it has not expired."""
        return self.until is None or now < self.until


@dataclass(frozen=True, slots=True)
class Suspension:
    """An operator's order to change nothing for a while. It always ends."""

    reason: str
    by: str
    since: Instant
    until: Instant

    def holds(self, now: Instant) -> bool:
        """Whether it has not expired."""
        return now < self.until


@dataclass(frozen=True, slots=True)
class Rollout:
    """A change of a model's replicas that is under way."""

    hashes: tuple[RestartHash, ...]
    """What it goes to; another change is another rollout."""
    since: Instant
    progressed: Instant
    """When more of the new replicas served than ever before."""
    serving: int
    """How many that were."""
    failed: str = ""
    """Why it was given up; it stays so until the spec changes."""


@dataclass(frozen=True, slots=True)
class GaveUp:
    """A node on which a replica ended too often in a row; it is not tried there again until its spec changes."""

    hash: RestartHash
    node: NodeName
    why: str


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A shard that was left out of its node's order before the node spoke of it.

    The order that named it may have arrived, and the later one without it may not: a link can break between the two. So its
    id, its cards and its ports are not free before the node has obeyed the later one; from then on its reports say all.
    """

    spec: ShardSpec
    generation: Generation
    """Of the first order without it."""


@dataclass(frozen=True, slots=True)
class Decided:
    """What this control plane decided before. A fresh one asks the nodes, and has a part of it from `plan.memory`."""

    orders: Mapping[NodeName, NodeOrder] = field(default_factory=dict)
    table: EndpointTable = EMPTY_TABLE
    draining: Mapping[ReplicaId, Instant] = field(default_factory=dict)
    """Since when each replica is being drained, and no gateway is given it."""
    rollouts: Mapping[ModelName, Rollout] = field(default_factory=dict)
    gave_up: Mapping[ModelName, tuple[GaveUp, ...]] = field(default_factory=dict)
    good: Mapping[ModelName, Model] = field(default_factory=dict)
    """The newest spec of each model that all of its replicas served by: what `auto_revert` goes back to."""
    preempted: Mapping[ReplicaId, ModelName] = field(default_factory=dict)
    """Replicas that were told to give way, and to which model; kept until that model has all that it wants."""
    braked: Mapping[NodeName, Instant] = field(default_factory=dict)
    """When the brake held last for each node that still does not answer."""
    catalog: Catalog | None = None
    """What the orders were written by; where it is still the same one, they are still as it would write them."""
    left_out: Mapping[NodeName, tuple[LeftOut, ...]] = field(default_factory=dict)
    """What nodes may have without having said so, though no order wants it any more."""
    owed: Mapping[ReplicaId, ModelName] = field(default_factory=dict)
    """Replicas that were drained so that another of their model can have the place, until the model has what it wants."""
    told: bool = False
    """Whether gateways were told a table of this leader's: until then, what is drained may be in one of before."""
    spent: frozenset[ReplicaId] = frozenset()
    """Ids of this epoch that may still run on a node that was forgotten: not given again, since it may come back."""

    @staticmethod
    def nothing(epoch: Epoch, table: EndpointTable = EMPTY_TABLE) -> "Decided":
        """Return the memory of a control plane that just took the lead, and whose gateways go by this table.

        What is in that table may be in use, so that it is not stopped before it has left it.
        """
        return Decided(table=replace(table, version=max(epoch * TABLES_PER_EPOCH, table.version + 1)))


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What `plan.plan` is given."""

    catalog: Catalog
    nodes: Mapping[NodeName, NodeView]
    """Every node of the catalog, and those that left it and are not empty yet."""
    usage: UsageView
    previous: Decided
    epoch: Epoch
    reconcile: int
    """Counts the rounds of this control plane; part of every cause."""
    started: Instant
    """Since when this control plane has been looking at its nodes."""
    now: Instant
    acts: tuple[Act, ...] = ()
    held: frozenset[NodeName] = frozenset()
    """Nodes on which an earlier control plane had engines, and which have not said otherwise yet."""
    engines: Mapping[str, Engine] = field(default_factory=lambda: ENGINES)
    """The adapters there are, by the name that profiles use."""
    suspended: Suspension | None = None

    @property
    def cause(self) -> Cause:
        """What everything decided from this snapshot is caused by."""
        return Cause(self.catalog.revision, self.reconcile)

    def unheard(self) -> list[NodeName]:
        """Return the nodes that may hold replicas nobody has told us of yet, while it is reasonable to wait for them.

        Starting a second copy of what such a node runs would waste its place; after `unreachable_after` of waiting, a node
        that is simply off must not hold everything up. One that had engines under an earlier control plane is waited for
        as long as any that stops answering: until `lost_after`.
        """
        control = self.catalog.cluster.control
        views = {name: self.nodes.get(name, NeverSeen(self.now)) for name in self.catalog.nodes}
        return [
            name
            for name, view in views.items()
            if isinstance(view, NeverSeen)
            and self.now - view.since < (control.lost_after if name in self.held else control.unreachable_after)
        ]
