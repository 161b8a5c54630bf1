"""Planners that are spoilt in one way each, and the proof that they are caught: a check never seen to fail is not trusted.

Every breach is a wrapper around the real planner. The machine of `planner_machine` lives with it until `plan.check` or a
rule of the machine's own complains; a breach that lives through all examples fails the test. What complains is said, too:
in the server there is `plan.check` alone, so most must be caught by it.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from llmgw.base.ids import Generation, replica_id, shard_id
from llmgw.fleet.order import ShardOrder
from llmgw.fleet.table import Endpoint, TcpAddress
from llmgw.fleet.usage import Unknown, UsageView
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
]


@pytest.mark.parametrize(("breach", "told"), CAUGHT, ids=[breach.__name__ for breach, _ in CAUGHT])
def test_a_spoilt_planner_is_caught(breach, told) -> None:
    spoilt_machine = type("SpoiltMachine", (PlannerMachine,), {"planner": staticmethod(breach)})
    quick = settings(
        max_examples=300,
        stateful_step_count=30,
        deadline=None,
        derandomize=True,
        database=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    with pytest.raises(AssertionError, match=told):
        run_state_machine_as_test(spoilt_machine, settings=quick)
