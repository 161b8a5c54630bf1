"""What watches the worlds is seen to notice: a card or a port used twice, an older order obeyed, a stop under load."""

import asyncio
from dataclasses import replace

from llmgw.fleet.report import Gpu
from llmgw.sim.loop import simulate
from llmgw.sim.world import World
from tests.builders import catalog, cluster, model, node, spec_of

CLUSTER = cluster(gpu_classes=[{"name": "h100", "match": ["H100"]}])
GANG = {"engine": "vllm", "nodes": 2, "gpu": {"class": "h100", "count": 1}, "pipeline_parallel": 2}


def violations(spoil) -> list[str]:
    async def main() -> list[str]:
        world = World.begin(1, jitter=False)
        world.machine("a")
        world.commit(node("a"), model("m"))
        await world.start_control()
        await asyncio.sleep(10)
        assert world.violations == []
        await spoil(world)
        await asyncio.sleep(1)
        found = list(world.violations)
        await world.end()
        return found

    return simulate(main, 1)


def _spec(number: int, port: int, *cards: str):
    return replace(spec_of(catalog(node("a"), model("m")), "m", number, port), gpus=cards)


def test_a_card_that_two_engines_use() -> None:
    async def spoil(world: World) -> None:
        machine = world.machines["a"]
        machine.cards.append(Gpu("GPU-1", 0, "H100", 80 << 30, 0))
        machine.spawn(_spec(7, 30000, "GPU-1"), 1)
        machine.spawn(_spec(8, 30001, "GPU-1"), 1)

    assert any("card GPU-1 of a is used by 2 engines" in line for line in violations(spoil))


def test_an_older_order_that_is_obeyed() -> None:
    async def spoil(world: World) -> None:
        machine = world.machines["a"]
        machine.obeyed.append((0, 1))
        machine.changes += 1

    assert any("a obeyed (0, 1) after" in line for line in violations(spoil))


def test_an_engine_that_is_stopped_while_it_is_published() -> None:
    async def spoil(world: World) -> None:
        machine, engine = world.engine("m-1-0")
        machine.ask_to_end(engine)

    assert any("m-1-0 on a is stopped while it is published" in line for line in violations(spoil))


def test_an_agent_refuses_an_older_order_that_comes_late() -> None:
    async def spoil(world: World) -> None:
        first = world.machines["a"].orders_seen[0]
        world.commit(node("a"), model("m", 2))
        await asyncio.sleep(10)
        world.agents["a"].hear_again(first)
        await asyncio.sleep(1)
        assert len(world.running()) == 2

    assert violations(spoil) == []


def stops_of_a_gang(spoil) -> list[str]:
    """Return what is seen when the head of a replica over two nodes is stopped with a request in flight, just withdrawn."""

    async def main() -> list[str]:
        world = World.begin(1, jitter=False)
        for name in ("a", "b"):
            world.machine(name, cards=[Gpu(f"GPU-{name}", 0, "H100", 80 << 30, 0)])
        nodes = [node(name, fabric="ib") for name in ("a", "b")]
        world.commit(CLUSTER, *nodes, model("m", profile=GANG))
        await world.start_control()
        world.tasks.loop("traffic", world.gateway.traffic(0.1, 60.0))
        await asyncio.sleep(20)
        assert len(world.gateway.requests) > 5
        assert world.violations == []
        spoil(world)
        await asyncio.sleep(5)
        found = list(world.violations)
        await world.end()
        return found

    return simulate(main, 1)


def _order_anew(world: World, incarnation: int = 1) -> None:
    """Let the head's node be told to begin another incarnation, whatever the planner thinks of it."""
    machine, head = world.engine("m-1-0")
    assert machine.order is not None
    shards = tuple(replace(one, spec=replace(one.spec, incarnation=incarnation)) for one in machine.order.shards)
    world.gateway.publish(
        replace(world.gateway.newest, version=world.gateway.newest.version + 1, endpoints=()), settled=True
    )
    machine.order = replace(machine.order, shards=shards)
    machine.ask_to_end(head)


def test_a_replica_of_which_a_shard_ended_is_restarted_at_once() -> None:
    assert stops_of_a_gang(lambda world: world.machines["b"].end(world.engine("m-1-0", 1)[1])) == []


def test_a_replica_that_is_restarted_under_load_while_all_its_shards_run() -> None:
    assert any("is stopped with" in line for line in stops_of_a_gang(_order_anew))


def test_a_replica_of_which_a_shard_ended_and_that_is_stopped_under_load_for_another_reason() -> None:
    def spoil(world: World) -> None:
        world.machines["b"].end(world.engine("m-1-0", 1)[1])
        _order_anew(world, incarnation=0)

    assert any("is stopped with" in line for line in stops_of_a_gang(spoil))
