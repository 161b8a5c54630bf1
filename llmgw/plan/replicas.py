"""Which replicas exist: what was ordered, joined with what the nodes report, a part for every shard.

A node that this control plane has not ordered anything yet is taken at its word: all that it reports is kept as if it
had been ordered, which is how a fresh control plane adopts a running fleet. On a node with an order, a reported shard that
the order leaves out is on its way out; it still claims its ports and its cards until it is gone. So does what the order leaves
out and no report can have named yet (`left_out`).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import count

from llmgw.base.ids import Epoch, ModelName, NodeName, ReplicaId, order_of, replica_id
from llmgw.base.time import Instant
from llmgw.engines.shard import ShardSpec
from llmgw.fleet.report import SERVING, Phase, ShardReport
from llmgw.fleet.table import Address
from llmgw.fleet.view import NodeView, Reporting, report_of, routes_of
from llmgw.plan.left_out import not_heard_of
from llmgw.plan.snapshot import Snapshot

_WORST = (Phase.FAILED, Phase.BACKOFF, Phase.WAITING, Phase.FETCHING, Phase.STOPPING, Phase.STARTING, Phase.DRAINING)
_WITHOUT_PROCESS = (Phase.WAITING, Phase.FETCHING, Phase.BACKOFF, Phase.FAILED)


@dataclass(frozen=True, slots=True)
class Part:
    """One shard of a replica, at its node."""

    node: NodeName
    spec: ShardSpec
    """As it is ordered."""
    report: ShardReport | None
    """None: ordered, and not reported yet."""
    address: Address | None
    """Where it can be reached from the control plane's host; None if it cannot now."""
    node_answers: bool
    heard: Instant
    """When its node spoke last."""
    leaving: bool = False
    """No order wants it any more: it is being stopped."""

    @property
    def phase(self) -> Phase:
        """Where it is in its life; waiting, if its node has not spoken of it yet."""
        return self.report.phase if self.report else Phase.WAITING

    @property
    def has_process(self) -> bool:
        """Whether an engine process may exist for it; it may, if its node has not spoken of it yet."""
        return self.report is None or self.report.phase not in _WITHOUT_PROCESS


@dataclass(frozen=True, slots=True)
class Replica:
    """One existing replica, with all of its parts that are known, in order of rank."""

    id: ReplicaId
    model: ModelName
    parts: tuple[Part, ...]
    draining: bool
    leaving: bool
    """No order wants it any more."""

    @property
    def head(self) -> Part:
        """The part that serves HTTP."""
        return self.parts[0]

    @property
    def node(self) -> NodeName:
        """The node of its head."""
        return self.parts[0].node

    @property
    def nodes(self) -> tuple[NodeName, ...]:
        """The nodes it spans, in order of rank."""
        return tuple(part.node for part in self.parts)

    @property
    def spec(self) -> ShardSpec:
        """Its head's spec."""
        return self.parts[0].spec

    @property
    def report(self) -> ShardReport | None:
        """What is said of its head."""
        return self.parts[0].report

    @property
    def address(self) -> Address | None:
        """Where its head can be reached now."""
        return self.parts[0].address

    @property
    def whole(self) -> bool:
        """Whether all of its shards are known, and none of several is being stopped."""
        if len(self.parts) != self.parts[0].spec.shards:
            return False
        return len(self.parts) == 1 or not any(part.leaving for part in self.parts)

    @property
    def incarnation(self) -> int:
        """The newest incarnation that any of its shards is ordered in, or runs in; 0 for a replica of one shard."""
        return max(part.spec.incarnation for part in self.parts)

    @property
    def spent(self) -> int:
        """The newest incarnation that ended on any of its nodes; -1 if none did."""
        return max(part.report.spent if part.report is not None else -1 for part in self.parts)

    @property
    def node_answers(self) -> bool:
        """Whether all of its nodes answer."""
        return all(part.node_answers for part in self.parts)

    @property
    def phase(self) -> Phase:
        """Where it is in its life: where the part is that has come least far."""
        if len(self.parts) == 1:
            return self.parts[0].phase
        phases = {part.phase for part in self.parts}
        return next((phase for phase in _WORST if phase in phases), Phase.READY)

    @property
    def phase_serves(self) -> bool:
        """Whether its nodes said last that its engine is ready, however it may be reached now."""
        return self.phase in SERVING and self.whole

    @property
    def serves(self) -> bool:
        """Whether it answers requests, as far as is known: its nodes said so last and a way to it exists."""
        return self.phase_serves and self.address is not None

    @property
    def has_process(self) -> bool:
        """Whether an engine process may exist for it."""
        return any(part.has_process for part in self.parts)

    @property
    def reason(self) -> str:
        """Why it is not further; empty if nothing says."""
        said = (part.report.reason for part in self.parts if part.report is not None and part.phase is self.phase)
        return next((reason.text for reason in said if reason is not None), "")

    def in_phase_for(self, now: Instant) -> float:
        """Return the seconds since its head entered its phase; 0 if its node has not spoken of it yet."""
        report = self.parts[0].report
        return report.age + (now - self.parts[0].heard) if report is not None else 0.0


