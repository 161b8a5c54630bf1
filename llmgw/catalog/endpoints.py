"""Rules about `Endpoint` objects: where each leads, and which model each of the names it lists stands for.

A name that a Model has, as its name or as an alias, joins that Model: both serve it. That is how an upstream with names of its
own (`org/Name-8B`) stands in for a Model of this directory: by an alias. What is refused is what would be settled by chance:
one Model listed twice by two of its names, which would get twice its share, and spellings that differ in case only, which
gateways take for two models and people for one.
"""

import ipaddress
from collections.abc import Iterator

from llmgw.catalog.document import Document, Path
from llmgw.catalog.problems import Problem
from llmgw.catalog.read import Read, of_kind
from llmgw.catalog.wording import quoted
from llmgw.spec.endpoint import Endpoint
from llmgw.spec.model import Model
from llmgw.spec.upstream_url import Place, place_of

Owned = tuple[Document, Path, str, str]
"""(document, where it stands there, the spelling, the model that it stands for)"""


def endpoint_rules(objects: list[Read]) -> Iterator[Problem]:
    """Return what is wrong with the valid ones."""
    owners = _owners(objects)
    for document, endpoint in of_kind(objects, Endpoint):
        yield from _url(document, endpoint)
        yield from _models(document, endpoint, owners)


def _owners(objects: list[Read]) -> dict[str, Owned]:
    """Return who has each name first, by the name without case: models by name, by alias, then endpoints."""
    found: dict[str, Owned] = {}
    models = list(of_kind(objects, Model))
    for document, model in models:
        found.setdefault(model.name.casefold(), (document, ("name",), model.name, model.name))
    for document, model in models:
        for index, alias in enumerate(model.aliases):
            found.setdefault(alias.casefold(), (document, ("aliases", index), alias, model.name))
        for index, adapter in enumerate(model.adapters):
            found.setdefault(
                adapter.name.casefold(), (document, ("adapters", index, "name"), adapter.name, adapter.name)
            )
    for document, endpoint in of_kind(objects, Endpoint):
        for index, name in enumerate(endpoint.models):
            found.setdefault(name.casefold(), (document, ("models", index), name, name))
    return found


def _models(document: Document, endpoint: Endpoint, owners: dict[str, Owned]) -> Iterator[Problem]:
    listed: dict[str, int] = {}
    for index, name in enumerate(endpoint.models):
        path: Path = ("models", index)
        owner, at, spelling, model = owners[name.casefold()]
        if model in listed:
            line = document.value_place(("models", listed[model])).line
            if endpoint.models[listed[model]] == name:
                message = f"{quoted(name)} repeats what line {line} says; remove it"
            else:
                message = (
                    f"{quoted(name)} is model {quoted(model)}, which line {line} lists already; keep one of the two"
                )
            yield document.problem(path, "duplicate-model", message)
        elif spelling != name:
            what = f"model {quoted(model)}" if owner.kind == "Model" else f"{quoted(spelling)} of {owner.name}"
            message = f"{quoted(name)} differs from {what} at {owner.where(at)} in case only; write both alike"
            yield document.problem(path, "case-collision", message)
        listed.setdefault(model, index)


def _url(document: Document, endpoint: Endpoint) -> Iterator[Problem]:
    try:
        place = place_of(endpoint.url)
    except ValueError as error:
        message = f"{error}; write it up to what stands before `/v1`, as in https://llm.example.org"
        yield document.problem(("url",), "wrong-url", message)
        return
    if endpoint.api_key is not None and not place.tls and not _is_loopback(place):
        message = f"the key is sent to {place.host} unencrypted, for everybody on the way to read; use https"
        yield document.problem(("url",), "plain-key", message, "warning")


def _is_loopback(place: Place) -> bool:
    try:
        return ipaddress.ip_address(place.host).is_loopback
    except ValueError:
        return place.host == "localhost"
