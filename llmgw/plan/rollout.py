"""How a model's replicas are replaced: which are current, which are outdated, who gives way and when.

**Current** replicas run by what the catalog wants, on a node that may keep them; **outdated** are all others that still
serve the model. New come before old where there is room (`surge`); without room, one outdated replica gives way if another
serves; a single one without room stays, and the plan says so, unless the operator chose `strategy: recreate`.

A rollout that makes no progress for its `deadline`, or whose replicas gave up on several nodes, has **failed**: nothing more is
started for it, what serves goes on serving, and with `auto_revert` the model goes back to the newest spec that all of its
replicas served by. Another revision is another rollout, so a fix takes over at once.
"""

from collections.abc import Callable
from dataclasses import replace

from llmgw.base.ids import ModelName
from llmgw.base.time import age
from llmgw.fleet.report import Phase
from llmgw.fleet.usage import Active
from llmgw.plan.capacity import names
from llmgw.plan.replicas import Replica, by_id
from llmgw.plan.result import Verb
from llmgw.plan.snapshot import Rollout
from llmgw.plan.work import Work
from llmgw.spec.model import Model

TRIES = 3
"""Nodes on which a replica may give up before its spec is taken for the cause."""


def kinds(work: Work, model: Model) -> tuple[list[Replica], list[Replica]]:
    """Return the model's (current, outdated) replicas, in order of id, without those that drain."""
    wanted = work.wanted_hashes(model)
    current: list[Replica] = []
    outdated: list[Replica] = []
    for one in work.of(ModelName(model.name)):
        if not one.draining:
            (current if one.spec.hash in wanted and not work.must_go(one) else outdated).append(one)
    return current, outdated


def counted(work: Work, current: list[Replica]) -> list[Replica]:
    """Return those of the current replicas that count as there: not on a lost node, and not given up."""
    return [one for one in current if one.phase is not Phase.FAILED and not work.is_lost(one)]


def judge(work: Work, model: Model) -> None:
    """Go on with the model's rollout, end it, or find that it has failed; a reverted model is acted on as it was."""
    name = ModelName(model.name)
    work.learn(model)
    current, outdated = kinds(work, model)
    hashes = tuple(sorted(work.wanted_hashes(model)))
    old = [one for one in outdated if one.spec.hash not in hashes and not work.is_lost(one)]
    serving = sum(work.available(one, model) for one in current)
    if not old:
        if serving and all(work.available(one, model) for one in current):
            work.good[name] = model
        if not _reverted(work, model, hashes):
            return
    before = _before(work, model)
    if before is None or before.hashes != hashes:
        before = Rollout(hashes, work.now, work.now, serving)
    elif serving > before.serving:
        before = replace(before, progressed=work.now, serving=serving)
    elif _is_waited_for(work, model, current):
        before = replace(before, progressed=work.now)
    if not before.failed:
        before = replace(before, failed=_failure(work, model, before, serving))
    work.rollouts[name] = before
    if before.failed and model.rollout.auto_revert and name in work.good and work.good[name] is not model:
        work.models[name] = reverted = as_before(work.good[name], model)
        work.learn(reverted)


def as_before(good: Model, model: Model) -> Model:
    """Return a model that is run as it was, by its weights and profiles; all else is as it is wanted now."""
    return model.model_copy(update={"weights": good.weights, "profiles": good.profiles})


def _is_waited_for(work: Work, model: Model, current: list[Replica]) -> bool:
    """Whether time passes by its own rules: until a new replica counts, or until an old one's requests have ended."""
    ripening = any(one.serves and not work.available(one, model) for one in current)
    return ripening or any(one.draining for one in work.of(ModelName(model.name)))


def _before(work: Work, model: Model) -> Rollout | None:
    """Return the rollout of the round before, also under the name that the model had then."""
    rollouts = work.snapshot.previous.rollouts
    return rollouts.get(ModelName(model.name)) or rollouts.get(ModelName(model.moved_from or ""))


def _reverted(work: Work, model: Model, hashes: tuple[str, ...]) -> bool:
    """Whether the model was reverted from just these: then no replica is outdated, and the failure must not be forgotten."""
    before = _before(work, model)
    return before is not None and bool(before.failed) and before.hashes == hashes


def _failure(work: Work, model: Model, rollout: Rollout, serving: int) -> str:
    tried = work.gave_up.get(ModelName(model.name), ())
    for wanted in rollout.hashes:
        where = [each for each in tried if each.hash == wanted]
        if len(where) >= TRIES:
            return f"its replicas gave up on {names([each.node for each in where])}: {where[-1].why}"
    stood = work.now - rollout.progressed
    if stood >= model.rollout.deadline and serving < model.replicas:
        return f"nothing new has served for {age(stood)} (rollout.deadline)"
    return ""


def call_off_drains(work: Work, model: Model) -> None:
    """Keep replicas that drain and that the model needs after all."""
    name = ModelName(model.name)
    current = counted(work, kinds(work, model)[0])
    wanted = work.wanted_hashes(model)
    missing = model.replicas - len(current)
    for one in work.of(name):
        if missing <= 0:
            return
        fits = one.spec.hash in wanted and not work.must_go(one) and one.id not in work.preempted
        if (
            one.draining
            and fits
            and one.phase is not Phase.FAILED
            and all(work.may_command(node) for node in one.nodes)
        ):
            kept = work.mark(one, draining=False)
            del work.draining[one.id]
            missing -= 1
            work.act(Verb.KEEP, kept, "it is wanted again")


