"""`choose`: the endpoint for a request, or the refusal that its client gets. Pure; called once a try.

Least in flight, ties by chance: the gateway's own counts are exact and current, where polled engine metrics are late
and herd every gateway to the same replica. Prefix affinity and flow control will score here too. Only the caller knows
which endpoints already failed this request; it passes them as `excluded`.
"""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from math import ceil
from types import MappingProxyType
from typing import NamedTuple, Protocol

from llmgw.base.ids import ReplicaId
from llmgw.fleet.table import Endpoint, RoutedModel
from llmgw.routing.index import IndexedModel, TableIndex
from llmgw.routing.load import Load
from llmgw.routing.request import RequestShape

NAME_SHOWN = 200
"""Characters of a client's model name that are repeated to it."""

MOST_ASKED = 16
"""Endpoints that are asked one after the other for what names no model."""

NONE_EXCLUDED: frozenset[ReplicaId] = frozenset()
NONE_BARRED: Mapping[ReplicaId, float] = MappingProxyType({})


class Chance(Protocol):
    """The source of chance; `random.Random` is one."""

    def randrange(self, start: int, /) -> int:
        """Return a number from 0 to below `start`."""
        ...


class Target(NamedTuple):
    """Send the request there. The caller takes the slot before it does anything else."""

    endpoint: Endpoint


class Wait(NamedTuple):
    """Whatever could take the request has as many as it is given at once: wait for a place."""

    model: RoutedModel


class Refusal(NamedTuple):
    """Answer the client so."""

    status: int
    code: str
    message: str
    retry_after: int | None
    """Seconds; None where waiting does not help."""


def unknown_model(model: str) -> Refusal:
    """Return what a client is told of a model that there is not, or that is not for it: it cannot tell which."""
    name = model if len(model) <= NAME_SHOWN else model[:NAME_SHOWN] + "…"
    return Refusal(404, "model_not_found", f"The model `{name}` does not exist or you do not have access to it.", None)


def choose_any(
    shape: RequestShape,
    index: TableIndex,
    load: Load,
    excluded: AbstractSet[ReplicaId],
    barred: Mapping[ReplicaId, float] = NONE_BARRED,
) -> Target | Refusal:
    """Return an endpoint of any model that the client may ask for, for a request that names none.

    It is the one with the least in flight that was not asked.
    """
    within = shape.within
    untried = [one for one in index.endpoints if one.id not in excluded and (within is None or one.model in within)]
    left = [one for one in untried if one.id not in barred]
    if left and len(excluded) < MOST_ASKED:
        return Target(min(left, key=lambda one: load.in_flight(one.id)))
    if untried and len(excluded) < MOST_ASKED:
        seconds = max(1, ceil(min(barred[one.id] for one in untried)))
        return Refusal(
            503, "not_all_reachable", f"Not every replica can be asked now; come again in {seconds} s.", seconds
        )
    return Refusal(404, "not_found", "No replica knows of this.", None)


def _with_room(indexed: IndexedModel, load: Load, barred: Mapping[ReplicaId, float]) -> list[Endpoint]:
    """Return the endpoints that may be given another request, and those that are barred whatever they have."""
    most = indexed.model.inflight
    if most is not None and most <= sum(load.in_flight(one.id) for one in indexed.endpoints):
        return []
    return [
        one
        for one in indexed.endpoints
        if one.max_inflight is None or one.id in barred or load.in_flight(one.id) < one.max_inflight
    ]


def choose(
    shape: RequestShape,
    index: TableIndex,
    load: Load,
    rng: Chance,
    excluded: AbstractSet[ReplicaId] = NONE_EXCLUDED,
    barred: Mapping[ReplicaId, float] = NONE_BARRED,
) -> Target | Wait | Refusal:
    """Return the endpoint with the least in flight that is neither excluded nor barred nor full, or why there is none.

    `barred` are endpoints whose circuit is open, and for how many seconds.
    """
    indexed = index.models.get(shape.model)
    if indexed is None:
        return unknown_model(shape.model)
    model = indexed.model
    if indexed.simple and not excluded and not barred:
        return Target(indexed.endpoints[0])
    endpoints = _with_room(indexed, load, barred) if indexed.limited else indexed.endpoints
    least: list[Endpoint] = []
    fewest = 0
    wait: float | None = None
    for endpoint in endpoints:
        if endpoint.id in excluded:
            continue
        if endpoint.id in barred:
            wait = min(barred[endpoint.id], wait if wait is not None else barred[endpoint.id])
            continue
        count = load.in_flight(endpoint.id)
        if not least or count < fewest:
            least, fewest = [endpoint], count
        elif count == fewest:
            least.append(endpoint)
    if least:
        return Target(least[0] if len(least) == 1 else least[rng.randrange(len(least))])
    if len(endpoints) < len(indexed.endpoints):
        skipped = {one.id for one in indexed.endpoints} - {one.id for one in endpoints}
        if not skipped <= excluded:
            return Wait(model)
    return _nothing_ready(model, wait)


def _nothing_ready(model: RoutedModel, wait: float | None) -> Refusal:
    """Return what a client is told; `wait` are the seconds until a circuit closes."""
    if wait is not None:
        seconds = max(1, ceil(wait))
        message = f"No replica of the model `{model.name}` can be reached now; come again in {seconds} s."
        return Refusal(503, "model_unreachable", message, seconds)
    if model.wanted == 0:
        message = f"The model `{model.name}` is switched off: its cluster directory wants 0 replicas."
        return Refusal(503, "model_switched_off", message, None)
    message = f"The model `{model.name}` has no ready replica now; come again in {model.retry_after} s."
    return Refusal(503, "model_not_ready", message, model.retry_after)
