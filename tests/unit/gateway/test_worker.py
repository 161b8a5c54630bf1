"""The worker's side of the control plane's socket, against a control plane that the test plays."""

import asyncio
import random
from pathlib import Path

import pytest

from llmgw.fleet.access import OPEN, Access
from llmgw.fleet.spent import SpentBatch
from llmgw.fleet.table import EndpointTable
from llmgw.gateway.worker import run_worker
from llmgw.runtime.clock import SystemClock
from llmgw.wire.frames import frame
from llmgw.wire.messages import (
    PROTOCOL,
    AccessTable,
    Hello,
    NodeName,
    Spending,
    SpendingKept,
    Table,
    WorkerCounts,
    WorkerHello,
    WorkerUsage,
    encode,
)
from llmgw.wire.session import Session
from tests.fakes.engine import running_engine
from tests.unit.gateway.support import PATIENCE, STREAM, Client, address_of, endpoint, table, until


class ControlPlane:
    """Accepts one worker after the other and remembers what the present one said."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.hellos: list[WorkerHello] = []
        self.usages: list[WorkerUsage] = []
        self.counts: list[WorkerCounts] = []
        self.access: Access | None = OPEN
        self.confirms = True
        self.batches: list[SpentBatch] = []
        self.connected = 0
        self._writer: asyncio.StreamWriter | None = None
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_unix_server(self._serve, str(self.path))

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        if self._writer is not None:
            self._writer.close()
        await self._server.wait_closed()
        await until(lambda: self.connected == 0)
        self.path.unlink(missing_ok=True)

    def send_table(self, sent: EndpointTable) -> None:
        self.send(frame(encode(Table(sent))))

    def send(self, data: bytes) -> None:
        assert self._writer is not None
        self._writer.write(data)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connected += 1
        self._writer = writer
        if self.access is not None:
            self.send(frame(encode(AccessTable(self.access))))
        session = Session("control_of_worker")
        try:
            while data := await reader.read(1 << 16):
                for message in session.feed(data):
                    match message:
                        case WorkerHello():
                            self.hellos.append(message)
                        case WorkerCounts():
                            self.counts.append(message)
                        case WorkerUsage():
                            self.usages.append(message)
                        case Spending(batch):
                            self.batches.append(batch)
                            if self.confirms:
                                self.send(frame(encode(SpendingKept(batch.source, batch.sequence))))
        finally:
            self.connected -= 1
            writer.close()

    @property
    def port(self) -> int:
        return int(self.hellos[-1].listen.rpartition(":")[2])

    async def client(self) -> Client:
        return Client(*await asyncio.open_connection("127.0.0.1", self.port))


@pytest.fixture
async def control(tmp_path: Path):
    plane = ControlPlane(tmp_path / "control.sock")
    await plane.start()
    yield plane
    await plane.stop()


class Worker:
    """A worker in a task of the test."""

    def __init__(self, control: Path, drain: float = 5.0) -> None:
        self.stop = asyncio.Event()
        running = run_worker(
            listen=("127.0.0.1", 0),
            control=control,
            drain=drain,
            clock=SystemClock(),
            rng=random.Random(1),
            stop=self.stop,
        )
        self.task = asyncio.get_running_loop().create_task(running)

    async def end(self) -> None:
        self.stop.set()
        async with asyncio.timeout(PATIENCE):
            await self.task


async def test_a_worker_greets_takes_tables_and_says_so(control: ControlPlane) -> None:
    worker = Worker(control.path)
    await until(lambda: control.usages)
    assert control.hellos[0].protocol == PROTOCOL
    assert control.usages[0].table_version == 0
    said = len(control.usages)
    control.send_table(table(version=41))
    await until(lambda: len(control.usages) > said)
    assert control.usages[said].table_version == 41
    async with asyncio.timeout(0.4):
        for version in range(42, 46):  # more than the usage that is due anyway can tell of
            control.send_table(table(version=version))
            await until(lambda version=version: control.usages[-1].table_version == version)
    said = len(control.usages)
    await until(lambda: len(control.usages) > said + 1)
    await worker.end()
    await until(lambda: control.connected == 0)


async def test_nobody_is_refused_for_want_of_a_first_table(control: ControlPlane) -> None:
    worker = Worker(control.path)
    await until(lambda: control.usages)
    with pytest.raises(ConnectionRefusedError):
        await control.client()
    control.send_table(table(version=1))
    await until(lambda: control.usages[-1].table_version == 1)
    client = await control.client()
    client.send(b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (await client.head()).status == 200
    await client.close()
    await worker.end()


async def test_without_any_table_it_says_so_after_a_while(
    control: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llmgw.gateway.worker.FIRST_TABLE", 0.0)
    worker = Worker(control.path)
    await until(lambda: control.usages)
    client = await control.client()
    client.post(STREAM)
    assert (await client.head()).status == 503
    await client.close()
    await worker.end()


async def test_a_withdrawn_endpoint_that_becomes_quiet_is_said_at_once(control: ControlPlane) -> None:
    async with running_engine(chunks=2, stall_after=1) as engine:
        worker = Worker(control.path)
        await until(lambda: control.usages)
        control.send_table(table(endpoint(0, address_of(engine)), version=1))
        await until(lambda: control.usages[-1].table_version == 1)
        client = await control.client()
        client.post(STREAM)
        head = await client.head()
        control.send_table(table(version=2))
        await until(lambda: control.usages[-1].table_version == 2)
        assert [(usage.id, usage.in_flight) for usage in control.usages[-1].endpoints] == [("m-0", 1)]
        control.usages.clear()
        engine.throw(stall_after=None)
        (connection,) = engine.connections
        connection.step()
        assert (await client.body(head)).whole
        async with asyncio.timeout(0.3):
            await until(lambda: control.usages and control.usages[-1].endpoints == ())
        assert control.usages[-1].requests in {0, 1}
        await client.close()
        await worker.end()


async def test_a_worker_that_loses_the_control_plane_serves_on_and_comes_back(tmp_path: Path) -> None:
    first = ControlPlane(tmp_path / "control.sock")
    await first.start()
    async with running_engine() as engine:
        worker = Worker(first.path)
        await until(lambda: first.usages)
        first.send_table(table(endpoint(0, address_of(engine)), version=7))
        await until(lambda: first.usages[-1].table_version == 7)
        await first.stop()
        client = await first.client()
        client.post(STREAM)
        assert (await client.response()).whole
        await client.close()
        second = ControlPlane(tmp_path / "control.sock")
        await second.start()
        await until(lambda: second.usages)
        assert second.usages[0].table_version == 7
        assert second.usages[0].endpoints[0].ended_ago is not None
        assert second.usages[0].requests == 1
        await worker.end()
        await second.stop()


async def test_a_worker_that_starts_first_waits_for_the_control_plane(tmp_path: Path) -> None:
    worker = Worker(tmp_path / "late.sock")
    await asyncio.sleep(0.05)
    late = ControlPlane(tmp_path / "late.sock")
    await late.start()
    await until(lambda: late.usages)
    await worker.end()
    await late.stop()


async def test_a_peer_that_speaks_something_else_is_left_and_tried_again(control: ControlPlane) -> None:
    worker = Worker(control.path)
    await until(lambda: control.usages)
    control.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    await until(lambda: len(control.hellos) == 2)
    control.send(frame(encode(Hello(PROTOCOL, "1", "c", NodeName("n")))))
    await until(lambda: len(control.hellos) == 3)
    await worker.end()


async def test_usage_is_said_until_the_last_request_has_ended(control: ControlPlane) -> None:
    async with running_engine(chunks=2, stall_after=1) as engine:
        worker = Worker(control.path)
        await until(lambda: control.usages)
        control.send_table(table(endpoint(0, address_of(engine)), version=1))
        await until(lambda: control.usages[-1].table_version == 1)
        client = await control.client()
        client.post(STREAM)
        head = await client.head()
        worker.stop.set()
        said = len(control.usages)
        await until(lambda: len(control.usages) > said + 1)
        assert control.usages[-1].endpoints[0].in_flight == 1
        engine.throw(stall_after=None)
        (connection,) = engine.connections
        connection.step()
        assert (await client.body(head)).whole
        await worker.end()
        await until(lambda: control.connected == 0)
        assert control.usages[-1].endpoints[0].in_flight == 0
        assert control.usages[-1].requests == 1
        counted = {(one.name, one.labels): one.value for one in control.counts[-1].samples}
        assert counted["llmgw_gateway_requests_total", ("chat", "m", "200", "")] == 1
        await client.close()


async def test_a_port_that_is_taken_is_an_error_at_the_start(control: ControlPlane) -> None:
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(OSError, match="in use"):
        await run_worker(
            listen=("127.0.0.1", port),
            control=control.path,
            drain=0.0,
            clock=SystemClock(),
            rng=random.Random(1),
            stop=asyncio.Event(),
        )
    server.close()
    await server.wait_closed()


async def test_what_requests_cost_is_said_until_it_is_confirmed_and_counted_once(tmp_path: Path) -> None:
    first = ControlPlane(tmp_path / "control.sock")
    first.confirms = False
    await first.start()
    async with running_engine() as engine:
        worker = Worker(first.path)
        await until(lambda: first.usages)
        first.send_table(table(endpoint(0, address_of(engine)), version=7))
        await until(lambda: first.usages[-1].table_version == 7)
        client = await first.client()
        client.post(STREAM)
        assert (await client.response()).whole
        await until(lambda: first.batches)
        await first.stop()
        client.post(STREAM)
        assert (await client.response()).whole
        await client.close()
        second = ControlPlane(tmp_path / "control.sock")
        await second.start()
        await until(lambda: len(second.batches) == 2)
        await worker.end()
        await second.stop()
    assert second.batches[0] == first.batches[0]
    assert [(one.sequence, [row.requests for row in one.rows]) for one in second.batches] == [(1, [1]), (2, [1])]


async def test_a_worker_ends_only_when_what_requests_cost_is_kept(control: ControlPlane) -> None:
    async with running_engine() as engine:
        worker = Worker(control.path)
        await until(lambda: control.usages)
        control.send_table(table(endpoint(0, address_of(engine)), version=1))
        await until(lambda: control.usages[-1].table_version == 1)
        client = await control.client()
        client.post(STREAM)
        assert (await client.response()).whole
        await client.close()
        control.confirms = False
        worker.stop.set()
        await until(lambda: control.batches)
        assert not worker.task.done()
        batch = control.batches[0]
        control.send(frame(encode(SpendingKept("another", batch.sequence))))
        control.send(frame(encode(SpendingKept(batch.source, batch.sequence))))
        await worker.end()
    assert sum(row.requests for one in control.batches for row in one.rows) == 1


async def test_a_worker_without_keys_serves_nobody(control: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llmgw.gateway.worker.FIRST_TABLE", 0.0)
    control.access = None
    worker = Worker(control.path)
    await until(lambda: control.usages)
    control.send_table(table(version=1))
    await until(lambda: control.usages[-1].table_version == 1)
    client = await control.client()
    client.post(STREAM)
    assert (await client.response()).code == "no_keys"
    await client.close()
    await worker.end()
