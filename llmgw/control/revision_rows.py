"""What the admin API says of revisions, as plain data: the status, the history, the progress of an apply."""

from typing import Any

from llmgw.base.time import Instant
from llmgw.catalog.guard import Refusal
from llmgw.control.catalogs import Waiting
from llmgw.control.revisions import Progress, Revisions, Stage
from llmgw.plan.snapshot import Suspension
from llmgw.plan.suspended import in_words
from llmgw.ports.revisions import Outcome, Record


def stage_row(stage: Stage | None, now: Instant) -> dict[str, Any] | None:
    """Return what is shown of one of the four."""
    if stage is None:
        return None
    return {
        "revision": stage.revision,
        "subject": stage.subject,
        "author": stage.author,
        "at": stage.at,
        "age": now - stage.at,
        "committed": stage.committed,
    }


def revisions_row(revisions: Revisions, now: Instant) -> dict[str, Any]:
    """Return all four."""
    return {
        "fetched": stage_row(revisions.fetched, now),
        "validated": stage_row(revisions.validated, now),
        "attempted": stage_row(revisions.attempted, now),
        "applied": stage_row(revisions.applied, now),
    }


def waiting_row(waiting: Waiting | None) -> dict[str, Any] | None:
    """Return why the newest valid revision is not in force."""
    if waiting is None:
        return None
    return {"kind": waiting.kind, "text": waiting.text, "guard": [refusal_row(one) for one in waiting.guard]}


def refusal_row(refusal: Refusal) -> dict[str, Any]:
    """Return what a guard refuses, and what allows it."""
    return {
        "rule": refusal.rule,
        "objects": list(refusal.objects),
        "text": refusal.text,
        "trailer": refusal.trailer,
        "options": refusal.options,
    }


def suspension_row(suspension: Suspension | None, now: Instant) -> dict[str, Any] | None:
    """Return who suspended, until when and why; None if nobody did, or it is over."""
    if suspension is None or not suspension.holds(now):
        return None
    return {
        "by": suspension.by,
        "reason": suspension.reason,
        "since": suspension.since,
        "until": suspension.until,
        "left": suspension.until - now,
        "text": in_words(suspension),
    }


def record_row(record: Record, now: Instant) -> dict[str, Any]:
    """Return one line of the history."""
    return {
        "id": record.id,
        "revision": record.revision,
        "tree": record.digest,
        "subject": record.subject,
        "author": record.author,
        "committed": record.committed,
        "at": record.at,
        "age": now - record.at,
        "by": record.by,
        "how": record.how.value,
        "outcome": record.outcome.value,
        "note": record.note,
        "ended": record.ended,
        "applied": record.applied,
    }


def progress_row(record: Record, shown: Progress | None, now: Instant) -> dict[str, Any]:
    """Return how far an apply is; `shown` is of the revision that is being carried out, if that is still this one."""
    row: dict[str, Any] = {**record_row(record, now), "phase": record.outcome.value, "healthy": False}
    if shown is None:
        return {**row, "models": [], "todo": [], "evidence": []}
    if record.outcome is Outcome.UNDER_WAY and not shown.planned:
        row["phase"] = "planning"
    return {
        **row,
        "healthy": shown.healthy,
        "models": [{"model": one.model, "ready": one.ready, "wanted": one.wanted} for one in shown.models],
        "todo": [{"subject": one.subject, "what": one.what, "waits_for": one.waits_for} for one in shown.todo],
        "evidence": [
            {
                "model": one.model,
                "replica": one.replica,
                "node": one.node,
                "reason": one.reason,
                "log": list(one.tail),
            }
            for one in shown.evidence
        ],
    }
