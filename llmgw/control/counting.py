"""What several gateways together have in flight, from what each of them said last. Pure functions.

It fails closed: as long as one gateway has not said that it goes by the newest table, what it may have in flight is unknown,
and nothing that needs quiet goes on; only what is in flight for certain is counted meanwhile.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from llmgw.base.ids import ReplicaId
from llmgw.base.time import Instant
from llmgw.fleet.usage import Active, Idle, Unknown, Usage, UsageView
from llmgw.wire.messages import EndpointUsage, WorkerUsage

SILENCE = 10.0
"""Seconds without a word after which what a gateway has in flight is unknown; it speaks twice a second."""
NOT_USED = Unknown("not used since the gateway started", quiet=True)


@dataclass(frozen=True, slots=True)
class Word:
    """What one gateway said last."""

    who: str
    usage: WorkerUsage | None
    at: Instant
    lost: bool = False
    """It cannot be heard now; what it said last is old, however young."""


def joined(words: Sequence[Word], version: int | None, now: Instant) -> UsageView:
    """Return what all of these have in flight, counted against the table of this version."""
    if not words:
        return UsageView({}, Unknown("no gateway worker runs"))
    for word in words:
        if word.lost:
            return UsageView(_active(words), Unknown(f"{word.who} is not connected"))
        if word.usage is None or now - word.at > SILENCE:
            return UsageView(_active(words), Unknown(f"{word.who} has not reported"))
        if word.usage.table_version != version:
            return UsageView(_active(words), Unknown(f"{word.who} goes by an older table"))
    found: dict[ReplicaId, Usage] = {}
    for word in words:
        assert word.usage is not None
        for one in word.usage.endpoints:
            since = Instant(word.at - one.ended_ago) if one.ended_ago is not None else None
            found[one.id] = _added(found.get(one.id), one.in_flight, since)
    return UsageView(found, NOT_USED, current=True)


def is_news(before: WorkerUsage | None, usage: WorkerUsage) -> bool:
    """Whether a decision may hang on what a gateway said now: another table, or an endpoint that became quiet."""
    quiet = {one.id for one in usage.endpoints if one.in_flight == 0}
    was_busy = {one.id for one in before.endpoints if one.in_flight} if before else set()
    return before is None or before.table_version != usage.table_version or bool(quiet & was_busy)


def passed_on(view: UsageView, version: int, requests: int, now: Instant) -> WorkerUsage:
    """Return what a router says for all of its workers; of no table while one of them does not go by the newest."""
    endpoints = []
    for replica, usage in view.endpoints.items():
        match usage:
            case Active(in_flight):
                endpoints.append(EndpointUsage(replica, in_flight, None))
            case Idle(since):
                endpoints.append(EndpointUsage(replica, 0, max(0.0, now - since)))
            case Unknown():
                endpoints.append(EndpointUsage(replica, 0, None))
    return WorkerUsage(version if view.current else 0, tuple(endpoints), requests)


def _active(words: Sequence[Word]) -> dict[ReplicaId, Usage]:
    """What is in flight for certain, while the rest is unknown."""
    found: dict[ReplicaId, Usage] = {}
    for word in words:
        for one in word.usage.endpoints if word.usage else ():
            if one.in_flight:
                found[one.id] = _added(found.get(one.id), one.in_flight, None)
    return found


def _added(known: Usage | None, in_flight: int, since: Instant | None) -> Usage:
    """Join what two gateways say of one endpoint: flights add up; idle counts from the later end."""
    if isinstance(known, Active):
        return Active(known.in_flight + in_flight)
    if in_flight:
        return Active(in_flight)
    if isinstance(known, Idle):
        return Idle(max(known.since, since)) if since is not None else known
    return Idle(since) if since is not None else NOT_USED
