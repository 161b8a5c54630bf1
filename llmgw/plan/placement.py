"""Where a new replica goes: by the first profile, in order of priority, that fits anywhere now.

On cards the fit is the tightest one, so that large holes stay large; replicas of one model keep apart unless it says
`placement: pack`. A replica that spans nodes takes the same class on distinct nodes of one fabric, all shards or none,
wholly free nodes first. CPU replicas spread, since unlike GPUs there is no allocation to stop two of them sharing a
machine's cores; a declared need (`cpus`, `memory`) is kept within what the node has. Ties are broken by weights that are
there already, then by how well the cards are linked, then by name: the same snapshot always gives the same place.

Every node that will not do is named with its reason, because "why is it pending?" is the question.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from llmgw.base.ids import ModelName, NodeName
from llmgw.engines.adapter import Engine
from llmgw.engines.placed import Seat
from llmgw.engines.shard import LOOPBACK
from llmgw.engines.weights import path_of, unpinned
from llmgw.fleet.report import Gpu
from llmgw.plan.capacity import Ledger, Machine, names
from llmgw.spec.common import size_text
from llmgw.spec.model import Model
from llmgw.spec.node import Node
from llmgw.spec.profile import Gpu as GpuNeed
from llmgw.spec.profile import Profile

CONSIDERED = 32
"""Nodes with an equally tight fit among which ties are looked at; beyond that the first by name will do."""

Banned = Mapping[NodeName, str]
"""Nodes that are not tried, and why."""


@dataclass(frozen=True, slots=True)
class Place:
    """A seat for every shard of a replica by this profile."""

    profile: Profile
    seats: tuple[Seat, ...]


@dataclass(frozen=True, slots=True)
class NoPlace:
    """Why each node will not do."""

    reasons: Mapping[NodeName, str]
    cannot: tuple[str, ...] = ()
    """What no node could do, a profile each."""

    def __str__(self) -> str:
        """Return it in one line: the commonest reasons first, each with its nodes."""
        if self.cannot and not self.reasons:
            return "; ".join(self.cannot)
        if not self.reasons:
            return "there are no nodes; add a file with `kind: Node`"
        by_reason: dict[str, list[NodeName]] = {}
        for node, reason in sorted(self.reasons.items()):
            by_reason.setdefault(reason, []).append(node)
        shown = sorted(by_reason.items(), key=lambda each: each[1])[:MOST_REASONS]
        rest = len(self.reasons) - sum(len(nodes) for _, nodes in shown)
        lines = [f"{names(nodes)}: {reason}" for reason, nodes in shown]
        return "; ".join([*lines, *([f"{rest} more nodes"] if rest else [])])


MOST_REASONS = 6


def profiles_of(model: Model) -> list[Profile]:
    """Return the model's profiles in the order in which they are tried."""
    return sorted(model.profiles, key=lambda one: one.priority)


def place(model: Model, ledger: Ledger, banned: Callable[[Profile], Banned]) -> Place | None:
    """Return the best place for one more replica of the model, or None if there is none now."""
    for profile in profiles_of(model):
        if not not_yet(model, profile, ledger.engines):
            found = _place(model, profile, ledger, banned(profile))
            if found is not None:
                return found
    return None


def room_for(profile: Profile, machine: Machine, ledger: Ledger) -> str:
    """Return why a node takes no shard by this profile now; empty if it does."""
    return _refuses(profile, machine) or _no_room(profile, machine, ledger)


def why_not(model: Model, ledger: Ledger, banned: Callable[[Profile], Banned]) -> NoPlace:
    """Return why there is no place: each node's reason against the first profile that it does not fit."""
    reasons: dict[NodeName, str] = {}
    cannot = []
    for profile in profiles_of(model):
        missing = not_yet(model, profile, ledger.engines)
        if missing:
            cannot.append(missing)
            continue
        forbidden = banned(profile)
        for name, machine in ledger.machines.items():
            if name not in reasons:
                reason = forbidden.get(name) or room_for(profile, machine, ledger)
                reasons[name] = reason or _no_company(profile, machine, ledger, forbidden)
    return NoPlace(reasons, tuple(cannot))


def needs_of(model: Model, banned: Callable[[Profile], Banned]) -> tuple[object, ...]:
    """Return what decides whether a node has room for a replica of the model, apart from the node: equal needs, equal room."""
    return tuple(
        (
            one.engine,
            one.nodes,
            (one.gpu.gpu_class, one.gpu.count) if one.gpu is not None else None,
            one.pool,
            tuple(sorted(one.labels.items())),
            (one.cpus, one.memory),
            (one.runtime, model.weights.path is None),
            tuple(sorted(banned(one).items())),
        )
        for one in profiles_of(model)
    )


