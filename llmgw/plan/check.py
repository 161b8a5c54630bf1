"""Checks any plan against the snapshot it was made from, for the rules of safety.

It shares no code with the planner's decisions, so that one mistake does not hide in both. A plan that fails is not
carried out, and that is an alarm.
"""

from collections import Counter

from llmgw.base.ids import ModelName, NodeName, ReplicaId, ShardId
from llmgw.engines.shard import ShardSpec
from llmgw.fleet.order import NodeOrder, ShardOrder
from llmgw.fleet.report import SERVING, Phase, ShardReport
from llmgw.fleet.static import is_static
from llmgw.fleet.table import Endpoint
from llmgw.fleet.usage import Idle, is_quiet
from llmgw.fleet.view import NeverSeen, Reporting, Unreachable, report_of
from llmgw.plan.result import Plan
from llmgw.plan.snapshot import Snapshot

MUCH = 512 << 20
"""Bytes that strangers may hold of a card that is given to a shard."""


def check(plan: Plan, snapshot: Snapshot) -> tuple[str, ...]:
    """Return every rule that the plan breaks, in words; none if it may be carried out."""
    return (
        *_claims(plan, snapshot),
        *_cards(plan, snapshot),
        *(_suspended(plan, snapshot) if _is_suspended(snapshot) else _gangs(plan, snapshot)),
        *_counts(plan, snapshot),
        *_ignorance(plan, snapshot),
        *_stops(plan, snapshot),
        *_last_serving(plan, snapshot),
        *_too_early(plan, snapshot),
        *_preemptions(plan, snapshot),
        *_table(plan, snapshot),
        *_generations(plan, snapshot),
    )


def _claims(plan: Plan, snapshot: Snapshot) -> list[str]:
    """Rule 1: what can be had once is claimed once, and not before what had it is gone."""
    broken = []
    for node, order in plan.orders.items():
        ports = Counter(one.spec.port + n for one in order.shards for n in range(one.spec.ports))
        broken += [f"port {port} of {node} is given to {count} shards" for port, count in ports.items() if count > 1]
        cards = Counter(card for one in order.shards for card in one.spec.gpus)
        given = {card for one in order.shards for card in one.spec.gpus if card not in _given(snapshot, node, one)}
        cards.update(card for spec in _leaving(order, snapshot) for card in spec.gpus if card in given)
        broken += [f"card {card} of {node} is claimed by {count} shards" for card, count in cards.items() if count > 1]
    shards = Counter(one.spec.shard for order in plan.orders.values() for one in order.shards)
    broken += [f"shard {shard} is ordered {count} times" for shard, count in shards.items() if count > 1]
    unheard = {spec.shard: node for node in snapshot.nodes for spec in _unheard(snapshot, node)}
    broken += [
        f"shard {shard} is ordered, and may still be on {unheard[shard]}" for shard in shards if shard in unheard
    ]
    return broken


def _given(snapshot: Snapshot, node: NodeName, one: ShardOrder) -> tuple[str, ...]:
    """Return the cards that a shard was given before: if another engine shows up on them later, they are not given again."""
    before = snapshot.previous.orders.get(node)
    if before is not None:
        known = before.shard(one.spec.shard)
        return known.spec.gpus if known is not None else ()
    report = _held(snapshot, node).get(one.spec.shard) if node in snapshot.nodes else None
    return report.spec.gpus if report is not None else ()


def _leaving(order: NodeOrder, snapshot: Snapshot) -> list[ShardSpec]:
    """Return what the order leaves out and is not known to be gone."""
    if order.node not in snapshot.nodes:
        return []
    report = report_of(snapshot.nodes[order.node])
    reported = [one.spec for one in report.shards if order.shard(one.spec.shard) is None] if report else []
    return [*reported, *_unheard(snapshot, order.node)]


def _unheard(snapshot: Snapshot, node: NodeName) -> list[ShardSpec]:
    """Return what was taken back from a node that has not said yet that it obeyed this, and what it does not report."""
    report = report_of(snapshot.nodes[node])
    rank = (report.epoch, report.generation) if report else (0, 0)
    return [
        one.spec
        for one in snapshot.previous.left_out.get(node, ())
        if rank < (snapshot.epoch, one.generation) and (report is None or report.shard(one.spec.shard) is None)
    ]


