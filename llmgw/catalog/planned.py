"""Warns of every field that is set and that nothing acts on yet, so that nobody relies on what is only checked and kept."""

from collections.abc import Iterator, Mapping
from functools import cache

from llmgw.catalog.document import Path
from llmgw.catalog.problems import Problem
from llmgw.catalog.read import Read
from llmgw.spec.common import SpecModel, is_planned


def planned_fields(objects: list[Read]) -> Iterator[Problem]:
    """Return a warning for the outermost of each such field."""
    for each in objects:
        if each.spec is None:
            continue
        for path in _set(each.spec, ()):
            name = next(part for part in reversed(path) if isinstance(part, str))
            message = f"{name!r} is checked and kept; nothing acts on it yet"
            yield each.document.key_problem(path, "not-acted-on", message, "warning")


def _set(spec: SpecModel, path: Path) -> Iterator[Path]:
    fields, planned = type(spec).model_fields, _planned(type(spec))
    for name in sorted(spec.model_fields_set):
        here = (*path, fields[name].alias or name)
        if name in planned:
            yield here
            continue
        value = getattr(spec, name)
        if isinstance(value, SpecModel | list | dict):
            yield from _inside(value, here)


@cache
def _planned(model: type[SpecModel]) -> frozenset[str]:
    return frozenset(name for name in model.model_fields if is_planned(model, name))


def _inside(value: object, path: Path) -> Iterator[Path]:
    match value:
        case SpecModel():
            yield from _set(value, path)
        case list():
            for index, item in enumerate(value):
                yield from _inside(item, (*path, index))
        case Mapping():
            for key, item in value.items():
                yield from _inside(item, (*path, str(key)))
        case _:
            return
