"""`Load`: how many requests this gateway has in flight at each endpoint, and when the last response ended.

A counter that is given back twice, or not at all, sends all traffic to one node within a day, and a drain never ends.
So a count is only ever held through a `Slot`, which can be given back once and says so when it is tried again.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from llmgw.base.ids import ReplicaId
from llmgw.base.time import Instant


class SlotSpent(Exception):
    """A slot was given back twice: a fault of the caller, which would have made a busy endpoint look idle."""


class Slot:
    """One request's place at an endpoint. Whoever took it gives it back exactly once, in whatever way it ends."""

    __slots__ = ("_load", "id")

    def __init__(self, load: "Load", endpoint: ReplicaId) -> None:
        self._load: Load | None = load
        self.id = endpoint

    def give_back(self, now: Instant | None) -> None:
        """Say when the response ended; None if the request never reached the endpoint. Raises SlotSpent the second time."""
        if self._load is None:
            raise SlotSpent(f"the slot at {self.id} was already given back")
        load, self._load = self._load, None
        load.give(self.id, now)


class Load:
    """The counters. Synchronous throughout, so that nothing can come between a look and the take that follows it."""

    def __init__(self) -> None:
        self._in_flight: dict[ReplicaId, int] = {}
        self._ended: dict[ReplicaId, Instant] = {}

    def take(self, endpoint: ReplicaId) -> Slot:
        """Count one more request in flight."""
        self._in_flight[endpoint] = self._in_flight.get(endpoint, 0) + 1
        return Slot(self, endpoint)

    def give(self, endpoint: ReplicaId, now: Instant | None) -> None:
        """Count one less; called by the slot alone."""
        left = self._in_flight[endpoint] - 1
        if left:
            self._in_flight[endpoint] = left
        else:
            del self._in_flight[endpoint]
        if now is not None:  # idle counts from the end of a response, and there was none
            self._ended[endpoint] = now

    def in_flight(self, endpoint: ReplicaId) -> int:
        """Return the requests in flight at an endpoint."""
        return self._in_flight.get(endpoint, 0)

    @contextmanager
    def without(self, endpoint: ReplicaId) -> Iterator[None]:
        """Leave one request at an endpoint out of the counts: one that may go elsewhere is not in its own way."""
        self._in_flight[endpoint] -= 1
        try:
            yield
        finally:
            self._in_flight[endpoint] += 1

    @property
    def total(self) -> int:
        """The requests in flight at all endpoints."""
        return sum(self._in_flight.values())

    def ended(self, endpoint: ReplicaId) -> Instant | None:
        """Return when the last response ended there; None if none has since the endpoint came."""
        return self._ended.get(endpoint)

    def busy(self) -> tuple[ReplicaId, ...]:
        """Return the endpoints with something in flight, in the order of their ids."""
        return tuple(sorted(self._in_flight))

    def forget(self, endpoint: ReplicaId) -> None:
        """Forget when the last response ended: the id may come back as another process, which was never used."""
        self._ended.pop(endpoint, None)

    def keep(self, endpoints: frozenset[ReplicaId]) -> None:
        """Forget the same of every endpoint that is neither among these nor busy."""
        for endpoint in [known for known in self._ended if known not in endpoints and known not in self._in_flight]:
            del self._ended[endpoint]
