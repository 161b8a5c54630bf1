"""Follows the source: a new tree is validated and, if it is valid, becomes the catalog in force; else the last good one stays.

What is shown keeps four things apart: what was fetched, what of it is in force, why the newest is not, and why nothing
could be fetched. None of the failures is ever an empty catalog.

A valid revision is offered to a `Gate` (see `adoption`), which takes it or says what it waits for. One that waits is offered
again at every look, until a newer one takes its place.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Protocol

from llmgw.base.ids import short
from llmgw.base.time import Clock, Instant
from llmgw.catalog.catalog import Catalog
from llmgw.catalog.compile import Accepted, Rejected, compile_tree
from llmgw.catalog.guard import Refusal
from llmgw.catalog.problems import Problem
from llmgw.catalog.source import Source, SourceFailed, SourceTree
from llmgw.ports.sinks import Event, EventSink
from llmgw.ports.trees import TreeSource
from llmgw.runtime.latest import Latest

log = logging.getLogger(__name__)

POLL = 0.5
"""Seconds between two looks at the source; a look costs a few stat calls when nothing changed."""

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
    """The newest tree."""
    failed: SourceFailed | None = None
    """Why nothing could be read at the last look."""
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
            replace(state, catalog=outcome.catalog, tree=tree, accepted_at=self._clock.now(), warnings=outcome.warnings)
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
        if isinstance(source, SourceFailed):
            if self.state.value.failed != source:
                log.error("cannot read the source", extra={"reason": source.reason})
                self._record("source_failed", source.reason, "")
            self.state.set(replace(self.state.value, failed=source))
            return
        in_force = self.state.value.tree
        if in_force is not None and source.revision == in_force.revision and self.state.value.candidate is None:
            await self._again(source)
            return
        outcome = await self._compiled(source)
        if isinstance(outcome, Rejected):
            self._reject(source, outcome)
        else:
            self._accept(source, outcome)

    async def run(self) -> None:
        """Look at the source for ever."""
        while True:
            await self.look()
            await asyncio.sleep(POLL)

    async def _compiled(self, tree: SourceTree) -> Accepted | Rejected:
        """Compile, one tree after the other: a compiler keeps what it read of the last one."""
        async with self._compiling:
            return await self._compile(tree)

    def _reject(self, tree: SourceTree, rejected: Rejected) -> None:
        for problem in rejected.problems:
            log.error("revision %s refused: %s", short(tree.revision), problem)
        summary = str(rejected.problems[0])
        if len(rejected.problems) > 1:
            summary += f" (and {len(rejected.problems) - 1} more)"
        self._record("revision_refused", summary, tree.revision)
        self._gate.refused(tree, summary)
        self.state.set(
            replace(self.state.value, rejected=rejected, fetched=tree, fetched_at=self._clock.now(), failed=None)
        )

    async def _again(self, tree: SourceTree) -> None:
        """Take note that the newest revision is the one in force, after a restart."""
        state = self.state.value
        assert state.catalog is not None
        now = self._clock.now()
        self.state.set(
            replace(
                state,
                fetched=tree,
                fetched_at=now,
                rejected=None,
                failed=None,
                candidate=Candidate(tree, Accepted(state.catalog, state.warnings), now),
                waiting=None,
            )
        )

    def _accept(self, tree: SourceTree, accepted: Accepted) -> None:
        now = self._clock.now()
        candidate = Candidate(tree, accepted, now)
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
