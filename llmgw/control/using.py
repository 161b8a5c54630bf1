"""`UseTeller`: what this control plane tells each agent of its own gateways, so that whoever leads counts them too.

What is said of a table is said once every gateway goes by it: until then a replica that the last one had, or the newest has,
may get requests, and the word is of the orders that the last one was made from.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from llmgw.base.ids import Epoch, Generation, NodeName, ReplicaId
from llmgw.base.time import Clock
from llmgw.control.book import FleetBook
from llmgw.fleet.report import Use
from llmgw.fleet.table import EMPTY_TABLE, EndpointTable
from llmgw.fleet.usage import Active, Idle, Unknown, UsageView
from llmgw.fleet.users import SILENT
from llmgw.fleet.view import Reporting, report_of
from llmgw.ports.sinks import UsageSource
from llmgw.wire.messages import Using

FRESH = 0.1
"""Seconds for which what the gateways say is not asked again, with hundreds of nodes to be told."""


class RouterBook(Protocol):
    """Which routers on other hosts are this control plane's."""

    @property
    def connected(self) -> tuple[str, ...]:
        """Those that can be heard now, by name."""
        ...

    def moved(self, names: frozenset[str]) -> None:
        """Let go of those of these that cannot be heard here: another control plane hears them."""
        ...


@dataclass(frozen=True, slots=True)
class _Published:
    """A table, and the order of each node that it was made by."""

    table: EndpointTable = EMPTY_TABLE
    ranks: Mapping[NodeName, tuple[Epoch, Generation]] | None = None


class UseTeller:
    """One for a control plane. Use from the event loop's thread."""

    def __init__(
        self, gateways: str, usage: UsageSource, book: FleetBook, clock: Clock, routers: RouterBook | None = None
    ) -> None:
        """`gateways` is what they are known by, over restarts of this process."""
        self._routers = routers
        self.gateways = gateways
        self._usage = usage
        self._book = book
        self._clock = clock
        self._newest = self._in_use = _Published()
        self._asked: UsageView | None = None
        self._asked_at = 0.0
        self._routed: frozenset[ReplicaId] = frozenset()

    def published(self, table: EndpointTable) -> None:
        """Take note of a table, made of what is known of the nodes now."""
        reports = {name: report_of(view) for name, view in self._book.views.items()}
        ranks = {name: (report.epoch, report.generation) for name, report in reports.items() if report is not None}
        self._newest = _Published(table, ranks)
        self._asked = None

    def using(self, node: NodeName) -> Using | None:
        """Return what to tell a node's agent; None if there is no gateway here, or nothing is known of the node."""
        view = self._book.views.get(node)
        report = report_of(view) if view is not None else None
        usage = self._own()
        if report is None or not usage.present:
            return None
        heads = sorted({one.spec.replica for one in report.shards if one.spec.rank == 0})
        said = [self._use(replica, usage, routed=replica in self._routed) for replica in heads]
        epoch, generation = (self._in_use.ranks or {}).get(node, (Epoch(0), Generation(0)))
        uses = tuple(one for one in said if one.routed or one.in_flight != 0 or one.ended_ago is not None)
        routers = self._routers.connected if self._routers is not None else ()
        return Using(self.gateways, epoch, generation, uses, routers=routers)

    def hear(self) -> None:
        """Let go of routers that agents say another control plane has now; to be called in every round."""
        if self._routers is None:
            return
        now = self._clock.now()
        elsewhere = {
            router
            for view in self._book.views.values()
            if isinstance(view, Reporting)
            for user in view.report.users
            if user.gateways != self.gateways and user.age + (now - view.at) <= SILENT
            for router in user.routers
        }
        if elsewhere:
            self._routers.moved(frozenset(elsewhere))

    def farewell(self) -> Using:
        """Return the last word: the gateways here have ended."""
        return Using(self.gateways, Epoch(0), Generation(0), (), leaving=True)

    def _own(self) -> UsageView:
        now = self._clock.now()
        if self._asked is None or now - self._asked_at > FRESH:
            self._asked, self._asked_at = self._usage.usage(), now
            if self._asked.current:
                self._in_use = self._newest
            tables = (self._in_use.table, self._newest.table)
            self._routed = frozenset(one.id for table in tables for one in table.endpoints)
        return self._asked

    def _use(self, replica: ReplicaId, usage: UsageView, *, routed: bool) -> Use:
        match usage.of(replica):
            case Active(in_flight):
                return Use(replica, in_flight, None, routed)
            case Idle(since):
                return Use(replica, 0, max(0.0, self._clock.now() - since), routed)
            case Unknown(quiet=quiet):
                return Use(replica, 0 if quiet else None, None, routed)
