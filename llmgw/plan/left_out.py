"""What a node may have although no order wants it any more and no report names it: see `LeftOut`.

A report names all that a node has, but it is as old as the order that the node had obeyed by then. What was ordered after
that, and taken back, is remembered here until a report is newer than its taking back.
"""

from collections.abc import Iterator, Mapping

from llmgw.base.ids import NodeName
from llmgw.fleet.order import NodeOrder
from llmgw.fleet.view import report_of
from llmgw.plan.snapshot import LeftOut, Snapshot


def not_heard_of(snapshot: Snapshot, node: NodeName) -> Iterator[LeftOut]:
    """Yield what was left out of a node's order earlier and may still be there, for all that the node has said."""
    report = report_of(snapshot.nodes[node])
    obeyed = (report.epoch, report.generation) if report is not None else (0, 0)
    for one in snapshot.previous.left_out.get(node, ()):
        if obeyed < (snapshot.epoch, one.generation):
            yield one


def left_out_by(snapshot: Snapshot, orders: Mapping[NodeName, NodeOrder]) -> dict[NodeName, tuple[LeftOut, ...]]:
    """Return what each node may have after these orders without ever having said so."""
    found = {}
    for node, order in orders.items():
        remembered = [*not_heard_of(snapshot, node)]
        before = snapshot.previous.orders.get(node)
        if before is not None and before is not order:
            report = report_of(snapshot.nodes[node])
            remembered += [
                LeftOut(one.spec, order.generation)
                for one in before.shards
                if order.shard(one.spec.shard) is None and (report is None or report.shard(one.spec.shard) is None)
            ]
        if remembered:
            found[node] = tuple(remembered)
    return found
