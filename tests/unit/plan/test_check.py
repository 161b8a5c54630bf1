"""Every rule of `plan.check`, seen to fail: a good plan is made bad by hand in one way, and exactly that is said.

The checker is what stands between a mistake of the planner and the nodes, so each rule is also seen to stay silent about
the nearest plan that is allowed.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llmgw.base.cause import Cause
from llmgw.base.ids import Generation, ModelName, NodeName, ReplicaId, RestartHash, ShardId
from llmgw.base.time import Instant
from llmgw.fleet.order import NodeOrder, ShardOrder
from llmgw.fleet.report import Phase
from llmgw.fleet.table import Endpoint, EndpointTable, TcpAddress
from llmgw.fleet.usage import NO_USAGE, Active, UsageView
from llmgw.fleet.view import NeverSeen
from llmgw.plan.check import check
from llmgw.plan.decide import plan
from llmgw.plan.result import Plan
from llmgw.plan.snapshot import LeftOut, Snapshot
from tests.builders import Desk, cluster, model, node, order, shard_report, spec_of

DRAIN = cluster(router={"timeouts": {"drain": "60s"}})
A, B = node("a"), node("b")


def bad(good: Plan, orders: Mapping[str, NodeOrder] | None = None, **fields: Any) -> Plan:
    return replace(good, orders={**good.orders, **(orders or {})}, **fields)


def steady(replicas: int = 1) -> tuple[Desk, Snapshot, Plan]:
    """Return a desk where `m` serves, the next snapshot, and the good plan for it."""
    desk = Desk.of(DRAIN, A, B, model("m", replicas))
    desk.settle()
    snapshot = desk.snapshot()
    return desk, snapshot, plan(snapshot)


def again(of: NodeOrder, *shards: ShardOrder) -> NodeOrder:
    return replace(of, generation=of.generation + 1, shards=shards)


def endpoint(replica: str) -> Endpoint:
    return Endpoint(ReplicaId(replica), ModelName("m"), TcpAddress("a.test", 1), "m")


def test_what_the_planner_makes_is_clean() -> None:
    _, snapshot, good = steady()
    assert check(good, snapshot) == ()


def test_a_serving_shard_that_is_ordered_by_another_spec() -> None:
    _, snapshot, good = steady()
    (one,) = good.orders["a"].shards
    other = replace(one, spec=replace(one.spec, hash=RestartHash("another")))
    assert check(bad(good, {"a": again(good.orders["a"], other)}), snapshot) == (
        "m-1-0.s0 would be stopped while it is published",
    )
    same = replace(one, spec=replace(one.spec, args=("--other",)))
    assert check(bad(good, {"a": again(good.orders["a"], same)}), snapshot) == (), "it takes effect at its next start"


def test_a_port_given_twice() -> None:
    _, snapshot, good = steady(3)
    first, second = good.orders["a"].shards
    doubled = replace(second, spec=replace(second.spec, port=first.spec.port))
    assert check(bad(good, {"a": again(good.orders["a"], first, doubled)}), snapshot) == (
        "port 20000 of a is given to 2 shards",
    )


def test_the_same_port_on_two_nodes_is_fine() -> None:
    _, snapshot, good = steady(2)
    ports = {one.spec.port for wanted in good.orders.values() for one in wanted.shards}
    assert (ports, check(good, snapshot)) == ({20000}, ())


def test_a_shard_ordered_on_two_nodes() -> None:
    _, snapshot, good = steady()
    copy = again(good.orders["b"], good.orders["a"].shards[0])
    assert check(bad(good, {"b": copy}), snapshot) == ("shard m-1-0.s0 is ordered 2 times",)


def test_a_shard_ordered_where_another_node_may_still_have_it() -> None:
    _, snapshot, good = steady()
    spec = good.orders["a"].shards[0].spec
    newer = Generation(snapshot.previous.orders["b"].generation + 1)
    missed = replace(snapshot.previous, left_out={NodeName("b"): (LeftOut(spec, newer),)})
    assert check(good, replace(snapshot, previous=missed)) == ("shard m-1-0.s0 is ordered, and may still be on b",)
    obeyed = replace(snapshot.previous, left_out={NodeName("b"): (LeftOut(spec, Generation(newer - 1)),)})
    assert check(good, replace(snapshot, previous=obeyed)) == ()


def test_a_card_given_while_what_was_taken_back_may_still_have_it() -> None:
    desk = Desk.of(DRAIN, A, B, model("m"))
    snapshot = desk.snapshot()
    good = plan(snapshot)
    order_of_a = good.orders["a"]
    spec = replace(order_of_a.shards[0].spec, gpus=("GPU-1",))
    given = bad(good, {"a": again(order_of_a, ShardOrder(spec))})
    earlier = LeftOut(replace(spec, shard=ShardId("x-1-0.s0")), Generation(9))
    missed = replace(snapshot.previous, left_out={NodeName("a"): (earlier,)})
    assert check(given, snapshot) == ()
    assert check(given, replace(snapshot, previous=missed)) == ("card GPU-1 of a is claimed by 2 shards",)


def test_more_replicas_than_wanted_and_one() -> None:
    desk, snapshot, good = steady()
    extra = [ShardOrder(spec_of(desk.catalog, "m", number, 20000 + number)) for number in (1, 2)]
    assert check(bad(good, {"b": again(good.orders["b"], extra[0])}), snapshot) == ()
    assert check(bad(good, {"b": again(good.orders["b"], *extra)}), snapshot) == (
        "3 replicas of m would run, 1 are wanted",
    )


def test_those_that_drain_do_not_count_as_running() -> None:
    desk, snapshot, good = steady()
    extra = [ShardOrder(spec_of(desk.catalog, "m", number, 20000 + number), draining=True) for number in (1, 2, 3)]
    assert check(bad(good, {"b": again(good.orders["b"], *extra)}), snapshot) == ()


def test_an_order_for_a_node_that_never_spoke() -> None:
    desk, _, good = steady()
    desk.views[NodeName("c")] = NeverSeen(desk.now)
    snapshot = desk.snapshot()
    broken = ("an order for c, which has never spoken",)
    assert check(bad(good, {"c": order("c")}), snapshot) == broken
    desk.views.pop(NodeName("c"))
    assert check(bad(good, {"c": order("c")}), desk.snapshot()) == broken


def test_a_published_shard_that_vanishes_from_its_order() -> None:
    _, snapshot, good = steady(2)
    table = replace(good.table, version=good.table.version + 1, endpoints=good.table.endpoints[1:])
    gone = bad(good, {"a": again(good.orders["a"])}, table=table)
    assert check(gone, snapshot) == ("m-1-0.s0 would be stopped while it is published",)


def drained(usage: UsageView, waited: float) -> tuple[Snapshot, Plan]:
    """Return a snapshot where `m-1-0` has been draining for so long, and the plan that stops it."""
    desk = Desk.of(DRAIN, A, B, model("m"))
    desk.settle()
    desk.want(DRAIN, A, B)
    desk.plan()
    desk.obey()
    desk.usage = usage
    desk.now = Instant(desk.now + waited)
    snapshot = desk.snapshot()
    held = plan(snapshot)
    return snapshot, bad(held, {"a": again(held.orders["a"])}, draining={})


def test_a_stop_with_requests_in_flight_or_without_a_word_about_them() -> None:
    for usage in (NO_USAGE, UsageView({ReplicaId("m-1-0"): Active(1)})):
        snapshot, stopped = drained(usage, waited=59.0)
        assert check(stopped, snapshot) == (
            "m-1-0.s0 would be stopped with requests in flight, or without knowing that there are none",
        )


def test_a_stop_after_the_drain_deadline_is_allowed_once_every_gateway_goes_by_the_new_table() -> None:
    busy = {ReplicaId("m-1-0"): Active(1)}
    snapshot, stopped = drained(UsageView(busy, current=True), waited=61.0)
    assert check(stopped, snapshot) == ()
    snapshot, stopped = drained(UsageView(busy, current=False), waited=61.0)
    assert check(stopped, snapshot) != (), "some gateway may still send requests there"


def test_a_stop_without_a_drain() -> None:
    desk, _, _ = steady()
    desk.want(DRAIN, A, B, model("m", 2))
    desk.plan()
    desk.obey(Phase.STARTING)
    snapshot = desk.snapshot()
    good = plan(snapshot)
    expected = ("m-1-1.s0 would be stopped without having been drained",)
    assert check(bad(good, {"b": again(good.orders["b"])}), snapshot) == expected
    desk.phase("m-1-1", Phase.BACKOFF)
    assert check(bad(good, {"b": again(good.orders["b"])}), desk.snapshot()) == (), "there is no process to stop"


def test_a_shard_that_was_ordered_and_not_reported_may_have_a_process() -> None:
    desk, _, _ = steady()
    desk.want(DRAIN, A, B, model("m", 2))
    desk.plan()
    snapshot = desk.snapshot()
    good = plan(snapshot)
    assert check(bad(good, {"b": again(good.orders["b"])}), snapshot) == (
        "m-1-1.s0 would be stopped without having been drained",
    )


def test_a_first_order_that_leaves_out_what_runs() -> None:
    desk = Desk.of(DRAIN, A, B, model("m"))
    desk.hear("a", shard_report(spec_of(desk.catalog, "m")))
    snapshot = desk.snapshot()
    good = plan(snapshot)
    without = bad(good, {"a": again(good.orders["a"])}, table=replace(good.table, endpoints=()))
    assert check(without, snapshot) == ("m-1-0.s0 would be stopped without having been drained",)


def test_what_already_stops_may_be_left_out() -> None:
    desk = Desk.of(DRAIN, A, B)
    desk.hear("a", shard_report(spec_of(Desk.of(A, model("m")).catalog, "m"), Phase.STOPPING))
    snapshot = desk.snapshot()
    assert check(bad(plan(snapshot), {"a": order("a")}), snapshot) == ()


def test_the_last_serving_replica_drained() -> None:
    _, snapshot, good = steady()
    draining = replace(good.orders["a"].shards[0], draining=True)
    table = replace(good.table, version=good.table.version + 1, endpoints=())
    off = bad(good, {"a": again(good.orders["a"], draining)}, table=table, draining={ReplicaId("m-1-0"): snapshot.now})
    assert check(off, snapshot) == ("the last serving replica of m (m-1-0) would be drained",)
    switched_off = replace(snapshot, catalog=Desk.of(DRAIN, A, B, model("m", 0)).catalog)
    assert check(off, switched_off) == ()


def test_something_published_that_drains_or_is_not_ordered() -> None:
    _, snapshot, good = steady(2)
    draining = replace(good.orders["a"].shards[0], draining=True)
    off = bad(good, {"a": again(good.orders["a"], draining)}, draining={ReplicaId("m-1-0"): snapshot.now})
    assert check(off, snapshot) == ("m-1-0 is published and is not meant to run",)
    table = EndpointTable(good.table.version + 1, good.table.models, (*good.table.endpoints, endpoint("m-1-7")))
    assert check(bad(good, table=table), snapshot) == ("m-1-7 is published and is not meant to run",)


def test_a_changed_order_without_a_greater_generation() -> None:
    _, snapshot, good = steady()
    before = good.orders["b"]
    expected = ("the order for b changed without a greater generation",)
    changed = replace(before, weights_dir="/elsewhere")
    assert check(bad(good, {"b": changed}), snapshot) == expected
    assert check(bad(good, {"b": replace(changed, cause=Cause(before.cause.revision, 9))}), snapshot) == expected
    assert check(bad(good, {"b": replace(changed, generation=before.generation + 1)}), snapshot) == ()
