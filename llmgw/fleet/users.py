"""`User`: what the gateways of one control plane do with the shards of a node, as its agent passes it on in reports.

Control planes need not know each other: each tells every agent, and every agent tells all of them. So whoever leads
drains with exact counts over every gateway anywhere. A user has withdrawn a replica when it says so *and* says it of the order
that drains it (`epoch`, `generation`): before that it may be about to send it requests. One that is silent is unknown; for
as long as a drain may take, since its gateways may serve on without it; after that they count as gone.
"""

from collections.abc import Mapping
from dataclasses import replace

from llmgw.base.ids import Epoch, Generation, NodeName, ReplicaId
from llmgw.base.time import Instant
from llmgw.fleet.order import NodeOrder
from llmgw.fleet.report import Report, Use, User
from llmgw.fleet.usage import Active, Idle, Unknown, Usage, UsageView
from llmgw.fleet.view import NodeView, Reporting, report_of

SILENT = 16.0
"""Seconds without a word after which a user is unknown: one report without news, and a little."""


def with_users(
    own: UsageView,
    views: Mapping[NodeName, NodeView],
    orders: Mapping[NodeName, NodeOrder],
    mine: str,
    drain: float,
    now: Instant,
) -> UsageView:
    """Return the usage of all gateways anywhere: one's own, and what other control planes' users told the nodes.

    `mine` is what this control plane's own gateways go by there; `drain` the seconds that a drain may take.
    """
    found: dict[ReplicaId, Usage] = dict(own.endpoints)
    routed: set[ReplicaId] = set()
    for name in sorted(views):
        view = views[name]
        report = report_of(view)
        if report is None:
            continue
        order = orders.get(name)
        rank = order.rank if order is not None else (report.epoch, report.generation)
        since_report = now - (view.at if isinstance(view, Reporting) else getattr(view, "since", now))
        for user in report.users:
            silence = user.age + since_report
            if user.gateways != mine and silence <= SILENT + drain:
                _add(found, routed, report, user, rank, own, now, silence)
    return replace(own, endpoints=found, routed=frozenset(routed)) if found != own.endpoints or routed else own


def _add(
    found: dict[ReplicaId, Usage],
    routed: set[ReplicaId],
    report: Report,
    user: User,
    rank: tuple[Epoch, Generation],
    own: UsageView,
    now: Instant,
    silence: float,
) -> None:
    behind = (user.epoch, user.generation) < rank
    uses = {use.replica: use for use in user.uses}
    for shard in report.shards:
        replica = shard.spec.replica
        use = uses.get(replica)
        if shard.spec.rank != 0:
            continue
        if behind or (use is not None and (use.routed or silence > SILENT)):
            routed.add(replica)
        if use is not None:
            found[replica] = _joined(found.get(replica, own.otherwise), use, user.gateways, now, silence)


def _joined(known: Usage, use: Use, who: str, now: Instant, silence: float) -> Usage:
    if silence > SILENT or use.in_flight is None:
        why = (
            f"other gateways ({who}) have not been heard" if silence > SILENT else f"other gateways ({who}) do not know"
        )
        return known if isinstance(known, Active) else Unknown(why)
    if use.in_flight:
        return Active(use.in_flight + (known.in_flight if isinstance(known, Active) else 0))
    if use.ended_ago is None or isinstance(known, Active) or (isinstance(known, Unknown) and not known.quiet):
        return known
    ended = Instant(now - silence - use.ended_ago)
    return Idle(max(ended, known.since) if isinstance(known, Idle) else ended)
