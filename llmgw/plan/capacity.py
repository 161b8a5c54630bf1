"""What is free, node by node: cards by class, cores, memory, ports. The ledger of one planning round.

A card is **free** when it is healthy, not reserved, claimed by no order and no reported shard, and not in use by a
stranger. A node that does not answer keeps its claims and gets nothing new. What is not free says why, in the words that
`explain` prints.

Claims are made and taken back in the same round, so that a placement can be tried. Nodes are kept in order of how many
cards of a class they have free (and how many replicas they run), since a search through all nodes for each of thousands
of replicas would take seconds.
"""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import assert_never

from llmgw.base.ids import ModelName, NodeName
from llmgw.catalog.catalog import Catalog
from llmgw.engines.adapter import Engine
from llmgw.engines.shard import ShardSpec
from llmgw.fleet.report import Gpu, Report
from llmgw.fleet.view import NeverSeen, NodeView, Reporting, Unreachable
from llmgw.spec.node import Node

FOREIGN = 512 << 20
"""Bytes of a card that processes which are not ours may hold before it counts as in use; a display server takes less."""
NO_CLASS = ""


@dataclass(frozen=True, slots=True)
class Busy:
    """A card that cannot be had, and why."""

    kind: str
    """`unhealthy`, `foreign`, `claimed`, `kept`, `reserved` or `cordoned`."""
    why: str


@dataclass(slots=True)
class Machine:
    """What one node has, and what of it is free in this round."""

    name: NodeName
    node: Node
    closed: str
    """Why nothing new may be placed here; empty if something may."""
    report: Report | None
    cpus: int = 0
    memory: int = 0
    cpus_free: int = 0
    memory_free: int = 0
    free: dict[str, list[Gpu]] = field(default_factory=dict)
    """Class -> free cards, by index."""
    total: Counter[str] = field(default_factory=Counter)
    """Class -> cards in all."""
    busy: dict[str, tuple[str, Busy]] = field(default_factory=dict)
    """UUID -> (class, why it is not free)."""
    taken: Counter[int] = field(default_factory=Counter)
    """Port -> how many claim it or listen on it; only those that somebody does."""
    claims: Counter[str] = field(default_factory=Counter)
    """How many shards claim each card: two, where a node got orders of control planes that did not know of each other."""
    models: Counter[ModelName] = field(default_factory=Counter)
    load: int = 0
    """Replicas that have a part here."""

    def free_of(self, gpu_class: str) -> int:
        """Return how many cards of a class are free."""
        return len(self.free.get(gpu_class, ()))

    @property
    def whole(self) -> bool:
        """Whether nothing at all is placed here."""
        return self.load == 0 and not self.busy

    def port(self, ports: tuple[int, int], count: int) -> int | None:
        """Return the first of the lowest `count` consecutive ports that nothing has, or None."""
        in_row = 0
        for port in range(ports[0], ports[1] + 1):
            in_row = 0 if port in self.taken else in_row + 1
            if in_row == count:
                return port - count + 1
        return None

    def short_of(self, gpu_class: str, count: int) -> str:
        """Say why there are not so many free cards of a class here."""
        total = self.total[gpu_class]
        if total == 0:
            others = ", ".join(f"{n} {name or 'of no class'}" for name, n in sorted(self.total.items()))
            return f"has no {gpu_class}" + (f" (has {others})" if others else "")
        whys = Counter(why.why for known, why in self.busy.values() if known == gpu_class and why.kind != "claimed")
        claimed = sum(known == gpu_class and why.kind == "claimed" for known, why in self.busy.values())
        notes = [f"{claimed} in use"] if claimed else []
        notes += [f"{n} {why}" for why, n in sorted(whys.items())]
        said = f"{self.free_of(gpu_class)} of {total} {gpu_class} free, needs {count}"
        return f"{said}; {', '.join(notes)}" if notes else said


def class_named(name: str, catalog: Catalog) -> str:
    """Return the first class that a driver's name for a card matches; empty if none does."""
    classes = catalog.cluster.gpu_classes
    return next((one.name for one in classes if any(fnmatchcase(name, glob) for glob in one.match)), NO_CLASS)


