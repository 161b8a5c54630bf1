"""`Adapting`: what the brain remembers of the LoRA adapters of one running engine, and when they are to be changed. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from llmgw.agent.lora import UNLOAD_AFTER, AdapterLook
from llmgw.base.time import EARLIEST, Instant, later
from llmgw.engines.shard import LoraAdapter, RestartPolicy
from llmgw.fleet.report import AdapterReport


@dataclass(slots=True)
class Adapting:
    """Of one attempt; the rules of when to look are the shard's."""

    look: AdapterLook | None = None
    """The last that said anything."""
    busy: bool = False
    """A change is under way, or nobody has looked since it ended."""
    ended: bool = False
    failures: int = 0
    failed: Mapping[str, str] = field(default_factory=dict)
    due: Instant = EARLIEST
    surplus_since: Instant = EARLIEST

    def knows(self, wanted: tuple[LoraAdapter, ...]) -> bool:
        """Whether it was looked for just these."""
        return self.look is not None and self.look.wanted == wanted

    def seen(self, look: AdapterLook, now: Instant) -> None:
        """Take note of a look."""
        if self.look is None or self.look.surplus != look.surplus:
            self.surplus_since = now
        if self.look is not None and self.look.wanted != look.wanted:
            self.failures, self.failed, self.due = 0, {}, now
        self.look = look
        self.busy = self.busy and not self.ended
        self.ended = False

    def changes(
        self, wanted: tuple[LoraAdapter, ...], now: Instant
    ) -> tuple[tuple[LoraAdapter, ...], tuple[str, ...]] | None:
        """Return what to load and what to unload now, and count as busy with it; None if there is nothing to do."""
        if self.look is None or self.look.wanted != wanted or self.busy:
            return None
        load = self.look.lacking if now >= self.due else ()
        unload = self.look.surplus if now - self.surplus_since >= UNLOAD_AFTER else ()
        if not load and not unload:
            return None
        self.busy = True
        return load, unload

    def done(self, failed: Mapping[str, str], policy: RestartPolicy, now: Instant) -> None:
        """Take note of a change's end; what failed is tried again, later each time."""
        self.ended = True
        self.failed = failed
        self.failures = self.failures + 1 if failed else 0
        self.due = later(now, policy.delay(self.failures)) if failed else now

    def report(self, wanted: tuple[LoraAdapter, ...]) -> tuple[AdapterReport, ...]:
        """Return what is told of those that are wanted."""
        return tuple(self._of(one) for one in wanted)

    def _of(self, one: LoraAdapter) -> AdapterReport:
        if self.look is None:
            return AdapterReport(one.name, loaded=False, reason="the engine was not asked yet")
        there = one.name in self.look.there
        if there and one in self.look.wanted and one not in self.look.lacking:
            return AdapterReport(one.name, loaded=True)
        return AdapterReport(one.name, there, self.failed.get(one.name) or "it is being loaded")
