"""Follows the source: a new tree is validated and, if it is valid, becomes the catalog in force; else the last good one stays.

What is shown keeps four things apart: what was fetched, what of it is in force, why the newest is not, and why nothing
could be fetched. None of the failures is ever an empty catalog.

Whether a revision may be taken is judged by the rules of the revision in force, never by its own: else whoever can push
could push away the rule that stops them. The very first has nobody before it, and must pass its own.

A valid revision is offered to a `Gate` (see `adoption`), which takes it or says what it waits for. One that waits is offered
again at every look, until a newer one takes its place.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Protocol

from llmgw.base.ids import Revision, short
from llmgw.base.time import Clock, Instant
from llmgw.catalog.catalog import Catalog
from llmgw.catalog.compile import Accepted, Rejected, compile_tree
from llmgw.catalog.digest import tree_digest
from llmgw.catalog.guard import Refusal
from llmgw.catalog.problems import Problem
from llmgw.catalog.source import Source, SourceFailed, SourceTree, Trouble, without_contents
from llmgw.ports.sinks import Event, EventSink
from llmgw.ports.trees import Passed, TreeSource
from llmgw.runtime.latest import Latest

log = logging.getLogger(__name__)

POLL = 0.5
"""Seconds between two looks at the source; a look costs a few stat calls when nothing changed."""

HELD = (Trouble.REWRITTEN, Trouble.UNVERIFIED)
"""What an operator may overrule."""
BY_HAND = "an operator (llmgw accept)"
SHORTEST = 7
"""Characters of a commit id that name it."""

Compile = Callable[[SourceTree], Awaitable[Accepted | Rejected]]


async def compile_in_thread(tree: SourceTree) -> Accepted | Rejected:
    """Compile without holding up the event loop."""
    return await asyncio.to_thread(compile_tree, tree)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A valid revision, in force or not."""

    tree: SourceTree
    accepted: Accepted
    at: Instant
    """When it was found valid."""
    verified_by: str = ""
    """Who signed it, where signatures are asked for."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """Why the newest valid revision is not in force."""

    kind: str
    """`leader`, `suspended`, `held`, `passed over`, `manual` or `guard`."""
    text: str
    guard: tuple[Refusal, ...] = ()
    """What a guard has against it, whatever else it waits for."""


class Gate(Protocol):
    """Decides whether a valid revision is taken up."""

    def offer(self, candidate: Candidate) -> Waiting | None:
        """Take it up, which the caller then does at once, or say what it waits for. Never blocks."""
        ...

    def refused(self, tree: SourceTree, why: str) -> None:
        """Take note of a revision that is not valid."""
        ...


class OpenGate:
    """Takes up everything that is valid."""

    def offer(self, candidate: Candidate) -> Waiting | None:
        """Take it up."""

    def refused(self, tree: SourceTree, why: str) -> None:
        """Nothing is kept."""


@dataclass(frozen=True, slots=True)
class CatalogState:
    """What is known of the source."""

    catalog: Catalog | None = None
    """The catalog in force: the newest valid one."""
    tree: SourceTree | None = None
    """The tree it came from."""
    accepted_at: Instant | None = None
    warnings: tuple[Problem, ...] = ()
    rejected: Rejected | None = None
    """Why the newest tree is not in force, if it is not."""
    fetched: SourceTree | None = None
    """The newest tree; without its contents unless it is a candidate or in force."""
    fetched_digest: str = ""
    """Of the newest tree's contents, if it was rejected."""
    failed: SourceFailed | None = None
    """Why nothing could be read at the last look, or what was read may not be taken."""
    verified_by: str = ""
    """Who signed the revision in force, where signatures are asked for."""
    fetched_at: Instant | None = None
    candidate: Candidate | None = None
    """The newest valid revision."""
    waiting: Waiting | None = None
    """Why that one is not in force, if it is not."""


