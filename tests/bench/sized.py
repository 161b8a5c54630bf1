"""What planning for a fleet of a size costs; run as a program, so that memory and garbage are its own.

`python -m tests.bench.sized NODES` prints JSON: seconds of CPU (`process_time`) and the peak of memory in MiB. A fleet of N
nodes has 8 cards on each, N/2 models and 4 N replicas, most on one or two cards, some on four. The garbage collector runs
as it does in the server, which leaves it as Python has it.
"""

import json
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from llmgw.fleet.report import Phase
from llmgw.plan.check import check
from llmgw.plan.result import Plan
from tests.builders import GIB, Desk, catalog, cluster, facts, model, node, shard_report
from tests.cards import CLASSES, gpus, on_cards

CARDS = (1, 1, 2, 2, 1, 4, 1, 2, 1, 1)
"""Of 8 cards on each of N nodes, 4 N replicas of these sizes take 6.4 N."""


def desk_of(nodes: int, share: float = 1.0) -> Desk:
    """Return a desk for a fleet of so many nodes; `share` times as many replicas are wanted as usual."""
    models = max(1, nodes // 2)
    wanted = [
        model(f"m{n:03d}", round(8 * share), profile=on_cards(CARDS[n % len(CARDS)]), priority=n % 3)
        for n in range(models)
    ]
    names = [f"n{n:04d}" for n in range(nodes)]
    directory = catalog(
        cluster(control={"ports": [10000, 60000]}, gpu_classes=CLASSES), *[node(name) for name in names], *wanted
    )
    desk = Desk(directory, checked=False)
    for name in directory.nodes:
        desk.cards[name] = gpus(name)
        desk.facts[name] = facts(cpus=128, memory=1024 * GIB)
        desk.hear(name)
    return desk


def cpu(work: Callable[[], Any], at_least: float = 0.2) -> float:
    """Return the CPU seconds that one call takes: the least of several, until they took so long together."""
    spent, least = 0.0, float("inf")
    while spent < at_least:
        start = time.process_time()
        work()
        took = time.process_time() - start
        spent, least = spent + took, min(least, took)
    return least


def measure(nodes: int) -> dict[str, float]:
    """Return what there is to say of a size."""
    desk = desk_of(nodes)
    snapshot = desk.snapshot()
    figures = {"nodes": nodes, "first": cpu(partial(desk.planner, snapshot))}
    decided: Plan = desk.plan()
    started = sum(len(order.shards) for order in decided.orders.values())
    assert started == len(desk.catalog.models) * 8, f"{started} placed"
    figures["check first"] = cpu(partial(check, decided, snapshot))
    for _ in range(2):  # all start, and are published
        for name, wanted in desk.decided.orders.items():
            desk.hear(name, *(shard_report(one.spec, Phase.READY) for one in wanted.shards))
        desk.plan()
    snapshot = desk.snapshot()
    assert desk.planner(snapshot).actions == ()
    figures["nothing"] = cpu(partial(desk.planner, snapshot))
    figures["check nothing"] = cpu(partial(check, desk.planner(snapshot), snapshot))
    gone = next(iter(desk.catalog.nodes))
    desk.lose(gone)
    lost = replace(desk.snapshot(), now=desk.now + 1000.0)
    figures["a node lost"] = cpu(partial(desk.planner, lost))
    figures["MiB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    return figures


def measure_crowded(nodes: int) -> dict[str, float]:
    """Return what a fleet costs that wants a third more than it has cards for."""
    desk = desk_of(nodes, 1.65)
    figures = {"nodes": nodes, "crowded first": cpu(partial(desk.planner, desk.snapshot()))}
    decided = desk.plan()
    for _ in range(2):
        for name, wanted in desk.decided.orders.items():
            desk.hear(name, *(shard_report(one.spec, Phase.READY) for one in wanted.shards))
        decided = desk.plan()
    assert decided.holds
    figures["crowded nothing"] = cpu(partial(desk.planner, desk.snapshot()))
    return figures


if __name__ == "__main__":
    size = int(sys.argv[1])
    known = measure(size)
    print(json.dumps({**known, **measure_crowded(size)}))