def not_yet(model: Model, profile: Profile, engines: Mapping[str, Engine]) -> str:
    """Say what this version cannot do yet that the profile asks for; empty if it can do all of it."""
    if profile.engine not in engines:
        return f"profile {profile.name}: this version of llmgw cannot run {profile.engine} yet"
    return unpinned(model.weights)


def listens_on(node: Node) -> str:
    """Return the address that engines of a node listen on: only its own loopback, unless requests come straight to it."""
    return node.address if node.traffic == "direct" and node.address is not None else LOOPBACK


def reached_at(node: Node) -> str:
    """Return the address at which other nodes reach this one."""
    if node.address is not None:
        return node.address
    return node.ssh.host if node.ssh is not None else LOOPBACK


def _place(model: Model, profile: Profile, ledger: Ledger, banned: Banned) -> Place | None:
    if profile.nodes > 1:
        machines = _gang(profile, ledger, banned)
    else:
        machine = (
            _best_on_cards(model, profile, profile.gpu, ledger, banned)
            if profile.gpu is not None
            else _best_on_cpu(model, profile, ledger, banned)
        )
        machines = [machine] if machine is not None else []
    if not machines:
        return None
    return Place(profile, tuple(_seat(profile, machine, ledger) for machine in machines))


def _seat(profile: Profile, machine: Machine, ledger: Ledger) -> Seat:
    port = machine.port(ledger.ports, ledger.engines[profile.engine].ports)
    assert port is not None, "a machine without a free port is no candidate"
    cards: tuple[str, ...] = ()
    if profile.gpu is not None:
        cards = tuple(gpu.uuid for gpu in pick(machine.free[profile.gpu.gpu_class], profile.gpu.count))
    return Seat(machine.name, port, listens_on(machine.node), reached_at(machine.node), cards)


def _candidates(profile: Profile, machines: Iterator[Machine], ledger: Ledger, banned: Banned) -> Iterator[Machine]:
    for machine in machines:
        if machine.name not in banned and not _refuses(profile, machine) and not _no_room(profile, machine, ledger):
            yield machine


def _best_on_cards(model: Model, profile: Profile, need: GpuNeed, ledger: Ledger, banned: Banned) -> Machine | None:
    name, pack = ModelName(model.name), model.placement == "pack"
    best: tuple[tuple[int, int, bool], int, Machine] | None = None
    alike = 0
    for machine in _candidates(profile, ledger.with_free(need.gpu_class, need.count), ledger, banned):
        left = machine.free_of(need.gpu_class) - need.count
        apart = -machine.models[name] if pack else machine.models[name]
        if best is not None and not pack and best[0][0] == 0:
            if left > best[0][1] or alike >= CONSIDERED:
                break
            alike += 1
        rank = (apart, left, not _has_weights(model, machine))
        if best is not None and (rank > best[0] or (rank == best[0] and best[1] == 0)):
            continue  # nodes with as many free cards come by name, so of two that are equally good the first stays
        quality = _linked(machine.free[need.gpu_class], need.count) if need.count > 1 else 0
        if best is None or (rank, quality) < best[:2]:
            best = (rank, quality, machine)
    return best[2] if best is not None else None


def _best_on_cpu(model: Model, profile: Profile, ledger: Ledger, banned: Banned) -> Machine | None:
    name, pack = ModelName(model.name), model.placement == "pack"
    best: tuple[tuple[int, int, bool, NodeName], Machine] | None = None
    for machine in _candidates(profile, ledger.by_load(), ledger, banned):
        apart = -machine.models[name] if pack else machine.models[name]
        if best is not None and not pack and best[0][0] == 0 and machine.load > best[0][1]:
            break
        rank = (apart, machine.load, not _has_weights(model, machine), machine.name)
        if best is None or rank < best[0]:
            best = (rank, machine)
    return best[1] if best is not None else None


def _gang(profile: Profile, ledger: Ledger, banned: Banned) -> list[Machine]:
    """Return distinct nodes of one fabric for all shards, or none: the fabric with the fewest nodes that would do."""
    assert profile.gpu is not None, "the catalog lets only profiles with cards span nodes"
    count = profile.gpu.count
    fabrics: dict[str, list[Machine]] = {}
    for machine in _candidates(profile, ledger.with_free(profile.gpu.gpu_class, count), ledger, banned):
        if machine.node.fabric is not None:
            fabrics.setdefault(machine.node.fabric, []).append(machine)
    enough = [(len(found), name, found) for name, found in fabrics.items() if len(found) >= profile.nodes]
    if not enough:
        return []
    _, _, found = min(enough, key=lambda each: each[:2])
    gpu_class = profile.gpu.gpu_class
    ranked = sorted(found, key=lambda one: (not one.whole, one.free_of(gpu_class), one.name))
    return ranked[: profile.nodes]


