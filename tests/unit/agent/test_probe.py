"""Looking at a real port: who answers there, and what it says of itself."""

import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from llmgw.agent import procfs
from llmgw.agent.disk import Disk
from llmgw.agent.growth import LogGrowth
from llmgw.agent.liveness import SILENT, Pulse
from llmgw.agent.probe import Prober, base_url
from llmgw.engines.shard import ShardSpec
from tests.fakes.engine import FakeEngine, running_engine
from tests.unit.agent.brain import KEY, SPEC


@pytest.fixture
async def prober() -> AsyncIterator[Prober]:
    prober = Prober()
    yield prober
    await prober.close()


def at(engine: FakeEngine, **changes: object) -> ShardSpec:
    return replace(SPEC, port=engine.port, **changes)  # type: ignore[arg-type]


async def test_an_engine_of_our_own_that_names_its_model_is_ready(prober) -> None:
    async with running_engine("m") as engine:
        for proof in (True, False):
            verdict = await prober.probe(at(engine), os.getpid(), proof=proof)
            assert (verdict.ready, verdict.lost) == (True, None)


async def test_an_engine_that_loads_is_not_ready_and_not_lost(prober) -> None:
    async with running_engine("m", load_seconds=60.0) as engine:
        verdict = await prober.probe(at(engine), os.getpid(), proof=True)
        assert (verdict.ready, verdict.text, verdict.lost) == (False, "/health answers 503", None)


async def test_another_model_is_told(prober) -> None:
    async with running_engine("other") as engine:
        verdict = await prober.probe(at(engine), os.getpid(), proof=True)
        assert verdict.lost is not None
        assert (verdict.ready, verdict.lost.code) == (False, "wrong_model")
        assert verdict.text == "the engine serves other, not m"


@pytest.fixture
def other() -> Iterator[int]:
    """The pid of another process, in a session of its own."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True)
    yield child.pid
    child.communicate(b"\n")


@pytest.mark.parametrize("switches", [{}, {"health_status": 503}], ids=["healthy", "failing"])
async def test_a_port_that_another_process_holds_is_proven_and_its_pid_named(prober, other, switches) -> None:
    async with running_engine("m", **switches) as engine:
        verdict = await prober.probe(at(engine), other, proof=True)
        assert verdict.lost is not None
        assert (verdict.ready, verdict.lost.code) == (False, "port_stolen")
        assert f"port {engine.port} is held by pid {os.getpid()} (" in verdict.lost.text
        assert (await prober.probe(at(engine), other, proof=False)).lost is None, "nobody asked"


async def test_a_worker_that_leads_a_session_of_its_own_may_hold_the_port(other) -> None:
    prober = Prober(lambda pid: SPEC.shard if pid == os.getpid() else None)
    async with running_engine("m") as engine:
        assert (await prober.probe(at(engine), other, proof=True)).ready
    await prober.close()


def test_a_descriptor_that_is_closed_while_we_look_hides_none_of_the_others() -> None:
    """Reading one's own descriptors always meets one that is gone: that of the reading itself, the lowest that is free."""
    low = os.open(os.devnull, os.O_RDONLY)
    with socket.socket() as listener:
        os.close(low)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        for _ in range(50):
            assert procfs.listens_alone(os.getpid(), port)
            assert procfs.listeners(port) == [os.getpid()]


async def test_a_port_where_nothing_listens_is_lost_and_says_what_the_probe_said(prober) -> None:
    async with running_engine("m") as engine:
        spec = at(engine)
    verdict = await prober.probe(spec, os.getpid(), proof=True)
    assert verdict.lost is not None
    assert (verdict.ready, verdict.lost.code) == (False, "port_lost")
    assert verdict.text == f"port {spec.port}: ClientConnectorError"


async def test_the_figures_of_an_engine_move_with_every_event(prober) -> None:
    async with running_engine("m") as engine:
        idle = await prober.pulse(at(engine))
        assert idle is not None
        assert (idle.in_flight, idle.tokens) == (0, 0.0)
        assert await prober.pulse(at(engine)) == idle
        engine.events += 1
        moved = await prober.pulse(at(engine))
        assert moved is not None
        assert moved.tokens == idle.tokens, "its counters move at the end of a request"
        assert moved.activity != idle.activity


async def test_an_engine_without_metrics_is_not_asked_and_one_that_loads_says_nothing(prober) -> None:
    async with running_engine("m", load_seconds=60.0) as engine:
        assert await prober.pulse(at(engine, metrics=None)) is None
        assert engine.seen.probes == 0
        assert await prober.pulse(at(engine)) == Pulse(answered=True)
        spec = at(engine)
    assert await prober.pulse(spec) == SILENT


@pytest.mark.parametrize(
    ("host", "base"),
    [
        ("127.0.0.1", "http://127.0.0.1:20000"),
        ("0.0.0.0", "http://127.0.0.1:20000"),
        ("::", "http://[::1]:20000"),
        ("fd00::7", "http://[fd00::7]:20000"),
        ("10.0.0.7", "http://10.0.0.7:20000"),
    ],
)
def test_an_engine_is_asked_where_it_listens(host, base) -> None:
    assert base_url(replace(SPEC, host=host)) == base


class Log:
    """A log that grows."""

    def __init__(self, root: Path) -> None:
        disk = Disk(root)
        disk.open()
        self.path = disk.log_path(KEY, 1)
        self.growth = LogGrowth(disk)
        self.disk = disk

    def writes(self, text: str) -> tuple[int, str]:
        with self.path.open("a") as file:
            file.write(text)
        return self.growth.look(SPEC, 1)


def test_a_log_grows_by_the_engines_own_lines_and_not_by_our_looks(tmp_path) -> None:
    log = Log(tmp_path)
    try:
        assert log.writes("# llama-server --model /w/m.gguf\n") == (0, "")
        assert log.writes("loading\n") == (7, "loading")
        assert log.writes("GET /health 503\nGET /v1/models 503\nGET /metrics 503\n") == (7, "loading")
        assert log.writes("10 %\r20 %\r") == (15, "20 %")
        assert log.writes("half a li") == (24, "20 %")
        assert log.writes("ne\n") == (26, "half a line")
        grown, last = log.writes("x" * 200_000 + "\nend\n")
        assert grown > 200_000
        assert last == "end"
        assert log.growth.look(SPEC, 2) == (0, ""), "another attempt has a log of its own"
    finally:
        log.disk.close()


def test_a_log_of_a_shard_without_http_grows_too(tmp_path) -> None:
    log = Log(tmp_path)
    silent = replace(SPEC, ready_path="", models_path="", metrics=None)
    try:
        log.writes("loading\n")
        assert log.growth.look(replace(silent, shard=SPEC.shard), 1) == (7, "loading")
        log.path.write_text("loading\nstill\n")
        assert log.growth.look(silent, 1) == (12, "still")
    finally:
        log.disk.close()


async def test_a_shard_without_http_is_ready_while_its_process_lives(prober) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    spec = replace(SPEC, port=port, ready_path="", models_path="")
    verdict = await prober.probe(spec, os.getpid(), proof=True)
    assert (verdict.ready, verdict.lost) == (True, None)


async def test_an_engine_that_names_no_models_is_proven_by_its_socket_alone(prober, other) -> None:
    async with running_engine("another") as engine:
        spec = at(engine, models_path="")
        assert (await prober.probe(spec, os.getpid(), proof=True)).ready
        verdict = await prober.probe(spec, other, proof=True)
        assert verdict.lost is not None
        assert verdict.lost.code == "port_stolen"
