"""A node in a simulation: a machine with engines that are small state machines, and an agent that works on it.

The agent's brain is the real `AgentState` and its words are real frames of the real protocol. What is fake is what the real
`agent.runner` does with processes, files and probes; this plays it in the same order, results fed back by the loop. As
there, engines outlive their agent: an `Agent` that is started on a `Machine` adopts what it finds.

An engine's behaviour is in its arguments, as for a real one: `--load N` takes N seconds to load, `--crash-after N` ends it
N seconds after, `--hang` never gets ready, `--deaf` does not end when it is asked to, so that it must be killed.
"""

import asyncio
import contextlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from llmgw import __version__
from llmgw.agent.events import (
    Adapt,
    Adapted,
    CancelFetch,
    Event,
    Exited,
    Fetch,
    Fetched,
    Found,
    Gone,
    Instruction,
    LeftOver,
    NotStarted,
    OrderStored,
    Probe,
    Probed,
    Reap,
    Say,
    Start,
    Started,
    Stop,
    Tick,
)
from llmgw.agent.liveness import Pulse
from llmgw.agent.lora import AdapterLook
from llmgw.agent.state import AgentState
from llmgw.base.ids import BootId, NodeName, ShardId
from llmgw.base.time import Clock
from llmgw.engines.shard import LoraAdapter, ShardSpec
from llmgw.fleet.order import NodeOrder
from llmgw.fleet.report import Facts, Gpu, GpuUser, Reason
from llmgw.runtime.latest import Latest
from llmgw.runtime.supervisor import Owned, Supervisor
from llmgw.sim.link import FakeNetwork, Peer
from llmgw.wire.frames import frame
from llmgw.wire.messages import PROTOCOL, FromAgent, Hello, Order, Said, Using, Welcome, encode
from llmgw.wire.session import Session

REPORT_EVERY = 10.0
USED_OF_CARD = 0.9
"""Share of a card's memory that an engine takes."""
GIB = 1 << 30


@dataclass(eq=False)
class Engine:
    """An engine process."""

    spec: ShardSpec
    attempt: int
    pid: int
    ready_at: float
    alive: bool = True
    asked_to_end: bool = False
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    on_end: Callable[["Engine"], None] | None = None
    """Told once, when it ends, by whom it was started or adopted."""

    def is_ready(self, now: float) -> bool:
        """Whether it serves."""
        return self.alive and not self.asked_to_end and now >= self.ready_at


