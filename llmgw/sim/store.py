"""A store in memory: lease, events, acts and the planner's memory.

Expiry is by the given clock; `available` takes the store away.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from llmgw.base.ids import Epoch, OwnerId
from llmgw.base.time import Clock, Instant, later
from llmgw.plan.snapshot import Act
from llmgw.ports.memory import Kept
from llmgw.ports.sinks import Event, Lease, StoreUnavailable


@dataclass
class FakeStore:
    """A `LeaseKeeper`, an `EventSink`, an `EventSource`, an `ActKeeper` and a `MemoryKeeper`."""

    clock: Clock
    available: bool = True
    cut_off: set[OwnerId] = field(default_factory=set)
    """Those who cannot reach it, while others can."""
    recorded: list[Event] = field(default_factory=list)
    acts: tuple[Act, ...] = ()
    holder: OwnerId | None = None
    epoch: Epoch | None = None
    expires: Instant | None = None
    memory: tuple[Epoch, str, Instant] | None = None

    async def take(self, owner: OwnerId, seconds: float, at_least: Epoch) -> Lease:
        """Take or renew the lease, and return who holds it now."""
        self._raise_if_away(owner)
        now = self.clock.now()
        if self.holder == owner and self.epoch is not None:
            self.epoch = max(self.epoch, at_least)
        elif self.holder is None or self.expires is None or self.expires <= now:
            self.epoch = Epoch(max((self.epoch or 0) + 1, at_least))
            self.holder = owner
        if self.holder == owner:
            self.expires = later(now, seconds)
        assert self.holder is not None
        assert self.epoch is not None
        return Lease(self.holder, self.epoch, self.holder == owner)

    async def release(self, owner: OwnerId) -> None:
        """Give the lease up."""
        self._raise_if_away(owner)
        if self.holder == owner:
            self.holder = None

    async def release_epoch(self, epoch: Epoch) -> bool:
        """Take the lease of this epoch away from whoever has it."""
        self._raise_if_away()
        if self.holder is None or self.epoch != epoch:
            return False
        self.holder = None
        return True

    async def keep_memory(self, epoch: Epoch, content: str) -> bool:
        """Keep this in place of what was kept."""
        self._raise_if_away()
        if self.memory is not None and self.memory[0] > epoch:
            return False
        self.memory = (epoch, content, self.clock.now())
        return True

    async def last_memory(self) -> Kept | None:
        """Return what was kept last, or None."""
        self._raise_if_away()
        return Kept(self.memory[1], self.clock.now() - self.memory[2]) if self.memory is not None else None

    def wipe(self) -> None:
        """Forget everything, as a store that was set up anew."""
        self.holder = self.epoch = self.expires = self.memory = None

    def record(self, event: Event) -> None:
        """Take an event."""
        self.recorded.append(event)

    async def events(self, limit: int, since: Instant | None = None, subject: str = "") -> list[Event]:
        """Return the newest events, newest first."""
        self._raise_if_away()
        kind, _, name = subject.partition("/")
        found = [
            one
            for one in reversed(self.recorded)
            if (since is None or one.at >= since)
            and (
                not subject
                or one.subject == subject
                or (
                    kind == "model"
                    and one.subject.startswith(f"replica/{name}-")
                    and one.subject.count("-") == name.count("-") + 2
                )
            )
        ]
        return found[:limit]

    async def keep_acts(self, acts: Sequence[Act]) -> None:
        """Keep these in place of those before."""
        self._raise_if_away()
        self.acts = tuple(sorted(acts, key=lambda one: one.target))

    async def last_acts(self) -> tuple[Act, ...]:
        """Return the kept ones."""
        self._raise_if_away()
        return self.acts

    def _raise_if_away(self, owner: OwnerId | None = None) -> None:
        if not self.available or owner in self.cut_off:
            raise StoreUnavailable("the database does not answer")
