"""What is otherwise than ordered: changes from outside, which a plan names before anything else. A pure function.

Not drift: what a node has not had the time to do yet, and what an engine does by itself (it crashed, it loads), which is in
the plan's own actions and in the status.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import assert_never

from llmgw.base.ids import NodeName
from llmgw.base.time import age
from llmgw.fleet.order import NodeOrder
from llmgw.fleet.report import Gpu, Phase, Report
from llmgw.fleet.view import NeverSeen, Reporting, Unreachable
from llmgw.plan.snapshot import Snapshot

_GOING = (Phase.STOPPING, Phase.DRAINING)


@dataclass(frozen=True, slots=True)
class Drift:
    """One thing that changed outside. `kind` is for programs, `text` for people."""

    kind: str
    node: NodeName
    subject: str
    """`node/NAME`, `replica/ID` or `gpu/UUID`."""
    text: str


def drift(snapshot: Snapshot) -> tuple[Drift, ...]:
    """Return what changed outside, by node."""
    found: list[Drift] = []
    for name in sorted(snapshot.nodes):
        view = snapshot.nodes[name]
        subject = f"node/{name}"
        match view:
            case NeverSeen(since=since, why=why):
                text = f"{subject} has not answered yet, for {age(snapshot.now - since)}: {why}"
                found.append(Drift("node_never_seen", name, subject, text))
            case Unreachable(since=since, why=why, last=last):
                text = f"{subject} does not answer, for {age(snapshot.now - since)}: {why}"
                if last.shards:
                    text += f"; it may still run {_listed(sorted({one.spec.replica for one in last.shards}))}"
                found.append(Drift("node_away", name, subject, text))
            case Reporting(report=report):
                found += _shards(snapshot, name, report)
                found += _cards(name, report)
            case _:
                assert_never(view)
    return tuple(found)


def _shards(snapshot: Snapshot, name: NodeName, report: Report) -> Iterator[Drift]:
    if snapshot.epoch and report.epoch > snapshot.epoch:
        text = f"node/{name} obeys another control plane (epoch {report.epoch}, this one has {snapshot.epoch})"
        yield Drift("other_leader", name, f"node/{name}", text)
    order = snapshot.previous.orders.get(name)
    if order is None or not _obeyed(report, order):
        return
    for shard in report.shards:
        if order.shard(shard.spec.shard) is None and shard.phase not in _GOING:
            text = f"node/{name} has {shard.spec.shard} ({shard.phase}), which no order wants"
            yield Drift("shard_unwanted", name, f"replica/{shard.spec.replica}", text)
    for wanted in order.shards:
        if report.shard(wanted.spec.shard) is None:
            text = f"node/{name} does not have {wanted.spec.shard}, which is ordered there"
            yield Drift("shard_missing", name, f"replica/{wanted.spec.replica}", text)


def _obeyed(report: Report, order: NodeOrder) -> bool:
    return (report.epoch, report.generation) >= order.rank


def _cards(name: NodeName, report: Report) -> Iterator[Drift]:
    if report.facts.gpu_trouble:
        text = f"node/{name} does not know all of its cards: {report.facts.gpu_trouble}"
        yield Drift("cards_unknown", name, f"node/{name}", text)
    known = {gpu.uuid for gpu in report.gpus}
    for shard in report.shards:
        for uuid in shard.spec.gpus:
            if uuid not in known:
                text = f"card {uuid} of node/{name}, which {shard.spec.replica} has, is gone"
                yield Drift("card_gone", name, f"gpu/{uuid}", text)
    for gpu in report.gpus:
        yield from _card(name, gpu)


def _card(name: NodeName, gpu: Gpu) -> Iterator[Drift]:
    shown = f"card {gpu.index} of node/{name} ({gpu.uuid})"
    if gpu.unhealthy:
        yield Drift("card_unhealthy", name, f"gpu/{gpu.uuid}", f"{shown} is not well: {gpu.unhealthy}")
    strangers = [one for one in gpu.users if one.shard is None]
    if strangers:
        who = _listed([f"{one.command or 'a process'} (pid {one.pid})" for one in strangers])
        yield Drift("card_foreign", name, f"gpu/{gpu.uuid}", f"{shown} is used by what is not ours: {who}")


def _listed(items: list[str], most: int = 4) -> str:
    rest = len(items) - most
    return ", ".join(items[:most]) + (f" and {rest} more" if rest > 0 else "")
