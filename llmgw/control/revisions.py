"""Where each revision stands, and how far the newest one is: pure values and functions of what is known.

Four revisions are told apart, since "which commit is it?" has four answers: **fetched**, the newest of the source;
**validated**, the newest valid one; **attempted**, the one whose plan is being carried out; **applied**, the newest whose plan
became empty with everything healthy. In a calm cluster they are the same.

A revision is *applied* when nothing is left to do, nothing is held back, every model has all its replicas serving by
this revision, and every gateway worker goes by the table that says so. It has *failed* when a model cannot get there by
itself: its rollout was given up, or its replicas gave up wherever they could run. Something that merely takes long has not
failed; `rollout.deadline` says when it has.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from pydantic import TypeAdapter, ValidationError

from llmgw.base.ids import ModelName, ReplicaId, Revision, short
from llmgw.base.time import Instant, age
from llmgw.catalog.guard import TRAILER, Guarded, Refusal, allowed_by, refusals
from llmgw.control.catalogs import Candidate, CatalogState, Waiting
from llmgw.fleet.report import Phase
from llmgw.fleet.usage import Unknown
from llmgw.plan.replicas import Replica, existing
from llmgw.plan.result import Plan
from llmgw.plan.snapshot import Snapshot
from llmgw.plan.suspended import in_words
from llmgw.ports.revisions import Outcome, Record, Standing
from llmgw.spec.common import Duration
from llmgw.spec.model import Model

LONGEST_SUSPENSION = 7 * 86400.0
DEFAULT_SUSPENSION = "24h"
_DURATION: TypeAdapter[float] = TypeAdapter(Duration)


class CannotAdopt(Exception):
    """What an operator asked for is refused; the message says what to do.

    `guard` has what a guard refused, `stale` what has changed since a plan was saved.
    """

    def __init__(
        self, text: str, status: int = 409, guard: tuple[Refusal, ...] = (), stale: tuple[str, ...] = ()
    ) -> None:
        super().__init__(text)
        self.status = status
        self.guard = guard
        self.stale = stale


@dataclass(frozen=True, slots=True)
class Stage:
    """One of the four."""

    revision: Revision
    subject: str
    author: str
    at: Instant
    """When it got there."""
    committed: float | None = None


@dataclass(frozen=True, slots=True)
class Revisions:
    """The four. None: there was none yet."""

    fetched: Stage | None = None
    validated: Stage | None = None
    attempted: Stage | None = None
    applied: Stage | None = None


def revisions_of(state: CatalogState, records: Sequence[Record], attempted: Record | None) -> Revisions:
    """Return the four; `records` newest first."""
    fetched = None
    if state.fetched is not None and state.fetched_at is not None:
        tree = state.fetched
        fetched = Stage(tree.revision, tree.subject, tree.author, state.fetched_at, tree.committed)
    validated = None
    if state.candidate is not None:
        tree = state.candidate.tree
        validated = Stage(tree.revision, tree.subject, tree.author, state.candidate.at, tree.committed)
    applied = next((one for one in records if one.outcome is Outcome.APPLIED), None)
    return Revisions(
        fetched,
        validated,
        _stage(attempted, attempted.at) if attempted is not None else None,
        _stage(applied, applied.applied or applied.at) if applied is not None else None,
    )


def _stage(record: Record, at: Instant) -> Stage:
    return Stage(record.revision, record.subject, record.author, at, record.committed)


def waits_for(
    candidate: Candidate, guard: Guarded | None, standing: Standing, now: Instant, *, leads: bool
) -> Waiting | None:
    """Return why a valid revision may not be taken up by itself; None if it may. `guard` is of what is in force."""
    tree = candidate.tree
    broken = refusals(guard, candidate.accepted.catalog, allowed_by(tree.trailers)) if guard is not None else ()
    if not leads:
        return Waiting("leader", "another control plane decides whether it is taken up", broken)
    suspension = standing.suspension
    if suspension is not None and suspension.holds(now):
        return Waiting("suspended", f"suspended by {in_words(suspension)}; `llmgw resume` ends that", broken)
    if tree.revision in standing.bad:
        text = f"it was rolled back ({standing.held}); " if standing.held else "it was rolled back; "
        return Waiting("held", f"{text}push another commit, or `llmgw apply --rev {short(tree.revision)}`", broken)
    if tree.revision == standing.over:
        text = f"{standing.held}; push another commit, or `llmgw apply --rev {short(tree.revision)}`"
        return Waiting("passed over", text, broken)
    manual = standing.manual if guard is not None else candidate.accepted.catalog.cluster.sync == "manual"
    if manual:
        return Waiting("manual", "it waits for `llmgw apply` (sync: manual)", broken)
    if broken:
        return Waiting("guard", guard_text(tree.revision, broken), broken)
    return None


def guard_text(revision: Revision, broken: Sequence[Refusal], command: str = "apply --rev") -> str:
    """Say what the guard refuses, and the ways to allow it."""
    objects = sorted({name for one in broken for name in one.objects})
    options = " ".join(f"--allow-remove {name}" for name in objects)
    commit = f"end the commit's message with the line `{TRAILER}: {', '.join(objects)}`, or "
    return (
        f"revision {short(revision)} is refused: {'; '.join(one.text for one in broken)}. If that is meant, "
        f"{commit if command.startswith('apply') else ''}run `llmgw {command} {short(revision)} {options}`"
    )


@dataclass(frozen=True, slots=True)
class Todo:
    """One thing that is not done yet."""

    subject: str
    what: str
    waits_for: str = ""


@dataclass(frozen=True, slots=True)
class Evidence:
    """Why a revision failed, at one replica."""

    model: ModelName
    replica: ReplicaId | None
    """None: none of its replicas is left to show."""
    node: str
    reason: str
    tail: tuple[str, ...] = ()
    """The last lines of its engine's output."""


