"""Knowing again, at its start, what an earlier agent left running: by proof, each outcome counted.

A record is believed only if the pid has the recorded start time, carries our marker for that attempt, and, where the
engine was ready, holds its port. A pid that another process has now is foreign and never touched, and so is an engine
with another agent's marker. What carries our marker, or sits in a cgroup of ours, and nothing wants is ended. An engine
whose record was lost (a crash between start and record) is taken over if the order in force names just what it says of
itself; ending it would cost minutes of loading for nothing.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from llmgw.agent import cgroup
from llmgw.agent.disk import Disk, Record
from llmgw.agent.probe import Prober
from llmgw.agent.process import Processes, Proof, Stray
from llmgw.fleet.order import NodeOrder
from llmgw.fleet.report import Adoptions

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Inheritance:
    """What was found. The runner tells the state: first `stale`, then `adopted`, then the order."""

    order: NodeOrder | None
    stale: tuple[Record, ...]
    """Attempts that run no more."""
    adopted: tuple[tuple[Record, bool], ...]
    """Attempts that run, and whether each is ready."""
    counts: Adoptions


async def adopt(
    disk: Disk, processes: Processes, prober: Prober, keep: Callable[[Callable[[], None]], None]
) -> Inheritance:
    """Look at every record and every marked process; end what nothing wants. `keep` changes records, and complains."""
    order = disk.order()
    ours, lost, counts = _sorted(disk, processes)
    gone = 0
    for stray in processes.strays({record.pid for record in ours}):
        if any((record.spec.shard, record.attempt) == (stray.shard, stray.attempt) for record in ours):
            continue  # a child of an engine that goes on, in a session of its own
        known = _recognized(stray, order, processes)
        if known is not None:
            log.warning("its record was lost; known by its marks", extra={"shard": stray.shard, "pid": stray.pid})
            ours.append(known)
            keep(partial(disk.store_record, known))
            continue
        log.warning("ending a process that nothing wants", extra={"pid": stray.pid, "shard": stray.shard})
        await processes.end(stray.pid, stray.shard, stray.attempt, 0.0)
        gone += 1
    for path in processes.leftovers(ours, lost):
        log.warning("ending what is left of an attempt in its cgroup", extra={"cgroup": path})
        gone += len(cgroup.members(path))
        await processes.end_cgroup(path)
    others = processes.of_other_agents()
    for pid, shard in others:
        log.error(
            "an engine of another agent's state directory runs here; end it by its pid if that agent is no more",
            extra={"pid": pid, "shard": shard},
        )
    stale = [record for record in lost if all(record.spec.shard != other.spec.shard for other in ours)]
    for record in stale:
        keep(partial(disk.forget, record.spec.shard))
    for record in ours:
        processes.know(record)
    ready = await asyncio.gather(*(_is_ready(record, processes, prober) for record in ours))
    counts = replace(counts, adopted=len(ours), foreign=counts.foreign + len(others), gone=gone)
    return Inheritance(order, tuple(stale), tuple(zip(ours, ready, strict=True)), counts)


def _sorted(disk: Disk, processes: Processes) -> tuple[list[Record], list[Record], Adoptions]:
    """Return the records whose processes are proven to run, the others, and how many were stale and foreign."""
    ours: list[Record] = []
    lost: list[Record] = []
    foreign = 0
    for record in disk.records():
        about = {"shard": record.spec.shard, "pid": record.pid}
        match processes.proof(record):
            case Proof.OURS:
                ours.append(record)
            case Proof.FOREIGN:
                log.warning("its pid belongs to another process now, which is not touched", extra=about)
                foreign += 1
                lost.append(record)
            case Proof.GONE:
                log.warning("its process is gone", extra=about)
                lost.append(record)
    return ours, lost, Adoptions(stale=len(lost) - foreign, foreign=foreign)


def _recognized(stray: Stray, order: NodeOrder | None, processes: Processes) -> Record | None:
    """Return a record of a process whose own was lost, if the order names just what its marks say."""
    wanted = order.shard(stray.shard) if order is not None else None
    if wanted is None or not stray.leads or stray.hash != wanted.spec.hash:
        return None
    return processes.record_of(wanted.spec, stray)


async def _is_ready(record: Record, processes: Processes, prober: Prober) -> bool:
    # one that was ready once is busy if it does not answer now, and is not made to prove itself from the start
    if record.ready and processes.holds_port(record):
        ready = True
    else:
        ready = (await prober.probe(record.spec, record.pid, proof=True)).ready
    log.info("adopted", extra={"shard": record.spec.shard, "pid": record.pid, "ready": ready})
    return ready
