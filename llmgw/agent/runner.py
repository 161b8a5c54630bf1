"""Does the instructions of `AgentState` and feeds the results back as events. No decision is taken here.

Everything runs on one event loop; `dispatch` is synchronous, so an event's instructions are all begun before the next
event is seen. An order is written to the disk before the state sees it, and one that cannot be written is not obeyed.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import assert_never

from llmgw.agent import adoption, container_programs
from llmgw.agent.disk import Disk
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
from llmgw.agent.facts import NodeFacts
from llmgw.agent.fetching import Fetches
from llmgw.agent.gpus import Gpus
from llmgw.agent.growth import LogGrowth
from llmgw.agent.lora import compare, path_of
from llmgw.agent.ports import port_taken
from llmgw.agent.probe import Prober
from llmgw.agent.process import NO_DEVICES, Processes, Spawned
from llmgw.agent.state import AgentState
from llmgw.base.ids import NodeName, ShardId
from llmgw.base.time import Clock
from llmgw.engines.exits import CONTAINER, PORT_TAKEN, classify
from llmgw.engines.shard import ShardSpec
from llmgw.fleet.order import NodeOrder
from llmgw.fleet.report import Adoptions, Facts, Reason, Report
from llmgw.runtime.latest import Latest
from llmgw.runtime.supervisor import Supervisor
from llmgw.wire.messages import Using

log = logging.getLogger(__name__)

TAIL_LINES = 20
"""Lines of an ended engine's log that travel in reports."""
TOLD_LINES = 200
"""Lines that are searched for why it ended: a Python engine's last words are several tracebacks."""
RELEASE_PATIENCE = 60.0
"""Seconds that the memory of a card may take to be free before its holder is named."""


