"""What an agent starts, and what keeps it from starting: real processes and ports of this machine, engines of three lines."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmgw.agent import cgroup, procfs
from llmgw.agent.disk import Disk, Record
from llmgw.agent.endings import killed_for_memory
from llmgw.agent.ports import port_taken
from llmgw.agent.process import MARK_AGENT, Processes, Spawned
from llmgw.engines.shard import PYTHON, WEIGHTS, ShardSpec
from llmgw.fleet.report import Reason
from tests.unit.agent import host
from tests.unit.agent.brain import SPEC


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _spec(**changes: object) -> ShardSpec:
    fields = {field: getattr(SPEC, field) for field in SPEC.__slots__}
    return ShardSpec(**{**fields, "port": _free_port(), "weights": "w.gguf", **changes})


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    disk = Disk(tmp_path / "state")
    disk.open()
    yield disk
    disk.close()


@pytest.fixture
def processes(disk: Disk, tmp_path: Path) -> Processes:
    (tmp_path / "w.gguf").write_text("weights")
    return Processes(host.NAME, disk, tmp_path)


def _program(directory: Path, name: str, text: str) -> Path:
    path = directory / name
    path.write_text(text)
    path.chmod(0o755)
    return path


async def _end(processes: Processes, spec: ShardSpec, spawned: Spawned) -> None:
    assert await processes.end(spawned.pid, spec.shard, spawned.record.attempt, 0.0) == ()


async def test_the_first_program_that_is_installed_is_run(
    processes: Processes, disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = _spec(programs=(("llama-server",), (PYTHON, "-c", "import time; time.sleep(60)")), args=("--model", WEIGHTS))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    own = processes.spawn(spec, 1, "c#1", None)
    assert isinstance(own, Spawned)
    assert procfs.arguments_of(own.pid)[0] == sys.executable
    await _end(processes, spec, own)
    _program(tmp_path, "llama-server", "#!/bin/sh\nexec sleep 60\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    theirs = processes.spawn(spec, 2, "c#1", None)
    assert isinstance(theirs, Spawned)
    assert disk.tail(spec.shard, 2, 5)[0] == f"# {tmp_path}/llama-server --model {tmp_path}/w.gguf"
    await _end(processes, spec, theirs)


def test_what_is_missing_is_a_reason_and_nothing_is_started(processes: Processes, tmp_path: Path) -> None:
    for changes, code in (
        ({"programs": (("no-such-engine",),)}, "program_missing"),
        ({"weights": "missing.gguf", "programs": ((PYTHON,),)}, "weights_missing"),
        ({"weights": str(tmp_path / "x"), "programs": ((PYTHON,),)}, "weights_missing"),
    ):
        outcome = processes.spawn(_spec(**changes), 1, "", None)
        assert isinstance(outcome, Reason)
        assert outcome.code == code


def test_a_taken_port_is_named_with_its_holder_even_before_it_listens() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        port = holder.getsockname()[1]
        bound = port_taken(port)
        assert bound is not None
        assert bound.code == "port_taken"
        holder.listen()
        listening = port_taken(port)
        assert listening is not None
        assert f"pid {os.getpid()}" in listening.text
    assert port_taken(port) is None


async def test_the_environment_is_an_allow_list(processes: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_ARG_CTX_SIZE", "1")
    monkeypatch.setenv("PORT", "1")
    spec = _spec(programs=((PYTHON, "-c", "import time; time.sleep(60)"),), args=(), env={"MINE": "yes"})
    spawned = processes.spawn(spec, 1, "c#1", None)
    assert isinstance(spawned, Spawned)
    environment = procfs.environment_of(spawned.pid)
    assert "LLAMA_ARG_CTX_SIZE" not in environment
    assert "PORT" not in environment
    assert environment["MINE"] == "yes"
    assert environment[MARK_AGENT] == host.NAME
    await _end(processes, spec, spawned)


async def test_a_process_is_ours_only_by_pid_start_time_and_mark(processes: Processes, disk: Disk) -> None:
    spec = _spec(programs=((PYTHON, "-c", "import time; time.sleep(60)"),), args=())
    spawned = processes.spawn(spec, 1, "", None)
    assert isinstance(spawned, Spawned)
    record = spawned.record
    assert disk.records() == [record]
    assert processes.is_ours(record)
    assert not processes.is_ours(Record(spec, 1, record.pid, record.start_ticks + 1, record.boot)), (
        "another process's time"
    )
    assert not processes.is_ours(Record(spec, 2, record.pid, record.start_ticks, record.boot)), "another attempt"
    assert not processes.is_ours(Record(spec, 1, record.pid, record.start_ticks, "another boot"))
    assert not Processes("another", disk, None).is_ours(record), "another agent's mark"
    assert await Processes("another", disk, None).end(record.pid, spec.shard, 1, 0.0) == ()
    assert processes.is_ours(record), "what does not carry our mark is not touched"
    await _end(processes, spec, spawned)
    assert not processes.is_ours(record)


STUBBORN = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setpgid(0, 0)
while True:
    time.sleep(1)
"""


