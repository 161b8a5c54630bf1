"""Which saved plans were used: each is good for one apply, over restarts and changes of the leader too."""

from typing import Protocol

from llmgw.base.time import Instant


class PlanKeeper(Protocol):
    """Keeps their ids. Every method raises StoreUnavailable."""

    async def use_plan(self, plan: str, now: Instant, expires: Instant) -> bool:
        """Take a plan for used; False, and nothing, if it was used before. Of two callers at once, one gets True.

        What expired before `now` may be forgotten: an expired plan is refused anyway.
        """
        ...

    async def used_plans(self) -> frozenset[str]:
        """Return the ids of used plans that are not forgotten."""
        ...
