"""An agent without a file descriptor left sees nothing; that must never pass for processes and ports that are gone."""

import asyncio
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from llmgw.agent import cgroup, process, procfs
from llmgw.agent.facts import NodeFacts
from llmgw.agent.probe import Prober
from llmgw.fleet.report import Reason
from llmgw.runtime.supervisor import Supervisor
from tests.fakes.engine import running_engine
from tests.unit.agent import host
from tests.unit.agent.test_probe import at


@contextmanager
def no_descriptors() -> Iterator[None]:
    """Let this process open nothing."""
    lowest = os.dup(0)
    os.close(lowest)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_what_cannot_be_looked_at_is_not_gone(tmp_path: Path) -> None:
    (tmp_path / "cgroup.procs").write_text("1\n")
    own = os.getpid()
    looks = (
        lambda: procfs.stat_of(own),
        lambda: procfs.environment_of(own),
        lambda: procfs.listeners(1),
        lambda: procfs.listens_alone(own, 1),
        procfs.listening_ports,
        lambda: cgroup.members(tmp_path),
    )
    for look in looks:
        look()
        with no_descriptors(), pytest.raises(OSError, match="Too many open files"):
            look()


async def test_a_probe_that_cannot_look_loses_nothing() -> None:
    prober = Prober()
    async with running_engine("m") as engine:
        assert (await prober.probe(at(engine), os.getpid(), proof=True)).ready
        with no_descriptors():
            verdict = await prober.probe(at(engine), os.getpid(), proof=True)
    await prober.close()
    assert (verdict.ready, verdict.lost) == (False, None)


async def test_an_end_that_cannot_be_verified_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "KILL_PATIENCE", 0.3)
    processes = host.agent(tmp_path)
    spec = host.spec()
    engine = await host.started(processes, spec)
    await asyncio.to_thread(lambda: None)  # the thread is there before nothing more can be opened
    with no_descriptors():
        left = await processes.end(engine.pid, spec.shard, 1, 0.0)
    assert left == (engine.pid,)
    monkeypatch.setattr(process, "KILL_PATIENCE", 10.0)
    assert await processes.end(engine.pid, spec.shard, 1, 0.0) == ()
    assert not host.alive(engine.pid)


def test_nothing_is_started_that_could_not_be_recorded(tmp_path: Path) -> None:
    processes = host.agent(tmp_path)
    spec = host.spec()
    with no_descriptors():
        refused = processes.spawn(spec, 1, "c#1", None)
    assert isinstance(refused, Reason)
    assert "Too many open files" in refused.text


async def test_an_end_is_noticed_though_it_could_not_be_watched_at_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "WATCH_AGAIN", 0.05)
    processes = host.agent(tmp_path)
    spec = host.spec()
    engine = await host.started(processes, spec)
    ended = asyncio.Event()
    with no_descriptors():
        processes.watch(engine.pid, lambda _: ended.set())
    assert await processes.end(engine.pid, spec.shard, 1, 0.0) == ()
    async with asyncio.timeout(10):
        await ended.wait()


async def test_facts_that_cannot_be_looked_at_stay_what_they_were(tmp_path: Path) -> None:
    facts = NodeFacts(tmp_path, tmp_path, frozenset)
    tasks = Supervisor("test")
    looking = tasks.loop("facts", facts.run())
    try:
        async with asyncio.timeout(30):
            while facts.current().disk_free is None:  # noqa: ASYNC110 - a thread does it
                await asyncio.sleep(0.01)
            known = facts.current().foreign_ports
            with no_descriptors():
                facts.wake()
                await asyncio.sleep(0.3)
        assert not looking.done
        assert facts.current().foreign_ports == known
    finally:
        await tasks.stop()
