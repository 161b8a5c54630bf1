"""What watches the worlds is seen to notice: a card or a port used twice, an older order obeyed, a stop under load."""

import asyncio
from dataclasses import replace

from llmgw.fleet.report import Gpu
from llmgw.sim.loop import simulate
from llmgw.sim.world import World
from tests.builders import catalog, model, node, spec_of


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
