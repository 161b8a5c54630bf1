"""A store in memory: the lease row and the events. Expiry is by the given clock; `available` takes it away."""

from dataclasses import dataclass, field

from llmgw.base.ids import Epoch, OwnerId
from llmgw.base.time import Clock, Instant, later
from llmgw.ports.sinks import Event, Lease, StoreUnavailable


@dataclass
class FakeStore:
    """A `LeaseKeeper` and an `EventSink`."""

    clock: Clock
    available: bool = True
    cut_off: set[OwnerId] = field(default_factory=set)
    """Those who cannot reach it, while others can."""
    events: list[Event] = field(default_factory=list)
    holder: OwnerId | None = None
    epoch: Epoch | None = None
    expires: Instant | None = None

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

    def wipe(self) -> None:
        """Forget everything, as a store that was set up anew."""
        self.holder = self.epoch = self.expires = None

    def record(self, event: Event) -> None:
        """Take an event."""
        self.events.append(event)

    def _raise_if_away(self, owner: OwnerId) -> None:
        if not self.available or owner in self.cut_off:
            raise StoreUnavailable("the database does not answer")
