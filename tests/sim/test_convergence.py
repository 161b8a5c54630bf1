"""Many small clusters that are tormented at random: nothing unsafe ever happens, and when it stops, all is as it should be.

Every seed is one life: minutes of commits (some of them bad), crashes, agents and control planes that are restarted, links
that break (some silently), stores and sources that are away, under traffic. `Safety` looks after every turn of the loop. Then
the torment ends and a last good directory is pushed: it must be reached in time, and on the way to it no request is lost.

`LLMGW_SIM_SEEDS` says how many lives (30), `LLMGW_SIM_FIRST` the first seed (0). A failure prints the command that replays it.
"""

import asyncio
import logging
import os
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType

import pytest

from llmgw.base.ids import NodeName
from llmgw.fleet.view import Reporting
from tests.builders import Object, cluster, cordoned, model, node
from tests.sim.loop import simulate
from tests.sim.world import World

SEEDS = int(os.environ.get("LLMGW_SIM_SEEDS", "30"))
FIRST = int(os.environ.get("LLMGW_SIM_FIRST", "0"))

TORMENT = 70.0
CALM = 120.0
"""Seconds after which every fault must have been got over."""
BOUND = 240.0
"""Seconds in which a good directory must be reached: every replica loads and drains, one after another."""
LONGEST_REQUEST = 8.0
NODES = ("a", "b", "c", "d")

CLUSTER = cluster(
    control={
        "interval": "5s",
        "unreachable_after": "10s",
        "backoff": {"base": "1s", "max": "8s", "give_up_after": 3, "reset_after": "1m"},
    },
    router={"timeouts": {"drain": "12s"}},
)


class Torment:
    """What is done to a world, by chance."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.rng = random.Random(seed * 7919 + 1)
        self.local = self.rng.random() < 0.5
        self.done: list[str] = []

    async def run(self, seconds: float) -> None:
        """Do one thing after another."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        things: list[tuple[int, Callable[[], Awaitable[None]]]] = [
            (6, self.commit),
            (1, self.commit_nonsense),
            (1, self.source_fails),
            (4, self.engine_crashes),
            (3, self.agent_restarts),
            (3, self.link_resets),
            (3, self.node_is_lost),
            (2, self.control_restarts),
            (1, self.control_is_doubled),
            (1, self.store_is_away),
            (1, self.weights_vanish),
            (1, self.port_is_taken),
        ]
        weights, actions = zip(*things, strict=True)
        while loop.time() < end:
            await asyncio.sleep(self.rng.choice((0.05, 0.5, 2.0, 8.0)) * self.rng.random())
            action = self.rng.choices(actions, weights)[0]
            self.done.append(f"{loop.time():.2f} {action.__name__}")
            await action()

    async def mend(self) -> None:
        """Undo all that is still broken."""
        await self.world.end_ghosts()
        self.world.store.available = True
        for machine in self.world.machines.values():
            self.world.regain(machine.name)
            machine.missing_weights.clear()
            machine.foreign_ports.clear()
            if machine.name not in self.world.agents:
                self.world.start_agent(machine.name)

    def nodes(self) -> list[Object]:
        """Return nodes to have: most of them, some of them cordoned."""
        rng = self.rng
        chosen = [name for name in NODES if rng.random() < 0.85] or ["a"]
        return [cordoned(name) if rng.random() < 0.1 else self.node(name) for name in chosen]

    def node(self, name: str) -> Object:
        """Return a node; `a` is on the control plane's own host in some worlds."""
        return node(name, local=True) if self.local and name == "a" else node(name)

    def model(self, name: str) -> Object:
        """Return a model to have."""
        rng = self.rng
        args = ["--load", rng.choice(("0.1", "1", "4"))]
        args += rng.choices(([], ["--crash-after", "6"], ["--hang"], ["--deaf"], ["-v"]), (8, 1, 1, 1, 1))[0]
        aliases = [f"{name}-alias"] if rng.random() < 0.3 else []
        timeout = rng.choice(("8s", "9s"))
        replicas = rng.choice((0, 1, 1, 2, 3))
        return model(name, replicas, *args, profile={"start_timeout": timeout}, aliases=aliases)

    async def commit(self) -> None:
        models = [self.model(name) for name in "mno" if self.rng.random() < 0.9]
        self.world.commit(CLUSTER, *self.nodes(), *models)

    async def commit_nonsense(self) -> None:
        self.world.commit(CLUSTER, *self.nodes(), model("m", profile={"engine": "nonsense"}))

    async def source_fails(self) -> None:
        self.world.source.fail("the remote does not answer")

    async def engine_crashes(self) -> None:
        running = self.world.running()
        if running:
            machine, engine = self.rng.choice(running)
            machine.end(engine)

    async def agent_restarts(self) -> None:
        name = self.rng.choice(sorted(self.world.machines))
        if name in self.world.agents:
            await self.world.stop_agent(name)
            self._later(0.1 + 6 * self.rng.random() ** 2, self._start_agent, name)

    async def link_resets(self) -> None:
        self.world.network.cut(self.rng.choice(sorted(self.world.machines)))

    async def node_is_lost(self) -> None:
        name = self.rng.choice(sorted(self.world.machines))
        self.world.lose(name, silently=self.rng.random() < 0.4)
        self._later(0.1 + 45 * self.rng.random() ** 2, self.world.regain, name)

    async def control_restarts(self) -> None:
        await self.world.restart_control(release=self.rng.random() < 0.6)

    async def control_is_doubled(self) -> None:
        await self.world.end_ghosts()
        await self.world.double_control()

    async def store_is_away(self) -> None:
        self.world.store.available = False
        self._later(20 * self.rng.random(), self._store_is_back)

    async def weights_vanish(self) -> None:
        machine = self.world.machines[NodeName(self.rng.choice(NODES))]
        machine.missing_weights.add("/weights/m.gguf")
        self._later(20 * self.rng.random(), machine.missing_weights.clear)

    async def port_is_taken(self) -> None:
        machine = self.world.machines[NodeName(self.rng.choice(NODES))]
        free = {20000, 20001, 20002} - {engine.spec.port for engine in machine.alive}
        machine.foreign_ports |= set(self.rng.sample(sorted(free), min(1, len(free))))

    def _store_is_back(self) -> None:
        self.world.store.available = True

    def _start_agent(self, name: str) -> None:
        if NodeName(name) not in self.world.agents:
            self.world.start_agent(name)

    @staticmethod
    def _later(seconds: float, what: Callable[..., None], *args: str) -> None:
        asyncio.get_running_loop().call_later(seconds, what, *args)


