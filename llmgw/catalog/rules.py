"""What must hold between objects. Each rule is a function over what was read; none repeats what an object's check said.

Rules about what is there look at documents, valid or not, so that one run shows everything. Rules about what is missing
or about sums would guess that way (a model in a file with a syntax error is not a model that was removed): they look at
valid objects, and those about absence are silent while any file is unreadable.
"""

from collections.abc import Iterator

from llmgw.catalog.capabilities import engine_rules, unknown_engine
from llmgw.catalog.document import Document, Path
from llmgw.catalog.endpoints import endpoint_rules
from llmgw.catalog.planned import planned_fields
from llmgw.catalog.problems import Problem
from llmgw.catalog.read import Read, of_kind
from llmgw.catalog.references import reference_rules
from llmgw.catalog.wording import quoted
from llmgw.engines.facts import FACTS
from llmgw.spec.cluster import Cluster
from llmgw.spec.model import Model
from llmgw.spec.node import Node

_ONE_OF_TWO = {"alias": "remove it", "adapter": "give it a name of its own"}


def cross_check(objects: list[Read], *, all_readable: bool) -> list[Problem]:
    """Return what is wrong between objects. `all_readable` is False if some file gave no document of a known kind."""
    return [
        *_one_cluster(objects, all_readable=all_readable),
        *_unique_objects(objects),
        *_unique_names_served(objects),
        *_moves(objects),
        *_profile_engines(objects),
        *_cluster_engines(objects),
        *_profile_names(objects),
        *_cluster_lists(objects),
        *_ports(objects),
        *engine_rules(objects),
        *endpoint_rules(objects),
        *planned_fields(objects),
        *(reference_rules(objects) if all_readable and all(each.spec is not None for each in objects) else ()),
    ]


def _one_cluster(objects: list[Read], *, all_readable: bool) -> Iterator[Problem]:
    clusters = [each.document for each in objects if each.document.kind == "Cluster"]
    if not clusters and all_readable:
        yield Problem("", 0, 0, "no Cluster object; add a file with `kind: Cluster` and a name", "no-cluster")
    for document in clusters[1:]:
        message = f"a second Cluster object, the first is at {clusters[0].where(('kind',))}; keep one of them"
        yield document.problem(("kind",), "second-cluster", message)


def _unique_objects(objects: list[Read]) -> Iterator[Problem]:
    first: dict[tuple[str, str], Document] = {}
    for document in (each.document for each in objects):
        key = (document.kind, document.name)
        if document.kind == "Cluster" or not document.name:
            continue
        if key in first:
            what = f"{document.kind} {quoted(document.name)}"
            message = f"{what} is already defined at {first[key].where(('name',))}; rename or remove one of them"
            yield document.problem(("name",), "duplicate-object", message)
        first.setdefault(key, document)


def _moves(objects: list[Read]) -> Iterator[Problem]:
    """A name that a model moved from is free, and given up once."""
    there = {each.document.name for each in objects if each.document.kind == "Model"}
    first: dict[str, Document] = {}
    for each in objects:
        old = each.spec.moved_from if isinstance(each.spec, Model) else None
        if old is None:
            continue
        if old in there:
            message = f"model {quoted(old)} is still there; remove it, or this line if the models are different ones"
            yield each.document.problem(("moved_from",), "moved-from-is-there", message)
        elif old in first:
            where = first[old].where(("moved_from",))
            message = f"model {quoted(old)} already became another one at {where}; remove one of the two lines"
            yield each.document.problem(("moved_from",), "moved-twice", message)
        first.setdefault(old, each.document)


def _unique_names_served(objects: list[Read]) -> Iterator[Problem]:
    """Clients ask for models by name or alias, and gateways compare both without case."""
    owners: dict[str, tuple[Document, Path]] = {}
    models = [each.document for each in objects if each.document.kind == "Model" and each.document.name]
    for document in models:
        owners.setdefault(document.name.casefold(), (document, ("name",)))
    for document in models:
        served = [("alias", *each) for each in _texts(document, ("aliases", "*"))]
        served += [("adapter", *each) for each in _texts(document, ("adapters", "*", "name"))]
        for kind, path, name in served:
            owner, owned = owners.setdefault(name.casefold(), (document, path))
            if (owner, owned) == (document, path):
                continue
            if owner is document:
                line = document.value_place(owned).line
                message = f"{kind} {quoted(name)} repeats what line {line} says; {_ONE_OF_TWO[kind]}"
            else:
                what = {"name": "is the name of", "aliases": "is already an alias of"}.get(
                    str(owned[0]), "is already an adapter of"
                )
                message = f"{kind} {quoted(name)} {what} model {quoted(owner.name)} at {owner.where(owned)}; keep one"
            yield document.problem(path, f"duplicate-{kind}", message)


