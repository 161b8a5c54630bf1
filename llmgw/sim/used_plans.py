"""A `PlanKeeper` in memory."""

from llmgw.base.time import Instant


class FakePlans:
    """See `PlanKeeper`."""

    def __init__(self) -> None:
        self._used: dict[str, Instant] = {}

    async def use_plan(self, plan: str, now: Instant, expires: Instant) -> bool:
        """Take a plan for used."""
        self._used = {name: end for name, end in self._used.items() if end >= now or name == plan}
        if plan in self._used:
            return False
        self._used[plan] = expires
        return True

    async def used_plans(self) -> frozenset[str]:
        """Return the ids of used plans."""
        return frozenset(self._used)
