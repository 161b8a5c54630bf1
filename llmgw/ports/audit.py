"""The audit trail: every act of an operator, and every revision that came in force, with who, what, when and why."""

from dataclasses import dataclass
from typing import Protocol

from llmgw.base.time import Instant


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of it."""

    at: Instant
    who: str
    """As the server knows it: `user/NAME` of the socket, `key/ID`, or `author/NAME` of a commit."""
    said: str
    """What the client calls itself, which nobody has checked; empty if nothing."""
    act: str
    """`drain`, `apply`, `keys create`, `revision applied`, …"""
    subject: str
    """`node/NAME`, `tenant/NAME`, a revision, …"""
    text: str
    """The reason that was given, and what else there is to know."""
    outcome: str
    """`done`, or why it was refused."""
    cause: str = ""
    """By which events, orders and log lines can be found that it led to."""


class AuditKeeper(Protocol):
    """Keeps it."""

    def record(self, entry: Entry) -> None:
        """Take a line. Never blocks, never raises; one that cannot be kept is logged as an error, with all it says."""
        ...

    async def entries(self, limit: int, since: Instant | None = None) -> list[Entry]:
        """Return the newest, newest first: at most `limit`, not before `since`. Raises StoreUnavailable."""
        ...

    async def forget(self, before: Instant) -> None:
        """Drop what is older. Raises StoreUnavailable."""
        ...
