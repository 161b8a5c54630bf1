"""Cgroups: which tree is chosen, what is written there, and, where this machine lets us, real engines in them."""

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmgw.agent import cgroup, procfs
from llmgw.agent.cgroup import Cgroups, Evidence
from llmgw.agent.endings import classify
from llmgw.agent.process import Processes, Spawned
from llmgw.base.ids import ShardId
from tests.unit.agent import host

SHARD = ShardId("m-1-0.s0")


def _tree(root: Path, own: str, controllers: dict[str, tuple[str, str]]) -> str:
    """Lay out a unified tree: cgroup -> (controllers it has, controllers it hands out). Return its mountinfo."""
    for path in (Path("/"), *reversed(Path(own).parents), Path(own)):
        directory = root / str(path).lstrip("/")
        directory.mkdir(parents=True, exist_ok=True)
        has, hands_out = controllers.get(str(path), ("", ""))
        (directory / "cgroup.procs").write_text("")
        (directory / "cgroup.controllers").write_text(has)
        control = directory / "cgroup.subtree_control"
        control.unlink(missing_ok=True)
        if hands_out == "busy":
            control.mkdir()  # as a kernel that refuses: neither read nor written
        else:
            control.write_text(hands_out)
    return f"30 20 0:26 / {root} rw - cgroup2 cgroup2 rw\n"


def test_the_engines_lie_beside_the_agent_below_the_nearest_ancestor_that_hands_out_memory(tmp_path: Path) -> None:
    own = "/system.slice/llmgw-agent.service"
    mounts = _tree(tmp_path, own, {own: ("memory cpu", "busy"), "/system.slice": ("memory cpu", "cpu memory")})
    found = cgroup.choose(mounts, f"0::{own}\n", "abc")
    assert (found.version, found.base) == ("v2", tmp_path / "system.slice/llmgw-abc")


def test_a_container_without_controllers_has_its_own_cgroup_for_membership(tmp_path: Path) -> None:
    found = cgroup.choose(_tree(tmp_path, "/", {}), "0::/\n", "abc")
    assert (found.version, found.base) == ("v2", tmp_path / "llmgw-abc")


def test_a_hybrid_tree_has_its_memory_in_v1(tmp_path: Path) -> None:
    mounts = _tree(tmp_path / "unified", "/", {"/": ("hugetlb", "")})
    (tmp_path / "memory/docker/x").mkdir(parents=True)
    (tmp_path / "memory/docker/x/cgroup.procs").write_text("")
    mounts += f"31 20 0:27 / {tmp_path}/memory rw - cgroup cgroup rw,memory\n"
    found = cgroup.choose(mounts, "4:memory:/docker/x\n0::/\n", "abc")
    assert (found.version, found.base) == ("v1", tmp_path / "memory/docker/x/llmgw-abc")


def test_without_any_tree_there_are_none() -> None:
    found = cgroup.choose("22 1 8:1 / / rw - ext4 /dev/root rw\n", "0::/\n", "abc")
    assert found == cgroup.NONE
    assert found.create(SHARD, 1, 1 << 30, 2) is None
    assert found.all() == []


def test_v2_limits_memory_without_swap_and_weighs_cpus(tmp_path: Path) -> None:
    path = tmp_path / "llmgw-abc" / "m-1-0.s0.1"
    path.mkdir(parents=True)
    (path / "cpu.weight").write_text("100")
    assert Cgroups("v2", path.parent).create(SHARD, 1, 1 << 30, 4) == path
    read = {one.name: one.read_text() for one in path.iterdir()}
    assert read == {"cpu.weight": "400", "memory.max": "1073741824", "memory.swap.max": "0", "memory.oom.group": "1"}
    assert "cpu.max" not in read, "a quota would stall an engine just when it is busy"


