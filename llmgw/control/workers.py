"""The gateway's worker processes: started, kept at the newest endpoint table and keys, asked what they have in flight.

Workers outlive a control plane that was killed or crashed: they go on serving by their last table and look for its socket.
The next one finds them by that socket's path in their command line, lets them serve until it knows the whole fleet again,
starts fresh workers on the same port (`SO_REUSEPORT`), and only then tells the old ones to finish: their streams run on. So
workers are no asyncio subprocesses, whose transport would kill them with the event loop.

Usage fails closed (`counting`). A worker that says nothing for long is hung: it would hold its part of the port's connections
for ever, so it is killed and replaced.
"""

import asyncio
import logging
import os
import signal
import subprocess
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llmgw.base.time import EARLIEST, Clock, Instant
from llmgw.control.counting import SILENCE, Word, is_news, joined
from llmgw.control.counts import Counts
from llmgw.fleet.access import Access
from llmgw.fleet.spent import SpentBatch
from llmgw.fleet.static import keyless
from llmgw.fleet.table import EndpointTable, shared
from llmgw.fleet.usage import UsageView
from llmgw.ports.links import LinkBroken
from llmgw.runtime.latest import Latest
from llmgw.runtime.pidfd import ended
from llmgw.runtime.supervisor import Owned, Supervisor
from llmgw.wire.errors import ProtocolError
from llmgw.wire.frames import frame
from llmgw.wire.messages import (
    AccessTable,
    Sample,
    Spending,
    SpendingKept,
    Table,
    WorkerCounts,
    WorkerHello,
    WorkerUsage,
    encode,
)
from llmgw.wire.session import Session

log = logging.getLogger(__name__)

RESTART_AFTER = 0.5
"""Seconds before a worker that ended is replaced."""
HUNG = 20.0
"""Seconds without a word after which a worker is killed."""
LOOK = 1.0
"""Seconds between two looks for hung workers."""
LAST_WORDS = 5.0
"""Seconds at a stop, after those for streams, in which a worker breaks off what still runs and has its sums confirmed."""
OURS = ("LLMGW_", "PG")
"""How the names of environment variables begin that are for this process alone: among them are secrets, and the store's."""


@dataclass(slots=True)
class _Worker:
    """One living worker process."""

    pid: int
    inherited: bool
    usage: WorkerUsage | None = None
    at: Instant = EARLIEST
    retiring: bool = False
    ready: bool = False


@dataclass(frozen=True, slots=True)
class _Published:
    """The newest table, and the values of the keys that its endpoints name."""

    table: EndpointTable
    keys: Mapping[str, str] = field(repr=False)

    def message(self) -> Table:
        """Return what a worker is sent: an endpoint whose key is not at hand would only answer 401."""
        return Table(keyless(self.table, self.keys), self.keys)


