"""`plan(snapshot) -> Plan`: the brain. The server obeys it, `llmgw plan` prints it, `llmgw sim` plays it, the tests call it.

The rules, in the order applied:

1. Each model's rollout is judged: under way, done, or failed (`rollout`).
2. A drain is called off before anything new is started for the same purpose.
3. Missing replicas are started where there is room (`starts`); where there is none, something gives way only by rule
   (`preemption`).
4. Outdated replicas are drained when enough others serve without them, and surplus ones, those that serve least first.
5. What drains is stopped only when it is out of every gateway's table and nothing is in flight, or its deadline passed
   (`ends`).
6. A replica of several shards, one of which ended, starts anew as a whole (`ends`).

Nothing is decided about replicas nobody has told us of: see `Snapshot.unheard`. What is not done now is said, with what it
waits for.
"""

from dataclasses import replace
from functools import partial

from llmgw.base.ids import Generation, NodeName
from llmgw.fleet.order import NodeOrder, ShardOrder
from llmgw.fleet.view import report_of
from llmgw.plan.alarms import alarms_of
from llmgw.plan.ends import finish_drains, move_ports, remove_unwanted, restart_gangs, why_withdrawn
from llmgw.plan.left_out import left_out_by
from llmgw.plan.lora import hold_adapters
from llmgw.plan.publish import table_of
from llmgw.plan.result import Action, Plan, Verb
from llmgw.plan.rollout import call_off_drains, judge, retire
from llmgw.plan.seating import has_place
from llmgw.plan.snapshot import Snapshot
from llmgw.plan.starts import settle_debts, start_all
from llmgw.plan.suspended import stand_still
from llmgw.plan.work import Work
from llmgw.spec.model import Model


def plan(snapshot: Snapshot) -> Plan:
    """Return what should change now, and what is held back with the reason."""
    return result(decide(snapshot))


def decide(snapshot: Snapshot) -> Work:
    """Return the round after all rules were applied; `plan` makes a `Plan` of it, `explain` looks into it."""
    if snapshot.suspended is not None and snapshot.suspended.holds(snapshot.now):
        return stand_still(Work(snapshot), decide(replace(snapshot, suspended=None)), snapshot.suspended)
    work = Work(snapshot)
    for model in list(work.models.values()):
        judge(work, model)
    settle_debts(work)
    for model in _by_priority(work):
        call_off_drains(work, model)
    start_all(work)
    for model in _by_priority(work):
        retire(work, model, partial(has_place, work))
    remove_unwanted(work)
    finish_drains(work)
    move_ports(work)
    restart_gangs(work)
    hold_adapters(work)
    return work


def _by_priority(work: Work) -> list[Model]:
    return sorted(work.models.values(), key=lambda model: (-model.priority, model.name))


def result(work: Work) -> Plan:
    """Return the plan that a round makes."""
    snapshot = work.snapshot
    orders = _orders(work)
    replicas = list(work.replicas.values())
    table, published, withdrawn = table_of(snapshot, work.models, replicas)
    known = {one.id: one for one in [*replicas, *work.stopped]}
    for endpoint in published:
        work.act(Verb.PUBLISH, known[endpoint.id], f"it is ready at {endpoint.address}")
    for endpoint in withdrawn:
        one = known.get(endpoint.id)
        node = one.node if one else NodeName("?")
        work.actions.append(Action(Verb.WITHDRAW, endpoint.id, endpoint.model, node, why_withdrawn(one)))
    return Plan(
        based_on=work.catalog.revision,
        orders=orders,
        table=table,
        draining=dict(sorted(work.draining.items())),
        actions=tuple(work.actions),
        holds=tuple(work.holds.values()),
        settled=not work.unheard,
        told=snapshot.previous.told or not work.unheard,
        cause=snapshot.cause,
        alarms=alarms_of(work),
        rollouts=work.rollouts,
        gave_up=work.gave_up,
        good={name: model for name, model in work.good.items() if name in work.catalog.models},
        preempted=work.preempted,
        braked=work.losses.held,
        catalog=work.catalog if _as_written(work) else None,
        left_out=left_out_by(snapshot, orders),
        owed=work.owed,
    )


def _orders(work: Work) -> dict[NodeName, NodeOrder]:
    snapshot = work.snapshot
    # what was ordered by the same catalog, and was not touched in this round, is ordered again as it is
    fresh = snapshot.previous.catalog is snapshot.catalog and _as_written(work)
    same = {name for name in snapshot.previous.orders if fresh and name not in work.changed}
    shards: dict[NodeName, list[ShardOrder]] = {}
    for one in work.replicas.values():
        if not one.leaving and not same.issuperset(one.nodes):
            for part, spec in zip(one.parts, work.refreshed(one), strict=True):
                if part.leaving:
                    continue
                shards.setdefault(part.node, []).append(ShardOrder(spec, one.draining))
    orders = {}
    for name in sorted(snapshot.nodes):
        if work.may_command(name):
            wanted = (
                snapshot.previous.orders[name].shards
                if name in same
                else tuple(sorted(shards.get(name, ()), key=lambda one: one.spec.shard))
            )
            orders[name] = _order(work, name, wanted)
    return orders


def _as_written(work: Work) -> bool:
    """Whether no model was reverted."""
    return all(work.models[name] is model for name, model in work.catalog.models.items())


def _order(work: Work, name: NodeName, shards: tuple[ShardOrder, ...]) -> NodeOrder:
    snapshot = work.snapshot
    node = work.catalog.nodes.get(name)
    before = snapshot.previous.orders.get(name)
    weights_dir = node.weights_dir if node else (before.weights_dir if before else None)
    report = report_of(snapshot.nodes[name])
    # a node that left the catalog and came back has obeyed generations of this epoch that were forgotten here
    obeyed = report.generation if report and report.epoch == snapshot.epoch else 0
    same = before is not None and (before.shards, before.weights_dir) == (shards, weights_dir)
    if before is not None and same and obeyed <= before.generation:
        return before
    generation = Generation(max(before.generation if before else 0, obeyed) + 1)
    return NodeOrder(name, snapshot.epoch, generation, shards, weights_dir, snapshot.cause)
