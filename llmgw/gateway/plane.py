"""`Plane`: what all connections of one gateway share. One event loop, one table, one set of counters.

All of it changes in synchronous methods, so a request looks at the table, chooses and takes its slot with nothing in
between. A table swap touches no request: each holds the endpoint that it was given and the slot that it took.
"""

import random
from collections.abc import Callable
from collections.abc import Set as AbstractSet

from llmgw.base.ids import ReplicaId
from llmgw.base.time import Clock
from llmgw.fleet.table import EMPTY_TABLE, Endpoint, EndpointTable
from llmgw.gateway.upstream import UpstreamPool
from llmgw.routing.choose import Refusal, Target, choose
from llmgw.routing.index import TableIndex, index_table
from llmgw.routing.load import Load, Slot
from llmgw.routing.request import RequestShape
from llmgw.runtime.supervisor import Supervisor
from llmgw.wire.messages import EndpointUsage


class Plane:
    """The shared state. Owned by `Gateway`; used by its connections, from its event loop only."""

    def __init__(self, clock: Clock, rng: random.Random, supervisor: Supervisor) -> None:
        self.clock = clock
        self.supervisor = supervisor
        self.pool = UpstreamPool(clock)
        self.started = int(clock.now())
        """Unix seconds; what `/v1/models` calls `created`, for want of anything truer that stays the same."""
        self.requests = 0
        """Requests to models that were answered, refusals included."""
        self.ready = False
        """Whether a first table was taken and the gateway is not stopping."""
        self.stopping = False
        self._rng = rng
        self._load = Load()
        self._index = index_table(EMPTY_TABLE)
        self._withdrawn_quiet: Callable[[], None] = lambda: None

    @property
    def index(self) -> TableIndex:
        """The present table's index."""
        return self._index

    def on_withdrawn_quiet(self, callback: Callable[[], None]) -> None:
        """Have this called when an endpoint that has left the table has nothing in flight any more."""
        self._withdrawn_quiet = callback

    def set_table(self, table: EndpointTable) -> None:
        """Go by this table from now on."""
        self._index = index_table(table)
        self._load.keep(self._index.ids)
        self.pool.keep(self._index.addresses)
        self.ready = not self.stopping

    def take(self, shape: RequestShape, excluded: AbstractSet[ReplicaId]) -> tuple[Endpoint, Slot] | Refusal:
        """Choose an endpoint and take a slot at it, in one step."""
        if self._index.version == EMPTY_TABLE.version and not self.ready:
            return Refusal(503, "no_table", "This gateway has just started; no endpoint table was taken yet.", 1)
        decision = choose(shape, self._index, self._load, self._rng, excluded)
        match decision:
            case Target(endpoint):
                return endpoint, self._load.take(endpoint.id)
            case Refusal():
                return decision

    def give_back(self, slot: Slot, *, reached: bool = True) -> None:
        """Take back a slot; the response at its endpoint ends now, unless the request never reached it."""
        slot.give_back(self.clock.now() if reached else None)
        if slot.id not in self._index.ids and self._load.in_flight(slot.id) == 0:
            self._load.forget(slot.id)
            self._withdrawn_quiet()

    def usage(self) -> tuple[EndpointUsage, ...]:
        """Return what is in flight at every endpoint of the table, then at those withdrawn that are still busy."""
        now = self.clock.now()
        ids = self._index.ids
        listed = [endpoint.id for endpoint in self._index.endpoints]
        listed += [endpoint for endpoint in self._load.busy() if endpoint not in ids]
        usage: list[EndpointUsage] = []
        for endpoint in listed:
            ended = self._load.ended(endpoint)
            ago = None if ended is None else max(0.0, now - ended)
            usage.append(EndpointUsage(endpoint, self._load.in_flight(endpoint), ago))
        return tuple(usage)

    def new_request_id(self) -> bytes:
        """Return an id for a request whose client gave none."""
        return b"%016x" % self._rng.getrandbits(64)