SHARING = """
import pathlib, signal, sys, time
from multiprocessing import shared_memory
signal.signal(signal.SIGTERM, signal.SIG_IGN)
pathlib.Path(sys.argv[1]).write_text(shared_memory.SharedMemory(create=True, size=1 << 20).name + "\\n")
time.sleep(60)
"""


@pytest.mark.parametrize("cgroups", [False, pytest.param(True, marks=host.needs_cgroups)])
async def test_memory_that_a_killed_engine_shared_is_free_again(tmp_path: Path, cgroups: bool) -> None:
    found = cgroup.find(host.NAME) if cgroups else cgroup.NONE
    processes = host.agent(tmp_path, found)
    where = tmp_path / "name"
    spec = host.spec(SHARING, args=(str(where),))
    spawned = await host.started(processes, spec)
    await host.until(lambda: where.exists() and where.read_text().endswith("\n"))
    segment = Path("/dev/shm") / where.read_text().strip()
    assert segment.exists()
    assert await processes.end(spawned.pid, spec.shard, 1, 0.0) == ()
    try:
        assert not segment.exists()
    finally:
        segment.unlink(missing_ok=True)


async def test_a_tracker_that_does_not_end_is_killed_like_all_else(processes: Processes) -> None:
    forged = "from multiprocessing.resource_tracker import main; import time; time.sleep(60)"
    spawned = await host.started(processes, host.spec(forged))
    assert await processes.end(spawned.pid, SPEC.shard, 1, 0.0) == ()
    assert not host.alive(spawned.pid)


async def test_a_session_that_ignores_its_end_is_killed_with_all_its_members(processes: Processes) -> None:
    spec = _spec(programs=((PYTHON, "-c", STUBBORN),), args=())
    spawned = processes.spawn(spec, 1, "", None)
    assert isinstance(spawned, Spawned)
    while len(procfs.members(spawned.pid)) < 2:  # noqa: ASYNC110 - another process does it
        await asyncio.sleep(0.01)
    assert await processes.end(spawned.pid, spec.shard, 1, 0.2) == ()
    assert procfs.members(spawned.pid) == []


@pytest.mark.parametrize("kind", ["same", "session", "bare_session"])
async def test_without_cgroups_children_are_found_by_session_and_marker(tmp_path: Path, kind: str) -> None:
    processes = host.agent(tmp_path)
    spec, spawned, child = await host.family(processes, tmp_path, kind)
    os.kill(spawned.pid, signal.SIGKILL)
    host.reaped(spawned.pid)
    assert await processes.end(spawned.pid, spec.shard, 1, 0.0) == ()
    assert not host.alive(child)


