"""What a cluster directory would change: the answer behind `llmgw plan`, from the planner that the reconciler obeys."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from llmgw.base.ids import ModelName, Revision
from llmgw.base.time import EARLIEST, Instant
from llmgw.catalog.catalog import Catalog
from llmgw.catalog.compile import Accepted, Rejected
from llmgw.catalog.diff import ObjectChange, diff
from llmgw.catalog.guard import Refusal, guarded, refusals
from llmgw.catalog.problems import Problem
from llmgw.control.overview import act_row
from llmgw.control.plan_rows import Decision, drift_rows, object_actions, object_reason, replaces, replica_details
from llmgw.control.revision_rows import refusal_row, suspension_row
from llmgw.fleet.view import NeverSeen
from llmgw.plan.check import check
from llmgw.plan.decide import plan
from llmgw.plan.result import Action, Hold, Verb
from llmgw.plan.snapshot import Act, Snapshot, Suspension
from llmgw.plan.what_if import suppose

FORMAT_VERSION = "1.1"
"""Of the JSON that `llmgw plan --json` prints: the first number grows with what an older reader would misread."""


@dataclass(frozen=True, slots=True)
class Preview:
    """What would change, in all."""

    based_on: Revision | None
    """The revision in force."""
    revision: Revision
    problems: tuple[Problem, ...]
    objects: tuple[ObjectChange, ...]
    actions: tuple[Action, ...]
    holds: tuple[Hold, ...]
    violations: tuple[str, ...]
    guard: tuple[Refusal, ...] = ()
    """What the guard in force has against it."""
    suspended: Suspension | None = None
    now: Instant = EARLIEST
    alarms: tuple[str, ...] = ()
    acts: tuple[Act, ...] = ()
    """What operators asked for, which the plan goes by."""
    supposed: tuple[str, ...] = ()
    """What it was told to suppose."""
    in_force: Catalog | None = None
    decision: Decision | None = None
    """The plan with all that it was made from; None where nothing was planned."""
    planned: Catalog | None = None
    """What would be in force."""

    @property
    def valid(self) -> bool:
        """Whether the directory is valid."""
        return not any(problem.severity == "error" for problem in self.problems)

    @property
    def changes(self) -> bool:
        """Whether applying it would change anything."""
        return bool(self.objects or self.actions)


def preview(
    outcome: Accepted | Rejected,
    in_force: Catalog | None,
    snapshot: Snapshot | None,
    supposed: tuple[str, ...] = (),
    allowed: frozenset[str] = frozenset(),
) -> Preview:
    """Return what would change, were this directory in force and all that is supposed true.

    `snapshot` is the state of things now; `allowed` are the objects that it says it removes. Raises CannotSuppose.
    """
    based_on = in_force.revision if in_force is not None else None
    if isinstance(outcome, Rejected):
        return Preview(based_on, outcome.revision, tuple(outcome.problems), (), (), (), ())
    catalog = outcome.catalog
    objects = diff(in_force, catalog)
    guard = refusals(guarded(in_force), catalog, allowed) if in_force is not None else ()
    if snapshot is None:
        return Preview(based_on, catalog.revision, tuple(outcome.warnings), objects, (), (), (), guard, planned=catalog)
    nodes = {name: snapshot.nodes.get(name, NeverSeen(snapshot.now)) for name in {**catalog.nodes, **snapshot.nodes}}
    there = replace(snapshot, catalog=catalog, nodes=nodes)
    for text in supposed:
        there = suppose(there, text)
    decided = plan(there)
    actions = tuple(action for action in decided.actions if action.verb is not Verb.PUBLISH)
    return Preview(
        based_on,
        catalog.revision,
        tuple(outcome.warnings),
        objects,
        actions,
        decided.holds,
        check(decided, there),
        guard,
        there.suspended,
        there.now,
        decided.alarms,
        tuple(act for act in snapshot.acts if act.holds(snapshot.now)),
        supposed,
        in_force,
        Decision(snapshot, there, decided),
        catalog,
    )


def as_json(shown: Preview, cold: Mapping[ModelName, float] | None = None) -> dict[str, Any]:
    """Return the preview in the published format. `cold` says how long each model's cold start took last time, in seconds."""
    orders = [replaces(one, shown.in_force, shown.decision) for one in shown.objects]
    details = replica_details(shown.actions, shown.decision, cold or {})
    return {
        "format_version": FORMAT_VERSION,
        "based_on": shown.based_on,
        "revision": shown.revision,
        "valid": shown.valid,
        "changes": shown.changes,
        "problems": [
            {
                "severity": one.severity,
                "path": one.path,
                "line": one.line,
                "column": one.column,
                "message": one.message,
                "text": str(one),
            }
            for one in shown.problems
        ],
        "drift": drift_rows(shown.decision),
        "objects": [
            {
                "actions": object_actions(one, how),
                "replaces": how,
                "kind": one.kind,
                "name": one.name,
                "path": one.path,
                "reason": object_reason(one, shown.in_force, shown.planned),
                "fields": [
                    {"path": field.path, "before": field.before, "after": field.after, "impact": field.impact.value}
                    for field in one.fields
                ],
            }
            for one, how in zip(shown.objects, orders, strict=True)
        ],
        "replicas": [
            {
                "actions": [one.verb.value],
                "replica": one.replica,
                "model": one.model,
                "node": one.node,
                "reason": one.why,
                **detail,
            }
            for one, detail in zip(shown.actions, details, strict=True)
        ],
        "held": [{"subject": one.subject, "what": one.what, "waits_for": one.waits_for} for one in shown.holds],
        "violations": list(shown.violations),
        "alarms": list(shown.alarms),
        "acts": [act_row(act, shown.now) for act in shown.acts],
        "supposed": list(shown.supposed),
        "guard": [refusal_row(one) for one in shown.guard],
        "suspended": suspension_row(shown.suspended, shown.now),
        "waiting": None,
    }