class Runner:
    """The agent's hands. Create inside the event loop; call `adopt` once, then `run`."""

    def __init__(
        self,
        state: AgentState,
        disk: Disk,
        processes: Processes,
        prober: Prober,
        clock: Clock,
        weights_dir: Path | None,
    ) -> None:
        self._state = state
        self._disk = disk
        self._processes = processes
        self._prober = prober
        self._clock = clock
        self._weights_dir = weights_dir
        self._tasks = Supervisor("agent")
        self._fetches = Fetches(self._tasks, processes.secrets.get, self.dispatch)
        self._growth = LogGrowth(disk)
        self._gpus: Gpus | None = None
        self._node = NodeFacts(weights_dir, disk.root, self._ports)
        self._holding: dict[ShardId, frozenset[int]] = {}
        """Processes of attempts that are being ended and hold a card as yet."""
        self._complaint = ""
        self._adoptions = Adoptions()
        self._kick = asyncio.Event()
        self.changes = Latest(0)
        """Counts what others should know of; every connection sends a report when it grows."""

    def use_gpus(self, gpus: Gpus) -> None:
        """Look after these cards from now on. Call once, before `adopt`; without, the node has none."""
        self._gpus = gpus
        self._tasks.loop("cards", gpus.run())
        self._tasks.loop("card changes", self._tell_of(gpus.changes))

    async def _tell_of(self, changes: Latest[int]) -> None:
        while True:
            await changes.newer(changes.version)
            self.changes.set(self.changes.value + 1)

    async def adopt(self) -> None:
        """Know again what an earlier agent started; end marked processes that nothing wants."""
        self._tasks.loop("facts", self._node.run())
        self._tasks.loop("fact changes", self._tell_of(self._node.changes))
        found = await adoption.adopt(self._disk, self._processes, self._prober, self._keep)
        self._adoptions = found.counts
        self._state.floor = self._disk.rank()
        if found.order is not None:
            self._state.order = found.order
        for record in found.stale:
            self.dispatch(LeftOver(record.spec, record.attempt))
        for record, ready in found.adopted:
            self._processes.watch(record.pid, self._on_end(record.spec, record.attempt))
            self.dispatch(Found(record.spec, record.attempt, record.pid, ready))
        if found.order is not None:
            self.dispatch(OrderStored(found.order))
        self._tasks.job("sweep containers", self._processes.sweep_containers(self._attempts))

    def _attempts(self) -> list[tuple[ShardId, int]]:
        return [(spec.shard, attempt) for spec, attempt, _ in self._state.running()]

    async def run(self) -> None:
        """Let time pass for the state, until cancelled."""
        while True:
            self._kick.clear()
            try:
                async with asyncio.timeout(self._state.next_due(self._clock.now())):
                    await self._kick.wait()
            except TimeoutError:
                self._processes.reap()  # grandchildren that were left to us; our own are reaped when they end
                self.dispatch(Tick())

    def belongs_to_another(self, cluster: str) -> str:
        """Return the cluster that this agent obeys, if it is another one and something of it is here; empty otherwise.

        Two clusters that share a node by mistake would end each other's engines for ever.
        """
        mine = self._disk.cluster()
        return mine if mine not in ("", cluster) and self._state.holds_anything else ""

    def obey(self, order: NodeOrder, cluster: str, secrets: Mapping[str, str] | None = None) -> None:
        """Take an order from a control plane, unless it is older than the one in force or cannot be stored."""
        if self.belongs_to_another(cluster):
            log.error("refused an order of another cluster", extra={"cluster": cluster})
            return
        if not self._state.accepts(order):
            log.warning("refused an older order", extra={"epoch": order.epoch, "generation": order.generation})
            self.changes.set(self.changes.value + 1)
            return
        if order == self._state.order:
            self._processes.secrets.keep(secrets or {}, order)
            return
        try:
            if self._disk.cluster() != cluster:
                self._disk.store_cluster(cluster)
            self._disk.store_order(order)
        except OSError as error:
            self._complain(f"cannot store orders, so none is obeyed: {error.strerror} ({self._disk.root})")
            return
        self._complain("")
        # not before: the values of the order in force are needed for as long as that one is
        self._processes.secrets.keep(secrets or {}, order)
        self.dispatch(OrderStored(order))

    def heed(self, using: Using) -> None:
        """Take what a control plane says of its gateways; the others hear of it at once if it is news."""
        if self._state.users.take(using, self._clock.now()):
            self.changes.set(self.changes.value + 1)

    def dispatch(self, event: Event) -> None:
        """Feed one event and begin all that follows from it."""
        for instruction in self._state.handle(event, self._clock.now()):
            self._do(instruction)
        if isinstance(event, Fetched):
            self._node.wake()  # there are weights that were not there
        self._kick.set()

    def report(self, node: NodeName) -> Report:
        """Return a report of everything as it is now."""
        gpus = self._gpus.cards if self._gpus is not None else ()
        return self._state.report(node, self._facts(), self._clock.now(), gpus)

    def writes(self, shard: ShardId, attempt: int) -> bool:
        """Whether a process of this attempt may still write to its log."""
        return any(spec.shard == shard and number == attempt for spec, number, _ in self._state.running())

    async def failure(self) -> None:
        """Wait until a task of the runner failed; raises then."""
        await self._tasks.failure()

    async def stop(self, *, engines: bool) -> None:
        """Stop working. Engines run on, unless `engines` says to end them too."""
        await self._tasks.stop()
        self._processes.unwatch_all()
        if engines:
            running = self._state.running()
            ends = (self._processes.end(pid, spec.shard, attempt, spec.stop_grace) for spec, attempt, pid in running)
            await asyncio.gather(*ends)
            for spec, _, _ in running:
                self._keep(partial(self._disk.forget, spec.shard))
        await self._prober.close()
        if self._gpus is not None:
            await self._gpus.close()

    def _keep(self, change: Callable[[], None]) -> None:
        """Change a record. One that cannot be changed is complained of; what runs does not depend on it."""
        try:
            change()
        except OSError as error:
            self._complain(f"cannot change what is recorded in {self._disk.root}: {error.strerror}")

    def _complain(self, text: str) -> None:
        if text != self._complaint:
            self._complaint = text
            if text:
                log.error("state directory", extra={"complaint": text})
            self.changes.set(self.changes.value + 1)

    def _do(self, instruction: Instruction) -> None:
        match instruction:
            case Fetch():
                self._fetch(instruction.spec)
            case CancelFetch():
                self._fetches.cancel(instruction.shard)
            case Start() if instruction.spec.runtime != "process":
                self._tasks.job(f"start {instruction.spec.shard}", self._start_contained(instruction))
            case Start():
                self._start(instruction)
            case Probe():
                self._tasks.job(f"probe {instruction.spec.shard}", self._probe(instruction))
            case Adapt():
                self._tasks.job(f"adapt {instruction.spec.shard}", self._adapt(instruction))
            case Stop():
                self._tasks.job(f"stop {instruction.shard}", self._stop(instruction))
            case Reap():
                self._growth.forget(instruction.shard)
                self._fetches.cancel(instruction.shard)
                self._keep(partial(self._disk.forget, instruction.shard))
            case Say():
                self.changes.set(self.changes.value + 1)
            case _:
                assert_never(instruction)

    def _fetch(self, spec: ShardSpec) -> None:
        self._fetches.begin(spec, self._weights_place())

    def _weights_place(self) -> Path | None:
        given = self._state.order.weights_dir if self._state.order else None
        return Path(given) if given else self._weights_dir

    async def _start_contained(self, start: Start) -> None:
        """Start a container, once docker has said that it would: without it nothing was tried, and no attempt is counted."""
        spec = start.spec
        found = await container_programs.look(spec.runtime)
        if found is not None and found.trouble:
            text = f"{spec.runtime} cannot be used on this node: {found.trouble}"
            self.dispatch(NotStarted(spec.shard, Reason("runtime_away", text)))
            return
        self._start(start)

    def _start(self, start: Start) -> None:
        spec = start.spec
        attempt = max([start.attempt - 1, *self._disk.attempts(spec.shard)]) + 1
        weights_dir = self._state.order.weights_dir if self._state.order else None
        outcome: Spawned | Reason
        if spec.runtime != "process":
            devices = self._gpus.devices(spec.gpus, spec.runtime) if self._gpus is not None else NO_DEVICES
            if isinstance(devices, Reason):
                outcome = devices
            else:
                outcome = self._processes.spawn(spec, attempt, start.cause, weights_dir, devices=devices)
        else:
            cards = self._gpus.environment(spec.gpus) if self._gpus is not None else {}
            if isinstance(cards, Reason):
                outcome = cards
            else:
                outcome = self._processes.spawn(spec, attempt, start.cause, weights_dir, extra=cards)
        loop = asyncio.get_running_loop()
        # fed back by the loop, not from here: the event that led to this start is still being worked through
        if isinstance(outcome, Reason):
            loop.call_soon(self.dispatch, NotStarted(spec.shard, outcome))
            return
        log.info("started", extra={"shard": spec.shard, "attempt": attempt, "pid": outcome.pid, "cause": start.cause})
        loop.call_soon(self.dispatch, Started(spec, attempt, outcome.pid))
        self._processes.watch(outcome.pid, self._on_end(spec, attempt))

    async def _probe(self, probe: Probe) -> None:
        spec = probe.spec
        if probe.figures:
            verdict, pulse = await asyncio.gather(
                self._prober.probe(spec, probe.pid, proof=probe.proof), self._prober.pulse(spec)
            )
            grown, last_line = 0, ""
        else:
            verdict, pulse = await self._prober.probe(spec, probe.pid, proof=probe.proof), None
            grown, last_line = self._growth.look(spec, probe.attempt)
        look = None
        if verdict.ready and probe.proof:
            self._keep(partial(self._disk.mark_ready, spec.shard))
            if probe.adapters is not None and verdict.models is not None:
                look = compare(verdict.models, probe.adapters, self._weights_place())
        self.dispatch(
            Probed(spec.shard, probe.attempt, verdict.ready, verdict.text, verdict.lost, pulse, grown, last_line, look)
        )

    async def _adapt(self, adapt: Adapt) -> None:
        spec, place = adapt.spec, self._weights_place()
        load = [(one, path_of(one, place)) for one in adapt.load]
        failed = await self._prober.adapt(spec, load, adapt.unload)
        log.info(
            "adapters changed",
            extra={"shard": spec.shard, "loaded": [one.name for one in adapt.load if one.name not in failed]}
            | {"unloaded": list(adapt.unload), "failed": dict(failed)},
        )
        self.dispatch(Adapted(spec.shard, adapt.attempt, failed))

    async def _stop(self, stop: Stop) -> None:
        log.info("stopping", extra={"shard": stop.shard, "attempt": stop.attempt, "pid": stop.pid, "grace": stop.grace})
        pids = await self._users(stop, self._gpus) if self._gpus is not None and stop.gpus else frozenset()
        holdouts = await self._processes.end(stop.pid, stop.shard, stop.attempt, stop.grace)
        held = ""
        if self._gpus is not None and stop.gpus and not holdouts:
            held = await self._gpus.released(stop.gpus, pids, RELEASE_PATIENCE)
        if holdouts or held:
            self._holding[stop.shard] = pids
        else:
            self._holding.pop(stop.shard, None)
        tail = self._disk.tail(stop.shard, stop.attempt, TAIL_LINES)
        self.dispatch(Gone(stop.shard, stop.attempt, holdouts, held, tail))

    async def _users(self, stop: Stop, gpus: Gpus) -> frozenset[int]:
        """Return whose memory on the cards is the attempt's, also of processes that /proc does not show any more.

        A driver may hold the memory of a dead process, and an engine that crashed is dead before it is looked at.
        """
        members = await asyncio.to_thread(self._processes.members, stop.pid, stop.shard, stop.attempt)
        seen = [user.pid for gpu in gpus.cards for user in gpu.users if user.shard == stop.shard]
        return frozenset((stop.pid, *members, *seen)) | self._holding.get(stop.shard, frozenset())

    def _on_end(self, spec: ShardSpec, attempt: int) -> Callable[[int], None]:
        def ended(pid: int) -> None:
            ending = self._processes.ending(pid)
            if self._state.is_stopping(spec.shard):
                log.info("engine ended as asked", extra={"shard": spec.shard, "attempt": attempt, "pid": pid})
                return
            tail = self._disk.tail(spec.shard, attempt, TOLD_LINES)
            patterns = spec.exit_patterns if spec.runtime == "process" else (*CONTAINER, *spec.exit_patterns)
            code, text = classify(patterns, ending.code, ending.text, tail)
            if code == PORT_TAKEN:
                holder = port_taken(spec.port, spec.host, spec.ports)
                text = f"{text}; {holder.text}" if holder is not None else text
            log.warning("engine ended", extra={"shard": spec.shard, "attempt": attempt, "pid": pid, "how": text})
            self.dispatch(Exited(spec.shard, attempt, code, text, tail[-TAIL_LINES:]))

        return ended

    def _facts(self) -> Facts:
        order = self._state.order
        self._node.use_weights_dir(Path(order.weights_dir) if order is not None and order.weights_dir else None)
        return self._node.current(
            complaint=self._complaint or self._processes.secrets.complaint,
            cgroups=self._processes.cgroups.version,
            adoptions=self._adoptions,
            driver=self._gpus.driver if self._gpus is not None else "",
            gpu_trouble=self._gpus.trouble if self._gpus is not None else "",
        )

    def _ports(self) -> frozenset[int]:
        """Return the ports that belong to shards of this agent."""
        return frozenset(spec.port + place for spec, _, _ in self._state.running() for place in range(spec.ports))
