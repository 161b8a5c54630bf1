"""The agent as a program: killed, started again, cut off from its directories; engines go on, and it costs next to nothing."""

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmgw.agent import procfs
from llmgw.fleet.report import Phase
from tests.builders import order
from tests.live.agent_node import Node, engines, fake, running_node
from tests.unit.agent import host


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with running_node(tmp_path) as node:
        yield node


async def test_a_killed_agent_comes_back_to_its_engine_and_restarts_it_with_nobody_connected(node: Node) -> None:
    spec = fake(node.root, secrets={"HF_TOKEN": "hf"}, memory=1 << 30)
    node.start()
    first = await node.tell(order("a", spec), Phase.READY, {"hf": "v4lue"})
    pid = first.shards[0].pid
    assert pid is not None
    node.end(signal.SIGKILL)
    assert node.socket.is_socket(), "it had no time to remove it"
    assert host.alive(pid)
    node.start()
    second = await node.tell(None, Phase.READY)
    assert (second.shards[0].pid, second.shards[0].attempt) == (pid, 1)
    assert (second.facts.adoptions.adopted, second.facts.adoptions.stale, second.facts.adoptions.gone) == (1, 0, 0)
    os.kill(pid, signal.SIGKILL)
    await host.until(lambda: bool(set(engines(node.root)) - {pid}))
    third = await node.tell(None, Phase.READY)
    assert third.shards[0].pid not in (pid, None)
    assert third.shards[0].last_end is not None
    assert procfs.environment_of(third.shards[0].pid or 0)["HF_TOKEN"] == "v4lue"
    assert len(engines(node.root)) == 1, "none lost, none doubled"
    for path in (node.root / "state").rglob("*"):
        assert not path.is_file() or b"v4lue" not in path.read_bytes(), path
    assert b"v4lue" not in (node.root / "agent.log").read_bytes()
    print(f"engines are confined by {third.facts.cgroups or 'their session alone'}")


async def test_an_engine_that_died_while_no_agent_ran_is_started_again(node: Node) -> None:
    spec = fake(node.root)
    node.start()
    first = await node.tell(order("a", spec), Phase.READY)
    node.end(signal.SIGTERM)
    assert not node.socket.exists()
    os.kill(first.shards[0].pid or 0, signal.SIGKILL)
    shutil.rmtree(node.socket.parent)  # as after a reboot
    node.start()
    second = await node.tell(None, Phase.READY)
    assert second.shards[0].attempt == 2
    assert second.facts.adoptions.stale == 1
    assert len(engines(node.root)) == 1
