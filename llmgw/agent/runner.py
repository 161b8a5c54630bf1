"""Does the instructions of `AgentState` and feeds the results back as events. No decision is taken here.

Everything runs on one event loop; `dispatch` is synchronous, so an event's instructions are all begun before the next
event is seen. An order is written to the disk before the state sees it, and one that cannot be written is not obeyed.
"""

import asyncio
import logging
import os
import platform
import re
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import assert_never

import psutil

from llmgw import __version__
from llmgw.agent import procfs
from llmgw.agent.disk import Disk, Record
from llmgw.agent.events import (
    Event,
    Exited,
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
from llmgw.agent.probe import Prober
from llmgw.agent.process import Ending, Processes, Spawned, Stray
from llmgw.agent.state import AgentState
from llmgw.base.ids import NodeName
from llmgw.base.time import Clock
from llmgw.engines.shard import ShardSpec
from llmgw.fleet.order import NodeOrder
from llmgw.fleet.report import Facts, Reason, Report
from llmgw.runtime.latest import Latest
from llmgw.runtime.supervisor import Supervisor

log = logging.getLogger(__name__)

TAIL_LINES = 20
"""Lines of an ended engine's log that travel in reports."""


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
        self._complaint = ""
        self._kick = asyncio.Event()
        self.changes = Latest(0)
        """Counts what others should know of; every connection sends a report when it grows."""

    async def adopt(self) -> None:
        """Know again what an earlier agent started; end marked processes that no record speaks of."""
        order = self._disk.order()
        records = self._disk.records()
        ours = [record for record in records if self._processes.is_ours(record)]
        kept: set[tuple[str, int]] = set()
        for stray in self._processes.strays({record.pid for record in ours}):
            if (stray.shard, stray.attempt) in kept:
                continue
            known = self._recognized(stray, order)
            if known is not None:
                log.warning("its record was lost; known by its marks", extra={"shard": stray.shard, "pid": stray.pid})
                ours.append(known)
                kept.add((stray.shard, stray.attempt))
                self._keep(partial(self._disk.store_record, known))
                continue
            log.warning("ending a process that no record speaks of", extra={"pid": stray.pid, "shard": stray.shard})
            await self._processes.end(stray.pid, stray.shard, stray.attempt, 0.0)
        for pid, shard in self._processes.of_other_agents():
            log.error(
                "an engine of another agent's state directory runs here; end it by its pid if that agent is no more",
                extra={"pid": pid, "shard": shard},
            )
        self._state.floor = self._disk.rank()
        if order is not None:
            self._state.order = order
        for record in records:
            if record not in ours:
                log.warning("its process is gone", extra={"shard": record.spec.shard, "pid": record.pid})
                self._keep(partial(self._disk.forget, record.spec.shard))
                self.dispatch(LeftOver(record.spec, record.attempt))
        await asyncio.gather(*(self._take_over(record) for record in ours))
        if order is not None:
            self.dispatch(OrderStored(order))

    def _recognized(self, stray: Stray, order: NodeOrder | None) -> Record | None:
        """Return a record of a process whose own was lost, if the order names just what its marks say."""
        wanted = order.shard(stray.shard) if order is not None else None
        if wanted is None or not stray.leads or stray.hash != wanted.spec.hash:
            return None
        return self._processes.record_of(wanted.spec, stray)

    async def _take_over(self, record: Record) -> None:
        # one that was ready once is busy if it does not answer now, and is not made to prove itself from the start
        ready = record.ready or (await self._prober.probe(record.spec, record.pid, proof=True)).ready
        log.info("adopted", extra={"shard": record.spec.shard, "pid": record.pid, "ready": ready})
        self._processes.watch(record.pid, self._on_end(record.spec, record.attempt))
        self.dispatch(Found(record.spec, record.attempt, record.pid, ready))

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

    def obey(self, order: NodeOrder, cluster: str) -> None:
        """Take an order from a control plane, unless it is older than the one in force or cannot be stored."""
        if self.belongs_to_another(cluster):
            log.error("refused an order of another cluster", extra={"cluster": cluster})
            return
        if not self._state.accepts(order):
            log.warning("refused an older order", extra={"epoch": order.epoch, "generation": order.generation})
            self.changes.set(self.changes.value + 1)
            return
        if order == self._state.order:
            return
        try:
            if self._disk.cluster() != cluster:
                self._disk.store_cluster(cluster)
            self._disk.store_order(order)
        except OSError as error:
            self._complain(f"cannot store orders, so none is obeyed: {error.strerror} ({self._disk.root})")
            return
        self._complain("")
        self.dispatch(OrderStored(order))

    def dispatch(self, event: Event) -> None:
        """Feed one event and begin all that follows from it."""
        for instruction in self._state.handle(event, self._clock.now()):
            self._do(instruction)
        self._kick.set()

    def report(self, node: NodeName) -> Report:
        """Return a report of everything as it is now."""
        return self._state.report(node, self._facts(), self._clock.now())

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
            case Start():
                self._start(instruction)
            case Probe():
                self._tasks.job(f"probe {instruction.spec.shard}", self._probe(instruction))
            case Stop():
                self._tasks.job(f"stop {instruction.shard}", self._stop(instruction))
            case Reap():
                self._keep(partial(self._disk.forget, instruction.shard))
            case Say():
                self.changes.set(self.changes.value + 1)
            case _:
                assert_never(instruction)

    def _start(self, start: Start) -> None:
        spec = start.spec
        attempt = max([start.attempt - 1, *self._disk.attempts(spec.shard)]) + 1
        weights_dir = self._state.order.weights_dir if self._state.order else None
        outcome = self._processes.spawn(spec, attempt, start.cause, weights_dir)
        loop = asyncio.get_running_loop()
        # fed back by the loop, not from here: the event that led to this start is still being worked through
        if isinstance(outcome, Reason):
            loop.call_soon(self.dispatch, NotStarted(spec.shard, outcome))
            return
        assert isinstance(outcome, Spawned)
        log.info("started", extra={"shard": spec.shard, "attempt": attempt, "pid": outcome.pid, "cause": start.cause})
        loop.call_soon(self.dispatch, Started(spec, attempt, outcome.pid))
        self._processes.watch(outcome.pid, self._on_end(spec, attempt))

    async def _probe(self, probe: Probe) -> None:
        verdict = await self._prober.probe(probe.spec, probe.pid, proof=probe.proof)
        if verdict.ready and probe.proof:
            self._keep(partial(self._disk.mark_ready, probe.spec.shard))
        self.dispatch(Probed(probe.spec.shard, probe.attempt, verdict.ready, verdict.text))

    async def _stop(self, stop: Stop) -> None:
        log.info("stopping", extra={"shard": stop.shard, "attempt": stop.attempt, "pid": stop.pid, "grace": stop.grace})
        holdouts = await self._processes.end(stop.pid, stop.shard, stop.attempt, stop.grace)
        self.dispatch(Gone(stop.shard, stop.attempt, holdouts))

    def _on_end(self, spec: ShardSpec, attempt: int) -> Callable[[int], None]:
        def ended(pid: int) -> None:
            ending = self._processes.ending(pid)
            if self._state.is_stopping(spec.shard):
                log.info("engine ended as asked", extra={"shard": spec.shard, "attempt": attempt, "pid": pid})
                return
            tail = self._disk.tail(spec.shard, attempt, TAIL_LINES)
            code, text = _classify(spec, ending, tail)
            log.warning("engine ended", extra={"shard": spec.shard, "attempt": attempt, "pid": pid, "how": text})
            self.dispatch(Exited(spec.shard, attempt, code, text, tail))

        return ended

    def _facts(self) -> Facts:
        own = {spec.port for spec, _, _ in self._state.running()}
        return Facts(
            hostname=socket.gethostname(),
            cpus=len(os.sched_getaffinity(0)),
            memory=psutil.virtual_memory().total,
            kernel=platform.release(),
            agent_version=__version__,
            agent_pid=os.getpid(),
            weights_dir=str(self._weights_dir) if self._weights_dir else None,
            foreign_ports=tuple(sorted(procfs.listening_ports() - own)),
            complaint=self._complaint,
        )


def _classify(spec: ShardSpec, ending: Ending, tail: tuple[str, ...]) -> tuple[str, str]:
    """Return (code, text): what the engine's last words say, else what the kernel says."""
    for pattern in spec.exit_patterns:
        for line in reversed(tail):
            if re.search(pattern.pattern, line):
                return pattern.code, f"{ending.text}: {pattern.text} ({line.strip()[:200]})"
    return ending.code, ending.text
