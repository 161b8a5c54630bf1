"""Which replicas exist: what was ordered, joined with what the nodes report.

A node that this control plane has not ordered anything yet is taken at its word: all that it reports is kept as if it
had been ordered, which is how a fresh control plane adopts a running fleet. On a node with an order, a reported shard that
the order leaves out is on its way out; it still claims its port and its place until it is gone.
"""

from dataclasses import dataclass

from llmgw.base.ids import Epoch, ModelName, NodeName, ReplicaId, replica_id
from llmgw.engines.shard import ShardSpec
from llmgw.fleet.report import SERVING, Phase, ShardReport
from llmgw.fleet.table import Address
from llmgw.fleet.view import NodeView, Reporting, report_of, routes_of
from llmgw.plan.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Replica:
    """One existing replica. A replica has one shard for now; its spec stands for the whole."""

    node: NodeName
    spec: ShardSpec
    report: ShardReport | None
    """None: ordered, and not reported yet."""
    address: Address | None
    """Where it can be reached from the control plane's host; None if it cannot now."""
    node_answers: bool
    draining: bool
    leaving: bool
    """No order wants it any more."""

    @property
    def id(self) -> ReplicaId:
        """Its id."""
        return self.spec.replica

    @property
    def model(self) -> ModelName:
        """The model it serves."""
        return self.spec.model

    @property
    def phase(self) -> Phase:
        """Where it is in its life; waiting, if its node has not spoken of it yet."""
        return self.report.phase if self.report else Phase.WAITING

    @property
    def phase_serves(self) -> bool:
        """Whether its node said last that its engine is ready, however it may be reached now."""
        return self.phase in SERVING

    @property
    def serves(self) -> bool:
        """Whether it answers requests, as far as is known: its node said so last and a way to it exists."""
        return self.phase in SERVING and self.address is not None

    @property
    def has_process(self) -> bool:
        """Whether an engine process may exist for it; it may, if its node has not spoken of it yet."""
        return self.report is None or self.phase not in (Phase.WAITING, Phase.BACKOFF, Phase.FAILED)


def existing(snapshot: Snapshot) -> list[Replica]:
    """Return every known replica, by node and then by id."""
    return [
        replica
        for node in sorted(snapshot.nodes)
        for replica in sorted(_on_node(snapshot, node, snapshot.nodes[node]), key=lambda one: one.id)
    ]


def _on_node(snapshot: Snapshot, node: NodeName, view: NodeView) -> list[Replica]:
    report = report_of(view)
    reported = {one.spec.shard: one for one in report.shards} if report else {}
    routes = routes_of(view)
    answers = isinstance(view, Reporting)
    order = snapshot.previous.orders.get(node)
    found = []
    if order is not None:
        for wanted in order.shards:
            key = wanted.spec.shard
            found.append(
                Replica(
                    node, wanted.spec, reported.pop(key, None), routes.get(key), answers, wanted.draining, leaving=False
                )
            )
    for key, shard in reported.items():
        leaving = order is not None or shard.phase is Phase.STOPPING
        found.append(Replica(node, shard.spec, shard, routes.get(key), answers, shard.draining, leaving=leaving))
    return found


def free_number(model: ModelName, epoch: Epoch, replicas: list[Replica]) -> int:
    """Return the smallest N with which no existing replica of the model is named in this epoch."""
    taken = {replica.id for replica in replicas}
    return next(n for n in range(len(taken) + 1) if replica_id(model, epoch, n) not in taken)
