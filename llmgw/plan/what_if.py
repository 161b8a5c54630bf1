"""`llmgw plan --what-if 'node gpu-a1 lost'`: the same snapshot with one thing supposed of it.

What can be supposed: `node NAME lost`, `node NAME cordoned`, `gpu UUID unhealthy`, `model NAME replicas=N`.
"""

from dataclasses import replace

from llmgw.base.ids import ModelName, NodeName
from llmgw.base.time import Instant
from llmgw.fleet.report import Gpu
from llmgw.fleet.view import NeverSeen, NodeView, Reporting, Unreachable
from llmgw.plan.snapshot import Act, Snapshot

KNOWN = "`node NAME lost`, `node NAME cordoned`, `gpu UUID unhealthy` or `model NAME replicas=N`"


class CannotSuppose(Exception):
    """The supposition is not understood, or names what is not there; the message says what to write."""


def suppose(snapshot: Snapshot, text: str) -> Snapshot:
    """Return the snapshot as it would be. Raises CannotSuppose."""
    match text.split():
        case ["node", name, "lost"]:
            return replace(snapshot, nodes={**snapshot.nodes, NodeName(name): _lost(snapshot, NodeName(name))})
        case ["node", name, "cordoned"]:
            _node(snapshot, NodeName(name))
            return replace(snapshot, acts=(*snapshot.acts, Act("drain", f"node/{name}", "what if", snapshot.now)))
        case ["gpu", uuid, "unhealthy"]:
            return _unhealthy(snapshot, uuid)
        case ["model", name, setting] if setting.startswith("replicas=") and setting[9:].isdecimal():
            return _replicas(snapshot, ModelName(name), int(setting[9:]))
        case _:
            raise CannotSuppose(f"{text!r} cannot be supposed; write {KNOWN}")


def _node(snapshot: Snapshot, name: NodeName) -> NodeView:
    if name not in snapshot.nodes:
        raise CannotSuppose(f"there is no node {name}; there are: {', '.join(sorted(snapshot.nodes)) or 'none'}")
    return snapshot.nodes[name]


def _lost(snapshot: Snapshot, name: NodeName) -> NodeView:
    view = _node(snapshot, name)
    since = Instant(snapshot.now - snapshot.catalog.cluster.control.lost_after)
    match view:
        case NeverSeen():
            return view
        case Reporting(report=report) | Unreachable(last=report):
            return Unreachable(report, since, "what if it were lost", {})


def _unhealthy(snapshot: Snapshot, uuid: str) -> Snapshot:
    nodes = dict(snapshot.nodes)
    for name, view in snapshot.nodes.items():
        if isinstance(view, Reporting) and any(gpu.uuid == uuid for gpu in view.report.gpus):
            cards = tuple(_condemned(gpu) if gpu.uuid == uuid else gpu for gpu in view.report.gpus)
            nodes[name] = replace(view, report=replace(view.report, gpus=cards))
            return replace(snapshot, nodes=nodes)
    raise CannotSuppose(f"no node that answers has a card {uuid}; `llmgw get gpus` lists them")


def _condemned(gpu: Gpu) -> Gpu:
    return replace(gpu, unhealthy="what if")


def _replicas(snapshot: Snapshot, name: ModelName, count: int) -> Snapshot:
    if name not in snapshot.catalog.models:
        known = ", ".join(sorted(snapshot.catalog.models)) or "none"
        raise CannotSuppose(f"there is no model {name}; there are: {known}")
    model = snapshot.catalog.models[name].model_copy(update={"replicas": count})
    models = {**snapshot.catalog.models, name: model}
    return replace(snapshot, catalog=replace(snapshot.catalog, models=models))