@dataclass
class Machine:
    """A node's hardware and disk: what outlives its agent. `stopping` and `ended` watch its engines."""

    name: NodeName
    rng: random.Random | None
    """None: everything takes exactly the time that it takes on average."""
    clock: Clock
    cpus: int = 8
    memory: int = 32 * GIB
    local: bool = False
    """Whether it is the control plane's own host."""
    missing_weights: set[str] = field(default_factory=set)
    adapters: dict[int, dict[str, LoraAdapter]] = field(default_factory=dict)
    """Engine's pid -> LoRA adapters it has."""
    fetched: set[str] = field(default_factory=set)
    """Weights that were fetched to here."""
    foreign_ports: set[int] = field(default_factory=set)
    cards: list[Gpu] = field(default_factory=list)
    """Its cards when nothing is wrong and nothing runs."""
    sick: dict[str, str] = field(default_factory=dict)
    """Cards that are not well, by UUID, and why."""
    fallen: set[str] = field(default_factory=set)
    """Cards that fell off the bus."""
    strangers: dict[str, GpuUser] = field(default_factory=dict)
    """Processes that are not ours, by the UUID of the card they use."""
    engines: list[Engine] = field(default_factory=list)
    order: NodeOrder | None = None
    """What is on its disk."""
    records: dict[ShardId, Engine] = field(default_factory=dict)
    obeyed: list[tuple[int, int]] = field(default_factory=list)
    """The rank of every order that was obeyed."""
    stopping: Callable[["Machine", Engine], None] = lambda _, __: None
    """Told before an engine is asked or made to end."""
    ended: Callable[["Machine", Engine], None] = lambda _, __: None
    """Told after an engine ended, for whatever reason."""
    disk_full: bool = False
    """Nothing can be written down, so no order is obeyed."""
    orders_seen: list[NodeOrder] = field(default_factory=list)
    """What arrived, also what was refused: the network may bring it again."""
    loses_orders: int = 0
    """How many of the orders to come get lost."""
    changes: int = 0
    """Grows with everything that starts, ends, or is obeyed."""
    _pids: int = 100

    @property
    def alive(self) -> list[Engine]:
        """The engines that run."""
        return list(self.engines)

    def card(self, index: int) -> str:
        """Return the UUID of a card."""
        return next(gpu.uuid for gpu in self.cards if gpu.index == index)

    def gpus(self) -> tuple[Gpu, ...]:
        """Return the cards as the driver shows them now: those behind one that fell off the bus move up."""
        there = [gpu for gpu in self.cards if gpu.uuid not in self.fallen]
        return tuple(self._as_seen(replace(gpu, index=index)) for index, gpu in enumerate(there))

    def _as_seen(self, gpu: Gpu) -> Gpu:
        used = USED_OF_CARD * gpu.memory
        users = [
            GpuUser(one.pid, int(used), "engine", one.spec.shard) for one in self.engines if gpu.uuid in one.spec.gpus
        ]
        users += [self.strangers[gpu.uuid]] if gpu.uuid in self.strangers else []
        taken = sum(user.memory or 0 for user in users)
        return replace(gpu, memory_used=taken, users=tuple(users), unhealthy=self.sick.get(gpu.uuid, ""))

    def between(self, low: float, high: float) -> float:
        """Return a number between these by chance, or their mean."""
        return self.rng.uniform(low, high) if self.rng is not None else (low + high) / 2

    def spawn(self, spec: ShardSpec, attempt: int) -> Engine | Reason:
        """Start an engine, or say what is missing or in the way."""
        if spec.weights in self.missing_weights:
            return Reason("weights_missing", f"no file {spec.weights}")
        if spec.port in self.foreign_ports or any(one.spec.port == spec.port for one in self.alive):
            return Reason("port_taken", f"port {spec.port} is taken")
        missing = [uuid for uuid in spec.gpus if uuid not in [gpu.uuid for gpu in self.gpus()]]
        if missing:
            return Reason("gpu_missing", f"card {missing[0]} is not there")
        self._pids += 1
        loop = asyncio.get_running_loop()
        load = 1e9 if "--hang" in spec.args else (flag(spec, "--load") or 1.0) * self.between(0.8, 1.2)
        engine = Engine(spec, attempt, self._pids, loop.time() + load)
        self.engines.append(engine)
        self.changes += 1
        crash = flag(spec, "--crash-after")
        if crash is not None:
            loop.call_later(crash, self.end, engine)
        return engine

    def ask_to_end(self, engine: Engine) -> None:
        """Send an engine SIGTERM."""
        if engine.alive and not engine.asked_to_end:
            self.stopping(self, engine)
            engine.asked_to_end = True
            if "--deaf" not in engine.spec.args:
                asyncio.get_running_loop().call_later(self.between(0.01, 0.5), self.end, engine)

    def kill(self, engine: Engine) -> None:
        """Send an engine SIGKILL."""
        if engine.alive:
            self.stopping(self, engine)
            engine.asked_to_end = True
            self.end(engine)

    def end(self, engine: Engine) -> None:
        """Let an engine end by itself."""
        if engine.alive:
            engine.alive = False
            self.changes += 1
            engine.gone.set()
            self.engines.remove(engine)
            self.ended(self, engine)
            if engine.on_end is not None:
                engine.on_end(engine)