def _texts(document: Document, path: Path) -> Iterator[tuple[Path, str]]:
    """Yield the texts at a path of a body that may not be valid; a `*` stands for every item of a list."""
    found: list[tuple[Path, object]] = [((), document.body)]
    for part in path:
        found = [each for here, value in found for each in _inner(here, value, part)]
    return ((here, value) for here, value in found if isinstance(value, str))


def _inner(here: Path, value: object, part: str | int) -> Iterator[tuple[Path, object]]:
    match value:
        case list() if part == "*":
            yield from (((*here, index), item) for index, item in enumerate(value))
        case dict() if part in value:
            yield (*here, part), value[part]
        case _:
            pass


def _profile_engines(objects: list[Read]) -> Iterator[Problem]:
    for document in (each.document for each in objects if each.document.kind == "Model"):
        for path, engine in _texts(document, ("profiles", "*", "engine")):
            if engine not in FACTS:
                yield document.problem(path, "unknown-engine", unknown_engine(engine))


def _cluster_engines(objects: list[Read]) -> Iterator[Problem]:
    for document in (each.document for each in objects if each.document.kind == "Cluster"):
        first: dict[str, Path] = {}
        for path, engine in _texts(document, ("engines", "*", "name")):
            if engine not in FACTS:
                yield document.problem(path, "unknown-engine", unknown_engine(engine))
            elif engine in first:
                line = document.value_place(first[engine]).line
                message = f"engine {quoted(engine)} is already given on line {line}; merge the two"
                yield document.problem(path, "duplicate-engine", message)
            first.setdefault(engine, path)


def _profile_names(objects: list[Read]) -> Iterator[Problem]:
    for document in (each.document for each in objects if each.document.kind == "Model"):
        profiles = document.body.get("profiles")
        if not isinstance(profiles, list):
            continue
        first: dict[str, int] = {}
        for index, profile in enumerate(profiles):
            name = str(profile.get("name", "default")) if isinstance(profile, dict) else ""
            if name and name in first:
                path: Path = ("profiles", index, "name") if "name" in profile else ("profiles", index)
                line = document.value_place(("profiles", first[name])).line
                message = f"profile {quoted(name)} is already on line {line}; give each a name of its own"
                yield document.problem(path, "duplicate-profile", message)
            first.setdefault(name, index)


def _cluster_lists(objects: list[Read]) -> Iterator[Problem]:
    """Names within the Cluster's own lists."""
    for document in (each.document for each in objects if each.document.kind == "Cluster"):
        for what, where in (("GPU class", ("gpu_classes",)), ("policy", ("router", "policies"))):
            first: dict[str, Path] = {}
            for path, name in _texts(document, (*where, "*", "name")):
                if name in first:
                    line = document.value_place(first[name]).line
                    message = f"{what} {quoted(name)} is already given on line {line}; rename or remove one of them"
                    yield document.problem(path, "duplicate-name", message)
                first.setdefault(name, path)


def _ports(objects: list[Read]) -> Iterator[Problem]:
    """Ports are given out of one range on every node, so all nodes together have that many times their number."""
    wanted = sum(model.scale.max if model.scale else model.replicas for _, model in of_kind(objects, Model))
    nodes = max(1, sum(1 for _ in of_kind(objects, Node)))
    for document, cluster in of_kind(objects, Cluster):
        low, high = cluster.control.ports
        room = high - low + 1
        if room <= 0:
            message = f"the range ends at {high}, before it begins at {low}; write the lower port first"
            yield document.problem(("control", "ports"), "empty-range", message)
        elif wanted > room * nodes:
            each = f" on each of {nodes} nodes" if nodes > 1 else ""
            message = (
                f"{wanted} replicas in all, but `control.ports` {low} to {high} has only {room} ports{each}; "
                "widen the range"
            )
            yield document.problem(("control", "ports"), "too-few-ports", message)
