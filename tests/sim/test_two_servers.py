"""Two control planes on one store, each with gateways of its own, tormented: killed, frozen, cut off, stopped, doubled in mind.

What must never be is looked for after every turn of the loop, over both gateways. While nothing is committed, no engine
may start or end, whoever leads; a commit afterwards takes effect within one lease; and what the past leader still orders is
refused. A quarter of `LLMGW_SIM_SEEDS` lives are lived: each is four times as long as one of `test_convergence`.
"""

import asyncio
import logging
import os
import random
from collections import Counter

import pytest

from llmgw.control.leadership import LEASE
from llmgw.sim.loop import simulate
from llmgw.sim.world import Control, World
from tests.builders import cluster, model, node

SEEDS = -(-int(os.environ.get("LLMGW_SIM_SEEDS", "25")) // 4)
FIRST = int(os.environ.get("LLMGW_SIM_FIRST", "0"))
CLUSTER = cluster(control={"interval": "2s", "unreachable_after": "10s"}, router={"timeouts": {"drain": "20s"}})
NODES = (node("a"), node("b"))
ROUNDS = 4


@pytest.fixture(autouse=True)
def _quiet():
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


class Pair:
    """Two control planes and what happens to them. `sides` are those that run, by the name of their gateways."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.rng = random.Random(seed)
        self.gateways = {"one": world.another_gateway("one"), "two": world.another_gateway("two")}
        self.sides: dict[str, Control] = {}
        self.number = 0

    async def start(self, name: str) -> None:
        """Start a side, on the gateways that an earlier one of its name left."""
        self.sides[name] = await self.world.start_standby(self.gateways[name])

    async def end(self, name: str, *, release: bool) -> None:
        side = self.sides.pop(name)
        self.world.standbys.remove(side)
        await side.stop(release=release)

    def leader(self) -> str | None:
        """Return which side may decide by the store."""
        holder = self.world.store.holder
        return next((name for name, side in self.sides.items() if side.name == holder), None)

    async def trouble(self) -> None:
        """Let something happen to the leader, and mend it later."""
        name = self.leader() or "one"
        side = self.sides[name]
        match self.rng.choice(("killed", "frozen", "cut", "stopped", "away", "forced")):
            case "killed":
                await self.end(name, release=False)
                await asyncio.sleep(self.rng.uniform(1, 2 * LEASE))
                await self.start(name)
            case "frozen":
                await side.freeze()
                await asyncio.sleep(self.rng.uniform(1, 60))
                side.thaw()
            case "cut":
                self.world.store.cut_off.add(side.name)
                await asyncio.sleep(self.rng.uniform(1, 60))
                self.world.store.cut_off.discard(side.name)
            case "stopped":
                await self.end(name, release=True)
                await asyncio.sleep(self.rng.uniform(1, 20))
                await self.start(name)
            case "away":
                self.world.store.available = False
                await asyncio.sleep(self.rng.uniform(1, 60))
                self.world.store.available = True
            case _:
                await side.leadership.release_epoch(side.leadership.epoch or side.leadership.leaders_epoch or 1)  # type: ignore[arg-type]

    def commit(self) -> tuple[int, str]:
        """Push a change; return what it wants: how many, and the mark of how."""
        self.number += 1
        replicas, mark = self.rng.choice((1, 2, 3)), f"--mark{self.number}"
        self.world.commit(CLUSTER, *NODES, model("m", replicas, mark))
        return replicas, mark

    def missing(self, replicas: int, mark: str) -> str:
        """Return what is not as it should be; empty if all is."""
        running = [engine for _, engine in self.world.running()]
        if len(running) != replicas or not all(mark in engine.spec.args for engine in running):
            return f"{replicas} of {mark} wanted, {Counter(engine.spec.args for engine in running)} run"
        wanted = {engine.spec.replica for engine in running}
        for name, gateway in self.gateways.items():
            if {endpoint.id for endpoint in gateway.newest.endpoints} != wanted:
                return f"gateway {name} has {[endpoint.id for endpoint in gateway.newest.endpoints]}, not {wanted}"
        return ""

    async def until_reached(self, replicas: int, mark: str, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while missing := self.missing(replicas, mark):
            assert loop.time() < end, missing
            await asyncio.sleep(0.5)


async def life(seed: int) -> World:
    world = World.begin(seed)
    world.gateways.remove(world.gateway)
    pair = Pair(world, seed)
    for name in ("a", "b"):
        world.machine(name)
    wanted = pair.commit()
    for name in pair.gateways:
        await pair.start(name)
        world.tasks.loop(f"traffic {name}", pair.gateways[name].traffic(0.4, 5.0))
    await pair.until_reached(*wanted, 60)
    for _ in range(ROUNDS):
        engines = {engine.pid for _, engine in world.running()}
        cut = [len(gateway.cut) for gateway in pair.gateways.values()]
        refused = sum(gateway.refused for gateway in pair.gateways.values())
        await pair.trouble()
        await asyncio.sleep(LEASE + 5)
        assert {engine.pid for _, engine in world.running()} == engines, "an engine was started or stopped for it"
        assert [len(gateway.cut) for gateway in pair.gateways.values()] == cut, "a request was cut for it"
        assert sum(gateway.refused for gateway in pair.gateways.values()) == refused, "a request met nothing"
        if pair.rng.random() < 0.5:
            wanted = pair.commit()
            await pair.trouble()
        wanted = pair.commit()
        await pair.until_reached(*wanted, 3 * LEASE + 60)
        assert [len(gateway.cut) for gateway in pair.gateways.values()] == cut, "a rollover cut a request"
    world.assert_safe()
    assert sum(side.leadership.epoch is not None for side in pair.sides.values()) == 1
    await world.end()
    return world


@pytest.mark.parametrize("seed", range(FIRST, FIRST + SEEDS))
def test_two_servers_on_one_store_are_safe_and_lose_nothing(seed: int) -> None:
    try:
        simulate(lambda: life(seed), seed)
    except BaseException:
        print(f"\nreplay: LLMGW_SIM_FIRST={seed} LLMGW_SIM_SEEDS=1 python -m pytest tests/sim/test_two_servers.py")
        raise