class Agent:
    """An agent that works on a machine. Start once; `stop` leaves its engines alone."""

    def __init__(self, machine: Machine, network: FakeNetwork, boot: str) -> None:
        self.machine = machine
        self._network = network
        self._state = AgentState(BootId(boot))
        self._tasks = Supervisor(f"agent {machine.name}")
        self._kick = asyncio.Event()
        self._changes = Latest(0)
        self._stopped = False
        self._fetches: dict[ShardId, Owned] = {}

    def start(self) -> None:
        """Adopt what there is, and listen."""
        machine = self.machine
        self._state.order = machine.order
        for shard, engine in sorted(machine.records.items()):
            if not engine.alive:
                del machine.records[shard]
                self.dispatch(LeftOver(engine.spec, engine.attempt))
                continue
            engine.on_end = self._on_end
            ready = engine.is_ready(asyncio.get_running_loop().time())
            self.dispatch(Found(engine.spec, engine.attempt, engine.pid, ready))
        if machine.order is not None:
            self.dispatch(OrderStored(machine.order))
        self._tasks.loop("ticks", self._ticks())
        self._network.listen(machine.name, self._accept)

    async def stop(self) -> None:
        """Stop working."""
        self._stopped = True
        self._network.deafen(self.machine.name)
        for engine in self.machine.alive:
            engine.on_end = None
        await self._tasks.stop()

    def say(self) -> None:
        """Report soon: something of the machine is not as it was."""
        self._changes.set(self._changes.value + 1)

    def dispatch(self, event: Event) -> None:
        """Feed one event and begin all that follows from it; an agent that was stopped does nothing more."""
        if self._stopped:
            return
        for instruction in self._state.handle(event, self.machine.clock.now()):
            self._do(instruction)
        self._kick.set()

    def hear_again(self, order: NodeOrder) -> None:
        """Get an order that was sent before, late or twice."""
        self._obey(order)

    async def _ticks(self) -> None:
        while True:
            self._kick.clear()
            try:
                async with asyncio.timeout(self._state.next_due(self.machine.clock.now())):
                    await self._kick.wait()
            except TimeoutError:
                self.dispatch(Tick())

    def _accept(self, peer: Peer) -> None:
        self._tasks.job("peer", self._serve(peer), lambda _: peer.close())

    async def _serve(self, peer: Peer) -> None:
        session = Session("agent")
        tasks = Supervisor("session")
        try:
            while data := await peer.read():
                for message in session.feed(data):
                    match message:
                        case Hello():
                            _send(peer, Welcome(PROTOCOL, __version__, users=True))
                            tasks.job("reports", self._reports(peer, message.node), lambda _: peer.close())
                        case Order():
                            self._obey(message.order)
                        case Using():
                            if self._state.users.take(message, self.machine.clock.now()):
                                self.say()
                        case _:
                            pass
        finally:
            await tasks.stop()
            peer.close()

    async def _reports(self, peer: Peer, node: NodeName) -> None:
        while True:
            version = self._changes.version
            report = self._state.report(node, self._facts(), self.machine.clock.now())
            _send(peer, Said(replace(report, gpus=self.machine.gpus())))
            try:
                async with asyncio.timeout(REPORT_EVERY):
                    await self._changes.newer(version)
            except TimeoutError:
                continue

    def _obey(self, order: NodeOrder) -> None:
        if self.machine.loses_orders:
            self.machine.loses_orders -= 1
            return
        self.machine.orders_seen.append(order)
        if self.machine.disk_full:
            self.say()
            return
        if not self._state.accepts(order):
            self._changes.set(self._changes.value + 1)
            return
        if order == self._state.order:
            return
        self.machine.order = order
        self.machine.obeyed.append(order.rank)
        self.machine.changes += 1
        self.dispatch(OrderStored(order))

    def _do(self, instruction: Instruction) -> None:
        match instruction:
            case Fetch():
                self._fetches[instruction.spec.shard] = self._tasks.job("fetch", self._fetch(instruction.spec))
            case CancelFetch():
                self._fetches.pop(instruction.shard).cancel()
            case Start():
                self._start(instruction)
            case Probe():
                self._tasks.job("probe", self._probe(instruction))
            case Adapt():
                self._tasks.job("adapt", self._adapt(instruction))
            case Stop():
                self._tasks.job("stop", self._stop(instruction))
            case Reap():
                self.machine.records.pop(instruction.shard, None)
            case Say():
                self._changes.set(self._changes.value + 1)

    def _start(self, start: Start) -> None:
        loop = asyncio.get_running_loop()
        outcome = self.machine.spawn(start.spec, start.attempt)
        if isinstance(outcome, Reason):
            loop.call_soon(self.dispatch, NotStarted(start.spec.shard, outcome))
            return
        self.machine.records[start.spec.shard] = outcome
        outcome.on_end = self._on_end
        loop.call_soon(self.dispatch, Started(start.spec, start.attempt, outcome.pid))

    async def _fetch(self, spec: ShardSpec) -> None:
        assert spec.fetch is not None
        if spec.weights not in self.machine.fetched:
            await asyncio.sleep(self.machine.between(0.5, 5.0))
            self.machine.fetched.add(spec.weights)
        self.dispatch(Fetched(spec.shard, spec.fetch))

    async def _probe(self, probe: Probe) -> None:
        await asyncio.sleep(self.machine.between(0.001, 0.05))
        now = asyncio.get_running_loop().time()
        ready = any(one.pid == probe.pid and one.is_ready(now) for one in self.machine.alive)
        pulse = Pulse(answered=True, in_flight=0, tokens=0.0) if probe.figures else None
        text = "" if ready else "/health answers 503"
        look = None
        if ready and probe.proof and probe.adapters is not None:
            loaded = self.machine.adapters.setdefault(probe.pid, {})
            wanted = {one.name: one for one in probe.adapters}
            look = AdapterLook(
                wanted=probe.adapters,
                there=frozenset(loaded),
                lacking=tuple(one for one in probe.adapters if loaded.get(one.name) != one),
                surplus=tuple(sorted(loaded.keys() - wanted.keys())),
            )
        self.dispatch(Probed(probe.spec.shard, probe.attempt, ready, text, pulse=pulse, adapters=look))

    async def _adapt(self, adapt: Adapt) -> None:
        await asyncio.sleep(self.machine.between(0.01, 2.0))
        engine = next((one for one in self.machine.alive if one.spec.shard == adapt.spec.shard), None)
        if engine is not None:
            loaded = self.machine.adapters.setdefault(engine.pid, {})
            loaded.update((one.name, one) for one in adapt.load)
            for name in adapt.unload:
                loaded.pop(name, None)
        self.dispatch(Adapted(adapt.spec.shard, adapt.attempt, {}))

    async def _stop(self, stop: Stop) -> None:
        engine = next((one for one in self.machine.alive if one.pid == stop.pid), None)
        if engine is not None:
            if stop.grace:
                self.machine.ask_to_end(engine)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(stop.grace):
                        await engine.gone.wait()
            self.machine.kill(engine)
        await asyncio.sleep(self.machine.between(0.001, 0.05))
        self.dispatch(Gone(stop.shard, stop.attempt))

    def _on_end(self, engine: Engine) -> None:
        text = "ended with status 0" if engine.asked_to_end else "ended with status 1"
        self.dispatch(Exited(engine.spec.shard, engine.attempt, "exit", text, ("its last words",)))

    def _facts(self) -> Facts:
        machine = self.machine
        foreign = tuple(sorted(machine.foreign_ports))
        complaint = "the order cannot be stored: no space left on device" if machine.disk_full else ""
        return Facts(machine.name, machine.cpus, machine.memory, "6.1", "sim", 1, "/weights", foreign, complaint)


def flag(spec: ShardSpec, name: str) -> float | None:
    """Return the number after an argument, if it is there."""
    if name not in spec.args:
        return None
    return float(spec.args[spec.args.index(name) + 1])


def _send(peer: Peer, message: FromAgent) -> None:
    peer.write(frame(encode(message)))
