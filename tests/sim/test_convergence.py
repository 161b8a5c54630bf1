"""Many small clusters that are tormented at random: nothing unsafe ever happens, and when it stops, all is as it should be.

Every seed is one life: minutes of commits (some of them bad), crashes, agents and control planes that are restarted, links
that break (some silently), orders that get lost or come twice and late, cards that get sick, fall off or are taken by
strangers, full disks, stores and sources that are away, operators who cordon, drain and restart, clocks that are wrong,
under traffic. `Safety` looks after every turn of the loop. Then the torment ends and a last good directory is pushed: it must
be reached in time, and on the way to it no request is lost.

`LLMGW_SIM_SEEDS` says how many lives (25; `make unit` runs more, on all cores), `LLMGW_SIM_FIRST` the first seed (0). A failure
prints the command that replays it.
"""

import asyncio
import contextlib
import logging
import os
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType

import pytest

from llmgw.base.ids import NodeName
from llmgw.control.acts import CannotAct
from llmgw.fleet.report import Gpu, GpuUser
from llmgw.fleet.view import Reporting
from llmgw.ports.sinks import StoreUnavailable
from llmgw.sim.loop import simulate
from llmgw.sim.world import World
from tests.builders import Object, cluster, cordoned, model, node

SEEDS = int(os.environ.get("LLMGW_SIM_SEEDS", "25"))
FIRST = int(os.environ.get("LLMGW_SIM_FIRST", "0"))

TORMENT = 70.0
CALM = 120.0
"""Seconds after which every fault must have been got over."""
BOUND = 240.0
"""Seconds in which a good directory must be reached: every replica loads and drains, one after another."""
LONGEST_REQUEST = 8.0
NODES = ("a", "b", "c", "d")

