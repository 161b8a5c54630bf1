"""A whole cluster in one thread and virtual time: the real control loops and the real brains of agents, on fakes of the rest.

Real: `Catalogs`, `FleetBook`, `Sessions`, `Leadership`, `Reconciler`, the planner and its checker, the wire protocol,
`AgentState`. Fake: the source, the store, the network, the gateways, and on the nodes what handles processes.

A `World` is changed from outside (`commit`, `crash`, `lose`, `restart_control` ...) while its time passes. After every turn
of its loop `Safety` looks at it; what must never be is kept in `violations` and raised by `assert_safe`.
"""

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, assert_never

from llmgw.base.ids import NodeName, OwnerId, ReplicaId
from llmgw.base.time import Instant
from llmgw.catalog.compile import Accepted, Compiler, Rejected
from llmgw.catalog.source import SourceTree
from llmgw.control.acts import Acts, wanted_acts
from llmgw.control.book import FleetBook
from llmgw.control.catalogs import Catalogs, CatalogState
from llmgw.control.leadership import Leadership, StoreLoss
from llmgw.control.planner_memory import PlannerMemory
from llmgw.control.reconcile import Reconciler
from llmgw.control.sessions import Sessions
from llmgw.control.using import UseTeller
from llmgw.engines.adapter import ENGINES
from llmgw.fleet.table import Endpoint, EndpointTable, TcpAddress, UnixAddress
from llmgw.fleet.usage import Unknown, UsageView
from llmgw.plan.snapshot import Snapshot
from llmgw.ports.sinks import StoreUnavailable
from llmgw.runtime.supervisor import Supervisor
from llmgw.sim.agent import Agent, Engine, Machine
from llmgw.sim.directory import Object, tree
from llmgw.sim.gateway import FakeGateway
from llmgw.sim.link import FakeNetwork
from llmgw.sim.loop import OwnClock, SimClock, SimLoop
from llmgw.sim.source import FakeSource
from llmgw.sim.store import FakeStore


class OwnGateway:
    """What a control plane has of the gateway: all, until another one has taken it over."""

    def __init__(self, gateway: FakeGateway, changed: Callable[[], None]) -> None:
        self._gateway = gateway
        self._changed = changed
        gateway.attach(changed)

    def publish(self, table: EndpointTable, *, settled: bool) -> None:
        """Make this the newest table."""
        if self._gateway.changed == self._changed:
            self._gateway.publish(table, settled=settled)

    def usage(self) -> UsageView:
        """Return what the workers have in flight."""
        if self._gateway.changed == self._changed:
            return self._gateway.usage()
        return UsageView({}, Unknown("no gateway worker runs"), present=False)


class Control:
    """One control plane: its loops, as `app.server` builds them."""

    def __init__(self, world: "World", name: str, behind: FakeGateway | None = None) -> None:
        self.name = OwnerId(name)
        behind = behind or world.gateway
        gateway = OwnGateway(behind, self._wake)
        self.catalogs = Catalogs(world.source, world.store, world.clock, self._wake, world.compile)
        self.book = FleetBook(world.clock, self._wake)
        self.sessions = Sessions(lambda _: world.network, self.book, random.Random(world.rng.random()))
        self.leadership = Leadership(
            world.store, self.name, self._wake, world.store, world.clock, on_store_loss=self._on_store_loss
        )
        self.acts = Acts(world.store, world.store, world.clock)
        self.reconciler = Reconciler(
            self.catalogs,
            self.book,
            self.sessions,
            self.leadership,
            gateway,
            gateway,
            self.acts,
            world.store,
            world.clock,
            engines=ENGINES,
        )
        self.memory = PlannerMemory(world.store, self.leadership, world.store, world.clock, self._wake)
        self.reconciler.remembers_by(self.memory)
        self.reconciler.tells_by(UseTeller(behind.name, gateway, self.book, world.clock))
        self._tasks = Supervisor(name)
        self._world = world

    async def start(self) -> None:
        """Begin to decide."""
        await self.catalogs.look()
        last = self._world.last_tree
        if self.catalogs.state.value.catalog is None and last is not None:
            outcome = await self._world.compile(last)
            assert isinstance(outcome, Accepted)
            self.catalogs.state.set(CatalogState(outcome.catalog, last, self._world.clock.now()))
        await self.leadership.renew()
        with suppress(StoreUnavailable):
            await self.memory.take_over()
        self.thaw()

    async def freeze(self) -> None:
        """Stand still, as after SIGSTOP: nothing is decided or renewed. What comes from nodes is read as it comes."""
        await self._tasks.stop()

    def thaw(self) -> None:
        """Go on where it stood."""
        self._tasks = Supervisor(self.name)
        self._tasks.loop("catalogs", self.catalogs.run())
        self._tasks.loop("acts", self.acts.run())
        self._tasks.loop("leadership", self.leadership.run())
        self._tasks.loop("memory", self.memory.run())
        self._tasks.loop("reconcile", self.reconciler.run())
        self.reconciler.wake()

    async def stop(self, *, release: bool) -> None:
        """End: in good order, so that the lease is given up, or as if killed."""
        await self._tasks.stop()
        if self is self._world.control:
            self._world.last_tree = self.catalogs.state.value.tree
        if release:
            await self.leadership.release()
        await self.sessions.stop()

    def snapshot(self) -> Snapshot | None:
        """Return what a decision would see now."""
        return self.reconciler.snapshot()

    def _wake(self) -> None:
        self.reconciler.wake()

    def _on_store_loss(self) -> StoreLoss:
        catalog = self.catalogs.state.value.catalog
        return catalog.cluster.control.on_store_loss if catalog is not None else "keep"


