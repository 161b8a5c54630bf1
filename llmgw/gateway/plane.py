"""`Plane`: what all connections of one gateway share. One event loop, one table, one set of counters.

All of it changes in synchronous methods, so a request looks at the table, chooses and takes its slot with nothing in
between. A table swap touches no request: each holds the endpoint that it was given and the slot that it took.

Time limits cost a request nothing while it runs: one sweep looks at all of them, so a limit is kept to within a sweep. How
far a sweep comes late is the event loop's lag.
"""

import asyncio
import random
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import Protocol

from llmgw.base.ids import ReplicaId
from llmgw.base.time import Clock
from llmgw.fleet.table import EMPTY_TABLE, Endpoint, EndpointTable, GatewaySettings, RoutedModel
from llmgw.gateway.access import Door
from llmgw.gateway.errors import Fault
from llmgw.gateway.heads import Incoming
from llmgw.gateway.keys import UpstreamKeys
from llmgw.gateway.meter import Meter
from llmgw.gateway.outcome import Outcome
from llmgw.gateway.records import Ledger
from llmgw.gateway.seen import SeenHeads
from llmgw.gateway.tracing import Tracing
from llmgw.gateway.upstream import UpstreamPool
from llmgw.routing.breaker import Breakers
from llmgw.routing.choose import NONE_BARRED, Refusal, Target, Wait, choose, choose_any
from llmgw.routing.index import TableIndex, index_table
from llmgw.routing.line import Line
from llmgw.routing.load import Load, Slot
from llmgw.routing.request import RequestShape, Route
from llmgw.runtime.clock import LoopClock
from llmgw.runtime.supervisor import Supervisor
from llmgw.wire.messages import EndpointUsage, Sample

LONGEST_SWEEP = 1.0
SHORTEST_SWEEP = 0.02
"""Seconds between two sweeps: a quarter of the shortest limit, within these."""
RETRY_SHARE = 0.1
RETRY_BURST = 10.0
"""Retries of what an engine was too busy for: a share of all requests, and so many saved up at most."""


Taken = tuple[Endpoint, Slot]
"""Where a request goes, and its place there."""
OPENNESS = {"closed": 0.0, "half_open": 0.5, "open": 1.0}


class Watched(Protocol):
    """What a sweep looks at."""

    def look(self, now: float, limits: GatewaySettings, keep_alive: float | None) -> None:
        """See whether a time limit has passed; `now` is by the loop's clock, `keep_alive` is the model's."""
        ...

    @property
    def model(self) -> str:
        """The model that it was asked for."""
        ...


class Waiter(Protocol):
    """A request that waits for a place."""

    @property
    def shape(self) -> RequestShape:
        """What a choice may know of it."""
        ...

    @property
    def tried(self) -> AbstractSet[ReplicaId]:
        """Endpoints that it was sent to in vain."""
        ...

    def admitted(self, taken: "Taken | Refusal") -> None:
        """Go on: there is a place, or there never will be."""
        ...