def _refuses(profile: Profile, machine: Machine) -> str:
    """Return why a node takes no replica by this profile, whatever it has free; empty if it does."""
    if machine.closed:
        return machine.closed
    if profile.nodes > 1 and machine.node.fabric is None:
        return "is on no fabric, which a replica over several nodes needs"
    return why_not_here(profile, machine.node) or _no_containers(profile, machine)


def _no_containers(profile: Profile, machine: Machine) -> str:
    """Return why a node cannot run the profile's container; empty if it can, or if it is a process."""
    if profile.runtime == "process":
        return ""
    said = machine.report.facts.containers if machine.report is not None else None
    if said is None:
        return f"has not said whether it has {profile.runtime}"
    found = next((one for one in said if one.name == profile.runtime), None)
    if found is None:
        return f"has no {profile.runtime}"
    return f"cannot use its {profile.runtime}: {found.trouble}" if found.trouble else ""


def why_not_here(profile: Profile, node: Node) -> str:
    """Return what of a node's own description the profile does not accept; empty if all of it."""
    if profile.pool is not None and profile.pool != node.pool:
        return f"is in pool {node.pool}, not {profile.pool}"
    for label, value in profile.labels.items():
        if node.labels.get(label) != value:
            return f"label {label} is {node.labels.get(label, 'not set')}, not {value}"
    return ""


def _no_room(profile: Profile, machine: Machine, ledger: Ledger) -> str:
    """Return what a node lacks for one shard; empty if it has room."""
    if profile.gpu is not None and machine.free_of(profile.gpu.gpu_class) < profile.gpu.count:
        return machine.short_of(profile.gpu.gpu_class, profile.gpu.count)
    if profile.cpus is not None and profile.cpus > machine.cpus_free:
        return f"{max(0, machine.cpus_free)} of {machine.cpus} cpus free, needs {profile.cpus}"
    if profile.memory is not None and profile.memory > machine.memory_free:
        free = size_text(max(0, machine.memory_free) >> 20 << 20)
        return f"{free} of memory free, needs {size_text(profile.memory)}"
    count = ledger.engines[profile.engine].ports
    if machine.port(ledger.ports, count) is None:
        first, last = ledger.ports
        return f"no {f'{count} free ports in a row' if count > 1 else 'free port'} in {first}-{last} (control.ports)"
    return ""


def _no_company(profile: Profile, machine: Machine, ledger: Ledger, banned: Banned) -> str:
    """Return how many nodes of its fabric would do beside a node that has room itself."""
    if profile.nodes == 1:
        return "has room now"
    assert profile.gpu is not None
    found = _candidates(profile, ledger.with_free(profile.gpu.gpu_class, profile.gpu.count), ledger, banned)
    beside = sum(one.node.fabric == machine.node.fabric for one in found)
    return f"{beside} of the {profile.nodes} nodes it needs have room on fabric {machine.node.fabric}"


def _has_weights(model: Model, machine: Machine) -> bool:
    return machine.report is not None and path_of(model.weights) in machine.report.facts.weights


def pick(free: list[Gpu], count: int) -> list[Gpu]:
    """Return `count` of these cards: linked to each other if possible, else of one NUMA node, lowest indices first.

    The smallest group that suffices is taken, so that larger ones stay whole.
    """
    if count == len(free):
        return free
    for groups in (_linked_groups(free), _numa_groups(free)):
        enough = [group for group in groups if len(group) >= count]
        if enough:
            smallest = min(enough, key=lambda group: (len(group), group[0].index))
            return _one_numa(smallest, count)
    return free[:count]


def _one_numa(group: list[Gpu], count: int) -> list[Gpu]:
    enough = [part for part in _numa_groups(group) if len(part) >= count]
    return min(enough, key=lambda part: (len(part), part[0].index))[:count] if enough else group[:count]


def _linked(free: list[Gpu], count: int) -> int:
    """Return how well the best `count` of these cards hang together: 0 linked on one NUMA node … 3 neither."""
    taken = pick(free, count)
    linked = len(_linked_groups(taken)) == 1
    near = len({gpu.numa for gpu in taken}) == 1
    return 2 * (not linked) + (not near)


def _numa_groups(cards: list[Gpu]) -> list[list[Gpu]]:
    counts = Counter(gpu.numa for gpu in cards)
    return [[gpu for gpu in cards if gpu.numa == numa] for numa in counts]


def _linked_groups(cards: list[Gpu]) -> list[list[Gpu]]:
    """Return the groups of cards that NVLink or xGMI connects, a card without links in a group of its own."""
    left = {gpu.uuid: gpu for gpu in cards}
    groups = []
    while left:
        first = next(iter(left.values()))
        group, reached = [], [first]
        del left[first.uuid]
        while reached:
            gpu = reached.pop()
            group.append(gpu)
            near = [uuid for uuid in gpu.links if uuid in left]
            reached += [left.pop(uuid) for uuid in near]
        groups.append(sorted(group, key=lambda gpu: gpu.index))
    return groups