class Ledger:
    """All nodes of the catalog in one planning round. Lives inside `plan` only."""

    def __init__(
        self,
        catalog: Catalog,
        nodes: Mapping[NodeName, NodeView],
        closed: Mapping[NodeName, str],
        cards: Mapping[str, str],
        engines: Mapping[str, Engine],
    ) -> None:
        """`closed` says which nodes get nothing new and why, `cards` the same of cards by UUID."""
        self.engines = engines
        self._catalog = catalog
        self._known: dict[str, str] = {}
        self._by_free: dict[str, dict[int, list[NodeName]]] = {}
        self._by_load: dict[int, list[NodeName]] = {}
        first, last = catalog.cluster.control.ports
        self.ports = (first, last)
        self.version = 0
        """Grows with every change."""
        self._open = False
        self.machines: dict[NodeName, Machine] = {
            name: self._machine(name, node, nodes.get(name), closed.get(name, ""), cards)
            for name, node in catalog.nodes.items()
        }

    def open(self) -> None:
        """Begin to search, once what exists has been claimed."""
        self._open = True
        for machine in self.machines.values():
            self._file(machine)

    def class_of(self, gpu: Gpu) -> str:
        """Return the class of a card by the name its driver gives it; empty if it is of none."""
        if gpu.name not in self._known:
            self._known[gpu.name] = class_named(gpu.name, self._catalog)
        return self._known[gpu.name]

    def claim(self, node: NodeName, spec: ShardSpec) -> None:
        """Take what a shard has or will have. What is not there any more is not taken."""
        machine = self.machines.get(node)
        if machine is None:
            return
        self._unfile(machine)
        machine.cpus_free -= spec.cpus or 0
        machine.memory_free -= spec.memory or 0
        machine.taken.update(range(spec.port, spec.port + spec.ports))
        machine.models[spec.model] += 1
        machine.load += 1
        machine.claims.update(spec.gpus)
        for uuid in spec.gpus:
            self._take(machine, uuid, Busy("claimed", f"held by {spec.replica}"))
        self._file(machine)

    def release(self, node: NodeName, spec: ShardSpec) -> None:
        """Undo a claim of this round."""
        machine = self.machines.get(node)
        if machine is None:
            return
        self._unfile(machine)
        machine.cpus_free += spec.cpus or 0
        machine.memory_free += spec.memory or 0
        machine.taken -= Counter(range(spec.port, spec.port + spec.ports))
        machine.models[spec.model] -= 1
        machine.load -= 1
        cards = {gpu.uuid: gpu for gpu in machine.report.gpus} if machine.report else {}
        machine.claims.subtract(spec.gpus)
        for uuid in spec.gpus:
            known = machine.busy.get(uuid)
            if known is not None and known[1].kind == "claimed" and machine.claims[uuid] <= 0:
                del machine.busy[uuid]
                insort(machine.free.setdefault(known[0], []), cards[uuid], key=lambda gpu: gpu.index)
        self._file(machine)

    def keep(self, node: NodeName, cards: tuple[str, ...], cpus: int, memory: int, why: str) -> None:
        """Let nobody else have these cards, as far as they are free, nor so much of the rest of a node, in this round."""
        machine = self.machines[node]
        self._unfile(machine)
        machine.cpus_free -= cpus
        machine.memory_free -= memory
        for uuid in cards:
            self._take(machine, uuid, Busy("kept", why))
        self._file(machine)

    def with_free(self, gpu_class: str, at_least: int) -> Iterator[Machine]:
        """Yield the open nodes with so many free cards of a class: fewest first, then by name."""
        buckets = self._by_free.get(gpu_class, {})
        for free in sorted(buckets):
            if free >= at_least:
                for name in list(buckets[free]):
                    yield self.machines[name]

    def by_load(self) -> Iterator[Machine]:
        """Yield the open nodes: those with the fewest replicas first, then by name."""
        for load in sorted(self._by_load):
            for name in list(self._by_load[load]):
                yield self.machines[name]

    def _machine(
        self, name: NodeName, node: Node, view: NodeView | None, closed: str, cards: Mapping[str, str]
    ) -> Machine:
        match view:
            case None | NeverSeen():
                return Machine(name, node, f"never connected ({view.why})" if view else "never connected", None)
            case Unreachable(last=report, why=why):
                machine = Machine(name, node, closed or f"does not answer ({why})", report)
            case Reporting(report=report):
                machine = Machine(name, node, closed, report)
            case _:
                assert_never(view)
        machine.cpus = max(0, report.facts.cpus - node.reserved.cpus)
        machine.memory = max(0, report.facts.memory - node.reserved.memory)
        machine.cpus_free, machine.memory_free = machine.cpus, machine.memory
        machine.taken = Counter(report.facts.foreign_ports)
        for gpu in sorted(report.gpus, key=lambda gpu: gpu.index):
            machine.total[self.class_of(gpu)] += 1
            machine.free.setdefault(self.class_of(gpu), []).append(gpu)
        for gpu in report.gpus:
            busy = _unusable(gpu, cards.get(gpu.uuid, ""))
            if busy is not None:
                self._take(machine, gpu.uuid, busy)
        self._reserve(machine, node.reserved.gpus)
        return machine

    def _reserve(self, machine: Machine, count: int) -> None:
        """Keep so many cards free: those that come last, whether in use or not, so that they are always the same ones."""
        cards = machine.report.gpus if machine.report is not None else ()
        unfit = {uuid for uuid, (_, busy) in machine.busy.items() if busy.kind in ("unhealthy", "cordoned")}
        healthy = sorted((gpu for gpu in cards if gpu.uuid not in unfit), key=lambda gpu: gpu.index)
        for gpu in healthy[max(0, len(healthy) - count) :] if count else []:
            if gpu.uuid not in machine.busy:
                self._take(machine, gpu.uuid, Busy("reserved", "reserved"))

    def _take(self, machine: Machine, uuid: str, busy: Busy) -> None:
        for gpu_class, gpus in machine.free.items():
            for position, gpu in enumerate(gpus):
                if gpu.uuid == uuid:
                    del gpus[position]
                    machine.busy[uuid] = (gpu_class, busy)
                    return

    def _file(self, machine: Machine) -> None:
        self.version += 1
        if machine.closed or not self._open:
            return
        for gpu_class, gpus in machine.free.items():
            insort(self._by_free.setdefault(gpu_class, {}).setdefault(len(gpus), []), machine.name)
        insort(self._by_load.setdefault(machine.load, []), machine.name)

    def _unfile(self, machine: Machine) -> None:
        if machine.closed or not self._open:
            return
        for gpu_class, gpus in machine.free.items():
            _drop(self._by_free[gpu_class][len(gpus)], machine.name)
        _drop(self._by_load[machine.load], machine.name)


def _drop(names: list[NodeName], name: NodeName) -> None:
    del names[bisect_left(names, name)]


def _unusable(gpu: Gpu, cordoned: str) -> Busy | None:
    """Return why a card cannot be had, claims apart."""
    if gpu.unhealthy:
        return Busy("unhealthy", f"unhealthy ({gpu.unhealthy})")
    if cordoned:
        return Busy("cordoned", f"cordoned ({cordoned})")
    strangers = [user for user in gpu.users if user.shard is None]
    held = sum(user.memory or 0 for user in strangers)
    if strangers and (held > FOREIGN or any(user.memory is None for user in strangers)):
        who = max(strangers, key=lambda user: (user.memory or 0, user.pid))
        return Busy("foreign", f"held by pid {who.pid} ({who.command})")
    return None


def names(nodes: Iterable[NodeName], most: int = 3) -> str:
    """Say a list of nodes in one line: the first few, and how many more."""
    listed = list(nodes)
    shown = ", ".join(listed[:most])
    return shown if len(listed) <= most else f"{shown} and {len(listed) - most} more"
