"""`NodeView`: what is known of a node. A node that does not answer is a variant of its own: it is not empty.

`fold` is the only way a report changes what is known: it takes newer reports and ignores the rest, so a late message
of an old connection cannot undo a newer one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import assert_never

from llmgw.base.ids import ShardId
from llmgw.base.time import Instant
from llmgw.fleet.report import Report
from llmgw.fleet.table import Address

Routes = Mapping[ShardId, Address]
"""Where the control plane's host reaches each shard: the engine's own address, or the tunnel to it."""


@dataclass(frozen=True, slots=True)
class NeverSeen:
    """No word from this node yet."""

    since: Instant
    why: str = "not connected yet"


@dataclass(frozen=True, slots=True)
class Reporting:
    """The node is connected and told us this."""

    report: Report
    at: Instant
    routes: Routes


@dataclass(frozen=True, slots=True)
class Unreachable:
    """The connection is gone; this is what the node told us last. What it held, it may well still hold."""

    last: Report
    since: Instant
    why: str
    routes: Routes
    """Those that do not need the connection."""


NodeView = NeverSeen | Reporting | Unreachable


def fold(view: NodeView, report: Report, at: Instant, routes: Routes) -> NodeView:
    """Return the view after a report arrived on a live connection."""
    match view:
        case NeverSeen():
            return Reporting(report, at, routes)
        case Reporting(report=known):
            if report.boot == known.boot and report.sequence < known.sequence:
                return view
            return Reporting(report, at, routes)
        case Unreachable():
            return Reporting(report, at, routes)
        case _:
            assert_never(view)


def lose(view: NodeView, at: Instant, why: str, surviving: Routes) -> NodeView:
    """Return the view after the connection broke, or could not be made."""
    match view:
        case NeverSeen():
            return replace(view, why=why)
        case Reporting(report=report):
            return Unreachable(report, at, why, surviving)
        case Unreachable():
            return replace(view, why=why)
        case _:
            assert_never(view)


def report_of(view: NodeView) -> Report | None:
    """Return the newest report, however old; None if there was never one."""
    match view:
        case NeverSeen():
            return None
        case Reporting(report=report):
            return report
        case Unreachable(last=report):
            return report
        case _:
            assert_never(view)


def routes_of(view: NodeView) -> Routes:
    """Return the addresses that can be tried now."""
    return {} if isinstance(view, NeverSeen) else view.routes
