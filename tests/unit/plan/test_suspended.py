"""While suspended nothing changes on any node, and what would change is said."""

from dataclasses import replace

import pytest

from llmgw.base.ids import ReplicaId
from llmgw.base.time import Instant, later
from llmgw.fleet.order import ShardOrder
from llmgw.fleet.report import Phase
from llmgw.plan.check import check
from llmgw.plan.decide import plan
from llmgw.plan.result import Plan
from llmgw.plan.snapshot import Act, Snapshot, Suspension
from tests.builders import FIRST, Desk, cluster, cordoned, held, model, node, ordered, published, told

A, B = node("a"), node("b")


def _suspended(desk: Desk, *acts: Act, after: float = 1.0) -> tuple[Snapshot, Plan]:
    """Plan once while suspended, and take it for carried out."""
    desk.now = later(desk.now, after)
    suspension = Suspension("works", "ann@host", Instant(desk.now - 1), Instant(desk.now + 100))
    snapshot = replace(desk.snapshot(), suspended=suspension, acts=acts)
    decided = plan(snapshot)
    assert check(decided, snapshot) == ()
    desk.decided = decided.decided
    return snapshot, decided


def _serving(*objects: object) -> Desk:
    desk = Desk.of(*objects)
    desk.settle()
    return desk


def test_nothing_is_started_and_what_would_be_is_said() -> None:
    desk = Desk.of(A, model("m", 2))
    _, decided = _suspended(desk)
    assert told(decided) == []
    assert ordered(decided) == {"a": []}
    waits = held(decided)["model/m: start m-1-0 on a (2 wanted, 0 there; fewest replicas on a, port 20000)"]
    assert waits == "the end of the suspension: ann@host, until 1970-01-01T00:18Z (works)"


@pytest.mark.parametrize(
    "change",
    [
        pytest.param([A, B, model("m", 1, "--other")], id="another spec"),
        pytest.param([A, B, model("m", 0)], id="fewer"),
        pytest.param([A, B], id="removed"),
        pytest.param([cordoned("a"), B, model("m", 1)], id="cordoned"),
    ],
)
def test_nothing_is_moved_drained_or_stopped(change) -> None:
    desk = _serving(A, B, model("m"))
    before = desk.decided.orders
    desk.want(*change)
    _, decided = _suspended(desk)
    assert told(decided) == []
    assert decided.orders == before
    assert published(decided) == ["m-1-0"]
    assert any("suspension" in waits for waits in held(decided).values())


def test_a_drain_that_is_under_way_stands_still_and_goes_on_afterwards() -> None:
    desk = _serving(A, B, model("m", 2))
    desk.want(A, B, model("m", 1))
    assert "drain m-1-1 @b" in told(desk.plan())
    draining = desk.decided.orders
    for _ in range(3):
        _, decided = _suspended(desk, after=10.0)
        assert told(decided) == []
        assert decided.orders == draining
    desk.obey()
    assert any(line.startswith("stop") for line in told(desk.plan()))


def test_an_operators_act_waits_too() -> None:
    desk = _serving(A, B, model("m"))
    _, decided = _suspended(desk, Act("drain", "node/a", "new memory", desk.now))
    assert told(decided) == []
    assert any("start m-1-1 on b" in what for what in held(decided))


def test_what_dies_is_withdrawn_and_what_comes_back_is_published() -> None:
    desk = _serving(A, model("m"))
    desk.phase("m-1-0", Phase.BACKOFF)
    _, decided = _suspended(desk)
    assert told(decided) == ["withdraw m-1-0 @a"]
    assert published(decided) == []
    desk.phase("m-1-0", Phase.READY)
    assert published(_suspended(desk)[1]) == ["m-1-0"]


def test_a_lost_node_is_not_replaced() -> None:
    desk = _serving(cluster(control={"brake": {"share": "100%"}}), A, B, node("c"), model("m"))
    name, _ = desk.shard("m-1-0")
    desk.lose(name)
    _, decided = _suspended(desk, after=1000.0)
    assert not any(line.startswith("start") for line in told(decided))
    assert any(what.startswith("model/m: start m-1-1") for what in held(decided))


def test_a_rollouts_clock_stands_still() -> None:
    desk = _serving(A, B, model("m"))
    desk.want(A, B, model("m", 1, "--new", rollout={"deadline": "1m"}))
    desk.plan()
    desk.obey(Phase.STARTING)
    _suspended(desk, after=30.0)
    _suspended(desk, after=600.0)
    decided = desk.plan(after=50.0)
    assert not decided.rollouts["m"].failed
    assert desk.plan(after=50.0).rollouts["m"].failed


def test_a_fresh_control_plane_orders_what_it_finds() -> None:
    desk = _serving(A, model("m"))
    desk.decided = type(desk.decided).nothing(FIRST)
    desk.want(A, model("m", 1, "--new"))
    _, decided = _suspended(desk)
    assert ordered(decided) == {"a": ["m-1-0"]}


def test_a_suspension_that_is_over_holds_nothing_back() -> None:
    desk = Desk.of(A, model("m"))
    over = Suspension("works", "ann", Instant(0.0), desk.now)
    assert told(plan(replace(desk.snapshot(), suspended=over))) == ["start m-1-0 @a"]


def test_the_check_finds_what_changes_while_suspended() -> None:
    desk = _serving(A, model("m", 2))
    snapshot, decided = _suspended(desk)
    order = decided.orders["a"]
    spec = order.shards[0].spec
    more = replace(spec, shard="m-1-7.s0", replica=ReplicaId("m-1-7"), port=20900)
    for shards, said in [
        ((*order.shards, ShardOrder(more)), "m-1-7.s0 would be started while suspended"),
        (order.shards[1:], "m-1-0.s0 would be stopped while suspended"),
        ((ShardOrder(spec, draining=True), *order.shards[1:]), "whether m-1-0.s0 drains would change while suspended"),
    ]:
        changed = replace(order, shards=shards, generation=order.generation + 1)
        assert said in check(replace(decided, orders={"a": changed}), snapshot)