def _is_suspended(snapshot: Snapshot) -> bool:
    return snapshot.suspended is not None and snapshot.suspended.holds(snapshot.now)


def _suspended(plan: Plan, snapshot: Snapshot) -> list[str]:
    """While suspended, a node is ordered what it has, as it has it: a gang that lost a shard included."""
    held = {node: _held(snapshot, node) for node in plan.orders if node in snapshot.nodes}
    drains: set[ReplicaId] = set()
    for node, reports in held.items():
        before = snapshot.previous.orders.get(node)
        known = list(before.shards) if before is not None else [one for one in reports.values() if one is not None]
        drains.update(one.spec.replica for one in known if one.draining)
    broken = []
    for node, order in plan.orders.items():
        ordered = {one.spec.shard: one for one in order.shards}
        there = held.get(node, {})
        broken += [f"{shard} would be started while suspended" for shard in ordered if shard not in there]
        broken += [f"{shard} would be stopped while suspended" for shard in there if shard not in ordered]
        broken += [
            f"whether {shard} drains would change while suspended"
            for shard, one in ordered.items()
            if shard in there and one.draining != (one.spec.replica in drains)
        ]
    return broken


def _cards(plan: Plan, snapshot: Snapshot) -> list[str]:
    """Rule 1: what is started gets only cards that are well and nobody else's, on nodes that may have something new."""
    asked = {act.target for act in snapshot.acts if act.until is None or snapshot.now < act.until}
    broken = []
    for node, order in plan.orders.items():
        if node not in snapshot.nodes:
            continue
        report = report_of(snapshot.nodes[node])
        held = _held(snapshot, node)
        cards = {gpu.uuid: gpu for gpu in report.gpus} if report else {}
        for one in order.shards:
            shard = one.spec.shard
            if shard in held or (report is not None and report.shard(shard) is not None):
                continue
            if f"node/{node}" in asked:
                broken.append(f"{shard} is started on node {node}, which is cordoned")
            for uuid in one.spec.gpus:
                card = cards.get(uuid)
                if f"gpu/{uuid}" in asked:
                    broken.append(f"{shard} is started on card {uuid}, which is cordoned")
                if card is not None and card.unhealthy:
                    broken.append(f"card {uuid} is given to {shard}, and is unhealthy")
                strangers = [user for user in card.users if user.shard is None] if card is not None else []
                if sum(MUCH + 1 if user.memory is None else user.memory for user in strangers) > MUCH:
                    broken.append(f"card {uuid} is given to {shard}, and is used by pid {strangers[0].pid}")
    return broken


def _gangs(plan: Plan, snapshot: Snapshot) -> list[str]:
    """Rule 1: all shards of a replica are started, each on a node of its own, or none. What runs may be found in part."""
    parts: dict[ReplicaId, list[tuple[NodeName, ShardOrder]]] = {}
    for node, order in plan.orders.items():
        for one in order.shards:
            if one.spec.shards > 1:
                parts.setdefault(one.spec.replica, []).append((node, one))
    broken = []
    for replica, found in parts.items():
        if len({node for node, _ in found}) < len(found):
            broken.append(f"two shards of {replica} are on one node")
        if len({one.spec.incarnation for _, one in found if not one.draining}) > 1:
            broken.append(f"shards of {replica} are ordered in different incarnations")
        new = [node for node, one in found if node not in snapshot.nodes or one.spec.shard not in _held(snapshot, node)]
        if new and len(found) < found[0][1].spec.shards:
            broken.append(f"{len(found)} of the {found[0][1].spec.shards} shards of {replica} are ordered")
    return broken


