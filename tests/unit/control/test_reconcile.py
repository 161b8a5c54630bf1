"""The loop around the planner: when it decides, in which order it carries out, what it refuses, and what it says."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

import pytest

from llmgw.base.ids import NodeName, ReplicaId
from llmgw.base.time import Instant, later
from llmgw.control.acts import Acts
from llmgw.control.book import FleetBook
from llmgw.control.reconcile import Reconciler
from llmgw.fleet.report import Gpu
from llmgw.fleet.table import EndpointTable
from llmgw.fleet.usage import UsageView
from llmgw.plan.decide import plan
from llmgw.plan.result import Plan
from llmgw.plan.snapshot import Act, Snapshot
from llmgw.sim.loop import simulate
from llmgw.sim.world import World
from tests.builders import GIB, cluster, facts, model, node, report

CLUSTER = cluster(control={"interval": "5s", "unreachable_after": "10s"}, router={"timeouts": {"drain": "20s"}})


@pytest.fixture(autouse=True)
def _quiet():
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def play(story: Callable[[World], Awaitable[None]]) -> None:
    async def main() -> None:
        world = World.begin(1, jitter=False)
        await story(world)
        await world.end()

    simulate(main, 1)


def reconciler(world: World) -> Reconciler:
    assert world.control is not None
    return world.control.reconciler


def test_it_decides_nothing_while_it_does_not_lead_and_has_no_alarm_then() -> None:
    async def story(world: World) -> None:
        world.machine("a")
        world.commit(CLUSTER, node("a", expect={"gpus": 8}), model("m"))
        world.store.available = False
        await world.start_control()
        await asyncio.sleep(20)
        assert reconciler(world).last is None
        assert world.machines[NodeName("a")].order is None
        world.store.available = True
        await asyncio.sleep(20)
        assert [one.spec.replica for _, one in world.running()] == ["m-1-0"]
        assert reconciler(world).alarms == ("node a should have 8 cards; it has none",)
        world.control.leadership.heard(9)
        assert reconciler(world).alarms == ()

    play(story)


def test_it_decides_nothing_before_it_knows_what_operators_asked_for() -> None:
    async def story(world: World) -> None:
        world.machine("a")
        world.commit(CLUSTER, node("a"), model("m"))
        await world.start_control()
        control = world.control
        assert control is not None
        await asyncio.sleep(10)
        assert world.running() != []
        before = len(world.store.recorded)
        control.reconciler._acts = Acts(world.store, world.store, world.clock)
        world.commit(CLUSTER, node("a"), model("m", 3))
        await asyncio.sleep(20)
        started = [event for event in world.store.recorded[before:] if event.kind == "start"]
        assert started == []
        await control.reconciler._acts.load()
        await asyncio.sleep(10)
        assert len(world.running()) == 3

    play(story)


def test_it_waits_for_the_first_report_of_a_node_before_it_starts_anything() -> None:
    async def story(world: World) -> None:
        world.machine("a")
        world.machine("b")
        world.lose("b")
        world.commit(CLUSTER, node("a"), node("b"), model("m"))
        await world.start_control()
        await asyncio.sleep(8)
        assert world.running() == []
        await asyncio.sleep(10)
        assert [machine.name for machine, _ in world.running()] == ["a"], "after its grace, without it"

    play(story)


def test_a_plan_that_breaks_a_rule_is_not_carried_out_and_is_an_alarm_until_one_does_not() -> None:
    async def story(world: World) -> None:
        world.machine("a")
        world.commit(CLUSTER, node("a"), model("m"))
        await world.start_control()
        control = world.control
        assert control is not None
        await asyncio.sleep(10)
        order = world.machines[NodeName("a")].order
        world.loop.after_step = None
        control.reconciler._planner = _without_orders
        await asyncio.sleep(20)
        assert world.machines[NodeName("a")].order == order, "nothing was stopped"
        assert control.reconciler.alarms[0].startswith("a plan was not carried out: m-1-0.s0 would be stopped")
        control.reconciler._planner = plan
        await asyncio.sleep(10)
        assert control.reconciler.alarms == ()

    play(story)


def _without_orders(snapshot: Snapshot) -> Plan:
    """Plan badly: stop what serves."""
    good = plan(snapshot)
    orders = {name: replace(order, shards=(), generation=order.generation + 1) for name, order in good.orders.items()}
    return replace(good, orders=orders)


@dataclass
class _Journal:
    """Notes the order in which tables and orders go out."""

    lines: list[str] = field(default_factory=list)


def test_endpoints_are_published_before_anything_is_stopped() -> None:
    async def story(world: World) -> None:
        journal = _Journal()
        world.machine("a")
        world.commit(CLUSTER, node("a"), model("m"))
        await world.start_control()
        await asyncio.sleep(10)
        control = world.control
        assert control is not None
        endpoints, sessions = control.reconciler._endpoints, control.reconciler._sessions

        class Endpoints:
            def publish(self, table: EndpointTable, *, settled: bool) -> None:
                journal.lines.append(f"table of {len(table.endpoints)}")
                endpoints.publish(table, settled=settled)

            def usage(self) -> UsageView:
                return world.gateway.usage()

        send = sessions.send

        def noted(orders):
            wanted = sorted(one.spec.replica + "~" * one.draining for order in orders.values() for one in order.shards)
            journal.lines.append(f"order of {wanted}")
            send(orders)

        control.reconciler._endpoints = Endpoints()
        sessions.send = noted  # type: ignore[method-assign]
        world.commit(CLUSTER, node("a"))
        await asyncio.sleep(10)
        changed = [line for n, line in enumerate(journal.lines) if line not in journal.lines[max(0, n - 2) : n]]
        assert changed == ["table of 0", "order of ['m-1-0~']", "order of []"]

    play(story)


def test_an_order_that_got_lost_is_sent_again() -> None:
    async def story(world: World) -> None:
        machine = world.machine("a")
        machine.loses_orders = 2
        world.commit(CLUSTER, node("a"), model("m"))
        await world.start_control()
        await asyncio.sleep(8)
        assert world.running() == []
        await asyncio.sleep(40)
        assert [one.spec.replica for _, one in world.running()] == ["m-1-0"]
        assert machine.loses_orders == 0

    play(story)


def test_a_node_that_does_not_answer_delays_no_other() -> None:
    async def story(world: World) -> None:
        for name in "abc":
            world.machine(name)
        world.commit(CLUSTER, *(node(name) for name in "abc"), model("m", 3))
        await world.start_control()
        await asyncio.sleep(15)
        assert len(world.running()) == 3
        world.lose("a", silently=True)
        before = world.loop.time()
        world.commit(CLUSTER, *(node(name) for name in "abc"), model("m", 3), model("n", 3))
        while {machine.name for machine, one in world.running() if one.spec.model == "n"} != {"b", "c"}:
            assert world.loop.time() - before < 5.0
            await asyncio.sleep(0.1)

    play(story)


def test_acts_are_seen_by_the_next_decision_and_outlive_a_restart() -> None:
    async def story(world: World) -> None:
        for name in "ab":
            world.machine(name)
        world.commit(CLUSTER, node("a"), node("b"), model("m"))
        await world.start_control()
        await asyncio.sleep(10)
        control = world.control
        assert control is not None
        await control.acts.add([Act("drain", "node/a", "new memory", world.clock.now())])
        control.reconciler.wake()
        await asyncio.sleep(10)
        assert [machine.name for machine, _ in world.running()] == ["b"]
        await world.restart_control(release=True)
        await asyncio.sleep(30)
        assert [machine.name for machine, _ in world.running()] == ["b"]
        assert [act.target for act in world.control.acts.current or ()] == ["node/a"]
        world.commit(CLUSTER, node("b"), model("m"))
        await asyncio.sleep(30)
        assert world.control.acts.current == ()
        assert world.store.acts == (), "what is over leaves the store, too"

    play(story)


class _Clock:
    def now(self) -> Instant:
        return later(Instant(0.0), 1000)


def test_a_card_that_gets_sick_or_taken_wakes_the_loop_and_one_that_is_a_little_fuller_does_not() -> None:
    wakes: list[int] = []
    book = FleetBook(_Clock(), lambda: wakes.append(1))
    book.expect(NodeName("a"))
    card = Gpu("GPU-1", 0, "H100", 80 * GIB, 0)
    connection = book.connecting(NodeName("a"))

    def hear(*cards: Gpu) -> int:
        before = len(wakes)
        book.heard(NodeName("a"), connection, report("a", gpus=cards, facts=facts()), {})
        return len(wakes) - before

    hear(card)
    assert hear(replace(card, memory_used=5 * GIB)) == 0
    assert hear(replace(card, unhealthy="XID 79")) == 1
    assert hear() == 1


def test_a_rollout_that_failed_is_an_alarm() -> None:
    async def story(world: World) -> None:
        world.machine("a")
        world.commit(CLUSTER, node("a"), model("m"))
        await world.start_control()
        await asyncio.sleep(10)
        world.commit(CLUSTER, node("a"), model("m", 1, "--hang", rollout={"deadline": "30s"}))
        await asyncio.sleep(60)
        assert reconciler(world).alarms == (
            "the rollout of model/m failed: nothing new has served for 30s (rollout.deadline)",
        )
        assert [endpoint.id for endpoint in world.gateway.newest.endpoints] == [ReplicaId("m-1-0")]

    play(story)
