"""A place that has a cluster directory, in memory."""

import asyncio

from llmgw.base.ids import Revision
from llmgw.catalog.source import Source, SourceFailed, SourceTree
from llmgw.ports.trees import Passed
from llmgw.spec.cluster import SourceRules


class FakeSource:
    """A `TreeSource`; the newest tree is what was pushed last."""

    def __init__(self, newest: Source | None = None) -> None:
        self._newest: Source = newest or SourceFailed("nothing was pushed yet")
        self.verdict: Passed | SourceFailed = Passed()
        self.vetted: list[tuple[Revision, Revision | None, SourceRules]] = []
        self.pinned: list[Revision] = []
        self.hints = 0
        self.slow: asyncio.Event | None = None
        """What a vetting waits for, if anything."""

    def push(self, tree: SourceTree) -> None:
        """Make this the newest tree."""
        self._newest = tree

    def fail(self, reason: str) -> None:
        """Let the place be out of reach; a push ends that."""
        self._newest = SourceFailed(reason)

    async def current(self) -> Source:
        """Return the newest state; the same object as before if nothing changed."""
        return self._newest

    def describe(self) -> str:
        """Say which place this is."""
        return "memory"

    async def vet(self, revision: Revision, since: Revision | None, rules: SourceRules) -> Passed | SourceFailed:
        """Say what the test wants said."""
        self.vetted.append((revision, since, rules))
        if self.slow is not None:
            await self.slow.wait()
        return self.verdict

    async def pin(self, revision: Revision) -> None:
        """Note it."""
        self.pinned.append(revision)

    def hint(self) -> None:
        """Count it."""
        self.hints += 1

    def notices(self) -> tuple[str, ...]:
        """Return nothing."""
        return ()