CARDS = 3
CLUSTER = cluster(
    gpu_classes=[{"name": "h100", "match": ["H100"]}],
    control={
        "interval": "5s",
        "unreachable_after": "10s",
        "lost_after": "25s",
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
            (3, self.card_changes),
            (2, self.operator_acts),
            (1, self.orders_get_lost),
            (1, self.old_order_arrives),
            (1, self.disk_is_full),
            (1, self.port_is_taken),
        ]
        weights, actions = zip(*things, strict=True)
        while loop.time() < end:
            await asyncio.sleep(self.rng.choice((0.05, 0.5, 2.0, 8.0)) * self.rng.random())
            action = self.rng.choices(actions, weights)[0]
            self.done.append(f"{loop.time():.2f} {action.__name__}")
            await action()

    async def mend(self) -> None:
        """Undo all that is still broken, and take back what operators asked for."""
        await self.world.end_ghosts()
        self.world.store.available = True
        for machine in self.world.machines.values():
            self.world.regain(machine.name)
            machine.missing_weights.clear()
            machine.foreign_ports.clear()
            machine.sick.clear()
            machine.fallen.clear()
            machine.strangers.clear()
            machine.disk_full, machine.loses_orders = False, 0
            if machine.name not in self.world.agents:
                self.world.start_agent(machine.name)

    async def take_all_back(self) -> None:
        """Take back what operators asked for, as soon as the store lets us."""
        control = self.world.control
        for act in control.acts.current or () if control is not None else ():
            with contextlib.suppress(StoreUnavailable):
                await self.world.take_back(act.target)

    def nodes(self) -> list[Object]:
        """Return nodes to have: most of them, some of them cordoned."""
        rng = self.rng
        chosen = [name for name in NODES if rng.random() < 0.85] or ["a"]
        return [cordoned(name) if rng.random() < 0.1 else self.node(name, rng.choice((0, 0, 1))) for name in chosen]

    def node(self, name: str, reserved: int = 0) -> Object:
        """Return a node; `a` is on the control plane's own host in some worlds."""
        fields: Object = {"fabric": "ib", "reserved": {"gpus": reserved}}
        return node(name, local=True, **fields) if self.local and name == "a" else node(name, **fields)

    def model(self, name: str) -> Object:
        """Return a model to have."""
        rng = self.rng
        args = ["--load", rng.choice(("0.1", "1", "4"))]
        args += rng.choices(([], ["--crash-after", "6"], ["--hang"], ["--deaf"], ["-v"]), (8, 1, 1, 1, 1))[0]
        aliases = [f"{name}-alias"] if rng.random() < 0.3 else []
        timeout = rng.choice(("8s", "9s"))
        replicas = rng.choice((0, 1, 1, 2, 3))
        fields: Object = {"aliases": aliases, "priority": rng.choice((0, 0, 5)), "min_life": rng.choice(("0s", "20s"))}
        fields["preempt"] = rng.random() < 0.3
        fields["placement"] = rng.choice(("spread", "pack"))
        fields["rollout"] = {
            "strategy": rng.choice(("auto", "auto", "surge", "recreate")),
            "auto_revert": rng.random() < 0.3,
            "deadline": rng.choice(("20s", "10m")),
        }
        profile: Object = {"start_timeout": timeout}
        if name in "gh":
            profile |= on_cards(rng.choice((1, 1, 2, 3)), 2 if name == "h" else 1)
        return model(name, replicas, *args, profile=profile, **fields)

    async def commit(self) -> None:
        models = [self.model(name) for name in "mnogh" if self.rng.random() < 0.9]
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

    async def card_changes(self) -> None:
        machine = self.world.machines[NodeName(self.rng.choice(NODES))]
        card = machine.card(self.rng.randrange(CARDS))
        match self.rng.choice(("sick", "fallen", "taken")):
            case "sick":
                machine.sick[card] = "XID 79"
            case "fallen":
                machine.fallen.add(card)
            case _:
                machine.strangers[card] = GpuUser(4242, 30 << 30, "python", None)
        self._say(machine.name)
        self._later(30 * self.rng.random(), self._card_is_well, machine.name, card)

    async def operator_acts(self) -> None:
        name = self.rng.choice(NODES)
        replicas = [engine.spec.replica for _, engine in self.world.running()] or ["none"]
        kind, target = self.rng.choice(
            (
                ("cordon", f"node/{name}"),
                ("drain", f"node/{name}"),
                ("drain", f"gpu/GPU-{name}-{self.rng.randrange(CARDS)}"),
                ("drain", f"replica/{self.rng.choice(replicas)}"),
                ("restart", f"model/{self.rng.choice('mng')}"),
            )
        )
        until = self.rng.choice(("", "10s", "1m"))
        with contextlib.suppress(CannotAct, StoreUnavailable):
            await self.world.ask(kind=kind, target=target, reason="by chance", until=until)
        if self.rng.random() < 0.3:
            with contextlib.suppress(StoreUnavailable):
                await self.world.take_back(target)

    async def orders_get_lost(self) -> None:
        self.world.machines[NodeName(self.rng.choice(NODES))].loses_orders = self.rng.choice((1, 2, 3))

    async def old_order_arrives(self) -> None:
        name = NodeName(self.rng.choice(NODES))
        seen = self.world.machines[name].orders_seen
        if seen and name in self.world.agents:
            self.world.agents[name].hear_again(self.rng.choice(seen))

    async def disk_is_full(self) -> None:
        machine = self.world.machines[NodeName(self.rng.choice(NODES))]
        machine.disk_full = True
        self._later(15 * self.rng.random(), setattr, machine, "disk_full", False)

    def _card_is_well(self, name: NodeName, card: str) -> None:
        machine = self.world.machines[name]
        machine.sick.pop(card, None)
        machine.fallen.discard(card)
        machine.strangers.pop(card, None)
        self._say(name)

    def _say(self, name: NodeName) -> None:
        if name in self.world.agents:
            self.world.agents[name].say()

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
    def _later(seconds: float, what: Callable[..., None], *args: object) -> None:
        asyncio.get_running_loop().call_later(seconds, what, *args)


async def life(seed: int) -> World:
    """Live one life and return the world as it was at the end."""
    world = World.begin(seed)
    torment = Torment(world, seed)
    for name in NODES:
        cards = [Gpu(f"GPU-{name}-{index}", index, "H100", 80 << 30, 0) for index in range(CARDS)]
        world.machine(name, local=torment.local and name == "a", cards=cards)
    await torment.commit()
    await world.start_control()
    world.tasks.loop("traffic", world.gateway.traffic(0.4, LONGEST_REQUEST))
    await torment.run(TORMENT)
    world.assert_safe()
    await torment.mend()
    mended = [model("m", 2, "--mended"), model("n", 3, "--mended")]
    # one of three cards a node may be the last of its model: without room beside it, it waits for just this word
    recreate = {"strategy": "recreate"}
    mended += [
        model("g", 3, "--mended", profile=on_cards(1), rollout=recreate),
        model("h", 1, "--mended", profile=on_cards(1, 2), rollout=recreate),
    ]
    world.commit(CLUSTER, *(torment.node(name) for name in NODES), *mended)
    await until_reached(world, {"m": 2, "n": 3, "g": 3, "h": 1}, "--mended", CALM + BOUND, torment.take_all_back)
    await roll_over(world, torment)
    await world.end()
    return world


async def roll_over(world: World, torment: Torment) -> None:
    """Push a change of everything to a healthy world: it is reached, nothing is unserved and no request is lost."""
    lost, refused = len(world.gateway.cut), world.gateway.refused
    wanted = [model("m", 3, "--last", "--load", "2"), model("n", 1, "--last"), model("o", 1, "--last")]
    wanted += [model("g", 2, "--last", profile=on_cards(2)), model("h", 1, "--last", profile=on_cards(1, 2))]
    world.commit(CLUSTER, *(torment.node(name) for name in NODES), *wanted)
    reached = {"m": 3, "n": 1, "o": 1, "g": 2, "h": 1}
    await until_reached(world, reached, "--last", BOUND, served={"m": 2, "n": 1, "g": 2, "h": 1})
    assert (len(world.gateway.cut), world.gateway.refused) == (lost, refused), "a rollover lost requests"


def on_cards(count: int, nodes: int = 1) -> Object:
    """Return the fields of a profile that needs so many cards on each of so many nodes."""
    fields: Object = {"gpu": {"class": "h100", "count": count}}
    across = {"engine": "vllm", "nodes": nodes, "tensor_parallel": count, "pipeline_parallel": nodes}
    return {**fields, **across} if nodes > 1 else fields


async def _nothing() -> None:
    pass


async def until_reached(
    world: World,
    wanted: dict[str, int],
    mark: str,
    seconds: float,
    meanwhile: Callable[[], Awaitable[None]] = _nothing,
    served: Mapping[str, int] = MappingProxyType({}),
) -> None:
    """Wait until exactly this runs, at most so long; all the while, at least `served` must be published.

    `meanwhile` is done once a second.
    """
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while missing := still_missing(world, wanted, mark):
        assert loop.time() < end, missing
        await asyncio.sleep(1.0)
        await meanwhile()
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
        "what runs": (Counter(engine.spec.model for engine in running if engine.spec.rank == 0), Counter(wanted)),
        "shards that run": (len(running), sum(engine.spec.shards for engine in running if engine.spec.rank == 0)),
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
        return [(event.at, event.kind, event.subject, event.text) for event in world.store.recorded]

    assert trace(FIRST) == trace(FIRST)
