"""pydantic and the JSON Schema agree on every document: an editor never says otherwise than `llmgw validate`.

Documents are made from the spec's own types, then spoiled in one place or two. Left out are three things on which the two
cannot be compared: null, which the reader refuses before pydantic sees a document; whole floats, which JSON Schema calls
integers and YAML writes as `1.0`; and texts that end in a line end, which Python's `$` lets pass.
"""

import copy
import json
import os
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, StringConstraints, ValidationError
from pydantic.fields import FieldInfo

from llmgw.spec.common import Duration, Share, Size
from llmgw.spec.kinds import KINDS
from llmgw.spec.schema import schema_files

SCHEMAS = {kind: json.loads(schema_files()[f"{kind.lower()}.schema.json"]) for kind in KINDS}
VALIDATORS = {kind: jsonschema.Draft7Validator(schema) for kind, schema in SCHEMAS.items()}
UNITS = {
    id(get_args(Duration)[1]): st.from_regex(r"[1-9][0-9]{0,3}(ms|s|m|h|d)", fullmatch=True),
    id(get_args(Size)[1]): st.from_regex(r"[1-9][0-9]{0,3}(B|KiB|MiB|GiB|TiB)", fullmatch=True),
    id(get_args(Share)[1]): st.integers(0, 100).map(lambda number: f"{number}%"),
}


def _values(annotation: Any, metadata: tuple[Any, ...] = ()) -> st.SearchStrategy[Any]:
    """Return values of a type as YAML would bring them."""
    origin = get_origin(annotation)
    if origin is Annotated:
        inner, *more = get_args(annotation)
        return _values(inner, (*more, *metadata))
    for item in metadata:
        if id(item) in UNITS:
            return UNITS[id(item)]
    if origin in (Union, UnionType):
        return st.one_of([_values(one) for one in get_args(annotation) if one is not NoneType])
    if origin is Literal:
        return st.sampled_from(get_args(annotation))
    if origin is list:
        smallest = next((one.min_length for one in metadata if getattr(one, "min_length", None)), 0)
        largest = next((one.max_length for one in metadata if getattr(one, "max_length", None)), smallest + 2)
        return st.lists(_values(get_args(annotation)[0]), min_size=smallest, max_size=largest)
    if origin is dict:
        key, value = get_args(annotation)
        return st.dictionaries(_values(key), _values(value), max_size=2)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return _objects(annotation)
    if annotation is bool:
        return st.booleans()
    if annotation is int:
        low = next((one.ge for one in metadata if getattr(one, "ge", None) is not None), -5)
        high = next((one.le for one in metadata if getattr(one, "le", None) is not None), low + 1000)
        return st.integers(low, high)
    assert annotation is str, annotation
    pattern = next((one.pattern for one in metadata if isinstance(one, StringConstraints) and one.pattern), None)
    pattern = pattern or next((one.pattern for one in metadata if getattr(one, "pattern", None)), None)
    if pattern is not None:
        return st.from_regex(str(pattern), fullmatch=True).filter(
            lambda text: not text.endswith("\n") and len(text) < 200
        )
    return st.sampled_from(["x", "a text", "0", "true", "--flag", "ä"])


def _field(field: FieldInfo) -> st.SearchStrategy[Any]:
    return _values(field.annotation, tuple(field.metadata))


def _objects(model: type[BaseModel]) -> st.SearchStrategy[dict[str, Any]]:
    required = {f.alias or name: _field(f) for name, f in model.model_fields.items() if f.is_required()}
    optional = {f.alias or name: _field(f) for name, f in model.model_fields.items() if not f.is_required()}
    made = st.fixed_dictionaries(required, optional=optional)
    rule = COHERENT.get(model.__name__)
    if rule is None:
        return made
    # mostly coherent: left to chance, hardly any document with rules over several fields would be valid
    return st.tuples(made, st.integers(0, 9)).map(lambda pair: rule(pair[0]) if pair[1] else pair[0])


def _weights(value: dict[str, Any]) -> dict[str, Any]:
    if "hf" in value:
        return {key: inner for key, inner in value.items() if key in ("hf", "revision", "files")}
    if "url" in value and "sha256" in value:
        return {"url": value["url"], "sha256": value["sha256"]}
    return {"path": value.get("path", "x"), **({"sha256": value["sha256"]} if "sha256" in value else {})}


def _profile(value: dict[str, Any]) -> dict[str, Any]:
    without = {key: inner for key, inner in value.items() if key not in ("runtime", "image")}
    return {**without, "runtime": "docker", "image": "an/image"} if "image" in value else without


def _model(value: dict[str, Any]) -> dict[str, Any]:
    return {key: inner for key, inner in value.items() if key != "replicas" or "scale" not in value}


def _node(value: dict[str, Any]) -> dict[str, Any]:
    reached = {key: inner for key, inner in value.items() if key not in ("local", "traffic")}
    if "address" in reached:
        reached["traffic"] = "direct"
    return reached if "ssh" in reached else {**reached, "local": True}


def _one_key(value: dict[str, Any]) -> dict[str, Any]:
    return {key: inner for key, inner in value.items() if key != "identity_file" or "identity" not in value}


