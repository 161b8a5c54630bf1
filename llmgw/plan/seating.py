"""How a list of replicas that may start finds its seats: as many as possible, and what is left out is what matters least.

What asks for different cards does not compete, so each class of cards (and what runs on none) is seated by itself. All of
it is tried first, the largest first, which leaves the fewest holes. If that does not seat everything, the longest *front*
of the list is looked for that can be seated whole: the list is in order of importance, with the smaller first among equals,
and a front is again seated with the largest first. Behind it, one after the other takes what is left. So nothing is left
out for the sake of something less important, as far as this packing goes. To seat one after the other from the start would be
simpler, but small replicas of the first rank would then break up the nodes that large ones of the second need.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

from llmgw.base.ids import ModelName, ReplicaId
from llmgw.plan.capacity import NO_CLASS
from llmgw.plan.placement import Banned, Place, place
from llmgw.plan.replicas import Part, Replica, free_id
from llmgw.plan.rollout import TRIES
from llmgw.plan.work import Work
from llmgw.spec.model import Model
from llmgw.spec.profile import Profile

FRONTS = 5
"""Fronts that are tried before they are given up; each is shorter by what the one before could not seat."""

Rank = tuple[int, int, int]
Seated = dict[tuple[ModelName, int], Replica]


@dataclass(frozen=True, slots=True)
class Demand:
    """One replica that is to be started: the model's `number`-th."""

    model: Model
    number: int
    rolling: bool
    owed: bool = False
    """One of the model's own was drained for it, so it comes before what never had a place."""
    after: "Rank" = (0, 0, 0)
    """It comes behind these: replicas of a model to which one of its own gave way."""

    @property
    def rank(self) -> "Rank":
        """What decides who comes first, the lower the earlier."""
        return max((0 if self.owed else self.number, -self.model.priority, 0), self.after)

    @property
    def name(self) -> ModelName:
        """The model's name."""
        return ModelName(self.model.name)

    @property
    def classes(self) -> set[str]:
        """The classes of cards that it may get, by any of its profiles."""
        return {NO_CLASS if one.gpu is None else one.gpu.gpu_class for one in self.model.profiles}

    @property
    def weight(self) -> int:
        """Cards it takes in all; what takes none counts as one."""
        nodes, cards = self.size
        return max(1, nodes * cards)

    @property
    def size(self) -> tuple[int, int]:
        """How much it takes, by its first profile: (nodes, cards a node)."""
        profile = min(self.model.profiles, key=lambda one: one.priority)
        return (profile.nodes, profile.gpu.count if profile.gpu is not None else 0)


def seat_all(work: Work, demands: list[Demand]) -> Seated:
    """Seat as many as fit; `demands` are in order of importance."""
    seated: Seated = {}
    for group in _apart(demands):
        everything = _try(work, sorted(group, key=_largest_first))
        if len(everything) < len(group):
            _undo(work, everything)
            everything = _seat_most(work, group)
        seated |= everything
    return seated


def _apart(demands: list[Demand]) -> list[list[Demand]]:
    """Return the demands in groups that ask for no common class of cards."""
    groups: list[tuple[set[str], list[Demand]]] = []
    for demand in demands:
        classes, members = demand.classes, [demand]
        for known in [group for group in groups if not group[0].isdisjoint(classes)]:
            if known[0] >= classes:
                known[1].append(demand)
                break
            groups.remove(known)
            classes, members = classes | known[0], known[1] + members
        else:
            groups.append((classes, members))
    return [members for _, members in groups]


def _seat_most(work: Work, group: list[Demand]) -> Seated:
    """Seat a group that does not fit as a whole."""
    ranked = sorted(group, key=lambda one: (one.rank, not one.rolling, one.size, one.name, one.number))
    fits = {model.name: has_place(work, model) for model in {one.name: one.model for one in group}.values()}
    front = [one for one in ranked if fits[one.model.name]]
    _shorten(front, sum(one.weight for one in front) - _free(work, group))
    seated: Seated = {}
    for _ in range(FRONTS):
        seated = _try(work, sorted(front, key=_largest_first))
        missing = [one for one in front if (one.name, one.number) not in seated]
        if not missing:
            break
        _undo(work, seated)
        seated = {}
        _shorten(front, sum(one.weight for one in missing))
    return seated | _try(work, [one for one in ranked if (one.name, one.number) not in seated and fits[one.model.name]])


def _shorten(front: list[Demand], weight: int) -> None:
    """Take so much off the end, or a little more."""
    while weight > 0 and front:
        weight -= front.pop().weight


def _free(work: Work, group: list[Demand]) -> int:
    """Return how many cards there are for a group; what takes no cards is not limited by them."""
    classes = {name for one in group for name in one.classes}
    if NO_CLASS in classes:
        return sum(one.weight for one in group)
    return sum(
        machine.free_of(name) for machine in work.ledger.machines.values() for name in classes if not machine.closed
    )


def has_place(work: Work, model: Model) -> bool:
    """Whether there is a place for one more replica of a model now."""
    return place(model, work.ledger, partial(banned, work, model)) is not None


def _largest_first(demand: Demand) -> tuple[int, int, Rank, str, int]:
    nodes, cards = demand.size
    return (-nodes, -cards, demand.rank, demand.model.name, demand.number)


def _try(work: Work, demands: Iterable[Demand]) -> Seated:
    """Seat one after the other, in this order, as far as each fits."""
    seated: Seated = {}
    hopeless: set[ModelName] = set()
    for demand in demands:
        if demand.name not in hopeless:
            one = seat(work, demand.model)
            if one is None:
                hopeless.add(demand.name)
            else:
                seated[demand.name, demand.number] = one
    return seated


def seat(work: Work, model: Model) -> Replica | None:
    """Give one more replica of a model the best place there is now; None if there is none."""
    found = place(model, work.ledger, partial(banned, work, model))
    if found is None:
        return None
    name = ModelName(model.name)
    one = new_replica(work, model, found, free_id(name, work.snapshot.epoch, work.is_taken))
    work.put(one)
    work.written.add(one.id)
    return one


def _undo(work: Work, seated: Seated) -> None:
    for one in seated.values():
        work.forget(one)


def new_replica(work: Work, model: Model, found: Place, replica: ReplicaId) -> Replica:
    """Return a replica as it would be at a place."""
    specs = work.spec(model, found.profile, replica, found.seats)
    parts = tuple(
        Part(seat.node, spec, None, None, node_answers=True, heard=work.now)
        for seat, spec in zip(found.seats, specs, strict=True)
    )
    return Replica(replica, ModelName(model.name), parts, draining=False, leaving=False)


def banned(work: Work, model: Model, profile: Profile) -> Banned:
    """Return the nodes on which a replica by this profile gave up; all of them, once it gave up on several."""
    wanted = work.hash_of(model, profile)
    tried = [each for each in work.gave_up.get(ModelName(model.name), ()) if each.hash == wanted]
    if len(tried) >= TRIES:
        where = ", ".join(each.node for each in tried)
        return dict.fromkeys(work.ledger.machines, f"not tried: it gave up on {where} ({tried[-1].why})")
    return {**work.too_small(model, profile), **{each.node: f"it gave up there ({each.why})" for each in tried}}
