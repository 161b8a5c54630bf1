"""Where the planner's memory is kept from one leader to the next."""

from dataclasses import dataclass
from typing import Protocol

from llmgw.base.ids import Epoch


@dataclass(frozen=True, slots=True)
class Kept:
    """What was written last."""

    content: str
    age: float
    """Seconds since then, by the store's clock."""


class MemoryKeeper(Protocol):
    """Keeps one text. Every method raises StoreUnavailable."""

    async def keep_memory(self, epoch: Epoch, content: str) -> bool:
        """Keep this in place of what was kept; False, and nothing, if a leader of a higher epoch has written."""
        ...

    async def last_memory(self) -> Kept | None:
        """Return what was kept last, or None."""
        ...