def existing(snapshot: Snapshot) -> list[Replica]:
    """Return every known replica, by the node of its head and then by id."""
    found: dict[ReplicaId, list[tuple[Part, bool]]] = {}
    for node in sorted(snapshot.nodes):
        for part, draining in _on_node(snapshot, node, snapshot.nodes[node]):
            found.setdefault(part.spec.replica, []).append((part, draining))
    replicas = []
    for name, known in found.items():
        if len(known) > 1:
            known.sort(key=lambda each: each[0].spec.rank)
        parts = tuple(part for part, _ in known)
        draining = any(each[1] for each in known)
        # of a replica that an earlier control plane began to stop, some shards may not have heard of it yet
        leaving = all(part.leaving for part in parts)
        replicas.append(Replica(name, parts[0].spec.model, parts, draining, leaving))
    return sorted(replicas, key=lambda one: (one.node, one.id))


def _on_node(snapshot: Snapshot, node: NodeName, view: NodeView) -> Iterator[tuple[Part, bool]]:
    """Yield (part, draining) of every shard that a node has or shall have."""
    report = report_of(view)
    reported = {one.spec.shard: one for one in report.shards} if report else {}
    routes = routes_of(view)
    answers = isinstance(view, Reporting)
    heard = view.at if isinstance(view, Reporting) else view.since
    order = snapshot.previous.orders.get(node)
    if order is not None:
        for wanted in order.shards:
            key = wanted.spec.shard
            part = Part(node, wanted.spec, reported.pop(key, None), routes.get(key), answers, heard)
            yield part, wanted.draining
    for key, shard in reported.items():
        leaving = order is not None or shard.phase is Phase.STOPPING
        yield Part(node, shard.spec, shard, routes.get(key), answers, heard, leaving), shard.draining
    for one in not_heard_of(snapshot, node):
        if report is None or report.shard(one.spec.shard) is None:
            yield Part(node, one.spec, None, None, answers, heard, leaving=True), False


def renamed(one: Replica, model: ModelName) -> Replica:
    """Return a replica under its model's new name. Its id stays, and what its engine calls the model until it starts anew."""
    parts = tuple(replace(part, spec=replace(part.spec, model=model)) for part in one.parts)
    return replace(one, model=model, parts=parts)


def by_id(one: Replica) -> tuple[int, int]:
    """Sort replicas of one model: by epoch and number."""
    return order_of(one.id)


def model_of(replica: ReplicaId) -> ModelName:
    """Return the model of a replica that is named as `replica_id` does."""
    return ModelName(replica.rsplit("-", 2)[0])


def free_id(model: ModelName, epoch: Epoch, taken: Callable[[ReplicaId], bool]) -> ReplicaId:
    """Return the id with the smallest number that no replica has in this epoch, whatever model it belongs to by now."""
    return next(one for one in (replica_id(model, epoch, n) for n in count()) if not taken(one))
