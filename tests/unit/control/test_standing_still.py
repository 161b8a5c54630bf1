"""A control plane that goes on in the epoch it had, after it stood still or lost the store: what it decided holds."""

import asyncio

import pytest

from llmgw.control.leadership import LEASE
from llmgw.sim.loop import simulate
from llmgw.sim.world import Control, World
from tests.builders import cluster, model, node

BACKOFF = {"base": "1s", "max": "2s", "give_up_after": 2}


async def stand_still(world: World, control: Control) -> None:
    await control.freeze()
    await asyncio.sleep(LEASE * 2)
    control.thaw()


async def lose_the_store(world: World, control: Control) -> None:
    world.store.available = False
    await asyncio.sleep(LEASE * 2)
    assert control.leadership.epoch is None
    world.store.available = True


@pytest.mark.parametrize("trouble", [stand_still, lose_the_store])
def test_what_was_decided_in_an_epoch_holds_when_it_goes_on(trouble) -> None:
    async def main() -> None:
        world = World.begin(3, jitter=False)
        for name in ("a", "b"):
            world.machine(name)
        limits = cluster(control={"on_store_loss": "stop", "backoff": BACKOFF})
        world.commit(limits, node("a"), node("b"), model("m", 1, "--crash-after", "1"), model("n", 2))
        await world.start_control()
        await asyncio.sleep(40)
        control = world.control
        before = control.reconciler._decided
        assert before.gave_up, "the story needs something that no node can tell"
        epoch = control.leadership.epoch
        await trouble(world, control)
        await asyncio.sleep(5)
        after = control.reconciler._decided
        assert control.leadership.epoch == epoch
        assert after.gave_up == before.gave_up
        assert after.orders == before.orders, "no generation is given twice"
        world.assert_safe()
        await world.end()

    simulate(main, 3)