def test_what_the_kernel_counted_is_read_from_either_tree(tmp_path: Path) -> None:
    new, old = tmp_path / "new", tmp_path / "old"
    for path, files in (
        (new, {"memory.events": "oom 2\noom_kill 1\n", "memory.max": "max\n", "memory.peak": "4096\n"}),
        (
            old,
            {
                "memory.oom_control": "under_oom 0\noom_kill 3\n",
                "memory.limit_in_bytes": "8192\n",
                "memory.max_usage_in_bytes": "9223372036854771712\n",
            },
        ),
    ):
        path.mkdir()
        for name, text in files.items():
            (path / name).write_text(text)
    assert cgroup.evidence(new) == Evidence(1, None, 4096)
    assert cgroup.evidence(old) == Evidence(3, 8192, None)
    assert cgroup.evidence(tmp_path / "none") is None


def test_an_ending_names_the_limit_and_the_peak() -> None:
    mib = 1 << 20
    killed = classify(signal.SIGKILL, Evidence(1, 64 * mib, 64 * mib), by_us=False)
    assert killed.code == "out_of_host_memory"
    assert "its limit is 64 MiB, its peak was 64 MiB" in killed.text
    node = classify(1 << 8, Evidence(2, 640 * mib, 64 * mib), by_us=False)
    assert "the node ran out, its limit 640 MiB did not" in node.text
    assert classify(signal.SIGKILL, Evidence(0, 1, 1), by_us=False).code == "killed"
    assert classify(signal.SIGKILL, None, by_us=True).code == "killed_by_us"
    assert classify(signal.SIGKILL, None, by_us=False, kernel="Killed process 7 (x)").code == "out_of_host_memory"
    assert classify(0, None, by_us=False).text == "exited with status 0 without being asked to"
    assert classify(signal.SIGSEGV, None, by_us=False).text == "killed by SIGSEGV"
    assert classify(None, None, by_us=False).code == "exited"


@pytest.fixture(params=["v1", "v2"])
def tree(request: pytest.FixtureRequest) -> Iterator[Cgroups]:
    """A tree of this machine, of each version that it has."""
    name = f"test{os.getpid()}"
    mounts, own = Path("/proc/self/mountinfo").read_text(), Path("/proc/self/cgroup").read_text()
    if request.param == "v2":
        mounts = "".join(line for line in mounts.splitlines(keepends=True) if " - cgroup cgroup " not in line)
    found = cgroup.choose(mounts, own, name)
    if found.version != request.param:
        pytest.skip(f"this machine lets us make no cgroup of {request.param}")
    yield found
    for path in found.all():
        cgroup.kill(path)
        cgroup.remove(path)
    assert not found.base.exists(), "an emptied cgroup was left"


@pytest.fixture
def processes(tree: Cgroups, tmp_path: Path) -> Processes:
    return host.agent(tmp_path, tree, name=tree.base.name.removeprefix(cgroup.PREFIX))


async def test_an_engine_is_in_its_cgroup_before_it_runs_anything(processes: Processes, tmp_path: Path) -> None:
    said = tmp_path / "said"
    program = f"open({str(said)!r}, 'w').write(open('/proc/self/cgroup').read()); import time; time.sleep(60)"
    spec = host.spec(program)
    spawned = await host.started(processes, spec)
    await host.until(lambda: said.exists() and said.read_text().endswith("\n"))
    assert f"/{processes.cgroups.base.name}/{spec.shard}.1\n" in said.read_text()
    assert spawned.record.cgroup == str(processes.cgroups.base / f"{spec.shard}.1")
    assert procfs.stat_of(spawned.pid) is not None
    assert await processes.end(spawned.pid, spec.shard, 1, 1.0) == ()
    assert not Path(spawned.record.cgroup).exists()