class Catalogs:
    """The source loop. `state` is read by all others."""

    def __init__(
        self,
        source: TreeSource,
        events: EventSink,
        clock: Clock,
        changed: Callable[[], None],
        compiler: Compile = compile_in_thread,
    ) -> None:
        self._source = source
        self._events = events
        self._clock = clock
        self._changed = changed
        self._compile = compiler
        self._seen: Source | None = None
        self._permitted: Revision | None = None
        self._gate: Gate = OpenGate()
        self._compiling = asyncio.Lock()
        self.state: Latest[CatalogState] = Latest(CatalogState())

    def guarded_by(self, gate: Gate) -> None:
        """Ask this gate of every valid revision. Once, before the first look."""
        self._gate = gate

    async def remember(self, tree: SourceTree) -> bool:
        """Put a tree in force that was so before, here or at another control plane; False if it is not valid now."""
        outcome = await self._compiled(tree)
        if isinstance(outcome, Rejected):
            return False
        state = self.state.value
        self.state.set(
            replace(
                state,
                catalog=outcome.catalog,
                tree=tree,
                accepted_at=self._clock.now(),
                warnings=outcome.warnings,
                verified_by="" if tree.revision != _revision(state.tree) else state.verified_by,
            )
        )
        self.reconsider(again=True)
        self._changed()
        return True

    async def candidate_of(self, tree: SourceTree) -> Candidate | Rejected:
        """Return what an operator brings, if it is valid."""
        outcome = await self._compiled(tree)
        return outcome if isinstance(outcome, Rejected) else Candidate(tree, outcome, self._clock.now())

    def adopt(self, chosen: Candidate) -> None:
        """Put a valid revision in force, which the gate has taken up."""
        tree = chosen.tree
        log.info("revision accepted", extra={"revision": tree.revision, "subject": tree.subject})
        for warning in chosen.accepted.warnings:
            log.warning("revision %s: %s", short(tree.revision), warning)
        self._record("revision_accepted", tree.subject or "worktree", tree.revision)
        state = self.state.value
        self.state.set(
            replace(
                state,
                catalog=chosen.accepted.catalog,
                tree=tree,
                accepted_at=self._clock.now(),
                warnings=chosen.accepted.warnings,
                candidate=state.candidate or chosen,
                waiting=None,
                verified_by=chosen.verified_by,
            )
        )
        if self.state.value.candidate is not chosen:
            self.reconsider(again=True)
        self._changed()

    def reconsider(self, *, again: bool = False) -> None:
        """Offer the newest valid revision once more, if it waits."""
        state = self.state.value
        candidate = state.candidate
        if candidate is None or (state.waiting is None and not again):
            return
        if state.tree is not None and candidate.tree.revision == state.tree.revision:
            self.state.set(replace(state, waiting=None))
            return
        waiting = self._gate.offer(candidate)
        if waiting is None:
            self.adopt(candidate)
        elif waiting != state.waiting:
            self._wait(candidate, waiting)

    async def look(self) -> None:
        """Look at the source once."""
        source = await self._source.current()
        if source is self._seen:
            self.reconsider()
            return
        self._seen = source
        try:
            if isinstance(source, SourceFailed):
                self._fail(source, self.state.value.fetched)
            elif self._is_no_news(source):
                await self._again(source)
            else:
                await self._take(source)
        except asyncio.CancelledError:
            self._seen = None  # a look that was cut short has seen nothing
            raise

    def _is_no_news(self, tree: SourceTree) -> bool:
        """Whether a tree is the one in force, and no other was valid since."""
        state = self.state.value
        newest = state.candidate.tree.revision if state.candidate is not None else tree.revision
        return tree.revision == _revision(state.tree) == newest

    def hint(self) -> None:
        """Take note that the source may have something new; it is looked at thoroughly at the next look."""
        self._source.hint()

    def permit(self, revision: str) -> str | None:
        """Let a revision be taken that is held, since an operator says so; return what stands against it, if anything does."""
        state = self.state.value
        newest = _revision(state.fetched) or "none"
        if state.failed is None or state.failed.trouble not in HELD or state.fetched is None:
            return "no revision is held; there is nothing to accept"
        if len(revision) < SHORTEST or not newest.startswith(revision):
            return f"the revision that is held is {newest}; name that one, by {SHORTEST} characters at least"
        log.warning("a held revision is accepted by an operator", extra={"revision": newest})
        self._record("revision_accepted_by_hand", state.failed.reason, newest)
        self._permitted = state.fetched.revision
        self._seen = None
        return None

    async def run(self) -> None:
        """Look at the source for ever."""
        while True:
            await self.look()
            await asyncio.sleep(POLL)

    async def _compiled(self, tree: SourceTree) -> Accepted | Rejected:
        """Compile, one tree after the other: a compiler keeps what it read of the last one."""
        async with self._compiling:
            return await self._compile(tree)

    def _fail(self, failed: SourceFailed, fetched: SourceTree | None) -> None:
        state = self.state.value
        if state.failed != failed:
            log.error("nothing new is taken from the source: %s", failed.trouble, extra={"reason": failed.reason})
            held = failed.trouble in HELD
            if held:
                self._mended()
            cause = (_revision(fetched) or "") if held else ""
            self._record("revision_held" if held else "source_failed", failed.reason, cause)
        at = state.fetched_at if _revision(fetched) == _revision(state.fetched) else self._clock.now()
        self.state.set(replace(state, failed=failed, fetched=fetched, fetched_at=at))

    def _mended(self) -> None:
        """Take note that the source can be read, if it could not be before."""
        failed = self.state.value.failed
        if failed is None or failed.trouble in HELD:
            return
        log.info("the source can be read again", extra={"was": failed.reason})
        self._record("source_readable", f"it can be read again; it was: {failed.trouble}", "")

    async def _again(self, tree: SourceTree) -> None:
        """Take note that the newest revision is the one in force, after a restart."""
        state = self.state.value
        assert state.catalog is not None
        by = state.verified_by
        if not by and state.catalog.cluster.source.verify.mode != "off":
            verdict = await self._source.vet(tree.revision, None, state.catalog.cluster.source)
            by = verdict.verified_by if isinstance(verdict, Passed) else ""
            if self.state.value.tree is not state.tree:
                self._seen = None  # an operator put another one in force meanwhile; look again
                return
            state = self.state.value
        assert state.catalog is not None
        self._mended()
        now = self._clock.now()
        self.state.set(
            replace(
                state,
                fetched=tree,
                fetched_at=now,
                rejected=None,
                failed=None,
                candidate=Candidate(tree, Accepted(state.catalog, state.warnings), now, by),
                waiting=None,
                verified_by=by,
            )
        )

    async def _take(self, tree: SourceTree) -> None:
        """Judge a tree by the rules in force; the first of all by its own. Only then is it read."""
        state = self.state.value
        outcome: Accepted | Rejected | None = None
        if state.catalog is None:
            outcome = await self._compiled(tree)
            rules = outcome.catalog.cluster.source if isinstance(outcome, Accepted) else None
        else:
            rules = state.catalog.cluster.source
        verdict: Passed | SourceFailed = Passed()
        if rules is not None:
            verdict = await self._source.vet(tree.revision, _revision(state.tree), rules)
        if isinstance(verdict, SourceFailed):
            if self._permitted != tree.revision or verdict.trouble not in HELD:
                if verdict.trouble not in HELD:
                    self._seen = None  # git could not say; it is asked again
                self._fail(verdict, without_contents(tree))
                return
            verdict = Passed(BY_HAND)
        if outcome is None:
            outcome = await self._compiled(tree)
        if isinstance(outcome, Rejected):
            self._reject(tree, outcome)
            return
        if verdict.rewritten:
            log.warning("the branch's history was rewritten", extra={"revision": tree.revision})
            self._record("history_rewritten", f"it does not contain {_revision(state.tree)}", tree.revision)
        self._mended()
        await self._source.pin(tree.revision)
        self._accept(tree, outcome, verdict.verified_by)

    def _reject(self, tree: SourceTree, rejected: Rejected) -> None:
        self._mended()
        for problem in rejected.problems:
            log.error("revision %s refused: %s", short(tree.revision), problem)
        errors = [problem for problem in rejected.problems if problem.severity == "error"]
        summary = str(errors[0])
        if len(errors) > 1:
            summary += f" (and {len(errors) - 1} more)"
        self._record("revision_refused", summary, tree.revision)
        self._gate.refused(tree, summary)
        self.state.set(
            replace(
                self.state.value,
                rejected=rejected,
                fetched=without_contents(tree),
                fetched_digest=tree_digest(tree),
                fetched_at=self._clock.now(),
                failed=None,
            )
        )

    def _accept(self, tree: SourceTree, accepted: Accepted, verified_by: str) -> None:
        now = self._clock.now()
        candidate = Candidate(tree, accepted, now, verified_by)
        state = replace(
            self.state.value,
            fetched=tree,
            fetched_at=now,
            rejected=None,
            failed=None,
            candidate=candidate,
            waiting=None,
        )
        waiting = self._gate.offer(candidate)
        self.state.set(state)
        if waiting is None:
            self.adopt(candidate)
        else:
            self._wait(candidate, waiting)

    def _wait(self, candidate: Candidate, waiting: Waiting) -> None:
        before = self.state.value.waiting
        self.state.set(replace(self.state.value, waiting=waiting))
        if waiting.kind != "leader" and (before is None or before.kind != waiting.kind):
            log.warning("revision waits: %s", waiting.text, extra={"revision": candidate.tree.revision})
            self._record("revision_waits", waiting.text, candidate.tree.revision)

    def _record(self, kind: str, text: str, revision: str) -> None:
        self._events.record(Event(self._clock.now(), kind, "source", text, revision))


def _revision(tree: SourceTree | None) -> Revision | None:
    return tree.revision if tree is not None else None
