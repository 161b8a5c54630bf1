"""What two catalogs differ in: one `ObjectChange` an object, with the fields, their values and what each change costs.

Objects are paired by kind and name, never by path, so a moved file is not a change. Values are compared with defaults
filled in, so writing a default down is not a change either. Items of lists are paired by their `name` where they have one.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Literal

from pydantic import BaseModel

from llmgw.catalog.catalog import Catalog
from llmgw.spec.common import Impact, Secret, impact_of


@dataclass(frozen=True, slots=True)
class FieldChange:
    """One field of an object. Values are JSON text; empty for what is not there."""

    path: str
    before: str
    after: str
    impact: Impact


@dataclass(frozen=True, slots=True)
class ObjectChange:
    """One object."""

    action: Literal["create", "update", "delete"]
    kind: str
    name: str
    path: str
    fields: tuple[FieldChange, ...]


def diff(before: Catalog | None, after: Catalog) -> tuple[ObjectChange, ...]:
    """Return what changes from one catalog to the other, by kind and name; a renamed model is one that changed its name."""
    old = _objects(before) if before is not None else {}
    new = _objects(after)
    changes = []
    moved = {
        ("Model", model.moved_from): ("Model", name)
        for name, model in after.models.items()
        if model.moved_from is not None and ("Model", model.moved_from) in old
    }
    for key, to in moved.items():
        if to not in old:
            old[to] = old.pop(key)
    for kind, name in sorted(old.keys() | new.keys()):
        key = (kind, name)
        if key not in new:
            assert before is not None
            changes.append(ObjectChange("delete", kind, name, before.paths.get(key, ""), ()))
        elif key not in old:
            changes.append(ObjectChange("create", kind, name, after.paths.get(key, ""), ()))
        else:
            fields = tuple(_fields(old[key], new[key], ""))
            if fields:
                changes.append(ObjectChange("update", kind, name, after.paths.get(key, ""), fields))
    return tuple(changes)


def _objects(catalog: Catalog) -> dict[tuple[str, str], BaseModel]:
    objects: dict[tuple[str, str], BaseModel] = {("Cluster", catalog.cluster.name): catalog.cluster}
    objects.update({("Node", name): node for name, node in catalog.nodes.items()})
    objects.update({("Model", name): model for name, model in catalog.models.items()})
    objects.update({("Endpoint", name): endpoint for name, endpoint in catalog.endpoints.items()})
    objects.update({("Tenant", name): tenant for name, tenant in catalog.tenants.items()})
    return objects


def _fields(old: BaseModel, new: BaseModel, prefix: str) -> Iterator[FieldChange]:
    for name in type(new).model_fields:
        impact = impact_of(type(new), name)
        before, after = getattr(old, name), getattr(new, name)
        if before != after and isinstance(before, int | float) and isinstance(after, int | float):
            yield FieldChange(f"{prefix}{name}", _as_written(old, name), _as_written(new, name), impact)
        else:
            yield from _values(before, after, f"{prefix}{name}", impact)


def _as_written(model: BaseModel, name: str) -> str:
    """Return a number as its file has it: durations and sizes with their unit."""
    value = model.model_dump(mode="json", include={name})[name]
    return value if isinstance(value, str) else json.dumps(value)


def _values(old: Any, new: Any, path: str, impact: Impact) -> Iterator[FieldChange]:
    if old == new:
        return
    if isinstance(old, Secret) and isinstance(new, Secret):  # what another secret costs depends on whose it is
        yield FieldChange(path, _text(old), _text(new), impact)
    elif isinstance(old, BaseModel) and isinstance(new, BaseModel) and type(old) is type(new):
        yield from _fields(old, new, f"{path}.")
    elif isinstance(old, list) and isinstance(new, list) and (names := _named(old)) and (others := _named(new)):
        gone = [key for key in names if key not in others]
        added = [key for key in others if key not in names]
        for key in names:
            if key in others:
                yield from _values(names[key], others[key], f"{path}[name={key}]", impact)
        for before, after in zip_longest(gone, added):  # a renamed item is one that changed its name
            label = before if before is not None else after
            yield from _values(names.get(before), others.get(after), f"{path}[name={label}]", impact)
    else:
        yield FieldChange(path, _text(old), _text(new), impact)


def _named(items: list[Any]) -> Mapping[str, BaseModel]:
    if not all(isinstance(item, BaseModel) and hasattr(item, "name") for item in items):
        return {}
    return {item.name: item for item in items}


def _text(value: Any) -> str:
    if value is None:
        return ""
    return json.dumps(value, ensure_ascii=False, default=_written)


def _written(value: Any) -> Any:
    """Return an object, wherever it stands in a value, as it is written; a secret is its reference."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", by_alias=True, exclude_unset=True)
    raise TypeError(f"{type(value).__name__} is not a value of a file")
