"""An object as it is in effect: every field that has a value, and where that value was written, or that it is the default.

Values stand as they were written (`60s` stays `60s`); defaults as YAML would have them. A field that takes its default from the
Cluster has the Cluster's value and place. What has no value is left out: there is no way to write "nothing" in this language.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, assert_never

from llmgw.catalog.document import Document, Path
from llmgw.catalog.edit_paths import path_text
from llmgw.catalog.edit_text import scalar_text
from llmgw.spec.cluster import Cluster
from llmgw.spec.common import Impact, SpecModel, impact_of
from llmgw.spec.model import Model

INHERITED: Mapping[tuple[str, Path], Path] = {
    ("Node", ("ssh", "user")): ("ssh", "user"),
    ("Node", ("ssh", "identity_file")): ("ssh", "identity_file"),
    ("Node", ("ssh", "identity")): ("ssh", "identity"),
    ("Model", ("routing", "policy")): ("router", "default_policy"),
}
"""Fields that are the Cluster's where an object leaves them out: kind and path, and the path in the Cluster."""

INSTEAD: Mapping[tuple[str, Path], Path] = {
    ("Node", ("ssh", "identity_file")): ("ssh", "identity"),
    ("Node", ("ssh", "identity")): ("ssh", "identity_file"),
}
"""Fields that are not inherited where the object itself says this other one, which stands in their place."""

WIDEST = 60
"""Comments stand in one column up to this one."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value comes from: a line of a file, or, with an empty file, the language's default."""

    file: str = ""
    line: int = 0

    def __str__(self) -> str:
        """Return `models/x.yaml:7` or `default`."""
        return f"{self.file}:{self.line}" if self.file else "default"


@dataclass(frozen=True, slots=True)
class Leaf:
    """A text, number or truth value."""

    value: str | int | float | bool
    origin: Origin
    impact: Impact


@dataclass(frozen=True, slots=True)
class Branch:
    """A mapping or a list, in order; the keys of a list are positions."""

    is_list: bool
    entries: tuple[tuple[str | int, "Leaf | Branch"], ...]
    origin: Origin
    impact: Impact


@dataclass(frozen=True, slots=True)
class InCluster:
    """The Cluster, which other objects inherit from."""

    document: Document
    spec: Cluster


def effective(document: Document, spec: SpecModel, cluster: InCluster | None) -> Branch:
    """Return a valid object with its defaults. Without the Cluster, what is inherited from it is left out."""
    view = _View(document, cluster)
    dumped = spec.model_dump(mode="json", by_alias=True)
    return Branch(False, tuple(view.fields(spec, dumped, ())), view.origin((), header=True), Impact.NONE)


@dataclass(frozen=True, slots=True)
class _View:
    document: Document
    cluster: InCluster | None

    def fields(self, spec: SpecModel, dumped: Mapping[str, Any], path: Path) -> Iterator[tuple[str, Leaf | Branch]]:
        """Yield an object's fields in the order of the language."""
        for name, field in type(spec).model_fields.items():
            key = field.alias or name
            if isinstance(spec, Model) and spec.scale is not None and name == "replicas":
                continue  # its default is not in effect, and the two together are refused
            value, impact = getattr(spec, name), impact_of(type(spec), name)
            if value is not None:
                yield key, self.shown(value, dumped[key], (*path, key), impact)
            elif (inherited := self._inherited((*path, key), impact)) is not None:
                yield key, inherited

    def shown(self, value: Any, dumped: Any, path: Path, impact: Impact) -> Leaf | Branch:
        """Return a value; `dumped` is the same as YAML would have it."""
        match value:
            case SpecModel():
                entries: tuple[tuple[str | int, Leaf | Branch], ...] = tuple(self.fields(value, dumped, path))
            case Mapping():
                entries = tuple((key, self.shown(value[key], dumped[key], (*path, key), impact)) for key in value)
            case list() | tuple():
                items = zip(value, dumped, strict=True)
                entries = tuple((n, self.shown(*item, (*path, n), impact)) for n, item in enumerate(items))
            case _:
                return Leaf(self._written(path, dumped), self.origin(path, header=False), impact)
        return Branch(isinstance(dumped, list), entries, self.origin(path, header=bool(entries)), impact)

    def origin(self, path: Path, *, header: bool) -> Origin:
        """Return where a value was written; of a collection with something in it, where its key is."""
        if path not in self.document.marks:
            return Origin()
        place = self.document.key_place(path) if header else self.document.value_place(path)
        return Origin(self.document.path, place.line)

    def _written(self, path: Path, dumped: Any) -> Any:
        if path not in self.document.marks:
            return dumped
        value: Any = self.document.body
        for part in path:
            value = value[part]
        return value

    def _inherited(self, path: Path, impact: Impact) -> Leaf | Branch | None:
        source = INHERITED.get((self.document.kind, path))
        if source is None or self.cluster is None or INSTEAD.get((self.document.kind, path)) in self.document.marks:
            return None
        found: Leaf | Branch | None = effective(self.cluster.document, self.cluster.spec, None)
        for part in source:
            found = dict(found.entries).get(part) if isinstance(found, Branch) else None
        return replace(found, impact=impact) if found is not None else None


def values(shown: Leaf | Branch) -> Any:
    """Return the plain values."""
    if isinstance(shown, Leaf):
        return shown.value
    if shown.is_list:
        return [values(item) for _, item in shown.entries]
    return {str(key): values(item) for key, item in shown.entries}


def leaves(shown: Leaf | Branch, path: Path = ()) -> Iterator[tuple[str, Leaf | Branch]]:
    """Yield what has nothing inside it: scalars, and collections that are empty, with their paths."""
    if isinstance(shown, Leaf) or not shown.entries:
        yield path_text(path), shown
        return
    for key, item in shown.entries:
        yield from leaves(item, (*path, key))


def render_yaml(shown: Branch, *, impacts: bool) -> str:
    """Return YAML with each line's origin in a comment, and with what a change of it costs if that is asked for."""
    lines = list(_lines(shown, "", ""))
    width = min(WIDEST, max((len(text) for text, _ in lines), default=0))
    return "".join(f"{text.ljust(width)}  # {_note(each, impacts=impacts)}\n" for text, each in lines)


def _note(shown: Leaf | Branch, *, impacts: bool) -> str:
    return f"{shown.origin}, {shown.impact.value}" if impacts else str(shown.origin)


def _lines(shown: Branch, first: str, indent: str) -> Iterator[tuple[str, Leaf | Branch]]:
    """Yield lines; `first` is what the first one starts with, where that is not the indentation."""
    for number, (key, item) in enumerate(shown.entries):
        lead = first if number == 0 and first else indent
        lead += "-" if shown.is_list else f"{scalar_text(str(key), flow=False)}:"
        match item:
            case Leaf():
                yield f"{lead} {scalar_text(item.value, flow=False)}", item
            case Branch(entries=()):
                yield f"{lead} {'[]' if item.is_list else '{}'}", item
            case Branch() if shown.is_list:
                yield from _lines(item, f"{lead} ", f"{indent}  ")
            case Branch():
                yield lead, item
                yield from _lines(item, "", f"{indent}  ")
            case _:
                assert_never(item)