@dataclass(slots=True)
class Workers:
    """All workers of this control plane. Implements `EndpointSink`, `AccessSink` and `UsageSource`."""

    command: Sequence[str]
    """Starts one worker."""
    wanted: int
    socket: Path
    clock: Clock
    changed: Callable[[], None]
    survivors: Callable[[], list[int]]
    """Returns the workers of earlier control planes that still run."""
    spent: Callable[[SpentBatch], Awaitable[None]]
    """Returns once a batch is kept. Raises StoreUnavailable or LinkBroken; the worker says it again then."""
    embedded: Callable[[asyncio.Event], Coroutine[Any, Any, None]] | None = None
    """Serves in this process and loop until the event is set, beside the `wanted` processes."""
    _finish: asyncio.Event = field(default_factory=asyncio.Event)
    _inside: Owned | None = None
    _newest: Latest[_Published | None] = field(default_factory=lambda: Latest(None))
    _access: Latest[Access | None] = field(default_factory=lambda: Latest(None))
    _settled: asyncio.Event = field(default_factory=asyncio.Event)
    _workers: dict[int, _Worker] = field(default_factory=dict)
    _tasks: Supervisor = field(default_factory=lambda: Supervisor("workers"))
    _server: asyncio.Server | None = None
    _stopping: bool = False
    _counts: Counts = field(default_factory=Counts)
    _trouble: str = ""

    @property
    def trouble(self) -> str:
        """What is wrong with the workers now; empty if nothing is."""
        return self._trouble

    @property
    def version(self) -> int:
        """The version of the newest table; 0 before the first."""
        return self._newest.value.table.version if self._newest.value is not None else 0

    @property
    def serving(self) -> bool:
        """Whether there are workers with a table, be it one of an earlier control plane."""
        return self._newest.value is not None or any(worker.inherited for worker in self._workers.values())

    @property
    def requests(self) -> int:
        """How many requests the living workers have answered."""
        return sum(worker.usage.requests for worker in self._workers.values() if worker.usage is not None)

    def samples(self) -> list[Sample]:
        """Return what the workers have counted, those that ended included."""
        return self._counts.samples()

    @property
    def pids(self) -> list[int]:
        """The living workers' process ids; this process's own, if one is embedded."""
        return sorted(self._workers)

    @property
    def processes(self) -> list[int]:
        """Those that are processes of their own, which can be told things by signals."""
        return [pid for pid in self.pids if self.embedded is None or pid != os.getpid()]

    def cut(self) -> None:
        """End all of them at once, whatever streams run."""
        for pid in self.processes:
            _signal(pid, signal.SIGKILL)
        if self._inside is not None:
            self._inside.cancel()

    async def start(self) -> None:
        """Listen for workers and start them. Raises OSError if the socket cannot be made."""
        self.socket.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._accept, path=str(self.socket))
        self.socket.chmod(0o600)
        for pid in self.survivors():
            self._workers[pid] = _Worker(pid, inherited=True, at=self.clock.now())
            self._tasks.job(f"inherited {pid}", self._await_end(pid))
        self._tasks.loop("hung", self._kill_hung())
        for number in range(self.wanted):
            self._tasks.loop(f"worker {number}", self._keep_one())
        if self.embedded is not None:
            self._inside = self._tasks.job("embedded", self._embed(self.embedded))

    async def failure(self) -> None:
        """Wait until a task failed; raises then."""
        await self._tasks.failure()

    async def stop(self, drain: float) -> None:
        """Tell the workers to finish, wait for them, kill what is left after `drain` seconds and a little."""
        self._stopping = True
        self._finish.set()
        for pid in self.processes:
            _signal(pid, signal.SIGTERM)
        try:
            async with asyncio.timeout(drain + LAST_WORDS):
                await asyncio.gather(*(ended(pid) for pid in self.processes))
                while self._inside is not None and not self._inside.done:  # noqa: ASYNC110 - a stop is in no hurry
                    await asyncio.sleep(0.02)
        except TimeoutError:
            self.cut()
        await self._close()

    async def abandon(self) -> None:
        """Leave the workers running, for the next control plane."""
        self._stopping = True
        await self._close()

    async def _close(self) -> None:
        await self._tasks.stop()
        if self._server is not None:
            self._server.close()
        self.socket.unlink(missing_ok=True)

    def publish(self, table: EndpointTable, *, settled: bool, keys: Mapping[str, str] | None = None) -> None:
        """Make this the newest table; `keys` are the values of those that its endpoints name, as far as they are known."""
        newest = _Published(shared(table, self.wanted + (self.embedded is not None)), keys or {})
        if self._newest.value != newest:
            self._newest.set(newest)
        if settled and not self._settled.is_set():
            self._settled.set()

    def admit(self, access: Access) -> None:
        """Make this what they go by."""
        if self._access.value != access:
            self._access.set(access)

    def usage(self) -> UsageView:
        """Return what all living workers together have in flight."""
        return joined(self.words(), self.version or None, self.clock.now())

    def words(self) -> list[Word]:
        """Return what each living worker said last."""
        return [Word(f"gateway worker {one.pid}", one.usage, one.at) for one in self._workers.values()]

    async def _survivors_serve(self) -> None:
        """Wait while survivors serve better than a fresh worker, which has not heard of every node."""
        while any(worker.inherited for worker in self._workers.values()) and not self._settled.is_set():  # noqa: ASYNC110
            await asyncio.sleep(0.1)

    async def _embed(self, serve: Callable[[asyncio.Event], Coroutine[Any, Any, None]]) -> None:
        await self._survivors_serve()
        self._workers[os.getpid()] = _Worker(os.getpid(), inherited=False, at=self.clock.now())
        try:
            await serve(self._finish)
        finally:
            del self._workers[os.getpid()]

    async def _keep_one(self) -> None:
        await self._survivors_serve()
        while True:
            if self._stopping:
                await asyncio.Event().wait()
            try:
                process = self._spawn()
            except OSError as error:
                self._trouble = f"no gateway worker can be started: {error.strerror}"
                log.warning("no gateway worker can be started", extra={"reason": error.strerror})
                await asyncio.sleep(RESTART_AFTER * 4)
                continue
            self._workers[process.pid] = _Worker(process.pid, inherited=False, at=self.clock.now())
            log.info("gateway worker started", extra={"pid": process.pid})
            await ended(process.pid)
            status = process.wait()
            del self._workers[process.pid]
            self._counts.ended(process.pid)
            self.changed()
            if self._stopping:
                continue
            self._trouble = f"gateway worker {process.pid} ended with status {status}"
            log.error("gateway worker ended; replacing it", extra={"pid": process.pid, "status": status})
            await asyncio.sleep(RESTART_AFTER)

    def _spawn(self) -> subprocess.Popen[bytes]:
        # a worker reads requests of strangers, and is told all it needs on its command line
        kept = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
        return subprocess.Popen(self.command, env=kept, stdin=subprocess.DEVNULL, start_new_session=True)

    async def _await_end(self, pid: int) -> None:
        """Wait until an inherited worker, which is not our child, is gone."""
        await ended(pid)
        del self._workers[pid]
        self._counts.ended(pid)
        self.changed()

    async def _kill_hung(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            before = loop.time()
            await asyncio.sleep(LOOK)
            if loop.time() - before > LOOK + SILENCE / 2:
                for worker in self._workers.values():
                    worker.at = (
                        self.clock.now()
                    )  # it was this process that stood still; what they said is still to be read
                continue
            for worker in self._workers.values():
                if worker.pid in self.processes and self.clock.now() - worker.at > HUNG:
                    self._trouble = f"gateway worker {worker.pid} said nothing for {HUNG:.0f} s and was killed"
                    log.error("gateway worker is hung; killing it", extra={"pid": worker.pid})
                    _signal(worker.pid, signal.SIGKILL)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._tasks.job("connection", self._connection(reader, writer), self._connection_lost)

    def _connection_lost(self, error: BaseException) -> None:
        if not self._stopping:
            log.warning("a gateway worker's connection ended: %s", error)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        session = Session("control_of_worker")
        tasks = Supervisor("worker")
        worker: _Worker | None = None
        try:
            while data := await reader.read(1 << 16):
                for message in session.feed(data):
                    match message:
                        case WorkerHello():
                            worker = self._workers.get(message.pid)
                            if worker is None:
                                raise ProtocolError(f"process {message.pid} is not a worker of this control plane")
                            if message.keys:
                                tasks.job("access", self._accesses(writer), lambda _: writer.close())
                            tasks.job("tables", self._tables(worker, writer), lambda _: writer.close())
                        case WorkerCounts(samples):
                            assert worker is not None
                            if worker.pid in self._workers:  # what is read after its end was counted with it
                                self._counts.take(worker.pid, samples)
                        case WorkerUsage():
                            assert worker is not None
                            self._take_usage(worker, message)
                        case Spending(batch):
                            tasks.job("spending", self._keep(batch, writer), not_kept)
                        case _:
                            raise ProtocolError(f"{message.type!r} is not for a control plane")
        except OSError as error:
            raise LinkBroken(str(error)) from error
        finally:
            await tasks.stop()
            writer.close()

    async def _accesses(self, writer: asyncio.StreamWriter) -> None:
        """Say who may ask for what; it is written before the first table, since this task was started before that one's."""
        while True:
            version = self._access.version
            if self._access.value is not None:
                writer.write(frame(encode(AccessTable(self._access.value))))
                await writer.drain()
            await self._access.newer(version)

    async def _keep(self, batch: SpentBatch, writer: asyncio.StreamWriter) -> None:
        await self.spent(batch)
        writer.write(frame(encode(SpendingKept(batch.source, batch.sequence))))

    async def _tables(self, worker: _Worker, writer: asyncio.StreamWriter) -> None:
        if worker.inherited:
            await self._settled.wait()
        while True:
            version = self._newest.version
            if self._newest.value is not None:
                writer.write(frame(encode(self._newest.value.message())))
                await writer.drain()
            await self._newest.newer(version)

    def _take_usage(self, worker: _Worker, usage: WorkerUsage) -> None:
        before = worker.usage
        worker.usage = usage
        worker.at = self.clock.now()
        if not worker.ready and self._newest.value is not None and usage.table_version == self.version:
            worker.ready = True
            self._trouble = ""
            if not worker.inherited:
                self._retire_inherited()
        if is_news(before, usage):
            self.changed()

    def _retire_inherited(self) -> None:
        for worker in self._workers.values():
            if worker.inherited and not worker.retiring:
                log.info("an earlier control plane's worker finishes", extra={"pid": worker.pid})
                worker.retiring = True
                _signal(worker.pid, signal.SIGTERM)


def not_kept(error: BaseException) -> None:
    """Say that a batch was not kept; its worker holds it, and says it again."""
    log.warning("what requests cost could not be kept yet: %s", error)


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
