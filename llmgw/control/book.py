"""The book of nodes: what is known of each, folded from the sessions' reports. Changes wake the reconciler."""

from collections.abc import Callable

from llmgw.base.ids import NodeName
from llmgw.base.time import Clock
from llmgw.fleet.report import Report
from llmgw.fleet.view import NeverSeen, NodeView, Reporting, Routes, fold, lose


class FleetBook:
    """One for a control plane. Every method is synchronous; use from the event loop's thread."""

    def __init__(self, clock: Clock, changed: Callable[[], None]) -> None:
        self._clock = clock
        self._changed = changed
        self._views: dict[NodeName, NodeView] = {}

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

    def heard(self, node: NodeName, report: Report, routes: Routes) -> None:
        """Take a report that arrived on a live connection."""
        before = self._views.get(node)
        if before is None:
            return
        after = fold(before, report, self._clock.now(), routes)
        self._views[node] = after
        if not _same(before, after):
            self._changed()

    def lost(self, node: NodeName, why: str, surviving: Routes) -> None:
        """Note that the connection ended, or could not be made."""
        before = self._views.get(node)
        if before is not None:
            self._views[node] = lose(before, self._clock.now(), why, surviving)
            self._changed()


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
    cards = [(gpu.uuid, gpu.index, gpu.unhealthy, gpu.users, gpu.links, gpu.numa) for gpu in report.gpus]
    return (report.boot, report.epoch, report.generation, report.refused, report.facts, shards, cards)