@dataclass(frozen=True, slots=True)
class ModelProgress:
    """How many of a model's replicas serve by this revision."""

    model: ModelName
    ready: int
    wanted: int


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the attempted revision is."""

    planned: bool
    """Whether a decision was made for it yet."""
    models: tuple[ModelProgress, ...] = ()
    todo: tuple[Todo, ...] = ()
    evidence: tuple[Evidence, ...] = ()

    @property
    def healthy(self) -> bool:
        """Whether its plan is empty and every model has all its replicas."""
        return self.planned and not self.todo and all(one.ready == one.wanted for one in self.models)

    @property
    def failed(self) -> bool:
        """Whether it cannot get there by itself."""
        return bool(self.evidence)


def progress(plan: Plan | None, snapshot: Snapshot | None, revisions: Revisions) -> Progress:
    """Return how far the attempted revision is, by the newest plan and the state it was made from."""
    attempted = revisions.attempted
    if plan is None or snapshot is None or attempted is None:
        return Progress(planned=False)
    if plan.based_on != attempted.revision or snapshot.catalog.revision != attempted.revision:
        return Progress(planned=False)
    catalog = snapshot.catalog
    replicas = existing(snapshot)
    published = {endpoint.id for endpoint in plan.table.endpoints}
    counts, evidence, todo = [], [], _plan_todo(plan)
    busy = {action.model for action in plan.actions}
    for name, model in catalog.models.items():
        wanted = {catalog.hash_of(model, profile) for profile in model.profiles}
        current = [one for one in replicas if one.model == name and one.spec.hash in wanted]
        counts.append(ModelProgress(name, sum(one.id in published for one in current), model.replicas))
        found = _evidence(plan, name, model, current, published, busy=name in busy)
        evidence += found
        if not found:
            todo += [_not_ready(one) for one in current if one.id not in published and _comes(one)]
    todo += [Todo(f"replica/{one.id}", "to be gone") for one in replicas if one.leaving or one.draining]
    if not plan.settled:
        todo.append(Todo("nodes", "to report for the first time"))
    if not snapshot.usage.current:
        otherwise = snapshot.usage.otherwise
        why = otherwise.why if isinstance(otherwise, Unknown) else ""
        todo.append(Todo("gateway", "to take up the newest endpoint table", why))
    return Progress(planned=True, models=tuple(counts), todo=_once(todo), evidence=tuple(evidence))


def _plan_todo(plan: Plan) -> list[Todo]:
    done = [Todo(f"replica/{one.replica}", f"{one.verb} on {one.node}") for one in plan.actions]
    return [*done, *(Todo(one.subject, one.what, one.waits_for) for one in plan.holds)]


def _once(todo: list[Todo]) -> tuple[Todo, ...]:
    """Leave out what is said of a subject again with less."""
    said = {one.subject for one in todo if one.waits_for}
    return tuple(dict.fromkeys(one for one in todo if one.waits_for or one.subject not in said))


def _comes(one: Replica) -> bool:
    """Whether it is on its way to serving, as far as is known."""
    return not one.draining and not one.leaving and one.phase is not Phase.FAILED


def _not_ready(one: Replica) -> Todo:
    where = "" if one.node_answers else f", and node {one.node} does not answer"
    reason = f" ({one.reason})" if one.reason else ""
    return Todo(f"replica/{one.id}", "to serve", f"it is {one.phase}{reason}{where}")


def _evidence(
    plan: Plan, name: ModelName, model: Model, current: list[Replica], published: set[ReplicaId], *, busy: bool
) -> list[Evidence]:
    rollout = plan.rollouts.get(name)
    given_up = rollout.failed if rollout is not None else ""
    ready = sum(one.id in published for one in current)
    gave_up = plan.gave_up.get(name, ())
    stuck = bool(gave_up) and ready < model.replicas and not busy
    if stuck and any(_comes(one) and one.id not in published for one in current):
        stuck = False
    if not given_up and not stuck:
        return []
    shown = []
    for one in current:
        report = one.report
        if one.phase in (Phase.FAILED, Phase.BACKOFF) and report is not None:
            end = report.last_end
            reason = one.reason or (end.text if end is not None else "it gave up")
            shown.append(Evidence(name, one.id, one.node, reason, tuple(end.tail) if end is not None else ()))
    seen = {one.node for one in shown}
    shown += [Evidence(name, None, each.node, each.why) for each in gave_up if each.node not in seen]
    return shown or [Evidence(name, None, "", given_up)]


def until_of(text: str, now: Instant) -> Instant:
    """Return when a suspension ends that is asked for `until` a duration from now or a moment in UTC. Raises ValueError."""
    try:
        end = Instant(now + _DURATION.validate_python(text))
    except ValidationError:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise ValueError(f"until {text!r} is not known; write 24h, 90m, or 2026-12-24T18:00Z") from None
        if moment.tzinfo is None:
            raise ValueError(f"until {text!r} lacks a time zone; write it in UTC, as in 2026-12-24T18:00Z") from None
        end = Instant(moment.timestamp())
    if end <= now:
        raise ValueError(f"until {text!r} is not in the future")
    if end - now > LONGEST_SUSPENSION:
        raise ValueError(f"a suspension lasts at most {age(LONGEST_SUSPENSION)}; suspend again when that is over")
    return end


@dataclass(frozen=True, slots=True)
class RolledBack:
    """What a rollback did."""

    record: Record
    left: Revision
    revert: str | None
    """The git command that makes it permanent; None where revisions are not commits."""


def revert_line(good: Revision, bad: Revision) -> str | None:
    """Return the command that makes a rollback permanent; None where the revisions are not commits."""
    if good == bad or not (is_commit(good) and is_commit(bad)):
        return None
    return f"git revert --no-edit {good[:12]}..{bad[:12]}"


def is_commit(revision: Revision) -> bool:
    """Whether a revision is a commit's id, and not that of files."""
    return len(revision) in (40, 64) and all(each in "0123456789abcdef" for each in revision)


def failure_note(shown: Progress) -> str:
    """Sum up why a revision failed, in one line."""
    first = shown.evidence[0]
    where = f" ({first.replica} on {first.node})" if first.replica else (f" (on {first.node})" if first.node else "")
    more = f", and {len(shown.evidence) - 1} more" if len(shown.evidence) > 1 else ""
    return f"model/{first.model}: {first.reason}{where}{more}"
