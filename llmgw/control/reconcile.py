"""The reconciler: look at everything, plan, check, publish, order; again when something changed and at every interval.

One round is synchronous: nothing changes between the look and what follows from it. It publishes before it orders, and
a plan that breaks a rule of safety is not carried out.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace

from llmgw.base.ids import Epoch, NodeName, ReplicaId, Revision, ShardId, short
from llmgw.base.time import Clock
from llmgw.control.acts import Acts, CannotAct, check_forgettable
from llmgw.control.adoption import Adoption
from llmgw.control.book import FleetBook
from llmgw.control.catalogs import Catalogs
from llmgw.control.leadership import Leadership
from llmgw.control.planner_memory import PlannerMemory
from llmgw.control.sessions import Sessions
from llmgw.control.using import UseTeller
from llmgw.engines.adapter import ENGINES, Engine
from llmgw.fleet.table import EMPTY_TABLE, EndpointTable
from llmgw.fleet.users import with_users
from llmgw.fleet.view import report_of
from llmgw.plan.check import check
from llmgw.plan.decide import plan
from llmgw.plan.memory import Memory, recalled
from llmgw.plan.publish import table_of
from llmgw.plan.replicas import existing
from llmgw.plan.result import Plan
from llmgw.plan.snapshot import Decided, Snapshot
from llmgw.ports.sinks import EndpointSink, Event, EventSink, UsageSource
from llmgw.runtime.latest import Latest
from llmgw.spec.node import Node

log = logging.getLogger(__name__)

SHORTEST = 0.1
"""Seconds between two rounds that nothing asked for, whatever `control.interval` says."""
SETTLE = 0.02
"""Seconds between a wake-up and the round, so that a burst of changes is one round."""


class Reconciler:
    """The loop. `last` and `snapshot` are read by the admin API."""

    def __init__(
        self,
        catalogs: Catalogs,
        book: FleetBook,
        sessions: Sessions,
        leadership: Leadership,
        endpoints: EndpointSink,
        usage: UsageSource,
        acts: Acts,
        events: EventSink,
        clock: Clock,
        *,
        planner: Callable[[Snapshot], Plan] = plan,
        engines: Mapping[str, Engine] = ENGINES,
        first_version: int = 0,
    ) -> None:
        """`first_version` is what this process counts tables from: by chance, so that no two give one number to two tables."""
        self._catalogs = catalogs
        self._book = book
        self._sessions = sessions
        self._leadership = leadership
        self._endpoints = endpoints
        self._usage = usage
        self._acts = acts
        self._events = events
        self._clock = clock
        self._planner = planner
        self._engines = engines
        self._wake = asyncio.Event()
        self._started = clock.now()
        self._epoch: Epoch | None = None
        self._decided = Decided(table=replace(EMPTY_TABLE, version=first_version))
        self._spent: frozenset[ReplicaId] = frozenset()
        self._ends: dict[tuple[NodeName, ShardId], int] = {}
        """The attempt that ended last, of every shard that was heard of."""
        self._rounds = 0
        self._applied: Revision | None = None
        self.last: Plan | None = None
        self.holding: Latest[dict[NodeName, Node]] = Latest({})
        """The nodes that have something to run, and how to reach them; kept, so that none is forgotten before it is empty."""
        self.broken: tuple[str, ...] = ()
        """The rules of safety that the newest plan breaks, for which it was not carried out."""
        self._adoption: Adoption | None = None
        self._memory: PlannerMemory | None = None
        self._aside: tuple[Epoch, Decided] | None = None
        """The epoch that was last led in, and what was decided in it: it may be led in again."""
        self._teller: UseTeller | None = None

    def tells_by(self, teller: UseTeller) -> None:
        """Tell every agent what the gateways here do, and count what those of others do. Once, before the first round."""
        self._teller = teller
        self._sessions.told_by(teller.using)

    def remembers_by(self, memory: PlannerMemory) -> None:
        """Go on from what the leader before decided, and hand it on. Once, before the first round."""
        self._memory = memory

    def watched_by(self, adoption: Adoption) -> None:
        """Tell this of every round, and obey its suspensions. Once, before the first round."""
        self._adoption = adoption

    def wake(self) -> None:
        """Ask for a round soon. Carries no news: the round looks at everything."""
        self._wake.set()

    @property
    def alarms(self) -> tuple[str, ...]:
        """What people must know; of a control plane that does not lead, nothing."""
        if self._leadership.epoch is None:
            return ()
        refused = tuple(f"a plan was not carried out: {rule}" for rule in self.broken)
        return refused + (self.last.alarms if self.last is not None else ())

    @property
    def applied(self) -> Revision | None:
        """The revision the newest plan was made for."""
        return self._applied

    def snapshot(self) -> Snapshot | None:
        """Return what a decision would see now; None before the first valid catalog."""
        catalog = self._catalogs.state.value.catalog
        if catalog is None:
            return None
        views, now = self._book.views, self._clock.now()
        own = self._usage.usage()
        mine = self._teller.gateways if self._teller is not None else ""
        drain = catalog.cluster.router.timeouts.drain
        return Snapshot(
            catalog=catalog,
            nodes=views,
            usage=with_users(own, views, self._decided.orders, mine, drain, now),
            previous=self._decided,
            epoch=self._epoch or Epoch(0),
            reconcile=self._rounds,
            started=self._started,
            now=now,
            acts=self._acts.current or (),
            engines=self._engines,
            held=self._sessions.held(),
            suspended=self._adoption.suspension if self._adoption is not None else None,
        )

    def forget(self, node: NodeName, by: str, reason: str) -> tuple[ReplicaId, ...]:
        """Give up a node that left the catalog and does not answer; return the replicas that it may still run.

        Raises CannotAct for any other node. Should it come back into the catalog, it is asked what it runs.
        """
        snapshot = self.snapshot()
        if snapshot is None:
            raise CannotAct("there is no valid revision yet; `llmgw status` shows why", 503)
        check_forgettable(snapshot, node)
        lost = tuple(sorted(one.id for one in existing(snapshot) if node in one.nodes))
        self._spent |= frozenset(lost)
        orders = {name: order for name, order in self._decided.orders.items() if name != node}
        self._decided = replace(self._decided, orders=orders, spent=self._spent)
        self._sessions.forget(node)
        ran = f"; it ran {', '.join(lost)} when it was heard last" if lost else ""
        self._record("node_forgotten", f"node/{node}", f"{by} says that it is gone: {reason}{ran}", "")
        self.wake()
        return lost

    def round(self) -> Plan | None:
        """Decide once and carry it out; None if there is nothing to decide by, or this process may not."""
        catalog = self._catalogs.state.value.catalog
        if catalog is None:
            return None
        self._sessions.follow(catalog.cluster.name, catalog.nodes, catalog.cluster.ssh)
        for view in self._book.views.values():
            report = report_of(view)
            if report is not None:
                self._leadership.heard(report.epoch)
        if self._teller is not None:
            self._teller.hear()
        epoch = self._leadership.epoch
        memory = self._memory_of(epoch)
        if epoch is None or memory is None:
            self._serve()
            return None
        if epoch != self._epoch:
            self._epoch = epoch
            self._decided = self._resumed(epoch) or recalled(
                memory, Decided.nothing(epoch, self._decided.table), catalog
            )
            self._spent = self._decided.spent
        self._rounds += 1
        snapshot = self.snapshot()
        assert snapshot is not None
        self._note_ends(snapshot)
        self._acts.tidy(snapshot)
        decided = self._planner(snapshot)
        self.broken = check(decided, snapshot)
        if self.broken:
            for rule in self.broken:
                log.critical("a plan was not carried out: %s", rule, extra={"cause": str(decided.cause)})
            return None
        self._carry_out(decided)
        if self._adoption is not None:
            self._adoption.carried_out(decided, snapshot)
        return decided

    def _resumed(self, epoch: Epoch) -> Decided | None:
        """Return what this process decided in this epoch before it stood still or lost the store; None if it did not.

        Nobody else can have decided in it. Its gateways have gone by what nodes say meanwhile.
        """
        if self._aside is None or self._aside[0] != epoch:
            return None
        return replace(self._aside[1], table=self._decided.table, told=False)

    def _memory_of(self, epoch: Epoch | None) -> Memory | None:
        """Return what the leader before left; None while this process may not decide, or does not know enough to."""
        if epoch is None or self._acts.current is None:
            return None
        if self._adoption is not None and not self._adoption.knows(epoch):
            return None
        return self._memory.of(epoch) if self._memory is not None else Memory()

    def _serve(self) -> None:
        """Publish what nodes report to be ready and not draining, while another control plane decides, or nobody does."""
        if self._leadership.epoch is None and self._epoch is not None:
            self._aside, self._epoch = (self._epoch, self._decided), None
            self._decided = Decided(table=self._decided.table)
            self._sessions.stand_down()
        if self._epoch is not None:
            return  # it decides again in a moment, in the epoch it knows; its table stands
        snapshot = self.snapshot()
        assert snapshot is not None
        table, _, _ = table_of(snapshot, snapshot.catalog.models, existing(snapshot))
        self._decided = Decided(table=table)
        self._publish(table, settled=not snapshot.unheard())

    def _publish(self, table: EndpointTable, *, settled: bool) -> None:
        self._endpoints.publish(table, settled=settled)
        if self._teller is not None:
            self._teller.published(table)
            self._sessions.say_uses()

    async def run(self) -> None:
        """Decide for ever."""
        while True:
            state = self._catalogs.state.value
            interval = max(SHORTEST, state.catalog.cluster.control.interval if state.catalog else 5.0)
            try:
                async with asyncio.timeout(interval):
                    await self._wake.wait()
            except TimeoutError:
                pass
            else:
                await asyncio.sleep(SETTLE)
            self._wake.clear()
            decided = self.round()
            if decided is not None and decided.actions:
                self.wake()  # what was done may allow the next thing

    def _note_ends(self, snapshot: Snapshot) -> None:
        """Record how engines ended since the last look; what had ended when a shard was first heard of is no news."""
        seen: dict[tuple[NodeName, ShardId], int] = {}
        for name, view in snapshot.nodes.items():
            report = report_of(view)
            for one in report.shards if report is not None else ():
                key = (name, one.spec.shard)
                end = one.last_end
                seen[key] = end.attempt if end is not None else 0
                if end is not None and self._ends.get(key, end.attempt) < end.attempt:
                    text = f"attempt {end.attempt} on {name} ended: {end.text}"
                    log.warning("an engine ended", extra={"replica": one.spec.replica, "reason": text})
                    self._record("engine_ended", f"replica/{one.spec.replica}", text, str(snapshot.cause))
        self._ends = seen

    def _carry_out(self, decided: Plan) -> None:
        first = self._applied is None
        self._publish(decided.table, settled=decided.settled)
        self._sessions.send(decided.orders)
        holding = self._sessions.holding(decided.orders)
        if holding != self.holding.value:
            self.holding.set(holding)
        self._decided = replace(decided.decided, spent=self._spent)
        if self._memory is not None and self._epoch is not None:
            self._memory.note(self._epoch, self._decided)
        self.last = decided
        for action in decided.actions:
            log.info(
                "%s %s on %s: %s",
                action.verb,
                action.replica,
                action.node,
                action.why,
                extra={"cause": str(decided.cause)},
            )
            self._record(action.verb.replace(" ", "_"), f"replica/{action.replica}", action.why, str(decided.cause))
        if self._applied != decided.based_on:
            self._applied = decided.based_on
            text = "is taken up after a start" if first else "is in force"
            self._record(
                "revision_in_force", "source", f"revision {short(decided.based_on)} {text}", str(decided.cause)
            )

    def _record(self, kind: str, subject: str, text: str, cause: str) -> None:
        self._events.record(Event(self._clock.now(), kind, subject, text, cause))
