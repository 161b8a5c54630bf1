"""What a suspension leaves of a round: nothing. Every order stays as it is, and what would be done is said instead.

So nothing is started, drained, called off, moved or stopped, for whatever reason: a commit, an operator's act, a node that
was lost. What runs goes on: agents restart engines that crash by the orders they have, and the endpoint table follows what
is ready and what is not, since withdrawing what is dead and publishing what came back changes nothing on a node. Replacing
what was lost with a node would be a start, and is held back with the rest: who suspends wants to know what runs where.

The clock of a rollout that is under way stands still, too, else it would have failed by its deadline at the end.
"""

from dataclasses import replace
from datetime import UTC, datetime

from llmgw.base.time import Instant
from llmgw.plan.result import Verb
from llmgw.plan.snapshot import Suspension
from llmgw.plan.work import Work


def stand_still(work: Work, wanted: Work, suspension: Suspension) -> Work:
    """Return the round that changes nothing; `wanted` is the round as it would be without the suspension."""
    waits = f"the end of the suspension: {in_words(suspension)}"
    for action in wanted.actions:
        if action.verb not in (Verb.PUBLISH, Verb.WITHDRAW):
            subject = f"model/{action.model}" if action.verb is Verb.START else f"replica/{action.replica}"
            where = f" on {action.node}" if action.verb is Verb.START else ""
            work.hold(subject, f"{action.verb} {action.replica}{where} ({action.why})", waits)
    for hold in wanted.holds.values():
        work.hold(hold.subject, hold.what, hold.waits_for)
    before = work.snapshot.previous
    work.rollouts = {
        name: one if one.failed else replace(one, progressed=work.now) for name, one in before.rollouts.items()
    }
    work.gave_up = dict(before.gave_up)
    return work


def in_words(suspension: Suspension) -> str:
    """Say who suspended, until when and why."""
    return f"{suspension.by}, until {utc(suspension.until)} ({suspension.reason})"


def utc(at: Instant) -> str:
    """Write an instant as the cluster directory does: 2026-12-24T18:00Z."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%MZ")
