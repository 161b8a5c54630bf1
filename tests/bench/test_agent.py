"""What an idle agent costs a node: two figures with their limits, which leave room enough for a busy machine."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from llmgw.fleet.report import Phase
from tests.builders import order
from tests.live.agent_node import Node, fake, running_node

IDLE_SECONDS = 60.0

pytestmark = pytest.mark.bench


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with running_node(tmp_path) as node:
        yield node


async def test_an_idle_agent_costs_next_to_nothing(node: Node) -> None:
    node.start()
    await node.tell(order("a", fake(node.root)), Phase.READY)
    assert node.process is not None
    process = psutil.Process(node.process.pid)
    before, since = process.cpu_times(), time.monotonic()
    await asyncio.sleep(IDLE_SECONDS)
    after, seconds = process.cpu_times(), time.monotonic() - since
    share = (after.user + after.system - before.user - before.system) / seconds
    resident = process.memory_info().rss / 1e6
    print(f"idle agent with one ready engine: {share:.2%} of a core, {resident:.1f} MB")
    assert share < 0.01
    assert resident < 60