@pytest.mark.parametrize("kind", ["same", "session", "bare", "bare_session"])
async def test_children_of_a_killed_parent_are_found_whatever_they_left_behind(
    processes: Processes, tmp_path: Path, kind: str
) -> None:
    spec, spawned, child = await host.family(processes, tmp_path, kind)
    os.kill(spawned.pid, signal.SIGKILL)
    host.reaped(spawned.pid)
    assert host.alive(child)
    assert await processes.end(spawned.pid, spec.shard, 1, 0.0) == ()
    assert not host.alive(child)


async def test_a_child_that_somebody_took_out_of_the_cgroup_is_found_by_its_marker(
    processes: Processes, tmp_path: Path
) -> None:
    spec, spawned, child = await host.family(processes, tmp_path, "session")
    (processes.cgroups.base.parent / "cgroup.procs").write_text(str(child))
    assert child not in cgroup.members(Path(spawned.record.cgroup))
    assert processes.members(spawned.pid, spec.shard, 1) == sorted([spawned.pid, child])
    assert (processes.shard_of(spawned.pid), processes.shard_of(child)) == (spec.shard, spec.shard)
    assert processes.shard_of(os.getpid()) is None
    assert await processes.end(spawned.pid, spec.shard, 1, 0.0) == ()
    assert not host.alive(child)


FORKS = """
import os, time
while True:
    if os.fork() == 0:
        os.setsid()
        os.execve("/bin/sleep", ["sleep", "60"], {})
    time.sleep(0.005)
"""


async def test_one_that_forks_faster_than_we_look_is_ended(processes: Processes) -> None:
    spec = host.spec(FORKS)
    spawned = await host.started(processes, spec)
    await host.until(lambda: len(cgroup.members(Path(spawned.record.cgroup))) > 20)
    assert await processes.end(spawned.pid, spec.shard, 1, 0.0) == ()


async def test_an_engine_that_cannot_enter_its_cgroup_does_not_run_outside(
    processes: Processes, tmp_path: Path
) -> None:
    spec = host.spec(f"open({str(tmp_path / 'ran')!r}, 'w')")
    spec_path = processes.cgroups.base / f"{spec.shard}.1"
    argv = ["/bin/sh", "-c", cgroup.ENTER, "sh", str(spec_path / "cgroup.procs"), "/bin/touch", str(tmp_path / "ran")]
    child = await asyncio.create_subprocess_exec(
        *argv, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    said, _ = await child.communicate()
    assert child.returncode == 125
    assert b"cannot enter the cgroup" in said
    assert not (tmp_path / "ran").exists()


HUNGRY = "x = []\nwhile True: x.append(bytearray(1 << 20))"


async def test_an_engine_over_its_memory_limit_ends_out_of_host_memory(processes: Processes) -> None:
    if processes.cgroups.version == "v2" and not (processes.cgroups.base.parent / "memory.max").exists():
        pytest.skip("the unified tree of this machine has no memory controller")
    spec = host.spec(HUNGRY, memory=64 << 20)
    spawned = processes.spawn(spec, 1, "", None)
    assert isinstance(spawned, Spawned)
    ended = asyncio.Event()
    processes.watch(spawned.pid, lambda _: ended.set())
    async with asyncio.timeout(30):
        await ended.wait()
    ending = processes.ending(spawned.pid)
    assert ending.code == "out_of_host_memory"
    assert "its limit is 64 MiB, its peak was 64 MiB" in ending.text
    assert await processes.end(spawned.pid, spec.shard, 1, 0.0) == ()


async def test_a_kill_by_somebody_else_is_told_apart_from_memory(processes: Processes) -> None:
    spec = host.spec()
    spawned = await host.started(processes, spec)
    ended = asyncio.Event()
    processes.watch(spawned.pid, lambda _: ended.set())
    os.kill(spawned.pid, signal.SIGKILL)
    async with asyncio.timeout(10):
        await ended.wait()
    ending = processes.ending(spawned.pid)
    assert (ending.code, ending.text) == ("killed", "killed by SIGKILL, which this agent did not send")
    assert await processes.end(spawned.pid, spec.shard, 1, 0.0) == ()
