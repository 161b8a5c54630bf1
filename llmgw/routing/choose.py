"""`choose`: the endpoint for a request, or the refusal that its client gets. Pure; called once a try.

Least in flight, ties by chance: the gateway's own counts are exact and current, where polled engine metrics are late
and herd every gateway to the same replica. Prefix affinity and flow control will score here too. Only the caller knows
which endpoints already failed this request; it passes them as `excluded`.
"""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Protocol

from llmgw.base.ids import ReplicaId
from llmgw.fleet.table import Endpoint
from llmgw.routing.index import TableIndex
from llmgw.routing.load import Load
from llmgw.routing.request import RequestShape

NAME_SHOWN = 200
"""Characters of a client's model name that are repeated to it."""

NONE_EXCLUDED: frozenset[ReplicaId] = frozenset()


class Chance(Protocol):
    """The source of chance; `random.Random` is one."""

    def randrange(self, start: int, /) -> int:
        """Return a number from 0 to below `start`."""
        ...


@dataclass(frozen=True, slots=True)
class Target:
    """Send the request there. The caller takes the slot before it does anything else."""

    endpoint: Endpoint


@dataclass(frozen=True, slots=True)
class Refusal:
    """Answer the client so."""

    status: int
    code: str
    message: str
    retry_after: int | None
    """Seconds; None where waiting does not help."""


def choose(
    shape: RequestShape,
    index: TableIndex,
    load: Load,
    rng: Chance,
    excluded: AbstractSet[ReplicaId] = NONE_EXCLUDED,
) -> Target | Refusal:
    """Return the endpoint with the least in flight that is not excluded, or why there is none."""
    indexed = index.models.get(shape.model)
    if indexed is None:
        name = shape.model if len(shape.model) <= NAME_SHOWN else shape.model[:NAME_SHOWN] + "…"
        message = f"The model `{name}` does not exist or you do not have access to it."
        return Refusal(404, "model_not_found", message, None)
    least: list[Endpoint] = []
    fewest = 0
    for endpoint in indexed.endpoints:
        if endpoint.id in excluded:
            continue
        count = load.in_flight(endpoint.id)
        if not least or count < fewest:
            least, fewest = [endpoint], count
        elif count == fewest:
            least.append(endpoint)
    if least:
        return Target(least[0] if len(least) == 1 else least[rng.randrange(len(least))])
    model = indexed.model
    if model.wanted == 0:
        message = f"The model `{model.name}` is switched off: its cluster directory wants 0 replicas."
        return Refusal(503, "model_switched_off", message, None)
    message = f"The model `{model.name}` has no ready replica now; come again in {model.retry_after} s."
    return Refusal(503, "model_not_ready", message, model.retry_after)
