"""Static endpoints: engines that somebody else runs, named on a command line (`id=URL=model[,model]`) or by `Endpoint` objects.

They are no replicas: nothing starts or drains them. Those of the catalog are put into the table that is planned, those of a
command line into the finished one, just before it goes to gateways. In a table each pair of endpoint and model has the id
`ID/MODEL`; a replica's id never holds a slash, so the two cannot meet. A model that the catalog has too is served by both; one
that is an alias there joins the model behind it, since a name of its own would take the alias away from the catalog's replicas.
"""

import re
from collections.abc import Container, Iterable
from dataclasses import dataclass, replace

from llmgw.base.ids import ModelName, ReplicaId
from llmgw.fleet.table import EMPTY_TABLE, Endpoint, EndpointTable, RoutedModel, TcpAddress
from llmgw.spec.upstream_url import place_of

FORM = "write id=URL=model[,model], as in box=http://192.0.2.7:8000=llama"
RETRY_AFTER = 5
"""Seconds after which a client should come again if no endpoint of such a model can be reached."""
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_MODEL = re.compile(r"[!-~]{1,200}")


@dataclass(frozen=True, slots=True)
class StaticEndpoint:
    """One of them."""

    id: str
    address: TcpAddress
    prefix: str
    """What stands before `/v1`; empty, or beginning with a slash."""
    models: tuple[str, ...]
    key: str = ""
    """Name of the secret that is sent to it as a bearer token; its value is never here."""


def is_static(endpoint: ReplicaId) -> bool:
    """Whether a table's endpoint is one of these, and no replica."""
    return "/" in endpoint


def ids_of(endpoint: StaticEndpoint) -> tuple[ReplicaId, ...]:
    """Return what its endpoints are called in a table."""
    return tuple(ReplicaId(f"{endpoint.id}/{model}") for model in endpoint.models)


def keyless(table: EndpointTable, keys: Container[str]) -> EndpointTable:
    """Return the table without the endpoints that need a key which is not at hand; its version stays, as counts go by it."""
    if all(not one.key or one.key in keys for one in table.endpoints):
        return table
    return replace(table, endpoints=tuple(one for one in table.endpoints if not one.key or one.key in keys))


def static_endpoints(texts: Iterable[str]) -> tuple[StaticEndpoint, ...]:
    """Return what the texts name. Raises ValueError, whose message says what is wrong with which of them."""
    found: dict[str, StaticEndpoint] = {}
    for text in texts:
        one = _endpoint(text)
        if one.id in found:
            raise ValueError(f"two endpoints are called {one.id!r}; give each an id of its own")
        found[one.id] = one
    return tuple(found.values())


def with_static(table: EndpointTable, endpoints: tuple[StaticEndpoint, ...]) -> EndpointTable:
    """Return the table with these endpoints added, and with the models that only they serve. Its version stays.

    What has an id that is in the table already is left out: two endpoints of one id would be counted as one.
    """
    if not endpoints:
        return table
    known = {one.id for one in table.endpoints}
    models = {model.name: model for model in table.models}
    named: dict[str, ModelName] = {}
    for model in table.models:
        for alias in model.aliases:
            named.setdefault(alias, model.name)
    named |= {name: name for name in models}
    added = []
    for one in endpoints:
        for served, its_id in zip(one.models, ids_of(one), strict=True):
            if its_id in known:
                continue
            name = named.setdefault(served, ModelName(served))
            models.setdefault(name, RoutedModel(name, (), 1, RETRY_AFTER))
            added.append(Endpoint(its_id, name, one.address, served_name=served, prefix=one.prefix, key=one.key))
    return replace(table, models=tuple(models.values()), endpoints=(*table.endpoints, *added))


def static_table(endpoints: tuple[StaticEndpoint, ...]) -> EndpointTable:
    """Return the table of a gateway that has nothing else."""
    return with_static(replace(EMPTY_TABLE, version=1), endpoints)


def _endpoint(text: str) -> StaticEndpoint:
    name, _, rest = text.partition("=")
    url, _, listed = rest.rpartition("=")
    if not url:
        raise ValueError(f"{text!r} does not name an endpoint and its models; {FORM}")
    if not _ID.fullmatch(name):
        raise ValueError(f"{name!r} is no id of an endpoint: letters, digits, '.', '_' and '-', at most 63; {FORM}")
    models = listed.split(",")
    for model in models:
        if not _MODEL.fullmatch(model):
            what = f"{model!r} is no name of a model" if model else "a model's name is empty"
            raise ValueError(f"endpoint {name}: {what}; {FORM}")
    if len(set(models)) < len(models):
        raise ValueError(f"endpoint {name} lists a model twice; name each once")
    try:
        place = place_of(url)
    except ValueError as error:
        raise ValueError(f"endpoint {name}: {error}; {FORM}") from None
    return StaticEndpoint(name, TcpAddress(place.host, place.port, place.tls), place.prefix, tuple(models))
