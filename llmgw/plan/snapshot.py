"""`Snapshot`: all that a decision may see, time included. And `Decided`, what was decided before."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from llmgw.base.cause import Cause
from llmgw.base.ids import Epoch, NodeName, ReplicaId
from llmgw.base.time import Instant
from llmgw.catalog.catalog import Catalog
from llmgw.fleet.order import NodeOrder
from llmgw.fleet.table import EMPTY_TABLE, EndpointTable
from llmgw.fleet.usage import UsageView
from llmgw.fleet.view import NeverSeen, NodeView

TABLES_PER_EPOCH = 1_000_000
"""Versions of endpoint tables start at epoch times this, so that no two leaders give one version to different tables."""


@dataclass(frozen=True, slots=True)
class Decided:
    """What this control plane decided before. A fresh one knows nothing, and asks the nodes."""

    orders: Mapping[NodeName, NodeOrder] = field(default_factory=dict)
    table: EndpointTable = EMPTY_TABLE
    draining: Mapping[ReplicaId, Instant] = field(default_factory=dict)
    """Since when each replica is being drained."""

    @staticmethod
    def nothing(epoch: Epoch) -> "Decided":
        """Return the memory of a control plane that just took the lead."""
        return Decided(table=replace(EMPTY_TABLE, version=epoch * TABLES_PER_EPOCH))


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

    @property
    def cause(self) -> Cause:
        """What everything decided from this snapshot is caused by."""
        return Cause(self.catalog.revision, self.reconcile)

    def unheard(self) -> list[NodeName]:
        """Return the nodes that may hold replicas nobody has told us of yet, while it is reasonable to wait for them.

        Starting a second copy of what such a node runs would waste its place; after `unreachable_after` of waiting, a node
        that is simply off must not hold everything up.
        """
        patience = self.catalog.cluster.control.unreachable_after
        views = {name: self.nodes.get(name, NeverSeen(self.now)) for name in self.catalog.nodes}
        return [
            name for name, view in views.items() if isinstance(view, NeverSeen) and self.now - view.since < patience
        ]