@dataclass(eq=False)
class World:
    """A cluster. Make it inside the loop."""

    loop: SimLoop
    rng: random.Random
    jitter: bool = True
    """Whether engines, the network and the gateways are late by chance."""
    machines: dict[NodeName, Machine] = field(default_factory=dict)
    agents: dict[NodeName, Agent] = field(default_factory=dict)
    control: Control | None = None
    standbys: list[Control] = field(default_factory=list)
    """Other control planes, each with gateways of its own."""
    ghosts: list[Control] = field(default_factory=list)
    """Control planes that were replaced and do not know it."""
    last_tree: SourceTree | None = None
    """What the last control plane kept: the newest valid tree."""
    violations: list[str] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def __post_init__(self) -> None:
        self.clock = SimClock(self.loop)
        self.source = FakeSource()
        self.store = FakeStore(self.clock)
        self.network = FakeNetwork(random.Random(self.rng.random()) if self.jitter else None)
        delay = 0.3 if self.jitter else 0.0
        self.gateway = FakeGateway(self.clock, random.Random(self.rng.random()), self._answers, slowest=delay)
        self.gateways = [self.gateway]
        self.tasks = Supervisor("world")
        self._compiler = Compiler()
        self.safety = Safety(self)
        self.loop.after_step = self.safety.look

    @staticmethod
    def begin(seed: int, *, jitter: bool = True) -> "World":
        """Return an empty world in the running loop."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        return World(loop, random.Random(seed), jitter)

    async def compile(self, source: SourceTree) -> Accepted | Rejected:
        """Compile without a thread."""
        return self._compiler.compile(source)

    async def end(self) -> None:
        """End everything in the world."""
        self.loop.after_step = None
        await self.tasks.stop()
        await self.end_ghosts()
        for standby in self.standbys:
            await standby.stop(release=True)
        if self.control is not None:
            await self.control.stop(release=True)
        for agent in self.agents.values():
            await agent.stop()

    def machine(self, name: str, **facts: Any) -> Machine:
        """Put up a machine with an agent."""
        rng = random.Random(self.rng.random()) if self.jitter else None
        clock = OwnClock(self.loop, rng.uniform(-1e6, 1e6), rng.uniform(-0.01, 0.01)) if rng is not None else self.clock
        found = Machine(NodeName(name), rng, clock, **facts)
        found.stopping = self.safety.stopping
        found.ended = self._ended
        self.machines[found.name] = found
        self.start_agent(name)
        return found

    def commit(self, *objects: Object, subject: str = "") -> str:
        """Push another directory; return its revision."""
        revision = f"{next(self._numbers):010x}"
        self.source.push(tree(*objects, revision=revision, subject=subject))
        return revision

    async def start_control(self) -> None:
        """Start a control plane."""
        self.control = Control(self, f"control-{next(self._numbers)}", self.gateway)
        await self.control.start()

    async def start_standby(self, gateway: FakeGateway) -> Control:
        """Start another control plane on the same store, with gateways of its own."""
        standby = Control(self, f"control-{next(self._numbers)}", gateway)
        self.standbys.append(standby)
        await standby.start()
        return standby

    def another_gateway(self, name: str) -> FakeGateway:
        """Return gateways on another host, which reach the same engines."""
        gateway = FakeGateway(
            self.clock, random.Random(self.rng.random()), self._answers, name=name, slowest=self.gateway.slowest
        )
        self.gateways.append(gateway)
        return gateway

    async def restart_control(self, *, release: bool) -> None:
        """End the control plane and start another one."""
        assert self.control is not None
        await self.control.stop(release=release)
        await self.start_control()

    async def double_control(self) -> Control:
        """Start another control plane while the first goes on: it has lost the store, and keeps its claim."""
        ghost = self.control
        assert ghost is not None
        self.store.cut_off.add(ghost.name)
        self.ghosts.append(ghost)
        self.last_tree = ghost.catalogs.state.value.tree
        await self.start_control()
        return ghost

    async def end_ghosts(self) -> None:
        """End the control planes that were replaced."""
        ghosts, self.ghosts = self.ghosts, []
        for ghost in ghosts:
            await ghost.stop(release=False)

    async def ask(self, **fields: object) -> None:
        """Let an operator ask for something, as the admin API takes it. Raises CannotAct and StoreUnavailable."""
        control = self.control
        snapshot = control.snapshot() if control is not None else None
        assert control is not None
        assert snapshot is not None
        await control.acts.add(wanted_acts(snapshot, fields, self.clock.now()))
        control.reconciler.wake()

    async def take_back(self, target: str) -> bool:
        """Let an operator take back what was asked for of a target; whether there was anything."""
        assert self.control is not None
        found = await self.control.acts.remove(target)
        self.control.reconciler.wake()
        return found is not None

    def forget(self, node: str, by: str, reason: str) -> None:
        """Let an operator give up a node. Raises CannotAct."""
        assert self.control is not None
        self.control.reconciler.forget(NodeName(node), by, reason)

    async def reboot(self, name: str, seconds: float) -> None:
        """Restart a machine: its engines end, its agent is back after so many seconds."""
        machine = self.machines[NodeName(name)]
        await self.stop_agent(name)
        for engine in machine.alive:
            machine.end(engine)
        self.loop.call_later(seconds, self.start_agent, name)

    def start_agent(self, name: str) -> None:
        """Start an agent on a machine."""
        machine = self.machines[NodeName(name)]
        self.agents[machine.name] = Agent(machine, self.network, f"boot-{next(self._numbers)}")
        self.agents[machine.name].start()

    async def stop_agent(self, name: str) -> None:
        """End a machine's agent; its engines run on."""
        await self.agents.pop(NodeName(name)).stop()

    def lose(self, name: str, *, silently: bool = False) -> None:
        """Put a node out of reach; requests that went through its tunnel are cut."""
        self.network.take_away(NodeName(name), silently=silently)
        for gateway in self.gateways:
            gateway.lose(lambda endpoint: str(endpoint.address).startswith(f"unix:/tunnels/{name}/"))

    def regain(self, name: str) -> None:
        """Put a node within reach again."""
        self.network.bring_back(NodeName(name))

    def engine(self, replica: str, rank: int = 0) -> tuple[Machine, Engine]:
        """Return a replica's machine and engine, of the shard with this rank. Raises KeyError if none runs."""
        for machine in self.machines.values():
            for one in machine.alive:
                if one.spec.replica == replica and one.spec.rank == rank:
                    return machine, one
        raise KeyError(replica)

    def running(self) -> list[tuple[Machine, Engine]]:
        """Return every engine that runs, with its machine."""
        return [(machine, one) for machine in self.machines.values() for one in machine.alive]

    def assert_safe(self) -> None:
        """Raise what was seen and must never be."""
        assert not self.violations, "\n".join(self.violations)

    def leads_to(self, endpoint: Endpoint, machine: Machine, engine: Engine) -> bool:
        """Whether an endpoint is this engine's."""
        tunnel = UnixAddress(f"/tunnels/{machine.name}/{engine.spec.port}")
        here = TcpAddress("127.0.0.1", engine.spec.port)
        return endpoint.id == engine.spec.replica and (
            endpoint.address == tunnel or (endpoint.address == here and machine.local)
        )

    def _ended(self, machine: Machine, engine: Engine) -> None:
        self.safety.ended(engine)
        for gateway in self.gateways:
            gateway.lose(lambda endpoint: self.leads_to(endpoint, machine, engine))

    def _answers(self, endpoint: Endpoint) -> bool:
        return self.behind(endpoint) is not None

    def behind(self, endpoint: Endpoint) -> Engine | None:
        """Return the engine that answers at an endpoint's address."""
        match endpoint.address:
            case UnixAddress(path=path):
                _, _, name, text = path.split("/")
                names, port = [NodeName(name)], int(text)
                if self.network.is_away(NodeName(name)):
                    return None
            case TcpAddress(port=port):
                names = [name for name, machine in self.machines.items() if machine.local]
            case _:
                assert_never(endpoint.address)
        now = self.loop.time()
        found = (one for name in names if name in self.machines for one in self.machines[name].alive)
        return next((one for one in found if one.spec.port == port and one.is_ready(now)), None)


