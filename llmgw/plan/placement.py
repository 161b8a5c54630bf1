"""Where a new replica goes.

CPU replicas spread, since unlike GPUs there is no allocation to stop two of them sharing a machine's cores; a declared
need (`cpus`, `memory`) is kept within what the node has.

Every node that will not do is named with its reason, because "why is it pending?" is the question.
"""

from dataclasses import dataclass

from llmgw.base.ids import NodeName
from llmgw.catalog.catalog import Catalog
from llmgw.engines.adapter import ENGINES
from llmgw.engines.shard import LOOPBACK, ShardSpec
from llmgw.fleet.report import Report
from llmgw.fleet.view import NeverSeen, NodeView, Reporting, Unreachable
from llmgw.plan.replicas import Replica
from llmgw.spec.common import size_text
from llmgw.spec.model import Model
from llmgw.spec.node import Node
from llmgw.spec.profile import Profile


@dataclass(frozen=True, slots=True)
class Place:
    """A node and a port for a replica by this profile."""

    node: NodeName
    port: int
    profile: Profile


@dataclass(frozen=True, slots=True)
class NoPlace:
    """Why each node will not do, in the order of names."""

    reasons: tuple[tuple[NodeName, str], ...]
    cannot: tuple[str, ...] = ()
    """What no node could do, a profile each."""

    def __str__(self) -> str:
        if self.cannot and not self.reasons:
            return "; ".join(self.cannot)
        if not self.reasons:
            return "there are no nodes; add a file with `kind: Node`"
        return "; ".join(f"{node}: {reason}" for node, reason in self.reasons)


def place(model: Model, catalog: Catalog, nodes: dict[NodeName, NodeView], replicas: list[Replica]) -> Place | NoPlace:
    """Return the best place for one more replica of the model: by the first profile that fits anywhere now."""
    reasons: dict[NodeName, str] = {}
    cannot: list[str] = []
    for profile in sorted(model.profiles, key=lambda one: one.priority):
        missing = not_yet(model, profile)
        if missing:
            cannot.append(missing)
            continue
        best: tuple[tuple[int, int, str], Place] | None = None
        for name, node in catalog.nodes.items():
            view = nodes.get(name)
            on_node = [replica for replica in replicas if replica.node == name]
            answer = _fits(profile, node, view, on_node, catalog)
            if isinstance(answer, str):
                reasons.setdefault(name, answer)
                continue
            rank = (sum(one.model == model.name for one in on_node), len(on_node), name)
            if best is None or rank < best[0]:
                best = (rank, Place(name, answer, profile))
        if best is not None:
            return best[1]
    return NoPlace(tuple(sorted(reasons.items())), tuple(cannot))


def not_yet(model: Model, profile: Profile) -> str:
    """Say what this version cannot do yet that the profile asks for; empty if it can do all of it."""
    if profile.engine not in ENGINES:
        return f"profile {profile.name}: this version of llmgw cannot run {profile.engine} yet"
    if model.weights.hf is not None:
        text = "this version of llmgw fetches nothing from Hugging Face yet; give a `url` or a `path` on the node"
        return f"profile {profile.name}: {text}"
    if profile.gpu is not None or profile.nodes > 1:
        return f"profile {profile.name}: this version of llmgw places nothing on GPUs yet"
    if profile.runtime != "process":
        return f"profile {profile.name}: this version of llmgw runs no containers yet"
    return ""


def _fits(profile: Profile, node: Node, view: NodeView | None, on_node: list[Replica], catalog: Catalog) -> int | str:
    """Return a free port if the profile fits on the node now, else the reason why not."""
    if node.cordoned is not None:
        return f"cordoned ({node.cordoned.reason})"
    if profile.pool is not None and profile.pool != node.pool:
        return f"is in pool {node.pool}, not {profile.pool}"
    for label, value in profile.labels.items():
        if node.labels.get(label) != value:
            return f"label {label} is {node.labels.get(label, 'not set')}, not {value}"
    match view:
        case None | NeverSeen():
            return f"never connected ({view.why})" if view else "never connected"
        case Unreachable(why=why):
            return f"does not answer ({why})"
        case Reporting(report=report):
            return _room(profile, report, on_node, catalog)


def _room(profile: Profile, report: Report, on_node: list[Replica], catalog: Catalog) -> int | str:
    facts = report.facts
    cpus = sum(replica.spec.cpus or 0 for replica in on_node)
    if profile.cpus is not None and cpus + profile.cpus > facts.cpus:
        return f"{max(0, facts.cpus - cpus)} of {facts.cpus} cpus free, needs {profile.cpus}"
    memory = sum(replica.spec.memory or 0 for replica in on_node)
    if profile.memory is not None and memory + profile.memory > facts.memory:
        free = size_text(max(0, facts.memory - memory) >> 20 << 20)
        return f"{free} of memory free, needs {size_text(profile.memory)}"
    count = ENGINES[profile.engine].ports
    port = free_port(report, on_node, catalog, count)
    if port is None:
        first, last = catalog.cluster.control.ports
        return f"no {f'{count} free ports in a row' if count > 1 else 'free port'} in {first}-{last} (control.ports)"
    return port


def free_port(report: Report, on_node: list[Replica], catalog: Catalog, count: int) -> int | None:
    """Return the first of the lowest `count` consecutive ports that no replica claims and nothing else listens on."""
    first, last = catalog.cluster.control.ports
    taken = {port for replica in on_node for port in ports_of(replica.spec)} | set(report.facts.foreign_ports)
    in_row = 0
    for port in range(first, last + 1):
        in_row = 0 if port in taken else in_row + 1
        if in_row == count:
            return port - count + 1
    return None


def ports_of(spec: ShardSpec) -> range:
    """Return the ports that a shard claims on its node."""
    return range(spec.port, spec.port + spec.ports)


def listens_on(node: Node) -> str:
    """Return the address that engines of a node listen on: only its own loopback, unless requests come straight to it."""
    return node.address if node.traffic == "direct" and node.address is not None else LOOPBACK
