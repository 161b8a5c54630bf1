"""LoRA adapters: what a plan says of those that serving replicas have not yet. Loading them is the agent's, by its order."""

from llmgw.plan.replicas import Replica
from llmgw.plan.work import Work


def hold_adapters(work: Work) -> None:
    """Say which adapters wait for which replicas that serve otherwise, and why."""
    for one in list(work.replicas.values()):
        found = work.profile_of(one)
        if found is None or not found[0].adapters or not one.phase_serves or one.draining or one.leaving:
            continue
        for adapter in found[0].adapters:
            reason = _lacks(one, adapter.name, fetched=adapter.weights.path is not None)
            if reason:
                work.hold(f"replica/{one.id}", f"serve adapter {adapter.name}", reason)


def _lacks(one: Replica, name: str, *, fetched: bool) -> str:
    """Return why a replica does not serve an adapter as it is wanted; empty if it does."""
    if not fetched:
        return "this version of llmgw fetches no adapters; give a `path` on the node"
    told = next((each for each in one.report.adapters if each.name == name), None) if one.report is not None else None
    if told is None:
        return f"node {one.node} to hear of it"
    return "" if told.loaded and not told.reason else told.reason
