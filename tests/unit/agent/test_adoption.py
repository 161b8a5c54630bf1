"""What a restarted agent makes of what it finds: real processes, each outcome counted, nothing of others touched."""

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from llmgw.agent import adoption, cgroup, procfs
from llmgw.agent.adoption import Inheritance
from llmgw.agent.cgroup import Cgroups
from llmgw.agent.disk import Disk, Record
from llmgw.agent.probe import Prober
from llmgw.agent.process import MARK_AGENT, MARK_ATTEMPT, MARK_SHARD, Processes
from llmgw.base.ids import RestartHash, ShardId
from llmgw.fleet.report import Adoptions
from tests.builders import order
from tests.unit.agent import host
from tests.unit.agent.brain import SPEC

LISTENER = (
    "import socket, sys, time; s = socket.socket(); s.bind(('127.0.0.1', int(sys.argv[1]))); s.listen(); time.sleep(60)"
)


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    disk = Disk(tmp_path / "state")
    disk.open()
    disk.close()
    return disk


@pytest.fixture
def cgroups() -> Iterator[Cgroups]:
    found = cgroup.find(f"adopt{os.getpid()}")
    yield found
    for path in found.all():
        cgroup.kill(path)
        for pid in cgroup.members(path):
            os.kill(pid, signal.SIGKILL)
    assert all(not cgroup.members(path) for path in found.all())


def _keep(change: Callable[[], None]) -> None:
    change()


async def _adopt(disk: Disk, processes: Processes) -> Inheritance:
    prober = Prober()
    try:
        return await adoption.adopt(disk, processes, prober, _keep)
    finally:
        await prober.close()


def _own(found: Inheritance) -> Adoptions:
    """Return the counts without the foreign ones: engines of other agents of this machine may run at any time."""
    return replace(found.counts, foreign=0)


async def test_a_proven_engine_is_adopted_and_a_ready_one_only_with_its_port(disk: Disk, tmp_path: Path) -> None:
    processes = host.agent(tmp_path)
    port = host.free_port()
    spec = host.spec(LISTENER, args=(str(port),), port=port)
    spawned = await host.started(processes, spec)
    disk.mark_ready(spec.shard)
    record = replace(spawned.record, ready=True)
    await host.until(lambda: processes.holds_port(record))
    found = await _adopt(disk, host.agent(tmp_path))
    assert found.adopted == ((record, True),), "busy or not: it holds its port"
    assert _own(found) == Adoptions(adopted=1)
    disk.store_record(replace(record, spec=replace(spec, port=host.free_port())))
    elsewhere = await _adopt(disk, host.agent(tmp_path))
    assert [ready for _, ready in elsewhere.adopted] == [False], "its port is not held by it: it proves itself anew"
    assert await processes.end(spawned.pid, spec.shard, 1, 0.0) == ()


async def test_a_shard_without_http_is_adopted_as_it_was_left(disk: Disk, tmp_path: Path) -> None:
    processes = host.agent(tmp_path)
    spec = host.spec(ready_path="", models_path="", port=host.free_port())
    spawned = await host.started(processes, spec)
    disk.mark_ready(spec.shard)
    assert processes.holds_port(spawned.record), "it has none to hold"
    found = await _adopt(disk, host.agent(tmp_path))
    assert [ready for _, ready in found.adopted] == [True]
    assert await processes.end(spawned.pid, spec.shard, 1, 0.0) == ()


async def test_a_port_that_a_stranger_shares_is_no_proof(disk: Disk, tmp_path: Path) -> None:
    processes = host.agent(tmp_path)
    spec = host.spec()
    spawned = await host.started(processes, spec)
    thief = host.stranger(LISTENER, str(spec.port))
    try:
        disk.mark_ready(spec.shard)
        await host.until(lambda: bool(procfs.listeners(spec.port)))
        found = await _adopt(disk, host.agent(tmp_path))
        assert [ready for _, ready in found.adopted] == [False]
    finally:
        host.finish(thief)
    assert await processes.end(spawned.pid, spec.shard, 1, 0.0) == ()


async def test_a_recorded_pid_of_somebody_else_is_foreign_and_untouched(disk: Disk, tmp_path: Path) -> None:
    processes = host.agent(tmp_path)
    stranger = host.stranger(host.SLEEPER)
    spec = host.spec()
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        disk.store_record(Record(spec, 3, stranger.pid, 1, boot))
        found = await _adopt(disk, processes)
        assert [record.attempt for record in found.stale] == [3]
        assert (found.adopted, _own(found)) == ((), Adoptions())
        assert found.counts.foreign >= 1
        assert await processes.end(stranger.pid, spec.shard, 3, 0.0) == ()
        assert disk.records() == []
    finally:
        host.finish(stranger)


async def test_after_a_reboot_every_record_is_stale(disk: Disk, tmp_path: Path) -> None:
    disk.store_record(Record(host.spec(), 1, os.getpid(), 0, "an earlier boot"))
    found = await _adopt(disk, host.agent(tmp_path))
    assert (found.adopted, _own(found)) == ((), Adoptions(stale=1))


