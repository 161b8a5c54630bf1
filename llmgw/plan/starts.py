"""Which replicas are started now, and where.

Every model gets its first replica before any gets its second; higher `priority` comes first, and a model that is being
rolled over before others of its rank, since a place that a rollout has freed is the rollout's. What may start is first listed
in that order, then seated: all of it with the largest first, which leaves the fewest holes; if that does not seat everything,
rank by rank, so that what is left out is what matters least. Within one rank the way that seats more is taken.

What finds no seat waits for one that is being freed (and keeps it from the less important), makes room by preemption, or
says why each node will not do.
"""

from dataclasses import dataclass
from functools import partial
from itertools import groupby

from llmgw.base.ids import ModelName, ReplicaId, replica_id
from llmgw.fleet.report import Phase
from llmgw.plan.placement import Banned, Place, place, why_not
from llmgw.plan.preemption import preempt
from llmgw.plan.replicas import Part, Replica, free_number
from llmgw.plan.result import Verb
from llmgw.plan.rollout import TRIES, counted, kinds, make_room, progress
from llmgw.plan.work import Work
from llmgw.spec.model import Model
from llmgw.spec.profile import Profile


@dataclass(frozen=True, slots=True)
class Demand:
    """One replica that is to be started: the model's `number`-th."""

    model: Model
    number: int
    rolling: bool

    @property
    def rank(self) -> tuple[int, int]:
        """What decides who comes first, the lower the earlier."""
        return (self.number, -self.model.priority)

    @property
    def size(self) -> tuple[int, int]:
        """How much it takes, by its first profile: (nodes, cards a node)."""
        profile = min(self.model.profiles, key=lambda one: one.priority)
        return (profile.nodes, profile.gpu.count if profile.gpu is not None else 0)


def start_all(work: Work) -> None:
    """Start what is missing, as far as there is room and the rollouts allow."""
    demands = sorted(
        (demand for model in work.models.values() for demand in _demands(work, model)),
        key=lambda one: (one.rank, not one.rolling, one.model.name),
    )
    seated = _seat_all(work, demands)
    for demand in demands:
        name = ModelName(demand.model.name)
        if (name, demand.number) not in seated:
            _without_seat(work, demand)
    for demand in demands:
        one = seated.get((ModelName(demand.model.name), demand.number))
        if one is not None:
            _say_started(work, demand, one)


def _demands(work: Work, model: Model) -> list[Demand]:
    """Return the replicas of a model that may be started now; what keeps others from it is said."""
    name = ModelName(model.name)
    current, outdated = kinds(work, model)
    there = len(counted(work, current))
    if there >= model.replicas:
        return []
    subject = f"model/{name}"
    if work.unheard:
        names = ", ".join(work.unheard[:3]) + (" …" if len(work.unheard) > 3 else "")
        work.hold(subject, "start", f"the first word of {names}, which may run it already")
        return []
    rollout = work.rollouts.get(name)
    if rollout is not None and rollout.failed and outdated:
        work.hold(subject, "roll over", f"another revision; this one failed: {rollout.failed}")
        return []
    surge = 0 if model.rollout.strategy == "recreate" and outdated else model.rollout.max_surge
    running = sum(not work.is_lost(one) and one.phase is not Phase.FAILED for one in work.of(name))
    may = min(model.replicas - there, model.replicas + surge - running)
    if may < model.replicas - there:
        work.hold(subject, "roll over", progress(work, model, current))
        work.crowded.add(name)
    rolling = bool(outdated) or any(one.draining for one in work.of(name))
    return [Demand(model, there + n + 1, rolling) for n in range(max(0, may))]


Seated = dict[tuple[ModelName, int], Replica]


def _seat_all(work: Work, demands: list[Demand]) -> Seated:
    """Seat as many as fit, in the way that the module says."""
    everything = _try(work, sorted(demands, key=_largest_first))
    if len(everything) == len(demands):
        return everything
    _undo(work, everything)
    seated: Seated = {}
    for _, group in groupby(demands, key=lambda one: (one.rank, not one.rolling)):
        rank = list(group)
        largest = _try(work, sorted(rank, key=_largest_first))
        if len(largest) < len(rank):
            _undo(work, largest)
            smallest = _try(work, sorted(rank, key=lambda one: (one.size, one.model.name)))
            if len(smallest) < len(largest):
                _undo(work, smallest)
                smallest = _try(work, sorted(rank, key=_largest_first))
            largest = smallest
        seated |= largest
    return seated