class Safety:
    """Looks at a world after every turn of its loop, and at every engine before it is stopped."""

    STRAY_AFTER = 40.0
    """Seconds after which an engine that its node's order leaves out must be gone: a grace, a kill, and an agent's restart."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._unwanted: dict[int, tuple[Engine, float]] = {}
        self._ranks: dict[NodeName, int] = {}
        self._seen: dict[NodeName, int] = {}
        self._looked = 0.0
        self._broken: set[tuple[ReplicaId, int]] = set()

    def ended(self, engine: Engine) -> None:
        """Remember which replicas of several shards lost one that nobody had asked to end, and in which incarnation."""
        if engine.spec.shards > 1 and not engine.asked_to_end:
            self._broken.add((engine.spec.replica, engine.spec.incarnation))

    def look(self) -> None:
        """Look at everything that changed in this turn, and once a second for what should have."""
        now = self._world.loop.time()
        due = now - self._looked >= 1.0
        for machine in self._world.machines.values():
            if self._seen.get(machine.name) != machine.changes:
                self._seen[machine.name] = machine.changes
                self._ports(machine)
                self._cards(machine)
                self._obedience(machine)
            if due:
                self._strays(machine, now)
        if due:
            self._looked = now
        control = self._world.control
        for alarm in control.reconciler.broken if control is not None else ():
            self._say(f"a plan was not carried out: {alarm}")

    def stopping(self, machine: Machine, engine: Engine) -> None:
        """Judge the stop of an engine that serves: nothing may be in flight before the drain deadline."""
        world = self._world
        now = world.clock.now()
        if not engine.is_ready(world.loop.time()) or self._is_doubled(machine, engine):
            return
        if self._begins_anew(machine, engine):
            return
        for gateway in world.gateways:
            self._stopping_of(gateway, machine, engine, now)

    def _stopping_of(self, gateway: FakeGateway, machine: Machine, engine: Engine, now: Instant) -> None:
        world, replica = self._world, engine.spec.replica
        if any(world.leads_to(endpoint, machine, engine) for endpoint in gateway.newest.endpoints):
            self._say(f"{replica} on {machine.name} is stopped while it is published")
            return
        busy = sum(world.leads_to(endpoint, machine, engine) for endpoint in gateway.requests.values())
        last = max((at for one, at in gateway.withdrawn.items() if world.leads_to(one, machine, engine)), default=now)
        if busy and now - last < self._limit() - 0.001:
            text = f"is stopped with {busy} in flight, {now - last:.1f} s after its withdrawal"
            self._say(f"{replica} on {machine.name} {text}")

    def _begins_anew(self, machine: Machine, engine: Engine) -> bool:
        """Whether another shard of its replica ended by itself and it is ordered anew: what was in flight is lost already."""
        wanted = machine.order.shard(engine.spec.shard) if machine.order is not None else None
        anew = wanted is not None and wanted.spec.incarnation > engine.spec.incarnation
        return anew and (engine.spec.replica, engine.spec.incarnation) in self._broken

    def _is_doubled(self, machine: Machine, engine: Engine) -> bool:
        """Whether another node has the same shard, too: the second one cannot be drained by name."""
        running = self._world.running()
        return any(one.spec.shard == engine.spec.shard and other is not machine for other, one in running)

    def _limit(self) -> float:
        control = self._world.control
        catalog = control.catalogs.state.value.catalog if control is not None else None
        return catalog.cluster.router.timeouts.drain if catalog is not None else 0.0

    def _ports(self, machine: Machine) -> None:
        ports = [one.spec.port for one in machine.alive]
        if len(ports) != len(set(ports)):
            self._say(f"a port of {machine.name} is used twice: {sorted(ports)}")
        shards = [one.spec.shard for one in machine.alive]
        if len(shards) != len(set(shards)):
            self._say(f"a shard runs twice on {machine.name}: {sorted(shards)}")

    def _cards(self, machine: Machine) -> None:
        held = Counter(card for one in machine.alive for card in one.spec.gpus)
        for card, count in held.items():
            if count > 1:
                self._say(f"card {card} of {machine.name} is used by {count} engines")

    def _obedience(self, machine: Machine) -> None:
        known = self._ranks.get(machine.name, 0)
        for before, after in itertools.pairwise(machine.obeyed[max(0, known - 1) :]):
            if after < before:
                self._say(f"{machine.name} obeyed {after} after {before}")
        self._ranks[machine.name] = len(machine.obeyed)

    def _strays(self, machine: Machine, now: float) -> None:
        if machine.name not in self._world.agents or machine.order is None:
            return
        for engine in machine.alive:
            if machine.order.shard(engine.spec.shard) is not None:
                self._unwanted.pop(id(engine), None)
                continue
            _, since = self._unwanted.setdefault(id(engine), (engine, now))
            if now - since > self.STRAY_AFTER:
                self._say(
                    f"{engine.spec.replica} runs on {machine.name}, which was told otherwise {now - since:.0f} s ago"
                )

    def _say(self, text: str) -> None:
        line = f"at {self._world.loop.time():.2f}: {text}"
        if text not in [known.partition(": ")[2] for known in self._world.violations]:
            self._world.violations.append(line)
