"""Which replicas are started now, and where.

Every model gets its first replica before any gets its second; higher `priority` comes first, and a model that is being
rolled over before others of its rank, since a place that a rollout has freed is the rollout's. What may start is first listed
in that order, then seated (`seating`).

What finds no seat waits for one that is being freed (and keeps it from the less important), makes room by preemption, or
says why each node will not do.
"""

from dataclasses import replace
from functools import partial

from llmgw.base.ids import ModelName
from llmgw.fleet.report import Phase
from llmgw.plan.placement import Place, needs_of, place, why_not
from llmgw.plan.preemption import preempt
from llmgw.plan.replicas import Replica, model_of
from llmgw.plan.result import Verb
from llmgw.plan.rollout import counted, kinds, make_room, progress
from llmgw.plan.seating import Demand, Rank, Seated, banned, seat_all
from llmgw.plan.work import Work
from llmgw.spec.model import Model


def start_all(work: Work) -> None:
    """Start what is missing, as far as there is room and the rollouts allow."""
    demands = [demand for model in work.models.values() for demand in _demands(work, model)]
    demands = _behind_those_they_gave_way_to(work, demands)
    demands.sort(key=lambda one: (one.rank, not one.rolling, one.name, one.number))
    seated = seat_all(work, demands)
    for demand in demands:
        if (demand.name, demand.number) not in seated:
            _without_seat(work, demand, seated, demands)
    for demand in demands:
        one = seated.get((demand.name, demand.number))
        if one is not None:
            work.preempted.pop(one.id, None)
            _pay(work, one.model)
            _say_started(work, demand, one)


def settle_debts(work: Work) -> None:
    """Forget who gave way to models that want nothing more, and whose place is owed to them. Before drains are called off."""
    wanting = {name for name, model in work.models.items() if _still_wants(work, name)}
    here = set(work.replicas)
    work.preempted = {
        victim: by
        for victim, by in work.preempted.items()
        if by in wanting or (victim in here and by in work.models and not work.replicas[victim].draining)
    }
    work.owed = {one: of for one, of in work.owed.items() if of in wanting}


def _pay(work: Work, model: ModelName) -> None:
    """Take one replica that was started for one whose place was owed, those that are gone first."""
    owed = sorted((one for one, of in work.owed.items() if of == model), key=lambda one: (one in work.replicas, one))
    if owed:
        del work.owed[owed[0]]


def _behind_those_they_gave_way_to(work: Work, demands: list[Demand]) -> list[Demand]:
    """Return the demands so that what gave way is not started again in the hole that it left for another.

    A replica that gave way to a model is remembered until that model wants nothing more.
    """
    last: dict[ModelName, Rank] = {}
    for demand in demands:
        last[demand.name] = max(demand.rank, last.get(demand.name, demand.rank))
    after: dict[ModelName, Rank] = {}
    for victim, by in work.preempted.items():
        if by in last:
            number, priority, _ = last[by]
            name = work.replicas[victim].model if victim in work.replicas else model_of(victim)
            after[name] = max((number, priority, 1), after.get(name, (0, 0, 0)))
    return [replace(one, after=after[one.name]) if one.name in after else one for one in demands]


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
    there_still = [one for one in outdated if not work.is_lost(one)]
    if rollout is not None and rollout.failed and there_still and model is work.catalog.models[name]:
        work.hold(subject, "roll over", f"another revision; this one failed: {rollout.failed}")
        return []
    surge = 0 if model.rollout.strategy == "recreate" and outdated else model.rollout.max_surge
    running = sum(not work.is_lost(one) and one.phase is not Phase.FAILED for one in work.of(name))
    may = min(model.replicas - there, model.replicas + surge - running)
    if may < model.replicas - there:
        work.hold(subject, "roll over", progress(work, model, current))
        work.crowded.add(name)
    rolling = bool(outdated) or any(one.draining for one in work.of(name))
    owed = sum(of == name for of in work.owed.values())
    return [Demand(model, there + n + 1, rolling, owed=n < owed) for n in range(max(0, may))]


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
        node = next(node for node in lost[0].nodes if node in work.losses.lost)
        why = f"{lost[0].id} is on node {node}, which does not answer any more"
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


