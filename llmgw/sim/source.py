"""A place that has a cluster directory, in memory."""

from llmgw.catalog.source import Source, SourceFailed, SourceTree


class FakeSource:
    """A `TreeSource`; the newest tree is what was pushed last."""

    def __init__(self, newest: Source | None = None) -> None:
        self._newest: Source = newest or SourceFailed("nothing was pushed yet")

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
