"""Decides what is taken up: the gate behind `Catalogs`, and what operators do to it by command.

By itself (`sync: auto`) the newest valid revision is taken up, in place of one that is under way too, unless something stands
against it: a suspension, a rollback from it, an operator's choice of another one, a guard. With `sync: manual` an operator's
`llmgw apply` is the only way in, for the very first revision too. The rules are those of what is in force.

Everything that must survive is one `Standing`, written with a serial by compare and set. What operators do is written before
it holds; what happens by itself holds at once and is written as soon as the store can be used, since a store that is away
must not keep a fix out. A control plane reads the store when it takes the lead, before it decides anything, and while it
does not lead, so that it shows what is in force; it takes nothing up itself.

What was rolled back stays out even if it is pushed again: only another commit, or an operator who names it, gets past.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

from llmgw.base.ids import Epoch, IdSource, Revision, short
from llmgw.base.time import Clock
from llmgw.catalog.catalog import Catalog
from llmgw.catalog.digest import tree_digest
from llmgw.catalog.guard import Guarded, allowed_by, guarded, refusals
from llmgw.catalog.source import SourceTree
from llmgw.control.catalogs import Candidate, Catalogs, Waiting
from llmgw.control.choosing import Choices, stored, trailers_of
from llmgw.control.leadership import Leadership
from llmgw.control.revision_book import RevisionBook
from llmgw.control.revisions import (
    CannotAdopt,
    Progress,
    Revisions,
    RolledBack,
    failure_note,
    guard_text,
    progress,
    revert_line,
    revisions_of,
    until_of,
    waits_for,
)
from llmgw.plan.result import Plan
from llmgw.plan.snapshot import Snapshot, Suspension
from llmgw.plan.suspended import in_words
from llmgw.ports.audit import Entry
from llmgw.ports.revisions import How, Outcome, Record, RevisionKeeper, Standing
from llmgw.ports.sinks import Event, EventSink, StoreUnavailable

log = logging.getLogger(__name__)

LOOK = 1.0
"""Seconds between two looks at what is to be written, and whether a suspension is over."""
FOLLOW = 3.0
"""Seconds between two looks at the store while another control plane leads."""
KEPT_BAD = 50


class Adoption:
    """One for a control plane. Use from the event loop's thread. `load` first, then `run`; `take_over` is part of `run`."""

    def __init__(
        self,
        keeper: RevisionKeeper,
        catalogs: Catalogs,
        leadership: Leadership,
        events: EventSink,
        clock: Clock,
        ids: IdSource,
        changed: Callable[[], None],
    ) -> None:
        self._catalogs = catalogs
        self._leadership = leadership
        self._events = events
        self._clock = clock
        self._ids = ids
        self._changed = changed
        self._book = RevisionBook(keeper)
        self._choices = Choices(catalogs, self._book)
        self._epoch: Epoch | None = None
        self._busy = False
        self._guarded: tuple[Catalog, Guarded] | None = None
        self._turn = asyncio.Lock()
        self._followed = clock.now()
        self._audit: Callable[[Entry], None] = lambda _: None
        catalogs.guarded_by(self)

    def audited_by(self, record: Callable[[Entry], None]) -> None:
        """Have this take a line of the audit trail for every revision that is applied. Once, before start."""
        self._audit = record

    # what is known

    @property
    def standing(self) -> Standing:
        """What is in force and what stands against more."""
        return self._book.standing

    @property
    def records(self) -> tuple[Record, ...]:
        """The newest attempts, newest first."""
        return self._book.records

    @property
    def attempted(self) -> Record | None:
        """The record of what is being carried out, or was last."""
        return self._book.attempted

    def record(self, name: str) -> Record | None:
        """Return an attempt by its id."""
        return self._book.record(name)

    @property
    def revisions(self) -> Revisions:
        """The four that are always shown."""
        return revisions_of(self._catalogs.state.value, self.records, self.attempted)

    @property
    def suspension(self) -> Suspension | None:
        """Who suspended, if it is not over."""
        found = self.standing.suspension
        return found if found is not None and found.holds(self._clock.now()) else None

    def knows(self, epoch: Epoch) -> bool:
        """Whether what an earlier leader left has been read: before that, nothing may be decided."""
        return self._epoch == epoch

    def guard(self) -> Guarded | None:
        """Return what is protected now; None if nothing is in force."""
        catalog = self._catalogs.state.value.catalog
        if catalog is None:
            return self.standing.guard
        if self._guarded is None or self._guarded[0] is not catalog:
            self._guarded = (catalog, guarded(catalog))
        return self._guarded[1]

    # as the gate

    def offer(self, candidate: Candidate) -> Waiting | None:
        """Take a valid revision up, or say what it waits for.

        The very first is taken before anybody leads, so that there is something to serve; it is written down later.
        """
        leads = not self._busy and (self._epoch is not None and self._leadership.epoch == self._epoch)
        rules = self.guard()
        first = rules is None and self._epoch is None
        waiting = waits_for(candidate, rules, self.standing, self._clock.now(), leads=leads or first)
        if waiting is not None:
            if waiting.kind == "guard":
                self.refused(candidate.tree, waiting.text)
            return waiting
        if not leads:
            return None
        standing, records = self._taken_up(candidate, candidate.tree.author or "the source", How.AUTO)
        self._book.hold_true(standing, records, candidate.tree)
        return None

    def refused(self, tree: SourceTree, why: str, digest: str = "") -> None:
        """Take note of a revision that is not valid, or that a guard refuses; once, if it is said again.

        `digest` is that of its contents, if the tree comes without them.
        """
        if self._epoch is None or any(
            one.revision == tree.revision and one.outcome is Outcome.REFUSED and one.note == why for one in self.records
        ):
            return
        now = self._clock.now()
        record = Record(
            self._ids.new(), tree.revision, digest or tree_digest(tree), tree.subject, tree.author, now,
            tree.author or "the source",
            outcome=Outcome.REFUSED, note=why, ended=now, committed=tree.committed,
        )  # fmt: skip
        self._book.hold_true(self.standing, [record], None)

    def carried_out(self, plan: Plan, snapshot: Snapshot) -> None:
        """Take note of a round: whether the attempted revision is applied, or has failed."""
        record = self.attempted
        if record is None or record.outcome not in (Outcome.UNDER_WAY, Outcome.FAILED):
            return
        shown = progress(plan, snapshot, self.revisions)
        if shown.healthy:
            self._end(record, Outcome.APPLIED, "")
        elif shown.failed and record.outcome is Outcome.UNDER_WAY:
            self._end(record, Outcome.FAILED, failure_note(shown))

    def progress_of(self, record: Record, plan: Plan | None, snapshot: Snapshot | None) -> Progress | None:
        """Return how far an attempt is; None if it is not the one that is being carried out."""
        if record.id != self.standing.attempted:
            return None
        return progress(plan, snapshot, self.revisions)

    # as operators ask

    async def apply(
        self,
        wanted: SourceTree | str,
        by: str,
        allowed: frozenset[str] = frozenset(),
        *,
        supersede: bool = False,
        last_check: Callable[[], Awaitable[tuple[str, ...]]] | None = None,
    ) -> Record:
        """Take up a tree, or a known revision. Raises CannotAdopt; then nothing has changed.

        `last_check` is asked in this operator's turn, right before the first effect: what it returns has changed meanwhile.
        """
        chosen = await self._choices.of(wanted)
        async with self._operator():
            current = self.attempted
            digest = tree_digest(chosen.tree)
            if (
                current is not None
                and current.outcome is Outcome.UNDER_WAY
                and (current.revision, current.digest) == (chosen.tree.revision, digest)
            ):
                return current
            self._check_free(supersede=supersede)
            self._check_guard(chosen, allowed | allowed_by(trailers_of(wanted, chosen)))
            stale = await stored(last_check) if last_check is not None else ()
            if stale:
                raise CannotAdopt(f"the saved plan is stale: {'; '.join(stale)}; plan again", stale=stale)
            standing, records = self._taken_up(chosen, by, How.APPLY)
            newest = self._catalogs.state.value.candidate
            if newest is not None and newest.tree.revision != chosen.tree.revision:
                held = f"{by} applied {short(chosen.tree.revision)} instead"
                standing = replace(standing, over=newest.tree.revision, held=held)
            return await self._adopt(standing, records, chosen)

    async def rollback(self, revision: str, by: str, allowed: frozenset[str] = frozenset()) -> RolledBack:
        """Go back to an applied revision, the one before if none is named. Raises CannotAdopt; then nothing has changed.

        What its commit's message once allowed is not allowed again: that was said of what was in force then.
        """
        async with self._operator():
            state = self._catalogs.state.value
            if state.tree is None:
                raise CannotAdopt("no revision is in force; there is nothing to go back from")
            target = self._choices.earlier(revision, state.tree.revision)
            tree = await stored(lambda: self._book.tree(target.digest))
            if tree is None:
                raise CannotAdopt(f"the tree of {short(target.revision)} is not kept any more; revert it in git")
            chosen = await self._choices.valid(replace(tree, revision=target.revision))
            self._check_guard(chosen, allowed, "rollback")
            standing, records = self._taken_up(chosen, by, How.ROLLBACK)
            left = [one.revision for one in (state.tree, state.fetched) if one is not None]
            left += [state.candidate.tree.revision] if state.candidate is not None else []
            bad = [*dict.fromkeys([*self.standing.bad, *left])]
            held = f"{by} rolled back from {short(state.tree.revision)} to {short(target.revision)}"
            standing = replace(standing, bad=tuple(one for one in bad if one != target.revision)[-KEPT_BAD:], held=held)
            record = await self._adopt(standing, records, chosen)
        newest = state.fetched.revision if state.fetched is not None else state.tree.revision
        return RolledBack(record, state.tree.revision, revert_line(target.revision, newest))

    async def suspend(self, reason: str, until: str, by: str) -> Suspension:
        """Change nothing until then. Raises CannotAdopt; then nothing has changed."""
        now = self._clock.now()
        try:
            end = until_of(until, now)
        except ValueError as error:
            raise CannotAdopt(str(error), 400) from error
        if not reason:
            raise CannotAdopt("a suspension needs a reason, for whoever finds it", 400)
        wanted = Suspension(reason, by, now, end)
        async with self._operator(suspended=True):
            await self._write(replace(self.standing, suspension=wanted), [], None)
        self._record("suspended", in_words(wanted))
        self._changed()
        return wanted

    async def resume(self, by: str) -> Suspension:
        """End a suspension; return which. Raises CannotAdopt."""
        async with self._operator(suspended=True):
            found = self.suspension
            if found is None:
                raise CannotAdopt("nothing is suspended")
            await self._write(replace(self.standing, suspension=None), [], None)
        self._record("resumed", f"by {by}; it was suspended by {in_words(found)}")
        self._catalogs.reconsider()
        self._changed()
        return found

    # what goes on

    async def load(self) -> SourceTree | None:
        """Read what was left; return the tree that was in force, if it is kept. Raises StoreUnavailable."""
        await self._book.newer()
        return await self._book.tree(self.standing.in_force)

    async def take_over(self) -> None:
        """Be ready to decide in the present epoch, if this process leads. Raises StoreUnavailable."""
        epoch = self._leadership.epoch
        if epoch is None or epoch == self._epoch:
            return
        async with self._turn:
            await self._follow()
            self._epoch = self._leadership.epoch
        state = self._catalogs.state.value
        if state.catalog is not None and state.tree is not None and self.attempted is None:
            found = state.candidate
            if found is None or found.tree is not state.tree:
                outcome = await self._catalogs.candidate_of(state.tree)
                found = outcome if isinstance(outcome, Candidate) else None
            if found is not None:
                standing, records = self._taken_up(found, found.tree.author or "the source", How.AUTO)
                self._book.hold_true(standing, records, found.tree)
        if state.rejected is not None and state.fetched is not None:
            why = next(str(one) for one in state.rejected.problems if one.severity == "error")
            self.refused(state.fetched, why, state.fetched_digest)
        self._catalogs.reconsider()
        self._changed()

    async def run(self) -> None:
        """Keep the store and this in step for ever."""
        told = ""
        while True:
            try:
                await self._step()
                told = ""
            except StoreUnavailable as error:
                if str(error) != told:
                    log.warning("what is in force could not be kept", extra={"reason": str(error)})
                told = str(error)
            await asyncio.sleep(LOOK)

    async def _step(self) -> None:
        if self._leadership.epoch is None:
            self._epoch = None
            if self._clock.now() - self._followed >= FOLLOW:
                self._followed = self._clock.now()
                async with self._turn:
                    await self._follow()
            return
        await self.take_over()
        async with self._turn:
            await self._flush()
        found = self.standing.suspension
        if found is not None and self.suspension is None:
            log.warning("a suspension is over", extra={"suspension": in_words(found)})
            self._record("resumed", f"the time is over; it was suspended by {in_words(found)}")
            self._book.hold_true(replace(self.standing, suspension=None), [], None)
            self._catalogs.reconsider()
            self._changed()

    async def _follow(self) -> None:
        """Take what another control plane has written, if one has, and have in force what stands there."""
        await self._book.newer()
        record, known = self.attempted, self._catalogs.state.value.tree
        if record is None or (known is not None and _key(known) == (record.revision, self.standing.in_force)):
            return
        tree = await self._book.tree(self.standing.in_force)
        if tree is not None:
            await self._catalogs.remember(replace(tree, revision=record.revision))

    async def _flush(self) -> None:
        if not await self._book.flush():
            await self._follow()

    # parts

    @asynccontextmanager
    async def _operator(self, *, suspended: bool = False) -> AsyncIterator[None]:
        """Take an operator's turn: one after the other, and nothing is taken up by itself meanwhile."""
        async with self._turn:
            await stored(self._flush)
            self._check_leads(suspended=suspended)
            self._busy = True
            try:
                yield
            finally:
                self._busy = False

    def _check_leads(self, *, suspended: bool) -> None:
        """Raise CannotAdopt if this process may not decide, or nothing may change now."""
        epoch = self._leadership.epoch
        if epoch is None or epoch != self._epoch:
            leader = self._leadership.leader
            raise CannotAdopt(f"this server does not lead; ask the one that does ({leader or 'nobody yet'})")
        found = self.suspension
        if found is not None and not suspended:
            raise CannotAdopt(f"suspended by {in_words(found)}; run `llmgw resume` first")

    def _check_free(self, *, supersede: bool) -> None:
        current = self.attempted
        if current is None or current.outcome is not Outcome.UNDER_WAY or current.how is not How.APPLY or supersede:
            return
        raise CannotAdopt(
            f"apply {current.id} of revision {short(current.revision)} by {current.by} is under way; wait "
            "for it, or put this one in its place with --supersede"
        )

    def _check_guard(self, chosen: Candidate, allowed: frozenset[str], command: str = "apply --rev") -> None:
        rules = self.guard()
        if rules is None:
            return
        broken = refusals(rules, chosen.accepted.catalog, allowed)
        if broken:
            raise CannotAdopt(guard_text(chosen.tree.revision, broken, command), 403, broken)

    def _taken_up(self, chosen: Candidate, by: str, how: How) -> tuple[Standing, list[Record]]:
        """Return what holds once a revision is taken up."""
        tree, catalog, now = chosen.tree, chosen.accepted.catalog, self._clock.now()
        digest = tree_digest(tree)
        record = Record(
            self._ids.new(), tree.revision, digest, tree.subject, tree.author, now, by, how, committed=tree.committed
        )
        records = [record]
        before = self.attempted
        if before is not None and how is How.ROLLBACK and before.outcome is not Outcome.SUPERSEDED:
            note = f"to {short(tree.revision)}, by {by}"
            records.append(replace(before, outcome=Outcome.ROLLED_BACK, note=note, ended=now))
        elif before is not None and before.outcome is Outcome.UNDER_WAY:
            note = f"by {short(tree.revision)}"
            records.append(replace(before, outcome=Outcome.SUPERSEDED, note=note, ended=now))
        standing = replace(
            self.standing,
            in_force=digest,
            attempted=record.id,
            manual=catalog.cluster.sync == "manual",
            guard=guarded(catalog),
            bad=tuple(one for one in self.standing.bad if one != tree.revision),
            over=None,
            held="",
        )
        return standing, records

    async def _adopt(self, standing: Standing, records: list[Record], chosen: Candidate) -> Record:
        await self._write(standing, records, chosen.tree)
        newest = records[0]
        self._record("revision_" + newest.how.value, f"by {newest.by}", newest.revision)
        self._busy = False
        self._catalogs.adopt(chosen)
        return newest

    async def _write(self, standing: Standing, records: list[Record], tree: SourceTree | None) -> None:
        """Write, and then let it hold. Raises CannotAdopt: then it does not hold, unless it was written all the same."""
        try:
            kept = await self._book.write(standing, records, tree)
        except StoreUnavailable as error:
            raise CannotAdopt(f"the store cannot be used: {error}; look at `llmgw status`, it may hold", 503) from error
        if not kept:
            raise CannotAdopt("another control plane has just changed this; look again, and try again")

    def _end(self, record: Record, outcome: Outcome, note: str) -> None:
        now = self._clock.now()
        applied = now if outcome is Outcome.APPLIED else None
        ended = replace(record, outcome=outcome, note=note, ended=now, applied=record.applied or applied)
        log.log(
            logging.INFO if applied else logging.ERROR,
            "revision %s",
            outcome,
            extra={"revision": record.revision, "note": note},
        )
        if applied is not None:
            who, text = f"author/{record.author}" if record.author else "source", f"{record.how}: {record.subject}"
            self._audit(Entry(now, who, record.by, "revision applied", record.revision, text, "done", record.id))
        self._book.hold_true(self.standing, [ended], None)

    def _record(self, kind: str, text: str, cause: str = "") -> None:
        self._events.record(Event(self._clock.now(), kind, "source", text, cause))


def _key(tree: SourceTree) -> tuple[Revision, str]:
    return tree.revision, tree_digest(tree)
