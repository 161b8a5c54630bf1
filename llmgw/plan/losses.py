"""Nodes that are lost, and the brake: many nodes that vanish together are our own network, and nothing is replaced.

A node that does not answer is not empty, so at first nothing is done about it. After `lost_after` its replicas are
replaced elsewhere; what it runs keeps its claims there, and when it comes back the better of the two stays. Nodes for which
the brake held have another `lost_after` once it holds no more, since a network heals node by node.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from llmgw.base.ids import NodeName
from llmgw.base.time import Instant, age
from llmgw.fleet.view import NeverSeen, Unreachable
from llmgw.plan.capacity import names
from llmgw.plan.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Losses:
    """What is to be thought of the nodes that do not answer."""

    lost: frozenset[NodeName]
    """Their replicas are replaced elsewhere."""
    braked: frozenset[NodeName]
    """They would be lost, were it not for the brake."""
    silent: frozenset[NodeName]
    """Those of the braked that this control plane has never heard of: what they run is not known, and not replaced."""
    held: Mapping[NodeName, Instant]
    """When the brake held last for each of them."""
    alarm: str
    """What to tell people; empty if nothing."""


def losses(snapshot: Snapshot) -> Losses:
    """Return which nodes are lost by now."""
    control = snapshot.catalog.cluster.control
    away = {
        name: view.since
        for name, view in snapshot.nodes.items()
        if name in snapshot.catalog.nodes
        and (isinstance(view, Unreachable) or (isinstance(view, NeverSeen) and name in snapshot.held))
    }
    overdue = [name for name, since in sorted(away.items()) if snapshot.now - since >= control.lost_after]
    total = len(snapshot.catalog.nodes)
    held = {name: at for name, at in snapshot.previous.braked.items() if name in away}
    held |= {
        name: snapshot.now
        for name in overdue
        if (together := _together(away, away[name], control.lost_after)) >= control.brake.min_nodes
        and together >= control.brake.share * total
    }
    # a network that heals brings its nodes back one by one, and the last of them is no more lost than the first was
    braked = {name for name, at in held.items() if name in overdue and snapshot.now - at < control.lost_after}
    alarm = ""
    if braked:
        longest = max(snapshot.now - away[name] for name in braked)
        alarm = (
            f"{len(braked)} of {total} nodes have not answered for up to {age(longest)} ({names(sorted(braked))}); so many at "
            "once are more likely our own network, so nothing of theirs is replaced (control.brake)"
        )
    silent = frozenset(name for name in braked if isinstance(snapshot.nodes[name], NeverSeen))
    kept = {name: held[name] for name in sorted(braked)}
    return Losses(frozenset(overdue) - braked, frozenset(braked), silent, kept, alarm)


def _together(away: Mapping[NodeName, Instant], since: Instant, window: float) -> int:
    """Return how many nodes vanished within one window of this one."""
    return sum(abs(other - since) <= window for other in away.values())
