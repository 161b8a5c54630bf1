"""Checks any plan against the snapshot it was made from, for the rules of safety.

It shares no code with the planner's decisions, so that one mistake does not hide in both. A plan that fails is not
carried out, and that is an alarm.
"""

from collections import Counter

from llmgw.base.ids import NodeName, ShardId
from llmgw.fleet.report import SERVING, Phase, ShardReport
from llmgw.fleet.usage import is_quiet
from llmgw.fleet.view import NeverSeen, report_of
from llmgw.plan.result import Plan
from llmgw.plan.snapshot import Snapshot

SURGE_ALLOWED = 1


def check(plan: Plan, snapshot: Snapshot) -> tuple[str, ...]:
    """Return every rule that the plan breaks, in words; none if it may be carried out."""
    return (
        *_claims(plan),
        *_counts(plan, snapshot),
        *_ignorance(plan, snapshot),
        *_stops(plan, snapshot),
        *_last_serving(plan, snapshot),
        *_table(plan, snapshot),
        *_generations(plan, snapshot),
    )


def _claims(plan: Plan) -> list[str]:
    """Rule 1: what can be had once is claimed once."""
    broken = []
    for node, order in plan.orders.items():
        ports = Counter(one.spec.port + n for one in order.shards for n in range(one.spec.ports))
        broken += [f"port {port} of {node} is given to {count} shards" for port, count in ports.items() if count > 1]
    shards = Counter(one.spec.shard for order in plan.orders.values() for one in order.shards)
    broken += [f"shard {shard} is ordered {count} times" for shard, count in shards.items() if count > 1]
    return broken


def _counts(plan: Plan, snapshot: Snapshot) -> list[str]:
    """Rule 1: nothing is started beyond what is wanted plus surge. More may be found than that: nodes come back."""
    held = {shard for node in snapshot.nodes for shard in _held(snapshot, node)}
    started = {one.spec.model for order in plan.orders.values() for one in order.shards if one.spec.shard not in held}
    counts = Counter(one.spec.model for order in plan.orders.values() for one in order.shards if not one.draining)
    return [
        f"{count} replicas of {name} would run, {model.replicas} are wanted"
        for name, model in snapshot.catalog.models.items()
        if (count := counts[name]) > model.replicas + SURGE_ALLOWED and name in started
    ]


def _ignorance(plan: Plan, snapshot: Snapshot) -> list[str]:
    """Rule 2: no order is built for a node of which nothing is known."""
    return [
        f"an order for {node}, which has never spoken"
        for node in plan.orders
        if isinstance(snapshot.nodes.get(node, NeverSeen(snapshot.now)), NeverSeen)
        and node not in snapshot.previous.orders
    ]


def _stops(plan: Plan, snapshot: Snapshot) -> list[str]:
    """Rule 3: withdrawn, then drained, then stopped. A shard that vanishes from an order is stopped."""
    broken = []
    published = {endpoint.id for endpoint in snapshot.previous.table.endpoints}
    limit = snapshot.catalog.cluster.router.timeouts.drain
    for node in snapshot.nodes:
        kept = {one.spec.shard for one in plan.orders[node].shards} if node in plan.orders else None
        for shard, report in _held(snapshot, node).items():
            if kept is None or shard in kept or (report is not None and not _has_process(report)):
                continue
            replica = report.spec.replica if report else snapshot.previous.orders[node].shard(shard).spec.replica  # type: ignore[union-attr] # held without a report means ordered
            since = snapshot.previous.draining.get(replica)
            late = since is not None and snapshot.now - since >= limit and snapshot.usage.current
            if replica in published:
                broken.append(f"{shard} would be stopped while it is published")
            elif since is None:
                broken.append(f"{shard} would be stopped without having been drained")
            elif not is_quiet(snapshot.usage.of(replica)) and not late:
                broken.append(
                    f"{shard} would be stopped with requests in flight, or without knowing that there are none"
                )
    return broken


def _held(snapshot: Snapshot, node: NodeName) -> dict[ShardId, ShardReport | None]:
    """Return what the node holds and is not already on its way out."""
    report = report_of(snapshot.nodes[node])
    reported = {one.spec.shard: one for one in report.shards} if report else {}
    order = snapshot.previous.orders.get(node)
    if order is None:
        return {shard: one for shard, one in reported.items() if one.phase is not Phase.STOPPING}
    return {one.spec.shard: reported.get(one.spec.shard) for one in order.shards}


def _has_process(report: ShardReport) -> bool:
    return report.phase not in (Phase.WAITING, Phase.BACKOFF, Phase.FAILED)


def _last_serving(plan: Plan, snapshot: Snapshot) -> list[str]:
    """Rule 4: the last published replica of a wanted model stays, while it is ready and can be reached."""
    ordered = {one.spec.replica: one for order in plan.orders.values() for one in order.shards}
    serving = {
        one.spec.replica
        for view in snapshot.nodes.values()
        if (report := report_of(view)) is not None
        for one in report.shards
        if one.phase in SERVING
    }
    broken = []
    for name, model in snapshot.catalog.models.items():
        before = [endpoint for endpoint in snapshot.previous.table.endpoints if endpoint.model == name]
        after = [endpoint for endpoint in plan.table.endpoints if endpoint.model == name]
        drained = [one for one in before if one.id in serving and one.id in ordered and ordered[one.id].draining]
        if model.replicas > 0 and before and not after and drained:
            broken.append(f"the last serving replica of {name} ({drained[0].id}) would be drained")
    return broken


def _table(plan: Plan, snapshot: Snapshot) -> list[str]:
    """Rule 3: nothing that drains or is not wanted is published; a node without an order is taken at its word."""
    running = {one.spec.replica for order in plan.orders.values() for one in order.shards if not one.draining}
    for node, view in snapshot.nodes.items():
        report = report_of(view)
        if node not in plan.orders and report is not None:
            running |= {one.spec.replica for one in report.shards if not one.draining}
    return [f"{one.id} is published and is not meant to run" for one in plan.table.endpoints if one.id not in running]


def _generations(plan: Plan, snapshot: Snapshot) -> list[str]:
    """Rule 8: a changed order has a greater generation."""
    return [
        f"the order for {node} changed without a greater generation"
        for node, order in plan.orders.items()
        if (before := snapshot.previous.orders.get(node)) is not None and order != before and order.rank <= before.rank
    ]
