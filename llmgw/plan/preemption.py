"""Who gives way to a more important replica: idle ones first, and others only where the model says `preempt`.

Only replicas of lower priority give way, and none inside its minimum life; but one that gave up holds its place in vain,
and gives it to whoever can use it. Idle means that a gateway saw the last response end; a replica of which that is not
known is not idle. The fewest that make room on one node (or on as many as the replica spans) are taken.
"""

from collections.abc import Callable
from dataclasses import dataclass

from llmgw.base.ids import ModelName, NodeName
from llmgw.base.time import age
from llmgw.fleet.report import Phase
from llmgw.fleet.usage import Idle
from llmgw.plan.capacity import Machine
from llmgw.plan.placement import Banned, not_yet, profiles_of, room_for
from llmgw.plan.replicas import Replica
from llmgw.plan.work import Work
from llmgw.spec.model import Model
from llmgw.spec.profile import Profile

SEEDS = 32
"""Nodes with part of a replica over several nodes from which the search for the fewest begins, besides the cheapest one."""


@dataclass(frozen=True, slots=True)
class _Victims:
    """The replicas that would give way on one node; `cost` orders them, lower is better."""

    node: NodeName
    replicas: tuple[Replica, ...]
    cost: tuple[int, int, int, str]


def preempt(work: Work, model: Model, banned: Callable[[Profile], Banned]) -> list[Replica]:
    """Drain what gives way to one more replica of the model, and return it; empty if nothing may, or if it would not help."""
    victims = choose(work, model, banned)
    for one in victims:
        usage = work.snapshot.usage.of(one.id)
        if one.phase is Phase.FAILED:
            # nobody misses it, so it has nothing to come back to: it is not remembered as having given way
            work.drain(one, f"it gave up, and model/{model.name} can use its place")
            continue
        how = f"idle for {age(work.now - usage.since)}" if isinstance(usage, Idle) else "the model says preempt"
        priority = work.models[one.model].priority if one.model in work.models else 0
        work.drain(one, f"gives way to model/{model.name} (priority {model.priority} over {priority}; {how})")
        work.preempted[one.id] = ModelName(model.name)
    return victims


def choose(work: Work, model: Model, banned: Callable[[Profile], Banned]) -> list[Replica]:
    """Return the fewest replicas whose end would make room, best first; none if nothing may give way or it would not do."""
    if all(known.priority >= model.priority for known in work.models.values()) and not work.gave_up:
        return []
    may = [one for one in work.replicas.values() if _may_give_way(work, one, model)]
    if not may:
        return []
    by_node: dict[NodeName, list[Replica]] = {}
    for one in may:
        for node in one.nodes:
            by_node.setdefault(node, []).append(one)
    for profile in profiles_of(model):
        if not_yet(model, profile, work.ledger.engines):
            continue
        forbidden = banned(profile)
        options = [
            found
            for name, there in sorted(by_node.items())
            if name not in forbidden
            and (found := _on(work, profile, work.ledger.machines.get(name), there)) is not None
        ]
        if profile.nodes > 1:
            chosen = _gang(work, profile, options, forbidden)
        else:
            chosen = list(min(options, key=lambda one: one.cost).replicas) if options else []
        if chosen:
            return chosen
    return []


def _may_give_way(work: Work, one: Replica, model: Model) -> bool:
    own = work.models.get(one.model)
    if own is None or own.name == model.name or one.draining or one.leaving or not one.node_answers:
        return False
    if one.phase is Phase.FAILED:
        return True  # it runs nowhere and is not tried again here: what it holds is wasted
    if own.priority >= model.priority:
        return False
    if one.in_phase_for(work.now) < own.min_life or _is_relied_on(work, one):
        return False
    return model.preempt or isinstance(work.snapshot.usage.of(one.id), Idle)


def _is_relied_on(work: Work, one: Replica) -> bool:
    """Whether others of its model drain because this one serves."""
    others = [other for other in work.of(one.model) if other is not one and other.serves]
    going = [other for other in others if other.draining and other.id not in work.preempted]
    return one.serves and bool(going) and len(going) == len(others)


