"""Follows the source: a new tree is validated and, if it is valid, becomes the catalog in force; else the last good one stays.

What is shown keeps four things apart: what was fetched, what of it is in force, why the newest is not, and why nothing
could be fetched. None of the failures is ever an empty catalog.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from llmgw.base.ids import short
from llmgw.base.time import Clock, Instant
from llmgw.catalog.catalog import Catalog
from llmgw.catalog.compile import Accepted, Rejected, compile_tree
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
        self.state: Latest[CatalogState] = Latest(CatalogState())

    async def look(self) -> None:
        """Look at the source once."""
        source = await self._source.current()
        if source is self._seen:
            return
        self._seen = source
        if isinstance(source, SourceFailed):
            if self.state.value.failed != source:
                log.error("cannot read the source", extra={"reason": source.reason})
                self._record("source_failed", source.reason, "")
            self.state.set(replace(self.state.value, failed=source))
            return
        outcome = await self._compile(source)
        if isinstance(outcome, Rejected):
            self._reject(source, outcome)
        else:
            self._accept(source, outcome)

    async def run(self) -> None:
        """Look at the source for ever."""
        while True:
            await self.look()
            await asyncio.sleep(POLL)

    def _reject(self, tree: SourceTree, rejected: Rejected) -> None:
        for problem in rejected.problems:
            log.error("revision %s refused: %s", short(tree.revision), problem)
        errors = [problem for problem in rejected.problems if problem.severity == "error"]
        summary = str(errors[0])
        if len(errors) > 1:
            summary += f" (and {len(errors) - 1} more)"
        self._record("revision_refused", summary, tree.revision)
        self.state.set(replace(self.state.value, rejected=rejected, fetched=tree, failed=None))

    def _accept(self, tree: SourceTree, accepted: Accepted) -> None:
        log.info("revision accepted", extra={"revision": tree.revision, "subject": tree.subject})
        for warning in accepted.warnings:
            log.warning("revision %s: %s", short(tree.revision), warning)
        self._record("revision_accepted", tree.subject or "worktree", tree.revision)
        self.state.set(
            CatalogState(
                catalog=accepted.catalog,
                tree=tree,
                accepted_at=self._clock.now(),
                warnings=accepted.warnings,
                fetched=tree,
            )
        )
        self._changed()

    def _record(self, kind: str, text: str, revision: str) -> None:
        self._events.record(Event(self._clock.now(), kind, "source", text, revision))
