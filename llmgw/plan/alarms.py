"""What people must know besides what is held back: lost nodes that nothing replaces, failed rollouts, missing cards."""

from collections import Counter
from collections.abc import Mapping
from fnmatch import fnmatchcase

from llmgw.fleet.report import Gpu
from llmgw.fleet.view import Reporting
from llmgw.plan.work import Work
from llmgw.spec.node import Node


def alarms_of(work: Work) -> tuple[str, ...]:
    """Return one line for each."""
    found = [work.losses.alarm] if work.losses.alarm else []
    found += [f"the rollout of model/{name} failed: {one.failed}" for name, one in work.rollouts.items() if one.failed]
    classes = {one.name: tuple(one.match) for one in work.catalog.cluster.gpu_classes}
    known: dict[str, str] = {}
    for name, node in work.catalog.nodes.items():
        view = work.snapshot.nodes.get(name)
        if node.expect is not None and isinstance(view, Reporting):
            line = drift(node, Counter(_class_of(gpu, classes, known) for gpu in view.report.gpus))
            found += [line] if line else []
    return tuple(found)


def drift(node: Node, has: Counter[str]) -> str:
    """Return how a node's cards (class -> how many) differ from what its file expects; what it has is what counts."""
    if node.expect is None:
        return ""
    count, gpu_class = node.expect.gpus, node.expect.gpu_class
    others = any(n for known, n in has.items() if gpu_class is not None and known != gpu_class)
    if not others and (has.total() == count if count is not None else has.total() > 0):
        return ""
    shown = ", ".join(f"{n} {known or 'of no class'}" for known, n in sorted(has.items())) or "none"
    wanted = f"{count} {gpu_class or 'cards'}" if count is not None else f"{gpu_class or 'any'} cards"
    return f"node {node.name} should have {wanted}; it has {shown}"


def _class_of(gpu: Gpu, classes: Mapping[str, tuple[str, ...]], known: dict[str, str]) -> str:
    """As `Ledger.class_of`, without a ledger: most rounds start nothing, and need none."""
    if gpu.name not in known:
        found = (name for name, globs in classes.items() if any(fnmatchcase(gpu.name, glob) for glob in globs))
        known[gpu.name] = next(found, "")
    return known[gpu.name]
