"""What the tests with real processes share: an agent's pieces in a temporary directory, engines of a few lines."""

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from llmgw.agent import cgroup, procfs
from llmgw.agent.cgroup import Cgroups
from llmgw.agent.disk import Disk
from llmgw.agent.process import Processes, Spawned
from llmgw.agent.secrets import Secrets
from llmgw.engines.shard import PYTHON, ShardSpec
from tests.unit.agent.brain import SPEC

NAME = f"agent{os.getpid()}"
"""One of its own for each process of tests: an agent ends whatever on the machine bears its name and its shard's."""

SLEEPER = "import time; time.sleep(60)"

needs_cgroups = pytest.mark.skipif(not cgroup.find("probe").version, reason="no cgroup may be made here")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def spec(program: str = SLEEPER, **changes: object) -> ShardSpec:
    """Return a shard whose engine is a Python program."""
    fields = {"port": free_port(), "weights": "w.gguf", "programs": ((PYTHON, "-c", program),), "args": (), **changes}
    return replace(SPEC, **fields)  # type: ignore[arg-type]


def agent(root: Path, cgroups: Cgroups = cgroup.NONE, name: str = NAME, values: Secrets | None = None) -> Processes:
    """Return the processes of an agent that keeps its state below `root`."""
    (root / "w.gguf").write_text("weights")
    disk = Disk(root / "state")
    disk.open()
    disk.close()
    return Processes(name, disk, root, cgroups, values)


async def started(processes: Processes, spec: ShardSpec, attempt: int = 1) -> Spawned:
    """Start an engine and wait until it is Python, past the shell through which it entered its cgroup."""
    spawned = processes.spawn(spec, attempt, "c#1", None)
    assert isinstance(spawned, Spawned), spawned
    await until(lambda: procfs.arguments_of(spawned.pid)[:1] == [sys.executable])
    return spawned


async def until(holds: Callable[[], bool]) -> None:
    """Wait for something that another process does."""
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110 - another process does it
            await asyncio.sleep(0.01)


def alive(pid: int) -> bool:
    stat = procfs.stat_of(pid)
    return stat is not None and stat.state not in ("Z", "X")


def noted(path: Path) -> int:
    """Return the pid that a process wrote into a file; 0 before."""
    text = path.read_text() if path.exists() else ""
    return int(text) if text.endswith("\n") else 0


FAMILY = """
import os, subprocess, sys, time
where, kind = sys.argv[1:]
child = "import os, sys, time; open(sys.argv[1], 'w').write(f'{os.getpid()}\\\\n'); time.sleep(60)"
environment = {"bare": {}, "bare_session": {}, "theirs": {"LLMGW_AGENT": "another"}}.get(kind)
subprocess.Popen([sys.executable, "-c", child, where], env=environment, start_new_session=kind in ("session", "bare"))
time.sleep(60)
"""
"""An engine with a child: in the same session (`same`), in its own with the marker (`session`), in its own without any
environment (`bare`), in the same without any environment (`bare_session`) or with another agent's marker (`theirs`)."""


async def family(processes: Processes, root: Path, kind: str) -> tuple[ShardSpec, Spawned, int]:
    """Start an engine with a child; return the child's pid too."""
    where = root / f"child-{kind}"
    made = spec(FAMILY, args=(str(where), kind))
    spawned = await started(processes, made)
    await until(lambda: noted(where) > 0)
    return made, spawned, noted(where)


def reaped(pid: int) -> None:
    """Collect a child that was killed behind the agent's back."""
    os.waitpid(pid, 0)


def stranger(program: str, *args: str, marks: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
    """Start a process that is not the agent's."""
    return subprocess.Popen([sys.executable, "-c", program, *args], env=marks, start_new_session=True)


def finish(process: subprocess.Popen[bytes]) -> None:
    """End a stranger; it must have lived until now."""
    lived = process.poll() is None
    process.kill()
    process.wait()
    assert lived, "a process that is not the agent's was ended"