async def test_an_engine_of_another_agent_with_the_same_shard_is_not_touched(tmp_path: Path) -> None:
    mine = host.agent(tmp_path)
    (tmp_path / "other").mkdir()
    theirs = host.agent(tmp_path / "other", name=f"{host.NAME}-other")
    spec = host.spec()
    one, two = await host.started(mine, spec), await host.started(theirs, host.spec())
    assert (mine.shard_of(one.pid), mine.shard_of(two.pid)) == (spec.shard, None)
    assert await mine.end(two.pid, spec.shard, 1, 0.2) == ()
    assert await mine.end(one.pid, spec.shard, 1, 0.0) == ()
    assert host.alive(two.pid)
    assert await theirs.end(two.pid, spec.shard, 1, 0.0) == ()


async def test_a_child_with_the_marker_of_another_agent_is_theirs_even_in_our_session(tmp_path: Path) -> None:
    processes = host.agent(tmp_path)
    spec, spawned, child = await host.family(processes, tmp_path, "theirs")
    try:
        assert await processes.end(spawned.pid, spec.shard, 1, 0.0) == ()
        assert host.alive(child)
    finally:
        os.kill(child, signal.SIGKILL)


def test_every_port_of_a_block_must_be_free_on_the_address_that_the_engine_takes() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        block = port_taken(port - 2, ports=4)
        assert block is not None
        assert block.text.startswith(f"port {port} is taken by pid {os.getpid()}")
        everywhere = port_taken(port, host="0.0.0.0")
        assert everywhere is not None
        assert everywhere.code == "port_taken"
        assert port_taken(port, host="127.0.0.2") is None, "another address of the node"
    absent = port_taken(port, host="192.0.2.1")
    assert absent is not None
    assert absent.code == "address_unusable"


async def test_a_port_that_a_connection_got_for_its_own_end_is_named_too() -> None:
    with socket.socket() as server, socket.socket() as client:
        server.bind(("127.0.0.1", 0))
        server.listen()
        client.bind(("127.0.0.1", 0))
        client.connect(server.getsockname())
        taken = port_taken(client.getsockname()[1])
    assert taken is not None
    assert f"pid {os.getpid()}" in taken.text


async def test_a_program_that_may_not_be_run_is_a_reason_with_and_without_a_cgroup(tmp_path: Path) -> None:
    path = tmp_path / "engine"
    path.write_text("#!/bin/sh\n")
    path.chmod(0o644)
    for cgroups in (cgroup.NONE, cgroup.find(f"exec{os.getpid()}")):
        monkey = host.agent(tmp_path, cgroups, name=f"exec{os.getpid()}")
        outcome = monkey.spawn(host.spec(programs=((str(path),),)), 1, "", None)
        assert isinstance(outcome, Reason)
        assert outcome.code in ("not_executable", "program_missing")
        assert cgroups.all() == []


def test_the_kernel_log_is_believed_only_about_a_kill_after_the_start(tmp_path: Path) -> None:
    line = "6,1,5000000,-;Out of memory: Killed process 42 (python) total-vm:9kB\n SUBSYSTEM=x\n"
    (tmp_path / "kmsg").write_text(line)
    assert "Killed process 42" in killed_for_memory(42, 4.0, str(tmp_path / "kmsg"))
    assert killed_for_memory(42, 6.0, str(tmp_path / "kmsg")) == "", "an earlier process of that number"
    assert killed_for_memory(4, 4.0, str(tmp_path / "kmsg")) == ""
    assert killed_for_memory(42, 4.0, str(tmp_path / "none")) == ""


async def test_an_engine_carries_who_started_it_and_why(processes: Processes) -> None:
    spec = _spec(programs=((PYTHON, "-c", "import time; time.sleep(60)"),), args=())
    spawned = processes.spawn(spec, 3, "0123456789#7", None)
    assert isinstance(spawned, Spawned)
    carried = procfs.environment_of(spawned.pid)
    marks = {name: value for name, value in carried.items() if name.startswith("LLMGW_")}
    assert marks == {
        "LLMGW_AGENT": host.NAME,
        "LLMGW_SHARD": spec.shard,
        "LLMGW_ATTEMPT": "3",
        "LLMGW_HASH": spec.hash,
        "LLMGW_CAUSE": "0123456789#7",
    }
    await _end(processes, spec, spawned)