def retire(work: Work, model: Model, fits: Callable[[Model], bool]) -> None:
    """Drain outdated replicas as others take over, and current ones beyond the wanted number.

    `fits` says whether there is a place for one more replica of a model now.
    """
    current, outdated = kinds(work, model)
    missing_allowed = model.rollout.max_unavailable
    recreate = model.rollout.strategy == "recreate"
    left = list(outdated)
    for one in outdated:
        others = [other for other in current + left if other is not one and _counts(work, other, model, current)]
        enough = max(0 if recreate else 1, model.replicas - (max(1, missing_allowed) if recreate else missing_allowed))
        why = work.must_go(one) or "it is outdated"
        if not one.serves and _is_hopeless(work, one, model, others_serve=bool(others)):
            work.drain(one, f"{why} and it does not serve")
            left.remove(one)
        elif recreate and len(others) < model.replicas and (why_not := _is_in_vain(work, one, model, fits)):
            work.hold(f"replica/{one.id}", "drain (outdated)", why_not)
        elif len(others) >= min(enough, model.replicas) and (others or recreate or model.replicas == 0):
            work.owe(one)
            said = f"{len(others)} others serve" if not recreate else "its strategy is recreate"
            work.drain(one, f"{why} and {said}")
            left.remove(one)
        else:
            short = max(1, min(enough, model.replicas) - len(others))
            work.hold(f"replica/{one.id}", "drain (outdated)", f"{short} more to serve first")
    _retire_surplus(work, model, current)


def _is_in_vain(work: Work, one: Replica, model: Model, fits: Callable[[Model], bool]) -> str:
    """Return what `strategy: recreate` waits for, where stopping a replica would not let a new one start; empty if it would."""
    rollout = work.rollouts.get(ModelName(model.name))
    if rollout is not None and rollout.failed and model is work.catalog.models.get(ModelName(model.name)):
        return f"another revision; this one failed: {rollout.failed}"
    work.set_free([one])
    helps = fits(model)
    work.take_back([one])
    return "" if helps else "room for a new one, which its own place does not give"


def _counts(work: Work, one: Replica, model: Model, current: list[Replica]) -> bool:
    """Whether a replica is one that another may rely on; `min_ready` is asked of those that run by the new spec."""
    new = one in current or one.spec.hash in work.wanted_hashes(model)
    return work.available(one, model) if new else one.serves and not one.draining


def _retire_surplus(work: Work, model: Model, current: list[Replica]) -> None:
    here = [one for one in current if not work.is_lost(one)]
    gave_up = [one for one in here if one.phase is Phase.FAILED]
    newest_first = sorted(here, key=by_id, reverse=True)
    worst_first = sorted(
        newest_first,
        key=lambda one: (
            work.available(one, model),
            one.serves,
            one.has_process,
            isinstance(work.snapshot.usage.of(one.id), Active),
        ),
    )
    for one in worst_first[: max(0, len(here) - model.replicas)]:
        told = (
            "it gave up and is replaced elsewhere" if one in gave_up else f"{model.replicas} wanted, {len(here)} there"
        )
        work.drain(one, told)


def _is_hopeless(work: Work, one: Replica, model: Model, *, others_serve: bool) -> bool:
    """Whether an outdated replica that does not serve is of no more use.

    While nothing else serves, one that may come back (its engine crashed, its node does not answer) is kept: a new
    revision may turn out not to start. It gives way to a replacement that could not start beside it. One that lacks a
    shard does not come back.
    """
    if others_serve or one.phase is Phase.FAILED or model.replicas == 0 or not one.whole:
        return True
    # one that runs behind a broken connection is not known to be gone, and its place would not become free
    return ModelName(model.name) in work.crowded and one.node_answers and not one.phase_serves


def make_room(work: Work, model: Model, fits: Callable[[], bool]) -> bool:
    """Let one outdated replica give way where there is no room to surge, if another keeps serving and if it helps.

    `fits` says whether there is a place for one more replica of the model now.
    """
    if model.rollout.strategy == "surge":
        return False
    current, outdated = kinds(work, model)
    there = [one for one in current + outdated if not work.is_lost(one) and one.phase is not Phase.FAILED]
    serving = [one for one in there if _counts(work, one, model, current)]
    if len(serving) < 2 or len(serving) < len(there):
        return False
    for victim in [one for one in reversed(outdated) if one.serves]:
        work.set_free([victim])
        helps = fits()
        work.take_back([victim])
        if helps:
            work.owe(victim)
            work.drain(victim, "it is outdated, there is no room for one more, and others serve meanwhile")
            return True
    return False


def progress(work: Work, model: Model, current: list[Replica]) -> str:
    """Say what a rollout waits for."""
    new = next((one for one in current if not work.available(one, model)), None)
    if new is not None and new.serves:
        return f"{new.id} to be ready for {age(model.rollout.min_ready)} (rollout.min_ready)"
    if new is not None:
        reason = f" ({new.reason})" if new.reason else ""
        return f"{new.id} to serve; it is {new.phase}{reason}"
    running = work.of(ModelName(model.name))
    leaving = next((one for one in running if one.draining), None)
    return f"{leaving.id} to drain" if leaving else "an outdated replica to drain"
