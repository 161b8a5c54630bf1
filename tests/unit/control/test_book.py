"""The book of nodes: which news wake the reconciler."""

import asyncio
from dataclasses import replace

from llmgw.base.ids import NodeName
from llmgw.control.book import FleetBook
from llmgw.sim.loop import SimClock, simulate
from tests.builders import report

N = NodeName("n")


def test_free_disk_space_that_moves_wakes_nobody_and_weights_that_came_do() -> None:
    wakes: list[int] = []

    async def main() -> None:
        book = FleetBook(SimClock(asyncio.get_running_loop()), lambda: wakes.append(1))
        book.expect(N)
        number = book.connecting(N)
        first = report("n")
        book.heard(N, number, first, {})
        assert len(wakes) == 1
        moved = replace(first, sequence=2, facts=replace(first.facts, disk_free=1 << 30))
        book.heard(N, number, moved, {})
        assert len(wakes) == 1, "it moves with every line of a log, on every node"
        book.heard(N, number, replace(moved, sequence=3, facts=replace(moved.facts, weights={"m.gguf": 1})), {})
        assert len(wakes) == 2

    simulate(main)