def _counts(plan: Plan, snapshot: Snapshot) -> list[str]:
    """Rule 1: nothing is started beyond what is wanted plus surge. More may be found than that: nodes come back.

    What gave up does not run, and what stands on a node that is lost is replaced, unless the brake holds (rule 7).
    """
    held = {shard: report for node in snapshot.nodes for shard, report in _held(snapshot, node).items()}
    lost_nodes = _lost(snapshot)
    lost = {one.spec.replica for node, order in plan.orders.items() if node in lost_nodes for one in order.shards}
    started: set[ModelName] = set()
    counts: Counter[ModelName] = Counter()
    for order in plan.orders.values():
        for one in order.shards:
            if one.spec.rank > 0:
                continue
            report = held.get(one.spec.shard)
            if one.spec.shard not in held:
                started.add(one.spec.model)
            if (
                not one.draining
                and one.spec.replica not in lost
                and (report is None or report.phase is not Phase.FAILED)
            ):
                counts[one.spec.model] += 1
    return [
        f"{count} replicas of {name} would run, {model.replicas} are wanted"
        for name, model in snapshot.catalog.models.items()
        if (count := counts[name]) > model.replicas + model.rollout.max_surge and name in started
    ]


def _lost(snapshot: Snapshot) -> set[NodeName]:
    control = snapshot.catalog.cluster.control
    gone = {
        name: view.since
        for name, view in snapshot.nodes.items()
        if isinstance(view, Unreachable) and name in snapshot.catalog.nodes
    }
    lost = set()
    for name, since in gone.items():
        near = sum(abs(since - other) <= control.lost_after for other in gone.values())
        braked = near >= max(control.brake.min_nodes, control.brake.share * len(snapshot.catalog.nodes))
        if snapshot.now - since >= control.lost_after and not braked:
            lost.add(name)
    return lost


def _ignorance(plan: Plan, snapshot: Snapshot) -> list[str]:
    """Rule 2: no order is built for a node of which nothing is known."""
    return [
        f"an order for {node}, which has never spoken"
        for node in plan.orders
        if isinstance(snapshot.nodes.get(node, NeverSeen(snapshot.now)), NeverSeen)
        and node not in snapshot.previous.orders
    ]


def _stops(plan: Plan, snapshot: Snapshot) -> list[str]:
    """Rule 3: withdrawn, then drained, then stopped: what vanishes from an order, or is ordered by another spec."""
    broken = []
    published = {endpoint.id for endpoint in snapshot.previous.table.endpoints}
    limit = snapshot.catalog.cluster.router.timeouts.drain
    for node in snapshot.nodes:
        kept = {one.spec.shard: one.spec.hash for one in plan.orders[node].shards} if node in plan.orders else None
        for shard, report in _held(snapshot, node).items():
            if kept is None or (report is not None and not _has_process(report)):
                continue
            if shard in kept and (report is None or report.spec.hash == kept[shard]):
                continue
            replica = report.spec.replica if report else snapshot.previous.orders[node].shard(shard).spec.replica  # type: ignore[union-attr] # held without a report means ordered
            since = snapshot.previous.draining.get(replica)
            late = since is not None and snapshot.now - since >= limit and snapshot.usage.current
            if replica in published:
                broken.append(f"{shard} would be stopped while it is published")
            elif replica in snapshot.usage.routed:
                broken.append(f"{shard} would be stopped while gateways of another control plane may send it requests")
            elif since is None:
                broken.append(f"{shard} would be stopped without having been drained")
            elif report is not None and report.spec.rank == 0 and not report.draining:
                broken.append(f"{shard} would be stopped before its node has said that it drains")
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
    ready = Counter(
        one.spec.replica
        for view in snapshot.nodes.values()
        if (report := report_of(view)) is not None
        for one in report.shards
        if one.phase in SERVING
    )
    serving = {name for name, count in ready.items() if name in ordered and count == ordered[name].spec.shards}
    broken = []
    for name, model in snapshot.catalog.models.items():
        before = [endpoint for endpoint in snapshot.previous.table.endpoints if endpoint.model == name]
        after = [one for one in plan.table.endpoints if one.model == name and not is_static(one.id)]
        drained = [one for one in before if one.id in serving and one.id in ordered and ordered[one.id].draining]
        asked = model.rollout.strategy == "recreate"
        if model.replicas > 0 and before and not after and drained and not asked and not _preempted(plan, drained):
            broken.append(f"the last serving replica of {name} ({drained[0].id}) would be drained")
    return broken