async def test_an_engine_of_another_agent_is_counted_and_untouched(disk: Disk, tmp_path: Path) -> None:
    marks = {MARK_AGENT: "another", MARK_SHARD: SPEC.shard, MARK_ATTEMPT: "1"}
    other = host.stranger(host.SLEEPER, marks=marks)
    try:
        await host.until(lambda: procfs.environment_of(other.pid).get(MARK_AGENT) == "another")
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        stat = procfs.stat_of(other.pid)
        assert stat is not None
        disk.store_record(Record(SPEC, 1, other.pid, stat.start_ticks, boot))
        found = await _adopt(disk, host.agent(tmp_path))
        assert found.counts.foreign >= 2, "the record's pid, and the engine itself"
        assert (found.counts.adopted, found.counts.gone) == (0, 0)
    finally:
        host.finish(other)


async def test_a_lost_record_is_made_anew_if_the_order_wants_just_that_and_else_it_is_ended(
    disk: Disk, tmp_path: Path, cgroups: Cgroups
) -> None:
    name = cgroups.base.name.removeprefix(cgroup.PREFIX) if cgroups.version else host.NAME
    processes = host.agent(tmp_path, cgroups, name=name)
    wanted, unwanted = host.spec(), host.spec(shard=ShardId("gone-1-0.s0"))
    changed = host.spec(shard=ShardId("other-1-0.s0"), hash=RestartHash("before"))
    one, two, three = [await host.started(processes, each) for each in (wanted, unwanted, changed)]
    for each in (wanted, unwanted, changed):
        disk.forget(each.shard)
    disk.store_order(order("a", wanted, replace(changed, hash=RestartHash("after")), generation=1))
    again = host.agent(tmp_path, cgroups, name=name)
    found = await _adopt(disk, again)
    assert (found.counts.adopted, found.counts.gone) == (1, 2)
    assert [record for record, _ in found.adopted] == [one.record]
    assert disk.records() == [one.record]
    assert host.alive(one.pid)
    assert not host.alive(two.pid)
    assert not host.alive(three.pid)
    assert await again.end(one.pid, wanted.shard, 1, 0.0) == ()


@host.needs_cgroups
@pytest.mark.parametrize("kind", ["same", "session", "bare"])
async def test_what_a_dead_engine_left_is_ended_by_the_next_agent(
    disk: Disk, tmp_path: Path, cgroups: Cgroups, kind: str
) -> None:
    name = cgroups.base.name.removeprefix(cgroup.PREFIX)
    spec, spawned, child = await host.family(host.agent(tmp_path, cgroups, name=name), tmp_path, kind)
    os.kill(spawned.pid, signal.SIGKILL)
    host.reaped(spawned.pid)
    found = await _adopt(disk, host.agent(tmp_path, cgroups, name=name))
    assert (found.counts.adopted, found.counts.stale, found.counts.gone) == (0, 1, 1)
    assert [record.spec.shard for record in found.stale] == [spec.shard]
    await host.until(lambda: not host.alive(child))
    assert cgroups.all() == []


@host.needs_cgroups
async def test_a_record_that_names_a_cgroup_of_another_agent_harms_nobody(
    disk: Disk, tmp_path: Path, cgroups: Cgroups
) -> None:
    (tmp_path / "other").mkdir()
    theirs = host.agent(tmp_path / "other", cgroups, name=cgroups.base.name.removeprefix(cgroup.PREFIX))
    spec = host.spec()
    spawned = await host.started(theirs, spec)
    disk.store_record(replace(spawned.record, start_ticks=1))
    found = await _adopt(disk, host.agent(tmp_path, cgroup.find(f"mine{os.getpid()}")))
    assert (_own(found), host.alive(spawned.pid)) == (Adoptions(), True)
    assert await theirs.end(spawned.pid, spec.shard, 1, 0.0) == ()


TITLE = """
import ctypes, sys, time
libc = ctypes.CDLL(None)
with open("/proc/self/stat") as file:
    fields = file.read().rpartition(")")[2].split()
start, end = int(fields[47]), int(fields[48])
ctypes.memset(start, 0, end - start)
open(sys.argv[1], "w").write("wiped\\n")
time.sleep(60)
"""


async def test_an_engine_that_set_its_title_has_no_marker_any_more_and_is_ours_still(
    disk: Disk, tmp_path: Path
) -> None:
    processes = host.agent(tmp_path)
    spec = host.spec(TITLE, args=(str(tmp_path / "wiped"),))
    spawned = await host.started(processes, spec)
    await host.until((tmp_path / "wiped").exists)
    assert MARK_AGENT not in procfs.environment_of(spawned.pid)
    again = host.agent(tmp_path)
    found = await _adopt(disk, again)
    assert found.counts.adopted == 1
    assert await again.end(spawned.pid, spec.shard, 1, 0.5) == ()
    assert not host.alive(spawned.pid)
