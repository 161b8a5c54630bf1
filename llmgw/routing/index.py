"""`TableIndex`: one `EndpointTable`, arranged for looking up; built once a swap, read once a request.

Names are matched exactly, as clients of every engine expect. A name beats an alias, and the earlier model keeps an
alias that two claim: the catalog refuses both cases, but a table from elsewhere must not route by chance. An endpoint
of a model that the table does not list is not routed to: nobody said that it should serve.

A LoRA adapter is a model with the endpoints of the one it adapts, those that have it. They keep their ids: what is in flight at
an engine, and whether it can be reached, is the same for all that it serves.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from llmgw.base.ids import ReplicaId
from llmgw.fleet.table import Address, Endpoint, EndpointTable, GatewaySettings, RoutedModel


@dataclass(frozen=True, slots=True)
class IndexedModel:
    """A model and its ready endpoints, in the table's order."""

    model: RoutedModel
    endpoints: tuple[Endpoint, ...]
    simple: bool
    """Whether there is one endpoint, and no limit to what it is given."""
    limited: bool
    """Whether there is such a limit, of the model or of an endpoint."""


@dataclass(frozen=True, slots=True)
class TableIndex:
    """The lookup side of one table."""

    version: int
    models: Mapping[str, IndexedModel]
    """By name and by alias."""
    servable: tuple[str, ...]
    """Names and aliases of the models that have an endpoint, in the table's order."""
    endpoints: tuple[Endpoint, ...]
    ids: frozenset[ReplicaId]
    addresses: frozenset[Address]
    settings: GatewaySettings
    keep_alives: tuple[float, ...]
    """Seconds of silence after which clients of some model are sent a comment."""


def index_table(table: EndpointTable) -> TableIndex:
    """Return the index of a table."""
    ready: dict[str, list[Endpoint]] = {model.name: [] for model in table.models}
    for endpoint in table.endpoints:
        if endpoint.model in ready:
            ready[endpoint.model].append(endpoint)
    by_name: dict[str, IndexedModel] = {}
    for model in table.models:
        found = tuple(ready[model.name])
        if model.adapts is not None:
            found += tuple(_adapted(model.name, ready.get(model.adapts, [])))
        limited = model.inflight is not None or any(one.max_inflight is not None for one in found)
        by_name[model.name] = IndexedModel(model, found, len(found) == 1 and not limited, limited)
    for model in table.models:
        for alias in model.aliases:
            by_name.setdefault(alias, by_name[model.name])
    return TableIndex(
        version=table.version,
        models=by_name,
        servable=tuple(name for name, indexed in by_name.items() if indexed.endpoints),
        endpoints=table.endpoints,
        ids=frozenset(endpoint.id for endpoint in table.endpoints),
        addresses=frozenset(endpoint.address for endpoint in table.endpoints),
        settings=table.settings,
        keep_alives=tuple(sorted({one.keep_alive for one in table.models if one.keep_alive is not None})),
    )


def _adapted(adapter: str, endpoints: list[Endpoint]) -> Iterator[Endpoint]:
    """Yield the endpoints that have an adapter, under the name that their engine has for it."""
    for endpoint in endpoints:
        name = dict(endpoint.adapters).get(adapter)
        if name is not None:
            yield replace(endpoint, served_name=name)
