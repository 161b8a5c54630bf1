"""The book of nodes: what is known of each, folded from the sessions' reports. Changes wake the reconciler.

Every connection has a number of its own, and the book takes the word of a node's newest one alone: what an old one still
has to say, a report or its own end, is about a time that is over.
"""

from collections.abc import Callable
from dataclasses import replace

from llmgw.base.ids import NodeName
from llmgw.base.time import Clock
from llmgw.fleet.report import Report, Use
from llmgw.fleet.view import NeverSeen, NodeView, Reporting, Routes, Unreachable, fold, lose


class FleetBook:
    """One for a control plane. Every method is synchronous; use from the event loop's thread."""

    def __init__(self, clock: Clock, changed: Callable[[], None]) -> None:
        self._clock = clock
        self._changed = changed
        self._views: dict[NodeName, NodeView] = {}
        self._connections: dict[NodeName, int] = {}

    @property
    def views(self) -> dict[NodeName, NodeView]:
        """A copy of what is known, by node."""
        return dict(self._views)

    def expect(self, node: NodeName) -> None:
        """Begin to know of a node."""
        self._views.setdefault(node, NeverSeen(self._clock.now()))

    def forget(self, node: NodeName) -> None:
        """Cease to know of a node that is empty and no longer wanted."""
        self._views.pop(node, None)

    def connecting(self, node: NodeName) -> int:
        """Return the number of a connection that is about to be made; older ones are not listened to from now on."""
        self._connections[node] = self._connections.get(node, 0) + 1
        return self._connections[node]

    def heard(self, node: NodeName, connection: int, report: Report, routes: Routes) -> None:
        """Take a report that arrived on a live connection."""
        before = self._of(node, connection)
        if before is None:
            return
        after = fold(before, report, self._clock.now(), routes)
        self._views[node] = after
        if not _same(before, after):
            self._changed()

    def rerouted(self, node: NodeName, connection: int, routes: Routes) -> None:
        """Note other ways to the shards of a node, connected or not."""
        before = self._of(node, connection)
        if before is None or isinstance(before, NeverSeen) or before.routes == routes:
            return
        self._views[node] = replace(before, routes=routes)
        self._changed()

    def lost(self, node: NodeName, connection: int, why: str, surviving: Routes) -> None:
        """Note that the connection ended, or could not be made."""
        before = self._of(node, connection)
        if before is None:
            return
        after = lose(before, self._clock.now(), why, surviving)
        self._views[node] = replace(after, routes=surviving) if isinstance(after, Unreachable) else after
        self._changed()

    def _of(self, node: NodeName, connection: int) -> NodeView | None:
        """Return what is known, if this connection is the one to add to it."""
        return self._views.get(node) if self._connections.get(node) == connection else None


def _same(before: NodeView, after: NodeView) -> bool:
    """Whether nothing that a decision looks at has changed; ages grow all the time."""
    if not isinstance(before, Reporting) or not isinstance(after, Reporting):
        return False
    return before.routes == after.routes and _essence(before.report) == _essence(after.report)


def _essence(report: Report) -> object:
    shards = [
        (one.spec, one.phase, one.attempt, one.pid, one.reason, one.draining, one.degraded, one.failures)
        for one in report.shards
    ]
    facts = replace(report.facts, disk_free=None)  # it moves with every line of a log, on every node
    cards = [(gpu.uuid, gpu.index, gpu.unhealthy, gpu.users, gpu.links, gpu.numa) for gpu in report.gpus]
    users = [
        (one.gateways, one.epoch, one.generation, one.routers, [_use(use) for use in one.uses]) for one in report.users
    ]
    return (report.boot, report.epoch, report.generation, report.refused, facts, shards, cards, users)


def _use(use: Use) -> object:
    return (use.replica, use.in_flight is None, bool(use.in_flight), use.routed)
