"""Where cluster directories come from."""

from typing import Protocol

from llmgw.catalog.source import Source


class TreeSource(Protocol):
    """A place that has a cluster directory at a newest revision.

    Called by one loop, never concurrently. Must not block the event loop.
    """

    async def current(self) -> Source:
        """Return the newest state: a whole tree, or why there is none. Never raises for what the place is like.

        Cheap when nothing changed: it then returns the same object as before.
        """
        ...

    def describe(self) -> str:
        """Say which place this is, without secrets."""
        ...
