"""Planners that are spoilt in one way each, and the proof that they are caught: a check never seen to fail is not trusted.

Every breach is a wrapper around the real planner. The machine of `planner_machine` lives with it until `plan.check` or a
rule of the machine's own complains; a breach that lives through all examples fails the test. What complains is said, too:
in the server there is `plan.check` alone, so most must be caught by it.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from llmgw.base.ids import Generation, replica_id, shard_id
from llmgw.base.time import Instant
from llmgw.fleet.order import ShardOrder
from llmgw.fleet.report import Report
from llmgw.fleet.table import Endpoint, TcpAddress
from llmgw.fleet.usage import Idle, Unknown, UsageView
from llmgw.fleet.view import NeverSeen, Reporting, Unreachable
from llmgw.plan.decide import plan
from llmgw.plan.result import Plan
from llmgw.plan.snapshot import Snapshot
from tests.builders import order
from tests.properties.planner_machine import PlannerMachine, spoilt, with_orders

Planner = Callable[[Snapshot], Plan]


def reads_unknown_as_idle(snapshot: Snapshot) -> Plan:
    return plan(replace(snapshot, usage=UsageView({}, Unknown("nobody said anything", quiet=True), current=True)))


def reads_a_silent_node_as_empty(snapshot: Snapshot) -> Plan:
    nodes = dict(snapshot.nodes)
    orders = dict(snapshot.previous.orders)
    for name, view in snapshot.nodes.items():
        if isinstance(view, Unreachable):
            nodes[name] = Reporting(replace(view.last, shards=()), view.since, {})
            if name in orders:
                orders[name] = replace(orders[name], shards=(), generation=Generation(orders[name].generation + 1))
    return plan(replace(snapshot, nodes=nodes, previous=replace(snapshot.previous, orders=orders)))


@spoilt
def skips_the_drain(decided: Plan, _: Snapshot) -> Plan:
    orders = {
        name: replace(one, shards=tuple(shard for shard in one.shards if not shard.draining))
        for name, one in decided.orders.items()
    }
    return replace(with_orders(decided, orders), draining={})


@spoilt
def stops_what_is_published(decided: Plan, snapshot: Snapshot) -> Plan:
    gone = {endpoint.id for endpoint in snapshot.previous.table.endpoints} - {one.id for one in decided.table.endpoints}
    orders = {
        name: replace(one, shards=tuple(shard for shard in one.shards if shard.spec.replica not in gone))
        for name, one in decided.orders.items()
    }
    draining = {replica: at for replica, at in decided.draining.items() if replica not in gone}
    return replace(with_orders(decided, orders), draining=draining)


@spoilt
def gives_a_port_twice(decided: Plan, _: Snapshot) -> Plan:
    orders = {}
    for name, one in decided.orders.items():
        shards = tuple(ShardOrder(replace(each.spec, port=20000), each.draining) for each in one.shards)
        orders[name] = replace(one, shards=shards)
    return with_orders(decided, orders)


@spoilt
def drains_the_last_that_serves(decided: Plan, snapshot: Snapshot) -> Plan:
    if len(decided.table.endpoints) != 1 or not snapshot.previous.table.endpoints:
        return decided
    last = decided.table.endpoints[0].id
    orders = {}
    for name, one in decided.orders.items():
        shards = tuple(replace(each, draining=each.draining or each.spec.replica == last) for each in one.shards)
        orders[name] = replace(one, shards=shards)
    table = replace(decided.table, version=decided.table.version + 1, endpoints=())
    return replace(with_orders(decided, orders), table=table, draining={**decided.draining, last: snapshot.now})


@spoilt
def starts_three_for_one(decided: Plan, snapshot: Snapshot) -> Plan:
    orders = dict(decided.orders)
    for name, one in decided.orders.items():
        before = snapshot.previous.orders.get(name)
        for each in one.shards:
            if before is not None and before.shard(each.spec.shard) is None and not each.draining:
                copies = []
                for number in (50, 51):
                    replica = replica_id(each.spec.model, snapshot.epoch, number)
                    port = each.spec.port + number
                    copies.append(replace(each.spec, replica=replica, shard=shard_id(replica, 0), port=port))
                orders[name] = replace(one, shards=(*one.shards, *map(ShardOrder, copies)))
    return with_orders(decided, orders)


@spoilt
def runs_one_shard_on_two_nodes(decided: Plan, _: Snapshot) -> Plan:
    names = sorted(decided.orders)
    if len(names) < 2 or not decided.orders[names[0]].shards or decided.orders[names[1]].shards:
        return decided
    copy = replace(decided.orders[names[1]], shards=decided.orders[names[0]].shards)
    return with_orders(decided, {**decided.orders, names[1]: copy})


@spoilt
def publishes_what_does_not_run(decided: Plan, snapshot: Snapshot) -> Plan:
    if not snapshot.catalog.models:
        return decided
    name = next(iter(snapshot.catalog.models))
    ghost = Endpoint(replica_id(name, snapshot.epoch, 77), name, TcpAddress("10.0.0.9", 1), name)
    return replace(decided, table=replace(decided.table, endpoints=(*decided.table.endpoints, ghost)))


@spoilt
def publishes_what_is_not_ready(decided: Plan, _: Snapshot) -> Plan:
    endpoints = tuple(
        Endpoint(each.spec.replica, each.spec.model, TcpAddress(f"{name}.test", each.spec.port), each.spec.served_name)
        for name, one in decided.orders.items()
        for each in one.shards
        if not each.draining
    )
    return replace(decided, table=replace(decided.table, endpoints=endpoints))


@spoilt
def orders_a_node_that_never_spoke(decided: Plan, snapshot: Snapshot) -> Plan:
    silent = [name for name, view in snapshot.nodes.items() if isinstance(view, NeverSeen)]
    return replace(decided, orders={**decided.orders, **{name: order(name) for name in silent}})


def changes_an_order_without_saying(snapshot: Snapshot) -> Plan:
    decided = plan(snapshot)
    orders = {
        name: replace(one, generation=before.generation) if (before := snapshot.previous.orders.get(name)) else one
        for name, one in decided.orders.items()
    }
    return replace(decided, orders=orders)


def replaces_before_the_new_one_serves(snapshot: Snapshot) -> Plan:
    """Take what is published off and drain it as soon as its hash is not the wanted one."""
    decided = plan(snapshot)
    catalog = snapshot.catalog
    wanted = {catalog.hash_of(model, profile) for model in catalog.models.values() for profile in model.profiles}
    old = {one.spec.replica for each in decided.orders.values() for one in each.shards if one.spec.hash not in wanted}
    orders = {}
    for name, one in decided.orders.items():
        shards = tuple(replace(each, draining=each.draining or each.spec.replica in old) for each in one.shards)
        orders[name] = replace(one, shards=shards)
    endpoints = tuple(one for one in decided.table.endpoints if one.id not in old)
    table = decided.table if endpoints == decided.table.endpoints else replace(decided.table, endpoints=endpoints)
    since = {replica: snapshot.previous.draining.get(replica, snapshot.now) for replica in sorted(old)}
    return replace(with_orders(decided, orders), table=table, draining={**since, **decided.draining})


def reads_unknown_as_long_idle(snapshot: Snapshot) -> Plan:
    """Choose who gives way as if everything had been idle for an hour, and take the rest from the real plan."""
    endpoints = {
        one.spec.replica: Idle(Instant(snapshot.now - 3600))
        for order in snapshot.previous.orders.values()
        for one in order.shards
    }
    return plan(replace(snapshot, usage=replace(snapshot.usage, endpoints=endpoints)))


def _with_reports(snapshot: Snapshot, change: Callable[[Report], Report]) -> Snapshot:
    nodes = {
        name: replace(view, report=change(view.report)) if isinstance(view, Reporting) else view
        for name, view in snapshot.nodes.items()
    }
    return replace(snapshot, nodes=nodes)


def _with_models(snapshot: Snapshot, **update: Any) -> Snapshot:
    models = {name: model.model_copy(update=update) for name, model in snapshot.catalog.models.items()}
    return replace(snapshot, catalog=replace(snapshot.catalog, models=models))


def ignores_strangers_on_cards(snapshot: Snapshot) -> Plan:
    return plan(
        _with_reports(snapshot, lambda said: replace(said, gpus=tuple(replace(g, users=()) for g in said.gpus)))
    )


def ignores_that_a_card_is_unhealthy(snapshot: Snapshot) -> Plan:
    return plan(
        _with_reports(snapshot, lambda said: replace(said, gpus=tuple(replace(g, unhealthy="") for g in said.gpus)))
    )


def ignores_what_operators_asked_for(snapshot: Snapshot) -> Plan:
    return plan(replace(snapshot, acts=()))


def forgets_what_stopped_and_is_not_gone(snapshot: Snapshot) -> Plan:
    """Give the place of what an order left out to the next one, while its engine still runs."""

    def change(said: Report) -> Report:
        order = snapshot.previous.orders.get(said.node)
        kept = tuple(one for one in said.shards if order is None or order.shard(one.spec.shard) is not None)
        return replace(said, shards=kept)

    return plan(_with_reports(snapshot, change))


@spoilt
def gives_a_card_twice(decided: Plan, snapshot: Snapshot) -> Plan:
    """Give every shard that is new the first cards of its node."""
    orders = {}
    for name, one in decided.orders.items():
        view = snapshot.nodes[name]
        cards = tuple(gpu.uuid for gpu in view.report.gpus) if isinstance(view, Reporting) else ()
        shards = [
            replace(each, spec=replace(each.spec, gpus=cards[: len(each.spec.gpus)])) if each.spec.gpus else each
            for each in one.shards
        ]
        orders[name] = replace(one, shards=tuple(shards))
    return with_orders(decided, orders)


@spoilt
def starts_a_gang_in_part(decided: Plan, _: Snapshot) -> Plan:
    orders = {
        name: replace(one, shards=tuple(each for each in one.shards if each.spec.rank == 0))
        for name, one in decided.orders.items()
    }
    return with_orders(decided, orders)


def replaces_under_the_brake(snapshot: Snapshot) -> Plan:
    control = snapshot.catalog.cluster.control
    brake = control.brake.model_copy(update={"min_nodes": 99})
    cluster = snapshot.catalog.cluster.model_copy(update={"control": control.model_copy(update={"brake": brake})})
    previous = replace(snapshot.previous, braked={})
    return plan(replace(snapshot, catalog=replace(snapshot.catalog, cluster=cluster), previous=previous))


def replaces_a_node_that_is_not_lost_yet(snapshot: Snapshot) -> Plan:
    nodes = {
        name: replace(view, since=Instant(view.since - 1000)) if isinstance(view, Unreachable) else view
        for name, view in snapshot.nodes.items()
    }
    return plan(replace(snapshot, nodes=nodes))


def preempts_an_equal_one(snapshot: Snapshot) -> Plan:
    """Take the models for less important the earlier their name."""
    models = {
        name: model.model_copy(update={"priority": number})
        for number, (name, model) in enumerate(sorted(snapshot.catalog.models.items()))
    }
    return plan(replace(snapshot, catalog=replace(snapshot.catalog, models=models)))


def preempts_whatever_the_model_says(snapshot: Snapshot) -> Plan:
    return plan(_with_models(snapshot, preempt=True))


def preempts_inside_the_minimum_life(snapshot: Snapshot) -> Plan:
    return plan(_with_models(snapshot, min_life=0.0))


def drains_the_old_before_min_ready_passed(snapshot: Snapshot) -> Plan:
    rollout = {
        name: model.rollout.model_copy(update={"min_ready": 0.0}) for name, model in snapshot.catalog.models.items()
    }
    models = {
        name: model.model_copy(update={"rollout": rollout[name]}) for name, model in snapshot.catalog.models.items()
    }
    return plan(replace(snapshot, catalog=replace(snapshot.catalog, models=models)))


def recreates_where_nobody_asked_for_it(snapshot: Snapshot) -> Plan:
    models = {
        name: model.model_copy(update={"rollout": model.rollout.model_copy(update={"strategy": "recreate"})})
        for name, model in snapshot.catalog.models.items()
    }
    return plan(replace(snapshot, catalog=replace(snapshot.catalog, models=models)))


@spoilt
def says_nothing_of_what_is_held_back(decided: Plan, _: Snapshot) -> Plan:
    return replace(decided, holds=())


CAUGHT: list[tuple[Planner, str]] = [
    (reads_unknown_as_idle, "would be stopped with requests in flight, or without knowing that there are none"),
    (reads_a_silent_node_as_empty, "would be stopped"),
    (skips_the_drain, "would be stopped"),
    (stops_what_is_published, "would be stopped while it is published"),
    (gives_a_port_twice, "port 20000 of . is given to"),
    (drains_the_last_that_serves, "the last serving replica of"),
    (starts_three_for_one, "replicas of . would run"),
    (runs_one_shard_on_two_nodes, "is ordered 2 times"),
    (publishes_what_does_not_run, "is published and is not meant to run"),
    (publishes_what_is_not_ready, "is published and does not serve"),
    (orders_a_node_that_never_spoke, "which has never spoken"),
    (changes_an_order_without_saying, "changed without a greater generation"),
    (replaces_before_the_new_one_serves, "the last serving replica of"),
    (reads_unknown_as_long_idle, "would (give way to . without being idle|be stopped with requests in flight)"),
    (ignores_strangers_on_cards, "is given to .*, and is used by pid 4242"),
    (ignores_that_a_card_is_unhealthy, "is given to .*, and is unhealthy"),
    (ignores_what_operators_asked_for, "is started on .*, which is cordoned"),
    (forgets_what_stopped_and_is_not_gone, "is claimed by 2 shards|is given to 2 shards|without having been drained"),
    (gives_a_card_twice, "is claimed by . shards"),
    (starts_a_gang_in_part, "1 of the 2 shards of .* are ordered"),
    (replaces_under_the_brake, "replicas of . would run"),
    (replaces_a_node_that_is_not_lost_yet, "replicas of . would run"),
    (preempts_an_equal_one, "which is not more important"),
    (preempts_whatever_the_model_says, "without being idle"),
    (preempts_inside_the_minimum_life, "inside its minimum life"),
    (drains_the_old_before_min_ready_passed, "has not been ready for its min_ready"),
    (recreates_where_nobody_asked_for_it, "the last serving replica of"),
    (says_nothing_of_what_is_held_back, "are missing and nothing says why"),
]


@pytest.mark.parametrize(("breach", "told"), CAUGHT, ids=[breach.__name__ for breach, _ in CAUGHT])
def test_a_spoilt_planner_is_caught(breach, told) -> None:
    spoilt_machine = type("SpoiltMachine", (PlannerMachine,), {"planner": staticmethod(breach)})
    quick = settings(
        max_examples=1000,
        stateful_step_count=30,
        deadline=None,
        database=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    seed(1)(spoilt_machine)
    with pytest.raises(AssertionError, match=told):
        run_state_machine_as_test(spoilt_machine, settings=quick)