async def life(seed: int) -> World:
    """Live one life and return the world as it was at the end."""
    world = World.begin(seed)
    torment = Torment(world, seed)
    for name in NODES:
        world.machine(name, local=torment.local and name == "a")
    await torment.commit()
    await world.start_control()
    world.tasks.loop("traffic", world.gateway.traffic(0.4, LONGEST_REQUEST))
    await torment.run(TORMENT)
    world.assert_safe()
    await torment.mend()
    world.commit(CLUSTER, *(torment.node(name) for name in NODES), model("m", 2, "--mended"), model("n", 3, "--mended"))
    await until_reached(world, {"m": 2, "n": 3}, "--mended", CALM + BOUND)
    await roll_over(world, torment)
    await world.end()
    return world


async def roll_over(world: World, torment: Torment) -> None:
    """Push a change of everything to a healthy world: it is reached, nothing is unserved and no request is lost."""
    lost, refused = len(world.gateway.cut), world.gateway.refused
    wanted = [model("m", 3, "--last", "--load", "2"), model("n", 1, "--last"), model("o", 1, "--last")]
    world.commit(CLUSTER, *(torment.node(name) for name in NODES), *wanted)
    await until_reached(world, {"m": 3, "n": 1, "o": 1}, "--last", BOUND, {"m": 2, "n": 1})
    assert (len(world.gateway.cut), world.gateway.refused) == (lost, refused), "a rollover lost requests"


async def until_reached(
    world: World, wanted: dict[str, int], mark: str, seconds: float, served: Mapping[str, int] = MappingProxyType({})
) -> None:
    """Wait until exactly this runs, at most so long; all the while, at least `served` must be published."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while missing := still_missing(world, wanted, mark):
        assert loop.time() < end, missing
        await asyncio.sleep(1.0)
        now = Counter(endpoint.model for endpoint in world.gateway.newest.endpoints)
        assert all(now[name] >= number for name, number in served.items()), f"fewer serve than should: {now}"
    await asyncio.sleep(10.0)
    assert still_missing(world, wanted, mark) == [], "it did not stay so"
    world.assert_safe()


def still_missing(world: World, wanted: dict[str, int], mark: str) -> list[str]:
    """Return what is not yet as it should be: exactly this runs and is published, and nothing more is to be done."""
    control = world.control
    assert control is not None
    last = control.reconciler.last
    missing = [f"{hold.subject} {hold.what}: {hold.waits_for}" for hold in (last.holds if last else ())]
    missing += [f"{action.verb} {action.replica}" for action in (last.actions if last else ())]
    running = [engine for _, engine in world.running()]
    published = world.gateway.newest.endpoints
    facts = {
        "what runs": (Counter(engine.spec.model for engine in running), Counter(wanted)),
        "what is published": (Counter(endpoint.model for endpoint in published), Counter(wanted)),
        "how it runs": ({mark in engine.spec.args for engine in running}, {True}),
        "what answers": ({world.behind(endpoint) is not None for endpoint in published}, {True}),
        "nodes that report": ({isinstance(view, Reporting) for view in control.book.views.values()}, {True}),
    }
    return missing + [f"{what}: {is_now}" for what, (is_now, should) in facts.items() if is_now != should]


@pytest.fixture(autouse=True)
def _quiet():
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("seed", range(FIRST, FIRST + SEEDS))
def test_a_tormented_cluster_is_safe_and_recovers(seed: int) -> None:
    try:
        simulate(lambda: life(seed), seed)
    except BaseException:
        print(f"\nreplay: LLMGW_SIM_FIRST={seed} LLMGW_SIM_SEEDS=1 python -m pytest tests/sim/test_convergence.py")
        raise


def test_a_seed_replays_exactly() -> None:
    def trace(seed: int) -> list[tuple[float, str, str, str]]:
        world = simulate(lambda: life(seed), seed)
        return [(event.at, event.kind, event.subject, event.text) for event in world.store.events]

    assert trace(FIRST) == trace(FIRST)