COHERENT = {
    "Weights": _weights,
    "Profile": _profile,
    "Model": _model,
    "Node": _node,
    "Ssh": _one_key,
    "SshDefaults": _one_key,
}


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path]
    if isinstance(value, dict):
        for key, inner in value.items():
            found += _places(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            found += _places(inner, (*path, index))
    return found


TIED = {"hf", "path", "url", "sha256", "replicas", "scale", "runtime", "image", "ssh", "local", "traffic", "address"}
TIED |= {"identity", "identity_file"}
"""Keys that rules over several fields look at; spoiled more often than others."""
SPOILERS = [7, -1, 0, 1.5, True, "", "x y", "30", "NO", [], {}, ["a"], {"a": 1}, "9" * 300, 10**9]


def _spoiled(document: dict[str, Any], draw: Any) -> dict[str, Any]:
    spoiled = copy.deepcopy(document)
    places = [place for place in _places(spoiled) if place]
    path = draw(st.sampled_from(places + [place for place in places if place[-1] in TIED] * 5))
    parent: Any = spoiled
    for part in path[:-1]:
        parent = parent[part]
    how = draw(st.sampled_from(["replace", "remove", "rename", "add"]))
    if how == "replace":
        parent[path[-1]] = copy.deepcopy(draw(st.sampled_from(SPOILERS)))
    elif how == "remove":
        del parent[path[-1]]
    elif isinstance(parent, dict):
        parent["extra" if how == "add" else f"{path[-1]}x"] = parent[path[-1]] if how == "add" else parent.pop(path[-1])
    return spoiled


@st.composite
def documents(draw: Any, kind: str) -> dict[str, Any]:
    document: dict[str, Any] = draw(_objects(KINDS[kind]))
    for _ in range(draw(st.integers(0, 2))):
        if len(document) > 1:
            document = _spoiled(document, draw)
    return document


def _pydantic_says(kind: str, document: dict[str, Any]) -> str:
    try:
        KINDS[kind].model_validate(document)
    except ValidationError as error:
        return str(error)
    return ""


def _agree(kind: str, document: dict[str, Any]) -> None:
    pydantic = _pydantic_says(kind, document)
    schema = [f"{list(error.absolute_path)}: {error.message}" for error in VALIDATORS[kind].iter_errors(document)]
    assert bool(pydantic) == bool(schema), f"pydantic: {pydantic or 'valid'}\nschema: {schema or 'valid'}\n{document}"


@pytest.mark.parametrize("kind", list(KINDS))
def test_the_schema_is_a_valid_draft_7_schema(kind: str) -> None:
    jsonschema.Draft7Validator.check_schema(SCHEMAS[kind])


@pytest.mark.parametrize("kind", list(KINDS))
def test_pydantic_and_the_schema_agree(kind: str) -> None:
    @settings(
        max_examples=100 * int(os.environ.get("LLMGW_FUZZ", "1")),
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(documents(kind))
    def agree(document: dict[str, Any]) -> None:
        _agree(kind, document)

    agree()


def test_both_verdicts_occur() -> None:
    """The comparison is worth something only if there are documents of both kinds."""
    for kind in KINDS:
        verdicts: set[bool] = set()
        settled = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), database=None)
        settled(given(documents(kind))(lambda document: _note(kind, document, verdicts)))()  # noqa: B023 - run at once
        assert verdicts == {True, False}, kind


def _note(kind: str, document: dict[str, Any], verdicts: set[bool]) -> None:
    verdicts.add(bool(_pydantic_says(kind, document)))


HEAD = {"apiVersion": "llmgw/v1", "name": "a"}
SSH = {"host": "h", "host_key": "ssh-ed25519 AAAA"}


def _subsets(parts: dict[str, Any]) -> list[dict[str, Any]]:
    """Return every choice of the parts: with few enough, all are tried, and none is left to chance."""
    keys = list(parts)
    return [{key: parts[key] for bit, key in enumerate(keys) if number >> bit & 1} for number in range(1 << len(keys))]


def test_every_combination_of_weights_agrees() -> None:
    parts = {"hf": "o/n", "revision": "r", "files": ["x"], "path": "p", "url": "http://h/f", "sha256": "0" * 64}
    for weights in _subsets(parts):
        _agree("Model", {**HEAD, "kind": "Model", "weights": weights, "profiles": [{"engine": "e"}]})


def test_every_combination_of_runtime_image_and_number_agrees() -> None:
    for runtime in ({}, {"runtime": "process"}, {"runtime": "docker"}, {"runtime": "podman"}):
        for rest in _subsets({"image": "i", "replicas": 2, "scale": {"max": 3}}):
            image = {"image": rest.pop("image")} if "image" in rest else {}
            profile = {"engine": "e", **runtime, **image}
            _agree("Model", {**HEAD, "kind": "Model", "weights": {"path": "p"}, "profiles": [profile], **rest})


def test_every_combination_of_ways_to_a_node_agrees() -> None:
    for local in ({}, {"local": True}, {"local": False}):
        for traffic in ({}, {"traffic": "tunnel"}, {"traffic": "direct"}):
            for rest in _subsets({"ssh": SSH, "address": "10.0.0.1"}):
                _agree("Node", {**HEAD, "kind": "Node", **local, **traffic, **rest})


def test_every_combination_of_keys_to_log_in_with_agrees() -> None:
    for keys in _subsets({"identity": {"secret": "ID"}, "identity_file": "/id"}):
        _agree("Node", {**HEAD, "kind": "Node", "ssh": {**SSH, **keys}})
        _agree("Cluster", {**HEAD, "kind": "Cluster", "ssh": keys})
