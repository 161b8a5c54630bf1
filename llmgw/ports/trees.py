"""Where cluster directories come from."""

from dataclasses import dataclass
from typing import Protocol

from llmgw.base.ids import Revision
from llmgw.catalog.source import Source, SourceFailed
from llmgw.spec.cluster import SourceRules


@dataclass(frozen=True, slots=True)
class Passed:
    """A revision may be taken."""

    verified_by: str = ""
    """Whose signature was found good; empty where none was asked for."""
    rewritten: bool = False
    """It does not contain the revision before it, and the rules accept that."""


class TreeSource(Protocol):
    """A place that has a cluster directory at a newest revision.

    `current`, `vet` and `pin` are called by one loop, never concurrently. None of them may block the event loop.
    """

    async def current(self) -> Source:
        """Return the newest state: a whole tree, or why there is none. Never raises for what the place is like.

        Cheap when nothing changed: it then returns the same object as before.
        """
        ...

    async def vet(self, revision: Revision, since: Revision | None, rules: SourceRules) -> Passed | SourceFailed:
        """Say whether a revision that `current` gave may follow `since`, the one in force, by the rules in force."""
        ...

    async def pin(self, revision: Revision) -> None:
        """Keep this revision, which is in force, readable for as long as no other is pinned. Never raises."""
        ...

    def hint(self) -> None:
        """Take note that something may have changed, so that the next look is a thorough one. Never blocks, never lost."""
        ...

    def notices(self) -> tuple[str, ...]:
        """Return what a person should know of how the place is followed, although it can be read."""
        ...

    def describe(self) -> str:
        """Say which place this is, without secrets."""
        ...
