"""Follows the source: a new tree is validated and, if it is valid, becomes the catalog in force; else the last good one stays.

What is shown keeps four things apart: what was fetched, what of it is in force, why the newest is not, and why nothing
could be fetched. None of the failures is ever an empty catalog.

Whether a revision may be taken is judged by the rules of the revision in force, never by its own: else whoever can push
could push away the rule that stops them. The very first has nobody before it, and must pass its own.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from llmgw.base.ids import Revision, short
from llmgw.base.time import Clock, Instant
from llmgw.catalog.catalog import Catalog
from llmgw.catalog.compile import Accepted, Rejected, compile_tree
from llmgw.catalog.problems import Problem
from llmgw.catalog.source import Source, SourceFailed, SourceTree, Trouble
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
    """Why nothing could be read at the last look, or what was read may not be taken."""
    verified_by: str = ""
    """Who signed the revision in force, where signatures are asked for."""


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
        self.state: Latest[CatalogState] = Latest(CatalogState())

    async def look(self) -> None:
        """Look at the source once."""
        source = await self._source.current()
        if source is self._seen:
            return
        self._seen = source
        if isinstance(source, SourceFailed):
            self._fail(source, self.state.value.fetched)
        elif source.revision == _revision(self.state.value.tree):
            await self._again(source)
        else:
            await self._take(source)

    def hint(self) -> None:
        """Take note that the source may have something new; it is looked at thoroughly at the next look."""
        self._source.hint()

    async def remember(self, tree: SourceTree) -> bool:
        """Begin with a tree that was in force before, by whose rules the next one is judged; False if it is not valid now."""
        outcome = await self._compile(tree)
        if isinstance(outcome, Rejected):
            return False
        self.state.set(CatalogState(outcome.catalog, tree, self._clock.now(), outcome.warnings))
        return True

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

    def _fail(self, failed: SourceFailed, fetched: SourceTree | None) -> None:
        if self.state.value.failed != failed:
            log.error("nothing new is taken from the source: %s", failed.trouble, extra={"reason": failed.reason})
            held = failed.trouble in HELD
            cause = (_revision(fetched) or "") if held else ""
            self._record("revision_held" if held else "source_failed", failed.reason, cause)
        self.state.set(replace(self.state.value, failed=failed, fetched=fetched))

    async def _again(self, tree: SourceTree) -> None:
        """Take note that the revision in force is the newest one: again, or still, after a restart."""
        state = self.state.value
        assert state.catalog is not None
        by = state.verified_by
        if not by and state.catalog.cluster.source.verify.mode != "off":
            verdict = await self._source.vet(tree.revision, None, state.catalog.cluster.source)
            by = verdict.verified_by if isinstance(verdict, Passed) else ""
        self.state.set(replace(state, fetched=tree, rejected=None, failed=None, verified_by=by))

    async def _take(self, tree: SourceTree) -> None:
        """Judge a tree by the rules in force; the first of all by its own. Only then is it read."""
        state = self.state.value
        outcome: Accepted | Rejected | None = None
        if state.catalog is None:
            outcome = await self._compile(tree)
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
                self._fail(verdict, tree)
                return
            verdict = Passed(BY_HAND)
        if outcome is None:
            outcome = await self._compile(tree)
        if isinstance(outcome, Rejected):
            self._reject(tree, outcome)
            return
        if verdict.rewritten:
            log.warning("the branch's history was rewritten", extra={"revision": tree.revision})
            self._record("history_rewritten", f"it does not contain {_revision(state.tree)}", tree.revision)
        await self._source.pin(tree.revision)
        self._accept(tree, outcome, verdict.verified_by)

    def _reject(self, tree: SourceTree, rejected: Rejected) -> None:
        for problem in rejected.problems:
            log.error("revision %s refused: %s", short(tree.revision), problem)
        errors = [problem for problem in rejected.problems if problem.severity == "error"]
        summary = str(errors[0])
        if len(errors) > 1:
            summary += f" (and {len(errors) - 1} more)"
        self._record("revision_refused", summary, tree.revision)
        self.state.set(replace(self.state.value, rejected=rejected, fetched=tree, failed=None))

    def _accept(self, tree: SourceTree, accepted: Accepted, verified_by: str) -> None:
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
                verified_by=verified_by,
            )
        )
        self._changed()

    def _record(self, kind: str, text: str, revision: str) -> None:
        self._events.record(Event(self._clock.now(), kind, "source", text, revision))


def _revision(tree: SourceTree | None) -> Revision | None:
    return tree.revision if tree is not None else None
