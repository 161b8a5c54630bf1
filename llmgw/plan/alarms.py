"""What people must know besides what is held back: lost nodes that nothing replaces, failed rollouts, missing cards."""

from collections import Counter

from llmgw.fleet.view import Reporting
from llmgw.plan.capacity import class_named
from llmgw.plan.work import Work
from llmgw.spec.node import Node


def alarms_of(work: Work) -> tuple[str, ...]:
    """Return one line for each."""
    found = [work.losses.alarm] if work.losses.alarm else []
    found += [f"the rollout of model/{name} failed: {one.failed}" for name, one in work.rollouts.items() if one.failed]
    for name, node in work.catalog.nodes.items():
        view = work.snapshot.nodes.get(name)
        # a node that does not know its cards is no node without cards, and says so itself
        if node.expect is not None and isinstance(view, Reporting) and not view.report.facts.gpu_trouble:
            line = drift(node, Counter(class_named(gpu.name, work.catalog) for gpu in view.report.gpus))
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