def _largest_first(demand: Demand) -> tuple[int, int, tuple[int, int], str, int]:
    nodes, cards = demand.size
    return (-nodes, -cards, demand.rank, demand.model.name, demand.number)


def _try(work: Work, demands: list[Demand]) -> Seated:
    seated: Seated = {}
    hopeless: set[ModelName] = set()
    for demand in demands:
        name = ModelName(demand.model.name)
        if name in hopeless:
            continue
        found = place(demand.model, work.ledger, partial(banned, work, demand.model))
        if found is None:
            hopeless.add(name)
            continue
        number = free_number(name, work.snapshot.epoch, work.ids_of(name))
        one = new_replica(work, demand.model, found, replica_id(name, work.snapshot.epoch, number))
        work.put(one)
        seated[name, demand.number] = one
    return seated


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
    return {each.node: f"it gave up there ({each.why})" for each in tried}


def _say_started(work: Work, demand: Demand, one: Replica) -> None:
    current, outdated = kinds(work, demand.model)
    old = next((each for each in outdated if not each.draining), None)
    lost = [each for each in work.of(one.model) if work.is_lost(each)]
    gave_up = [each for each in current if each.phase is Phase.FAILED]
    there = demand.number - 1
    if old is not None:
        why = f"replaces an outdated one ({old.id})"
    elif gave_up:
        why = f"{gave_up[0].id} gave up on {gave_up[0].node}"
    elif lost:
        why = f"{lost[0].id} is on node {lost[0].node}, which does not answer any more"
    else:
        why = f"{demand.model.replicas} wanted, {there} there"
    work.act(Verb.START, one, f"{why}; {_where(one, work)}")


def _where(one: Replica, work: Work) -> str:
    spec = one.spec
    if len(one.parts) > 1:
        return f"{len(one.parts)} nodes of one fabric: {', '.join(one.nodes)}"
    if spec.gpus:
        machine = work.ledger.machines[one.node]
        gpu_class = machine.busy[spec.gpus[0]][0]
        left = machine.free_of(gpu_class)
        return f"tightest fit on {one.node}: {len(spec.gpus)} {gpu_class}, {left} left free; port {spec.port}"
    return f"fewest replicas on {one.node}, port {spec.port}"


def _without_seat(work: Work, demand: Demand) -> None:
    model, name = demand.model, ModelName(demand.model.name)
    subject, what = f"model/{name}", f"start replica {demand.number} of {model.replicas}"
    if f"{subject} {what}" in work.holds:
        return
    forbidden = partial(banned, work, model)
    coming = _coming_free(work, model)
    if coming:
        work.set_free(coming)
        later = place(model, work.ledger, forbidden)
        work.take_back(coming)
        if later is not None:
            work.keep(later, f"kept for model/{name}")
            waits = ", ".join(
                sorted({one.id for one in coming if set(one.nodes) & {seat.node for seat in later.seats}})
            )
            work.hold(subject, what, f"{waits or 'others'} to be gone, whose place it gets")
            return
    _, outdated = kinds(work, model)
    idle = [one for one in outdated if not one.serves]
    work.set_free(idle)
    if idle and place(model, work.ledger, forbidden) is not None:
        work.crowded.add(name)
    work.take_back(idle)
    if outdated and make_room(work, model, lambda: place(model, work.ledger, forbidden) is not None):
        return
    if preempt(work, model, forbidden):
        work.hold(subject, what, "the replicas that give way to it to be gone")
        return
    work.hold(subject, what, f"room: {why_not(model, work.ledger, forbidden)}")


def _coming_free(work: Work, model: Model) -> list[Replica]:
    """Return the replicas on their way out whose place this model may have.

    Not those of another model that still wants a replica in their stead, nor those that were told to give way to another.
    """
    name = ModelName(model.name)
    found = []
    for one in [*work.replicas.values(), *work.stopped]:
        going = one.draining or one.leaving or one in work.stopped
        if not going or not one.node_answers:
            continue
        given_to = work.preempted.get(one.id)
        if given_to is not None:
            if given_to == name:
                found.append(one)
        elif one.model == name or not _still_wants(work, one.model):
            found.append(one)
    return found


def _still_wants(work: Work, name: ModelName) -> bool:
    model = work.models.get(name)
    return model is not None and len(counted(work, kinds(work, model)[0])) < model.replicas