def _too_early(plan: Plan, snapshot: Snapshot) -> list[str]:
    """Rule 4: what runs by an old spec is not given up for new ones none of which has been ready for long enough."""
    ages = _ages(snapshot)
    orders = [one for order in plan.orders.values() for one in order.shards if one.spec.rank == 0]
    reports = [report for view in snapshot.nodes.values() if (report := report_of(view)) is not None]
    down = {one.spec.replica for report in reports for one in report.shards if one.phase not in SERVING}
    broken = []
    for name, model in snapshot.catalog.models.items():
        if not model.rollout.min_ready or not model.replicas or model.rollout.strategy == "recreate":
            continue
        wanted = {snapshot.catalog.hash_of(model, profile) for profile in model.profiles}
        hashes = {one.spec.replica: one.spec.hash for one in orders if one.spec.model == name}
        after = [one.id for one in plan.table.endpoints if one.model == name and not is_static(one.id)]
        old = [
            one.id
            for one in snapshot.previous.table.endpoints
            if one.model == name and one.id in plan.draining and one.id not in snapshot.previous.draining
        ]
        old = [one for one in old if one not in down and one not in plan.preempted and hashes.get(one) not in wanted]
        enough = any(hashes.get(one) not in wanted or ages.get(one, 0.0) >= model.rollout.min_ready for one in after)
        if old and after and not enough:
            broken.append(f"{old[0]} would be drained, and {after[0]} has not been ready for its min_ready")
    return broken


def _ages(snapshot: Snapshot) -> dict[ReplicaId, float]:
    """Return since how many seconds the head of each replica has been in its phase."""
    found = {}
    for view in snapshot.nodes.values():
        report = report_of(view)
        at = view.at if isinstance(view, Reporting) else view.since
        for one in report.shards if report else ():
            if one.spec.rank == 0:
                found[one.spec.replica] = one.age + snapshot.now - at
    return found


def _preemptions(plan: Plan, snapshot: Snapshot) -> list[str]:
    """Only a replica of lower priority gives way, and one that is not known to be idle only where the model says so."""
    models = snapshot.catalog.models
    ages = _ages(snapshot)
    owners = {one.spec.replica: one.spec.model for order in plan.orders.values() for one in order.shards}
    gave_up = {
        one.spec.replica
        for view in snapshot.nodes.values()
        if (report := report_of(view)) is not None
        for one in report.shards
        if one.phase is Phase.FAILED
    }
    broken = []
    for replica, by in plan.preempted.items():
        model = owners.get(replica)
        if replica in snapshot.previous.preempted or model is None or model not in models or by not in models:
            continue
        if replica in gave_up:
            continue
        if ages.get(replica, 0.0) < models[model].min_life:
            broken.append(f"{replica} would give way to {by} inside its minimum life")
        if models[model].priority >= models[by].priority:
            broken.append(f"{replica} would give way to {by}, which is not more important")
        elif not models[by].preempt and not isinstance(snapshot.usage.of(replica), Idle):
            broken.append(f"{replica} would give way to {by} without being idle")
    return broken


def _preempted(plan: Plan, drained: list[Endpoint]) -> bool:
    """Whether the last ones gave way to a model of higher priority."""
    return all(one.id in plan.preempted for one in drained)


def _table(plan: Plan, snapshot: Snapshot) -> list[str]:
    """Rule 3: nothing that drains or is not wanted is published; a node without an order is taken at its word.

    Of upstreams that somebody else runs, exactly those that the catalog names are.
    """
    running = {one.spec.replica for order in plan.orders.values() for one in order.shards if not one.draining}
    for node, view in snapshot.nodes.items():
        report = report_of(view)
        if node not in plan.orders and report is not None:
            running |= {one.spec.replica for one in report.shards if not one.draining}
    named = {f"{name}/{model}" for name, one in snapshot.catalog.endpoints.items() for model in one.models}
    return [
        f"{one.id} is published and is not meant to run"
        for one in plan.table.endpoints
        if one.id not in (named if is_static(one.id) else running)
    ]


def _generations(plan: Plan, snapshot: Snapshot) -> list[str]:
    """Rule 8: a changed order has a greater generation."""
    return [
        f"the order for {node} changed without a greater generation"
        for node, order in plan.orders.items()
        if (before := snapshot.previous.orders.get(node)) is not None and order != before and order.rank <= before.rank
    ]
