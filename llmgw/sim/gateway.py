"""Gateway workers without sockets: they take tables late, send requests to what their table has, and say what is in flight.

What they say fails closed as the real ones' does: while one of them goes by an older table, nothing of the rest is known.
They outlive a control plane: a new one's first table is taken only once it is `settled`, as by real workers that were
inherited. A request lasts until it ends, or its engine does; one that an engine's end cuts is told to `cut`.
"""

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from llmgw.base.ids import ReplicaId
from llmgw.base.time import Clock, Instant
from llmgw.fleet.table import EMPTY_TABLE, Endpoint, EndpointTable
from llmgw.fleet.usage import Active, Idle, Unknown, Usage, UsageView


@dataclass
class _Worker:
    number: int
    table: EndpointTable = EMPTY_TABLE
    behind: EndpointTable | None = None
    """The table that is on its way to it."""


@dataclass
class FakeGateway:
    """An `EndpointSink` and a `UsageSource`."""

    clock: Clock
    rng: random.Random
    accepts: Callable[[Endpoint], bool]
    """Whether an engine answers at an endpoint now."""
    changed: Callable[[], None] = lambda: None
    name: str = "gateway"
    """What agents know it by, whichever control plane it belongs to."""
    slowest: float = 0.3
    """Seconds until every worker has a new table."""
    workers: list[_Worker] = field(default_factory=lambda: [_Worker(0), _Worker(1)])
    newest: EndpointTable = EMPTY_TABLE
    settled: bool = False
    requests: dict[int, Endpoint] = field(default_factory=dict)
    """What is in flight, by number, and where it went."""
    ended: dict[ReplicaId, Instant] = field(default_factory=dict)
    withdrawn: dict[Endpoint, Instant] = field(default_factory=dict)
    """When each endpoint was last in a table that workers were told."""
    cut: list[ReplicaId] = field(default_factory=list)
    """Requests that the end of their engine cut, in order."""
    refused: int = 0
    """Requests that met no engine at an endpoint."""
    served: int = 0
    _told: EndpointTable = EMPTY_TABLE
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def in_flight(self, replica: ReplicaId) -> int:
        """Return how many requests a replica has."""
        return sum(one.id == replica for one in self.requests.values())

    def attach(self, changed: Callable[[], None]) -> None:
        """Belong to another control plane from now on."""
        self.changed = changed
        self.settled = False
        self.newest = EMPTY_TABLE

    def publish(self, table: EndpointTable, *, settled: bool) -> None:
        """Make this the newest table."""
        self.settled = self.settled or settled
        self.newest = table
        if self.settled:
            for endpoint in (*self._told.endpoints, *table.endpoints):
                self.withdrawn[endpoint] = self.clock.now()
            self._told = table
            for worker in self.workers:
                if table not in (worker.table, worker.behind):
                    worker.behind = table
                    delay = self.rng.uniform(0.0, self.slowest)
                    asyncio.get_running_loop().call_later(delay, self._take, worker, table)

    def usage(self) -> UsageView:
        """Return what all workers together have in flight."""
        counts = Counter(endpoint.id for endpoint in self.requests.values())
        active: dict[ReplicaId, Usage] = {one: Active(n) for one, n in sorted(counts.items())}
        for worker in self.workers:
            if worker.table.version != self.newest.version:
                return UsageView(active, Unknown(f"gateway worker {worker.number} goes by an older table"))
        idle: dict[ReplicaId, Usage] = {one: Idle(at) for one, at in sorted(self.ended.items())}
        return UsageView({**idle, **active}, Unknown("not used since the gateway started", quiet=True), current=True)

    def begin(self, replica: ReplicaId) -> int | None:
        """Send a request to a replica, by the table of any worker that has it; None if no engine took it."""
        for worker in self.workers:
            for endpoint in worker.table.endpoints:
                if endpoint.id == replica and self.accepts(endpoint):
                    number = next(self._numbers)
                    self.requests[number] = endpoint
                    return number
        self.refused += 1
        return None

    def finish(self, number: int) -> None:
        """Let a request end well, unless it was cut."""
        endpoint = self.requests.pop(number, None)
        if endpoint is not None:
            self.served += 1
            self._ended(endpoint)

    def lose(self, lost: Callable[[Endpoint], bool]) -> None:
        """Cut every request that went to such an endpoint."""
        for number, endpoint in list(self.requests.items()):
            if lost(endpoint):
                del self.requests[number]
                self.cut.append(endpoint.id)
                self._ended(endpoint)

    def _ended(self, endpoint: Endpoint) -> None:
        self.ended[endpoint.id] = self.clock.now()
        if not self.in_flight(endpoint.id):
            self.changed()

    async def traffic(self, between: float, longest: float) -> None:
        """Send requests for ever: one after every `between` seconds, on average, for up to `longest` seconds each."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self.rng.uniform(0.0, 2 * between))
            worker = self.rng.choice(self.workers)
            if worker.table.endpoints:
                endpoint = self.rng.choice(worker.table.endpoints)
                number = self.begin(endpoint.id)
                if number is not None:
                    loop.call_later(self.rng.uniform(0.01, longest), self.finish, number)

    def _take(self, worker: _Worker, table: EndpointTable) -> None:
        if worker.behind is table:
            worker.behind = None
            worker.table = table
            self.changed()