def _rests(work: Work, one: Replica) -> bool:
    """Whether nobody misses it: it gave up, or it is known to be idle."""
    return one.phase is Phase.FAILED or isinstance(work.snapshot.usage.of(one.id), Idle)


def _on(work: Work, profile: Profile, machine: Machine | None, there: list[Replica]) -> _Victims | None:
    """Return the best victims on one node, or None if even all of them would not make room."""
    if machine is None or not _could_do(profile, machine, there):
        return None

    def order(one: Replica) -> tuple[bool, int, int, str]:
        return (not _rests(work, one), work.models[one.model].priority, -len(one.spec.gpus), one.id)

    taken: list[Replica] = []
    for one in sorted(there, key=order):
        work.set_free([one])
        taken.append(one)
        if not room_for(profile, machine, work.ledger):
            break
    enough = not room_for(profile, machine, work.ledger)
    for one in taken[::-1]:  # what need not give way after all is spared, the most important first
        if enough and len(taken) > 1:
            work.take_back([one])
            if room_for(profile, machine, work.ledger):
                work.set_free([one])
            else:
                taken.remove(one)
    work.take_back(taken)
    if not enough:
        return None
    busy = sum(not _rests(work, one) for one in taken)
    highest = max(work.models[one.model].priority for one in taken)
    return _Victims(machine.name, tuple(taken), (busy, len(taken), highest, machine.name))


def _could_do(profile: Profile, machine: Machine, there: list[Replica]) -> bool:
    """Whether a node has cards enough for a shard, if all of these were gone; a quick look before each is tried."""
    if profile.gpu is None:
        return True
    theirs = sum(len(part.spec.gpus) for one in there for part in one.parts if part.node == machine.name)
    return machine.free_of(profile.gpu.gpu_class) + theirs >= profile.gpu.count


def _gang(work: Work, profile: Profile, options: list[_Victims], banned: Banned) -> list[Replica]:
    """Return victims so that as many nodes of one fabric as the replica spans have room."""
    found: dict[str, list[_Victims]] = {}
    roomy = set()
    for name, machine in work.ledger.machines.items():
        if name not in banned and machine.node.fabric is not None and not room_for(profile, machine, work.ledger):
            found.setdefault(machine.node.fabric, []).append(_Victims(name, (), (0, 0, 0, name)))
            roomy.add(name)
    for option in options:
        fabric = work.ledger.machines[option.node].node.fabric
        if (
            fabric is not None and option.node not in roomy
        ):  # a node is one place for one shard, with victims or without
            found.setdefault(fabric, []).append(option)
    best: tuple[tuple[int, int, int, str], list[Replica]] | None = None
    for fabric, nodes in sorted(found.items()):
        if len(nodes) < profile.nodes:
            continue
        cheapest = min(nodes, key=lambda one: one.cost)
        wide = [each for each in nodes if any(len(one.parts) > 1 for one in each.replicas)]
        for first in [cheapest, *wide[:SEEDS]]:
            replicas = _gathered(nodes, first, profile.nodes)
            busy = sum(not _rests(work, one) for one in replicas)
            highest = max((work.models[one.model].priority for one in replicas), default=0)
            rank = (busy, len(replicas), highest, fabric)
            if best is None or rank < best[0]:
                best = (rank, replicas)
    return best[1] if best is not None else []


def _gathered(nodes: list[_Victims], first: _Victims, count: int) -> list[Replica]:
    """Return the victims on so many nodes, that one among them: one that spans several makes room on all of them."""
    chosen, victims = [first], {one.id: one for one in first.replicas}
    left = [each for each in nodes if each is not first]
    while len(chosen) < count:
        more = min(left, key=lambda each: (sum(one.id not in victims for one in each.replicas), each.cost))
        left.remove(more)
        chosen.append(more)
        victims |= {one.id: one for one in more.replicas}
    return list(victims.values())
