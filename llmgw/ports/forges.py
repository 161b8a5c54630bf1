"""Where it is shown beside a commit what became of it."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from llmgw.base.ids import Revision


class Mark(StrEnum):
    """What became of a commit so far."""

    PENDING = "pending"
    SUCCESS = "success"
    FAILURE = "failure"


@dataclass(frozen=True, slots=True)
class CommitStatus:
    """What is shown beside a commit, under one name for each cluster, so that clusters do not overwrite each other."""

    revision: Revision
    context: str
    mark: Mark
    description: str


@dataclass(frozen=True, slots=True)
class Shown:
    """It is shown."""


@dataclass(frozen=True, slots=True)
class TryAgain:
    """It could not be shown now."""

    reason: str
    after: float | None = None
    """Seconds to wait at least, where the forge or the kind of failure says so."""


@dataclass(frozen=True, slots=True)
class Never:
    """It cannot be shown for this commit, however often it is tried."""

    reason: str


Outcome = Shown | TryAgain | Never


class Forge(Protocol):
    """Shows commit statuses. Called by one loop, never concurrently."""

    async def show(self, status: CommitStatus) -> Outcome:
        """Show a status in place of the one before. Never raises, and takes a bounded time."""
        ...
