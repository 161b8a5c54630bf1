"""Static endpoints: engines that somebody else runs, named on a command line as `id=URL=model[,model]`.

They are no replicas: nothing plans, starts or drains them, so they are put into a finished table just before it goes to
gateways. In a table each pair of endpoint and model has the id `ID/MODEL`; a replica's id never holds a slash, so the two
cannot meet. A model that the catalog has too is served by both; one that is an alias there joins the model behind it,
since a name of its own would take the alias away from the catalog's replicas.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from llmgw.base.ids import ModelName, ReplicaId
from llmgw.fleet.table import EMPTY_TABLE, Endpoint, EndpointTable, RoutedModel, TcpAddress

FORM = "write id=URL=model[,model], as in box=http://192.0.2.7:8000=llama"
RETRY_AFTER = 5
"""Seconds after which a client should come again if no endpoint of such a model can be reached."""
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_HOST = re.compile(r"[A-Za-z0-9._-]+|[0-9A-Fa-f:.]+")
_PREFIX = re.compile(r"(/[A-Za-z0-9._~!$&'()*+,;:@%-]+)*")
_MODEL = re.compile(r"[!-~]{1,200}")


@dataclass(frozen=True, slots=True)
class StaticEndpoint:
    """One of them."""

    id: str
    address: TcpAddress
    prefix: str
    """What stands before `/v1`; empty, or beginning with a slash."""
    models: tuple[str, ...]


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
    """Return the table with these endpoints added, and with the models that only they serve. Its version stays."""
    if not endpoints:
        return table
    models = {model.name: model for model in table.models}
    named: dict[str, ModelName] = {}
    for model in table.models:
        for alias in model.aliases:
            named.setdefault(alias, model.name)
    named |= {name: name for name in models}
    added = []
    for one in endpoints:
        for served in one.models:
            name = named.setdefault(served, ModelName(served))
            models.setdefault(name, RoutedModel(name, (), 1, RETRY_AFTER))
            added.append(
                Endpoint(ReplicaId(f"{one.id}/{served}"), name, one.address, served_name=served, prefix=one.prefix)
            )
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
    address, prefix = _place(name, url)
    return StaticEndpoint(name, address, prefix, tuple(models))


def _place(name: str, url: str) -> tuple[TcpAddress, str]:
    """Return where a URL leads, and the prefix before `/v1`, which may be written or left out."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"endpoint {name}: {url} is no URL: {error}; {FORM}") from None
    if parts.username is not None or parts.password is not None:
        raise ValueError(f"endpoint {name}: its URL holds a user or a password, which every user of this host can read")
    host = parts.hostname or ""
    if parts.scheme not in ("http", "https") or not _HOST.fullmatch(host) or port == 0:
        raise ValueError(f"endpoint {name}: {url} is no http:// or https:// URL of a host; {FORM}")
    prefix = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
    if parts.query or parts.fragment or not _PREFIX.fullmatch(prefix):
        raise ValueError(f"endpoint {name}: {url} has more than a path behind its host; {FORM}")
    tls = parts.scheme == "https"
    return TcpAddress(host, port or (443 if tls else 80), tls), prefix