def _without_seat(work: Work, demand: Demand, seated: Seated, demands: list[Demand]) -> None:
    """Say what a replica without a seat waits for, and do what helps it."""
    model, name = demand.model, demand.name
    subject, what = f"model/{name}", f"start replica {demand.number} of {model.replicas}"
    if f"{subject} {what}" in work.holds:
        return
    coming = _coming_free(work, model)
    if coming and _wait_for(work, demand, coming, seated, demands):
        return
    forbidden = partial(banned, work, model)
    _, outdated = kinds(work, model)
    idle = [one for one in outdated if not one.serves]
    if idle:
        work.set_free(idle)
        if place(model, work.ledger, forbidden) is not None:
            work.crowded.add(name)
        work.take_back(idle)
    if outdated and make_room(work, model, lambda: place(model, work.ledger, forbidden) is not None):
        return
    alike = (model.priority, model.preempt, needs_of(model, forbidden))
    if alike not in work.no_room:
        victims = preempt(work, model, forbidden)
        if victims:
            work.hold(subject, what, f"{', '.join(one.id for one in victims)} to be gone, which gives way to it")
            _keep_place(work, model, victims)
            return
        work.no_room[alike] = str(why_not(model, work.ledger, forbidden))
    choice = "; or for `strategy: recreate`, which stops the old one first" if _recreate_helps(work, model) else ""
    work.hold(subject, what, f"room: {work.no_room[alike]}{choice}")


def _recreate_helps(work: Work, model: Model) -> bool:
    """Whether there would be room if what serves were stopped first: a choice that only a person can make."""
    serving = [one for one in kinds(work, model)[1] if one.serves]
    if not serving or model.rollout.strategy == "recreate":
        return False
    work.set_free(serving)
    helps = place(model, work.ledger, partial(banned, work, model)) is not None
    work.take_back(serving)
    return helps


def _wait_for(work: Work, demand: Demand, coming: list[Replica], seated: Seated, demands: list[Demand]) -> bool:
    """Keep a place that is becoming free, if need be at the cost of what is less important and was seated in this round."""
    kept = _keep_place(work, demand.model, coming)
    if kept is None:
        near = {node for one in coming for node in one.nodes}
        others = {
            (junior.name, junior.number): one
            for junior in demands
            if (one := seated.get((junior.name, junior.number))) is not None
            and not near.isdisjoint(one.nodes)
            and junior.rank > demand.rank
        }
        work.set_free(list(others.values()))
        kept = _keep_place(work, demand.model, coming)
        work.take_back(list(others.values()))
        if kept is None:
            return False
        for key, one in others.items():
            if not {seat.node for seat in kept.seats}.isdisjoint(one.nodes):
                work.forget(one)
                del seated[key]
    there = {seat.node for seat in kept.seats}
    waits = ", ".join(sorted(one.id for one in coming if not there.isdisjoint(one.nodes)))
    what = f"start replica {demand.number} of {demand.model.replicas}"
    work.hold(f"model/{demand.name}", what, f"{waits or 'others'} to be gone, whose place it gets")
    return True


def _keep_place(work: Work, model: Model, coming: list[Replica]) -> Place | None:
    """Find the place that a model will have when these are gone, and keep it for the model; None if there is none."""
    work.set_free(coming)
    found = place(model, work.ledger, partial(banned, work, model))
    if found is not None:
        work.keep(found, f"kept for model/{model.name}")
    work.take_back(coming)
    return found


def _coming_free(work: Work, model: Model) -> list[Replica]:
    """Return the replicas on their way out whose place this model may have.

    Not those of another model that still wants a replica in their stead, nor those that were told to give way to another.
    """
    name = ModelName(model.name)
    return [
        one
        for one in work.going
        if (
            work.preempted[one.id] == name
            if one.id in work.preempted
            else one.model == name or not _still_wants(work, one.model)
        )
    ]


def _still_wants(work: Work, name: ModelName) -> bool:
    model = work.models.get(name)
    return model is not None and len(counted(work, kinds(work, model)[0])) < model.replicas
