"""What is remembered of revisions: which were taken up, by whom, how that ended; what is in force and what stands against more.

`Standing` is one whole value and written whole, together with the records and the tree it speaks of: a control plane that
is killed in between finds either all of it or nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from llmgw.base.ids import Revision
from llmgw.base.time import Instant
from llmgw.catalog.guard import Guarded
from llmgw.catalog.source import SourceTree
from llmgw.plan.snapshot import Suspension

KEPT_TREES = 20
"""Applied revisions, the newest, of which the whole tree is kept, so that one can go back to them."""
KEPT_RECORDS = 500


class Outcome(StrEnum):
    """How it ended with a revision."""

    UNDER_WAY = "under_way"
    APPLIED = "applied"
    """Its plan became empty and everything was healthy."""
    SUPERSEDED = "superseded"
    """Another was taken up before it was applied."""
    FAILED = "failed"
    """Something it wants gave up. It may be applied later all the same, if the cause is mended."""
    ROLLED_BACK = "rolled_back"
    REFUSED = "refused"
    """It was not valid, or a guard refused it; nothing was changed."""


class How(StrEnum):
    """How a revision came in force."""

    AUTO = "auto"
    APPLY = "apply"
    ROLLBACK = "rollback"


@dataclass(frozen=True, slots=True)
class Record:
    """One attempt at one revision."""

    id: str
    """By which `llmgw apply` asks for it."""
    revision: Revision
    digest: str
    """Of its tree."""
    subject: str
    author: str
    at: Instant
    """When it was taken up, or refused."""
    by: str
    """Who did that: the author of the commit, or the operator."""
    how: How = How.AUTO
    outcome: Outcome = Outcome.UNDER_WAY
    note: str = ""
    ended: Instant | None = None
    applied: Instant | None = None
    """When its plan was empty for the first time, whatever came of it later."""
    committed: float | None = None


@dataclass(frozen=True, slots=True)
class Standing:
    """What is in force, and what stands against taking up more."""

    serial: int = 0
    """Grows by one with every write, by which a control plane sees that another one has written."""
    in_force: str = ""
    """Digest of the tree."""
    attempted: str = ""
    """Id of the newest record that was taken up."""
    manual: bool = False
    """Whether what is in force says `sync: manual`."""
    guard: Guarded | None = None
    """What is protected, by what is in force."""
    bad: tuple[Revision, ...] = ()
    """Revisions that were rolled back; none of them is taken up by itself again."""
    over: Revision | None = None
    """The newest revision when an operator chose another one; it is not taken up by itself."""
    held: str = ""
    """Why the newest revision is not in force, if a rollback or an operator's choice is; for people."""
    suspension: Suspension | None = None


class RevisionKeeper(Protocol):
    """Keeps it. Every method raises StoreUnavailable."""

    async def keep(self, standing: Standing, records: Sequence[Record], tree: SourceTree | None) -> bool:
        """Write all of it or nothing; False, and nothing, if the standing there is not the one before (by its serial).

        A record replaces the one with its id. Older records than the newest `KEPT_RECORDS` are dropped, and the trees of
        others than those in force and the newest `KEPT_TREES` applied revisions.
        """
        ...

    async def standing(self) -> Standing | None:
        """Return what was written last, or None."""
        ...

    async def records(self, limit: int) -> list[Record]:
        """Return the newest records, newest first."""
        ...

    async def tree(self, digest: str) -> SourceTree | None:
        """Return a kept tree, or None."""
        ...