class Plane:
    """The shared state. Owned by `Gateway`; used by its connections, from its event loop only."""

    def __init__(self, clock: Clock, rng: random.Random, supervisor: Supervisor) -> None:
        self.supervisor = supervisor
        spans = LoopClock()
        self.pool = UpstreamPool(spans)
        self.keys = UpstreamKeys()
        self.started = int(clock.now())
        """Unix seconds; what `/v1/models` calls `created`, for want of anything truer that stays the same."""
        self.requests = 0
        """Requests to models that were answered, refusals included."""
        self.ready = False
        """Whether a first table was taken and the gateway is not stopping."""
        self.stopping = False
        self.seen: SeenHeads[Incoming] = SeenHeads()
        """Requests by their heads, without their ids and bodies."""
        self._rng = rng
        self._load = Load()
        self._line: Line[Waiter] = Line()
        self._moving = False
        self.breakers = Breakers()
        self.meter = Meter()
        self.lag = 0.0
        """Seconds that the last sweep came late."""
        self.tracing: Tracing | None = None
        self._finished: Callable[[RequestShape, Incoming, str, Outcome], None] | None = None
        self._watched: dict[Watched, None] = {}
        self._sweep: asyncio.TimerHandle | None = None
        self._due = 0.0
        self.stopped = False
        self._budget = RETRY_BURST
        self.time = spans.now
        self._index = index_table(EMPTY_TABLE)
        self.door = Door(clock, self._index)
        self.ledger = Ledger(clock)
        self._withdrawn_quiet: Callable[[], None] = lambda: None

    @property
    def index(self) -> TableIndex:
        """The present table's index."""
        return self._index

    def max_body(self) -> int:
        """Return the most bytes that a request's body may have."""
        return self._index.settings.max_body

    def on_withdrawn_quiet(self, callback: Callable[[], None]) -> None:
        """Have this called when an endpoint that has left the table has nothing in flight any more."""
        self._withdrawn_quiet = callback

    def set_table(self, table: EndpointTable) -> None:
        """Go by this table from now on."""
        self._index = index_table(table)
        self.door.set_index(self._index)
        self._load.keep(self._index.ids)
        self.breakers.keep({endpoint.id: endpoint for endpoint in self._index.endpoints})
        self.pool.keep(self._index.addresses)
        self._line.keep(frozenset(self._index.models))
        self._move_up()
        self.ready = not self.stopping

    def take(self, shape: RequestShape, excluded: AbstractSet[ReplicaId]) -> Taken | Wait | Refusal:
        """Choose an endpoint and take a slot at it, in one step.

        Nobody overtakes those who wait for the same model, but who has been sent on in vain: it has had its turn.
        """
        if len(self._line) and not excluded:
            indexed = self._index.models.get(shape.model)
            if indexed is not None and self._line.waiting(indexed.model.name):
                return Wait(indexed.model)
        return self._take(shape, excluded)

    def wait(self, one: Waiter, model: RoutedModel) -> Refusal | None:
        """Let a request wait for a place, for which it is told later; or return what its client is told."""
        name, most = model.name, self._index.settings.waiting
        if len(self._line) < most and (model.queue is None or self._line.waiting(name) < model.queue):
            self._line.join(name, one, self.time())
            return None
        count, seconds = self._line.waiting(name), self._line.seconds(name)
        message = f"The model `{name}` is busy, and {count} requests wait for it already; come again in {seconds} s."
        return Refusal(429, "queue_full", message, seconds)

    def wait_no_more(self, one: Waiter, model: str) -> int:
        """Take a request out of its line; return after how many seconds asking again makes sense."""
        self._line.leave(model, one)
        return self._line.seconds(model)

    def _move_up(self) -> None:
        """Look soon, and once, whether those who wait can go on."""
        if len(self._line) and not self._moving:
            self._moving = True
            asyncio.get_running_loop().call_soon(self._admit)

    def _admit(self) -> None:
        """Let those go on for whom there is a place, or for whom there never will be one; who came first, first."""
        self._moving = False
        stuck: set[str] = set()
        while True:
            model = next((one for one in self._line.models() if one not in stuck), None)
            if model is None:
                return
            first = self._line.first(model)
            taken = self._take(first.shape, first.tried)
            if isinstance(taken, Wait):
                stuck.add(model)
                continue
            self._line.leave(model, first)
            self._line.moved(model, self.time())
            first.admitted(taken)

    def _take(self, shape: RequestShape, excluded: AbstractSet[ReplicaId]) -> Taken | Wait | Refusal:
        if self._index.version == EMPTY_TABLE.version and not self.ready:
            return Refusal(503, "no_table", "This gateway has just started; no endpoint table was taken yet.", 1)
        decision = self._choose(shape, excluded)
        match decision:
            case Target(endpoint):
                if self.breakers.any_open:
                    self.breakers.taken(endpoint, self.time())
                return endpoint, self._load.take(endpoint.id)
            case _:
                return decision

    def may_retry(self, shape: RequestShape, slot: Slot, excluded: AbstractSet[ReplicaId]) -> bool:
        """Whether another endpoint can be asked, and the budget lasts; takes one retry off it then.

        `slot` is the request's own, which is given back before it is sent there.
        """
        if shape.model and self._budget < 1.0:
            return False
        with self._load.without(slot.id):
            decision = self._choose(shape, excluded)
        if not isinstance(decision, Target):
            return False
        if shape.model:
            self._budget -= 1.0
        return True

    def _choose(self, shape: RequestShape, excluded: AbstractSet[ReplicaId]) -> Target | Wait | Refusal:
        barred = self.breakers.barred(self.time()) if self.breakers.any_open else NONE_BARRED
        if not shape.model:
            return choose_any(shape, self._index, self._load, excluded, barred)
        decision = choose(shape, self._index, self._load, self._rng, excluded, barred)
        most = self._index.settings.inflight
        if most is not None and isinstance(decision, Target) and self._load.total >= most:
            return Wait(self._index.models[shape.model].model)
        return decision

    def failed(self, endpoint: Endpoint | None) -> None:
        """Note that an endpoint could not be reached, or did not do what it had begun."""
        if endpoint is not None:
            self.breakers.failed(endpoint, self.time())

    def answered(self, endpoint: Endpoint | None, status: int) -> None:
        """Note an endpoint's status."""
        if endpoint is not None:
            model = self._index.models.get(endpoint.model) if status >= 500 else None
            self.breakers.answered(endpoint, status, model.endpoints if model is not None else (), self.time())

    def ended_well(self, endpoint: Endpoint | None) -> None:
        """Note that an endpoint's response was whole."""
        if endpoint is not None:
            self.breakers.ended_well(endpoint)

    def released(self, endpoint: Endpoint) -> None:
        """Note that a request at an endpoint is over, however."""
        if self.breakers.any_open:
            self.breakers.released(endpoint, self.time())

    def refused(self, route: Route, request: Incoming, fault: Fault) -> None:
        """Count a request that was refused before it got as far as a model."""
        self.requests += 1
        outcome = Outcome(fault.status, fault.code)
        self.meter.count(route, "", outcome)
        if self._finished is not None:
            self._finished(RequestShape(route, "", stream=False, prompt_bytes=len(request.body)), request, "", outcome)

    def finished(self, shape: RequestShape, request: Incoming, endpoint: str, outcome: Outcome) -> None:
        """Count what became of a request."""
        self._budget = min(RETRY_BURST, self._budget + RETRY_SHARE)
        indexed = self._index.models.get(shape.model)
        # what no model is called must not become a label: clients choose it
        self.meter.count(shape.route, indexed.model.name if indexed is not None else "", outcome)
        if indexed is not None:
            self.ledger.add(indexed.model, shape, request.caller, outcome)
        if self._finished is not None:
            self._finished(shape, request, endpoint, outcome)

    def on_finished(self, callback: Callable[[RequestShape, Incoming, str, Outcome], None]) -> None:
        """Have this, too, called with every request that is over."""
        before = self._finished
        if before is None:
            self._finished = callback
            return

        def both(shape: RequestShape, request: Incoming, endpoint: str, outcome: Outcome) -> None:
            before(shape, request, endpoint, outcome)
            callback(shape, request, endpoint, outcome)

        self._finished = both

    def watch(self, one: Watched) -> None:
        """Have this looked at in every sweep."""
        self._watched[one] = None
        if self._sweep is None:
            self._arm()

    def unwatch(self, one: Watched) -> None:
        """Look at it no more."""
        self._watched.pop(one, None)

    def close(self) -> None:
        """End the sweeps."""
        self.stopped = True
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None

    def _arm(self) -> None:
        limits = self._index.settings
        shortest = min(limits.headers, limits.first_byte, limits.inter_chunk, limits.queue, *self._index.keep_alives)
        wait = min(LONGEST_SWEEP, max(SHORTEST_SWEEP, shortest / 4))
        self._due = self.time() + wait
        self._sweep = asyncio.get_running_loop().call_later(wait, self._look_at_all)

    def _look_at_all(self) -> None:
        now, limits, models = self.time(), self._index.settings, self._index.models
        self.lag = max(0.0, now - self._due)
        self.meter.late(self.lag)
        self._sweep = None
        self._move_up()  # a circuit may have closed meanwhile
        try:
            for one in list(self._watched):
                if one in self._watched:  # else one that was looked at before it ended it
                    indexed = models.get(one.model)
                    one.look(now, limits, indexed.model.keep_alive if indexed is not None else None)
        finally:
            if self._watched and not self.stopped:
                self._arm()

    def give_back(self, slot: Slot, *, reached: bool = True) -> None:
        """Take back a slot; the response at its endpoint ends now, unless the request never reached it."""
        slot.give_back(self.time() if reached else None)
        if slot.id not in self._index.ids and self._load.in_flight(slot.id) == 0:
            self._load.forget(slot.id)
            self._withdrawn_quiet()
        self._move_up()

    def usage(self) -> tuple[EndpointUsage, ...]:
        """Return what is in flight at every endpoint of the table, then at those withdrawn that are still busy."""
        now = self.time()
        ids = self._index.ids
        listed = [endpoint.id for endpoint in self._index.endpoints]
        listed += [endpoint for endpoint in self._load.busy() if endpoint not in ids]
        waiting = self._line.models()
        wanted = {one.id for one in self._index.endpoints if one.model in waiting} if waiting else ()
        usage: list[EndpointUsage] = []
        for endpoint in listed:
            ended = self._load.ended(endpoint)
            ago = None if ended is None else max(0.0, now - ended)
            if endpoint in wanted:
                ago = 0.0  # it is not idle while somebody waits for its model
            usage.append(EndpointUsage(endpoint, self._load.in_flight(endpoint), ago))
        return tuple(usage)

    def samples(self) -> list[Sample]:
        """Return what is in flight and which circuits are not closed, by endpoint; and what waits, by model."""
        now = self.time()
        found = []
        for endpoint in self._index.endpoints:
            labels = (endpoint.model, endpoint.id)
            found.append(Sample("llmgw_gateway_in_flight", labels, self._load.in_flight(endpoint.id)))
            state = self.breakers.state(endpoint.id, now)
            found.append(Sample("llmgw_gateway_circuit_open", labels, OPENNESS[state]))
        found += [Sample("llmgw_gateway_queued", (one,), self._line.waiting(one)) for one in self._line.models()]
        return found

    def new_request_id(self) -> bytes:
        """Return an id for a request whose client gave none."""
        return b"%016x" % self._rng.getrandbits(64)
