"""`Breakers`: which endpoints are left alone for a while, because they were seen to fail. Pure; the caller says the time.

Two kinds of failure open a circuit. Connections that are refused or break, and responses that break, count one by one: nobody
but the endpoint can be the cause. Answers with a status of 5xx count only as a share of what the endpoint answers, and only
where the model's other endpoints answer better: one client's poisonous request fails everywhere, and must not open every
circuit one after the other. Statuses of 4xx are the client's, 429 and 503 the engine's way to say that it is busy.

An open circuit lets one request through when its time is over. Any answer closes it, but for a 5xx where those had opened
it; only a response that ends well makes earlier failures forgotten, so one that breaks next opens it again, and for longer. The
endpoint's process being another one closes it, too: what was learnt of the old one does not hold of the new.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from llmgw.base.ids import ReplicaId
from llmgw.base.time import Instant, later
from llmgw.fleet.table import Endpoint

FAILURES = 3
"""Failures in a row that open a circuit."""
FIRST_OPEN = 1.0
LONGEST_OPEN = 30.0
"""Seconds that a circuit stays open: at first, and at most; it doubles each time."""
WINDOW = 30.0
"""Seconds over which answers are counted."""
ENOUGH = 20
"""Answers in a window, of the endpoint and of the others together, before shares of 5xx are compared."""
BAD_SHARE = 0.5
GOOD_SHARE = 0.1
"""Shares of 5xx: of an endpoint whose circuit is opened for them, at least; and of the others then, at most."""
PROBE = 10.0
"""Seconds after which a probe that has not ended lets another one through."""


@dataclass(slots=True)
class _Circuit:
    """What is known of one endpoint."""

    process: str
    failures: int = 0
    opened: int = 0
    """How often in a row it was opened."""
    until: Instant | None = None
    """When it lets a request through again; None while it is closed."""
    probing: bool = False
    """Whether that one is on its way."""
    by_errors: bool = False
    """Whether a share of 5xx opened it."""
    since: float = 0.0
    """Begin of the present window."""
    answers: int = 0
    errors: int = 0


class Breakers:
    """The circuits of one gateway."""

    def __init__(self) -> None:
        self._circuits: dict[ReplicaId, _Circuit] = {}
        self._open: dict[ReplicaId, _Circuit] = {}

    @property
    def any_open(self) -> bool:
        """Whether any circuit is not closed; if none is, there is nothing to ask."""
        return bool(self._open)

    def barred(self, now: Instant) -> Mapping[ReplicaId, float]:
        """Return the endpoints that get nothing now, and for how many seconds."""
        return {
            name: circuit.until - now
            for name, circuit in self._open.items()
            if circuit.until is not None and now < circuit.until
        }

    def state(self, endpoint: ReplicaId, now: Instant) -> str:
        """Return `closed`, `open` or `half_open`."""
        circuit = self._open.get(endpoint)
        if circuit is None or circuit.until is None:
            return "closed"
        return "open" if now < circuit.until else "half_open"

    def taken(self, endpoint: Endpoint, now: Instant) -> None:
        """Note that a request goes there; through a half-open circuit, it is the only one for a while."""
        circuit = self._open.get(endpoint.id)
        if circuit is not None:
            circuit.until, circuit.probing = later(now, PROBE), True

    def released(self, endpoint: Endpoint, now: Instant) -> None:
        """Note that a request there is over, however it ended: if nothing came of it, another may try."""
        circuit = self._open.get(endpoint.id)
        if circuit is not None and circuit.probing:
            circuit.until, circuit.probing = now, False

    def failed(self, endpoint: Endpoint, now: Instant) -> None:
        """Note that a connection could not be made or broke, or that a response broke."""
        circuit = self._of(endpoint)
        if circuit.until is not None and now < circuit.until and not circuit.probing:
            return  # what broke with the one that opened it
        circuit.failures += 1
        if circuit.failures >= FAILURES or circuit.until is not None:
            self._trip(endpoint.id, circuit, now, by_errors=False)

    def answered(self, endpoint: Endpoint, status: int, others: tuple[Endpoint, ...], now: Instant) -> None:
        """Note a response's status as it comes; `others` are all endpoints of the model."""
        circuit = self._of(endpoint)
        if now - circuit.since > WINDOW:
            circuit.since, circuit.answers, circuit.errors = now, 0, 0
        circuit.answers += 1
        bad = status >= 500 and status != 503
        circuit.errors += bad
        if circuit.until is not None:
            if bad and circuit.by_errors:
                self._trip(endpoint.id, circuit, now, by_errors=True)
            else:
                self._close(endpoint.id, circuit)
        elif bad and circuit.answers >= ENOUGH and self._is_worse(endpoint, circuit, others, now):
            self._trip(endpoint.id, circuit, now, by_errors=True)

    def ended_well(self, endpoint: Endpoint) -> None:
        """Note that a response was whole: earlier failures are forgotten."""
        circuit = self._circuits.get(endpoint.id)
        if circuit is not None and circuit.until is None:
            circuit.failures = circuit.opened = 0

    def keep(self, endpoints: Mapping[ReplicaId, Endpoint]) -> None:
        """Forget all endpoints but these, and those whose process is another one by now."""
        for name, circuit in list(self._circuits.items()):
            known = endpoints.get(name)
            if known is None or known.process != circuit.process:
                del self._circuits[name]
                self._open.pop(name, None)

    def _is_worse(self, endpoint: Endpoint, circuit: _Circuit, others: tuple[Endpoint, ...], now: Instant) -> bool:
        answers = errors = 0
        for other in others:
            known = self._circuits.get(other.id)
            if other.id != endpoint.id and known is not None and now - known.since <= WINDOW:
                answers += known.answers
                errors += known.errors
        bad = circuit.errors / circuit.answers >= BAD_SHARE
        return bad and answers >= ENOUGH and errors / answers <= GOOD_SHARE

    def _of(self, endpoint: Endpoint) -> _Circuit:
        circuit = self._circuits.get(endpoint.id)
        if circuit is None or circuit.process != endpoint.process:
            circuit = self._circuits[endpoint.id] = _Circuit(endpoint.process)
            self._open.pop(endpoint.id, None)
        return circuit

    def _trip(self, name: ReplicaId, circuit: _Circuit, now: Instant, *, by_errors: bool) -> None:
        circuit.until = later(now, min(LONGEST_OPEN, FIRST_OPEN * 2**circuit.opened))
        circuit.opened = min(circuit.opened + 1, 10)
        circuit.probing, circuit.by_errors = False, by_errors
        self._open[name] = circuit

    def _close(self, name: ReplicaId, circuit: _Circuit) -> None:
        circuit.until, circuit.probing = None, False
        circuit.failures = 0 if circuit.by_errors else FAILURES - 1
        circuit.answers = circuit.errors = 0
        self._open.pop(name, None)
