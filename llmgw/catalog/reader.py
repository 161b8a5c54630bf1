"""The bytes of one file become a `Document`, or problems, or both: a walk from nodes to plain values.

Every mistake that leaves the rest of the file readable (a duplicate key, a tag, a key without a value) is noted and the
walk goes on, so that one run shows all of them. What a field may hold is not known here; that is `validation`'s.

A null is refused wherever it is written. No field means anything by it, and the way it gets there is a key whose block
was commented out (`cordoned:` with nothing under it), which must not be read as "not cordoned".
"""

import math
import re
from dataclasses import dataclass
from typing import assert_never

from llmgw.catalog.document import Document, Mark, Path, Place, SourceText, shortened
from llmgw.catalog.nodes import Alias, Flawed, Mapping, Node, Scalar, Sequence, Stopped, compose
from llmgw.catalog.problems import Problem
from llmgw.catalog.scalars import resolve
from llmgw.catalog.syntax import TEMPLATE, indent_tab
from llmgw.catalog.text_checks import EMPTY, decode
from llmgw.catalog.wording import quoted

_TEMPLATE = re.compile(r"\{\{.*\}\}|\{%.*%\}", re.DOTALL)
_UNWRITABLE = re.compile("[\x00\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Reading:
    """What came of one file. The document is None where nothing of it could be read; then there are problems."""

    document: Document | None
    problems: tuple[Problem, ...]


def read_document(path: str, data: bytes) -> Reading:
    """Read one file. Never raises: whatever the bytes are, the answer is values and problems."""
    source = decode(path, data)
    if isinstance(source, Problem):
        return Reading(None, (source,))
    try:
        composed = compose(source)
    except Stopped as stopped:
        return Reading(None, (stopped.problem,))
    problems = composed.problems + _tabs(source, composed.quoted)
    match composed.root:
        case None:
            return Reading(None, (*problems, source.problem(Place(1, 1), "empty-file", EMPTY)))
        case Scalar(plain=True, text=""):
            return Reading(None, (*problems, source.problem(Place(1, 1), "empty-file", EMPTY)))
        case Mapping() as root:
            walk = _Walk(source, problems)
            body = walk.mapping(root, (), None)
            return Reading(walk.document(body), tuple(problems))
        case Scalar() | Sequence() | Alias() | Flawed():
            message = "the file is not a mapping; start it with `apiVersion: llmgw/v1`, `kind:` and `name:`"
            return Reading(None, (*problems, source.problem(composed.root.place, "not-a-mapping", message)))
        case _:
            assert_never(composed.root)


def _tabs(source: SourceText, quoted: frozenset[int]) -> list[Problem]:
    if "\t" not in source.text:
        return []
    found = (indent_tab(source, number) for number in range(1, len(source.lines) + 1) if number not in quoted)
    return [problem for problem in found if problem is not None]


@dataclass(slots=True)
class _Pair:
    """A key of a mapping, its own or merged."""

    key: str
    place: Place
    value: Node
    at: Place | None
    """Place of the alias it came through; None for what is written here."""


class _Walk:
    """Nodes to values. `at` is the alias a node is reached through: its place counts, its problems are known."""

    def __init__(self, source: SourceText, problems: list[Problem]) -> None:
        self.source = source
        self.problems = problems
        self.marks: dict[Path, Mark] = {}
        self.flawed: set[Path] = set()
        self.incomplete: set[Path] = set()

    def document(self, body: dict[str, object]) -> Document:
        """Return the document whose values were walked."""
        kind, name = (value if isinstance(value := body.get(key), str) else "" for key in ("kind", "name"))
        return Document(self.source, kind, name, body, self.marks, frozenset(self.flawed), frozenset(self.incomplete))

    def mapping(self, node: Mapping, path: Path, at: Place | None, key: Place | None = None) -> dict[str, object]:
        """Return a mapping's values, the merged ones behind its own."""
        self._mark(path, node.place, at, key)
        values: dict[str, object] = {}
        for pair in self._pairs(node, path, at):
            values[pair.key] = self._value(pair.value, (*path, pair.key), pair.at, pair.place)
        return values

    def _mark(self, path: Path, place: Place, at: Place | None, key: Place | None, plain: str | None = None) -> None:
        self.marks[path] = Mark(at or place, key, plain, at is not None)

    def _value(self, node: Node, path: Path, at: Place | None, key: Place | None) -> object:
        match node:
            case Scalar():
                return self._scalar(node, path, at, key)
            case Sequence():
                self._mark(path, node.place, at, key)
                return [self._value(item, (*path, index), at, None) for index, item in enumerate(node.items)]
            case Mapping():
                if _is_template(node):
                    return self._flaw(path, at, key, node.place, "template", TEMPLATE)
                return self.mapping(node, path, at, key)
            case Alias():
                return self._value(node.target, path, at or node.place, key)
            case Flawed():
                self._mark(path, node.place, at, key)
                self.flawed.add(path)
                return None
            case _:
                assert_never(node)

    def _scalar(self, node: Scalar, path: Path, at: Place | None, key: Place | None) -> object:
        place = node.place
        if not node.plain:
            self._mark(path, place, at, key)
            bad = _UNWRITABLE.search(node.text)
            if bad is not None:
                message = f"an escape for U+{ord(bad[0]):04X}, which no text can hold; write the character itself"
                return self._flaw(path, at, key, place, "bad-character", message)
            return node.text
        self._mark(path, place, at, key, node.text)
        value = resolve(node.text)
        if value is None:
            # Nothing has no place of its own: the scanner is at the next line by then.
            where = place if node.text or key is None else key
            return self._flaw(path, at, key, where, "no-value", _no_value(path, node.text))
        if isinstance(value, float) and not math.isfinite(value):
            message = f"`{shortened(node.text)}` is not a number that any field takes; put it in quotes if it is text"
            return self._flaw(path, at, key, place, "not-finite", message)
        if isinstance(value, str) and _TEMPLATE.search(value):
            return self._flaw(path, at, key, place, "template", TEMPLATE)
        return value

    def _flaw(self, path: Path, at: Place | None, key: Place | None, place: Place, code: str, message: str) -> object:
        """Note that a value is of no use, and return what stands in for it."""
        if path not in self.marks:
            self._mark(path, place, at, key)
        self.flawed.add(path)
        self._say(at, place, code, message)
        return None

    def _say(self, at: Place | None, place: Place, code: str, message: str) -> None:
        if at is None:
            self.problems.append(self.source.problem(place, code, message))

    def _pairs(self, node: Mapping, path: Path, at: Place | None) -> list[_Pair]:
        own: dict[str, _Pair] = {}
        merged: list[Node] = []
        merge_place: Place | None = None
        for key_node, value in node.pairs():
            if isinstance(key_node, Scalar) and key_node.plain and key_node.text == "<<":
                if merge_place is not None:
                    message = f"a second `<<`, first given on line {merge_place.line}; write `<<: [*a, *b]`"
                    self._say(at, key_node.place, "duplicate-key", message)
                merge_place = merge_place or key_node.place
                merged.extend(value.items if isinstance(value, Sequence) else [value])
                continue
            key = self._key(key_node, path, at)
            if key is None:
                continue
            if key in own:
                message = f"duplicate key {quoted(key)}, first given on line {own[key].place.line}; keep one of them"
                self._say(at, key_node.place, "duplicate-key", message)
                continue
            own[key] = _Pair(key, at or key_node.place, value, at)
        for source in merged:
            for pair in self._merged(source, path, at):
                own.setdefault(pair.key, pair)
        return list(own.values())

    def _merged(self, node: Node, path: Path, at: Place | None) -> list[_Pair]:
        place = at or node.place
        target = node.target if isinstance(node, Alias) else node
        match target:
            case Mapping():
                quiet = place if isinstance(node, Alias) else at
                return [_Pair(pair.key, place, pair.value, place) for pair in self._pairs(target, path, quiet)]
            case Flawed():
                self.incomplete.add(path)
                return []
            case Scalar() | Sequence():
                self._say(
                    at,
                    node.place,
                    "bad-merge",
                    "`<<` takes an alias of a mapping, as in `<<: *base`, or a list of them",
                )
                self.incomplete.add(path)
                return []
            case _:
                assert_never(target)

    def _key(self, node: Node, path: Path, at: Place | None) -> str | None:
        """Return a key's text; None, after saying why, if it is not text. The mapping is then incomplete."""
        match node:
            case Scalar():
                value = resolve(node.text) if node.plain else node.text
                if isinstance(value, str) and not _UNWRITABLE.search(value):
                    if not (node.plain and _TEMPLATE.search(value)):
                        return value
                    self._say(at, node.place, "template", TEMPLATE)
                elif isinstance(value, str):
                    self._say(
                        at, node.place, "bad-character", "a key with a character that no text can hold; rename it"
                    )
                elif node.text:
                    written = shortened(node.text)
                    message = f'a key must be text and `{written}` is not; write "{written}" in quotes'
                    self._say(at, node.place, "bad-key", message)
                else:
                    self._say(at, node.place, "bad-key", "a `:` without a key before it; write the key")
            case Mapping() if _is_template(node) or self._doubled(node.place):
                self._say(at, node.place, "template", TEMPLATE)
            case Alias():
                self._say(at, node.place, "bad-key", "an alias as a key; write the key itself")
            case Sequence() | Mapping():
                self._say(
                    at,
                    node.place,
                    "bad-key",
                    "a key must be text, not a list or a mapping; mend the `?` or the brackets",
                )
            case Flawed():
                pass
            case _:
                assert_never(node)
        self.incomplete.add(path)
        return None

    def _doubled(self, place: Place) -> bool:
        return self.source.line(place.line)[place.column - 2 : place.column] == "{{"


def _is_template(node: Mapping) -> bool:
    """Whether a mapping is what `{{ name }}` looks like to a YAML parser: a mapping with a mapping for its key."""
    first = node.children[0] if node.children else None
    return node.flow and isinstance(first, Mapping) and first.flow


def _no_value(path: Path, written: str) -> str:
    last = path[-1] if path else ""
    if written:
        return f'`{written}` is no value; write one or remove it, or put "{written}" in quotes if it is text'
    if isinstance(last, int):
        return "an empty list item; write a value or remove the `-`"
    return f"key {quoted(last)} has no value; write one or remove the key"
