"""One change to one file, in place: the bytes that say the value are replaced, and no others.

`edit` finds the place through nodes, splices the text, reads the result again and compares it with the intended values.
Anything else than exactly the intended change is refused. So the splicing may be simple, and comments, quotes, indentation,
line ends, byte order mark and whatever else a person wrote stay as they are.

A list that is set to another list changes item by item, a mapping key by key; a comment beside an item that stays is kept
that way. What came through an alias is not edited: the text is at the anchor, and changing it there changes it everywhere.
"""

import copy
import json
from collections.abc import Mapping as Values
from dataclasses import dataclass
from typing import Any, assert_never

from llmgw.catalog.document import Document, Path, shortened
from llmgw.catalog.edit_paths import Append, Change, Index, Key, Match, path_text
from llmgw.catalog.nodes import Alias, Flawed, Mapping, Node, Scalar, Sequence, compose
from llmgw.catalog.problems import Problem
from llmgw.catalog.reader import read_document
from llmgw.catalog.scalars import resolve
from llmgw.catalog.shapes import fields_at
from llmgw.catalog.splice import Collection, Entry, common_quotes, indentation, insert, remove, replace
from llmgw.catalog.wording import quoted, suggestion
from llmgw.spec.kinds import KINDS

_BOM = b"\xef\xbb\xbf"
CODE = "edit"


def edit(path: str, data: bytes, change: Change) -> bytes | Problem:
    """Return a file's bytes with one change made, or why it cannot be made. The same bytes if all is as wanted already.

    Whether the result is a valid object, and the directory with it, is for `compile_tree` to say.
    """
    try:
        before = _File.read(path, data)
        spot = _resolve(before, change)
        after = _changed(before, spot, change)
        intended = _intended(before, spot, change)
    except _Refusal as refusal:
        return refusal.problem
    if not _same(dict(after.document.body), intended):
        return _not_alone(before, after, intended, spot).problem
    return after.data


class _Refusal(Exception):
    """The change cannot be made; the problem says why and what to do."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


@dataclass(frozen=True, slots=True)
class _File:
    """One state of the file: bytes, text, nodes and values."""

    data: bytes
    document: Document
    root: Mapping

    @staticmethod
    def read(path: str, data: bytes) -> "_File":
        """Read a file. Raises _Refusal if there is any problem with its YAML."""
        reading = read_document(path, data)
        if reading.problems or reading.document is None:
            raise _Refusal(reading.problems[0])
        root = compose(reading.document.source).root
        assert isinstance(root, Mapping)
        return _File(data, reading.document, root)

    @property
    def text(self) -> str:
        return self.document.source.text

    def with_text(self, path: Path, text: str) -> "_File":
        """Return the file with another text, for a change at a path. Raises _Refusal if the text has problems."""
        bom = _BOM if self.data.startswith(_BOM) else b""
        try:
            return _File.read(self.document.path, bom + text.encode())
        except _Refusal as refusal:
            problem = refusal.problem
            if problem.code in ("unknown-alias", "recursive-alias"):
                message = "holds an anchor that is used further below; write the value out there first"
            else:
                message = f"is written in a way that cannot be changed in place ({problem.message}); edit it by hand"
            raise self.refusal(path, f"{path_text(path) or 'this file'} {message}") from None

    def refusal(self, path: Path, message: str) -> _Refusal:
        """Return a refusal at the place of a value."""
        return _Refusal(self.document.problem(path, CODE, message))

    def value(self, path: Path) -> object:
        """Return the value at a path that exists."""
        return _at(self.document.body, path)

    def fields(self, path: Path) -> list[str]:
        """Return the keys that the object at a path may have, in the order of the language; empty if they are free."""
        kind = KINDS.get(self.document.kind)
        return list(fields_at(kind, path)) if kind is not None else []


# finding the place


@dataclass(frozen=True, slots=True)
class _Existing:
    """A value that is written in the file: an entry of its parent."""

    path: Path


@dataclass(frozen=True, slots=True)
class _New:
    """A value that is not there yet: keys, one inside the other, to go into a mapping; no keys for an item of a list."""

    parent: Path
    keys: tuple[str, ...]
    in_list: bool
    """Whether the value is to be the one item of a new list under the keys."""


_Spot = _Existing | _New


def _resolve(file: _File, change: Change) -> _Spot:
    path: Path = ()
    for number, step in enumerate(change.steps):
        node = _node(file, path)
        if isinstance(node, Alias):
            raise file.refusal(path, _through_alias(path, node))
        match step:
            case Key(name):
                position = _position(file, path, node, name)
                if position is None:
                    return _missing(file, path, change, number)
                path = (*path, name)
            case Append():
                _list(file, path, node)
                return _New(path, (), in_list=False)
            case Index(position):
                items = _list(file, path, node).items
                if position >= len(items):
                    count = f"{len(items)} item{'s' if len(items) != 1 else ''}, counted from 0"
                    raise file.refusal(path, f"{path_text(path)} has {count}; add one with {path_text(path)}[+]=VALUE")
                path = (*path, position)
            case Match():
                _list(file, path, node)
                path = (*path, _matching(file, path, step))
            case _:
                assert_never(step)
    return _Existing(path)


def _node(file: _File, path: Path) -> Node:
    """Return the node at a path that was resolved: every collection on the way is written here."""
    node: Node = file.root
    for part in path:
        assert isinstance(node, Sequence | Mapping)
        node = _entry(node, _index(node, part))
    return node


def _entry(node: Collection, at: int) -> Node:
    return node.items[at] if isinstance(node, Sequence) else node.children[2 * at + 1]


def _index(node: Collection, part: str | int) -> int:
    if isinstance(node, Sequence):
        assert isinstance(part, int)
        return part
    return [_key(key) for key, _ in node.pairs()].index(str(part))


def _key(node: Node) -> str:
    """Return a key's text; `<<`, which merges, is not one and gets a text that no key has."""
    assert isinstance(node, Scalar)
    return "\0merge" if node.plain and node.text == "<<" else node.text


def _position(file: _File, path: Path, node: Node, name: str) -> int | None:
    if not isinstance(node, Mapping):
        raise file.refusal(path, f"{path_text(path)} is {_what(node)} and has no key {quoted(name)}")
    keys = [_key(key) for key, _ in node.pairs()]
    return keys.index(name) if name in keys else None


def _list(file: _File, path: Path, node: Node) -> Sequence:
    if not isinstance(node, Sequence):
        raise file.refusal(path, f"{path_text(path) or 'the file'} is {_what(node)}, not a list")
    return node


def _what(node: Node) -> str:
    match node:
        case Scalar():
            return f"`{shortened(node.text)}`"
        case Sequence():
            return "a list"
        case Mapping():
            return "a mapping"
        case Alias() | Flawed():
            return "an alias"
        case _:
            assert_never(node)


def _matching(file: _File, path: Path, step: Match) -> int:
    """Return the position of the item with a value; one that leaves the key out has its default."""
    items = file.value(path)
    assert isinstance(items, list)
    kind = KINDS.get(file.document.kind)
    values = []
    for index, item in enumerate(items):
        field = fields_at(kind, (*path, index)).get(step.key) if kind is not None else None
        default = field.default if field is not None and not field.is_required() else None
        values.append(item.get(step.key, default) if isinstance(item, dict) else None)
    found = [index for index, value in enumerate(values) if value is not None and _says(step.value, value)]
    if len(found) == 1:
        return found[0]
    what = f"{step.key}={step.value}"
    if found:
        advice = f"name one by its position: {path_text(path)}[{found[0]}]"
        raise file.refusal(path, f"{len(found)} items of {path_text(path)} have {what}; {advice}")
    names = [str(value) for value in values if value is not None]
    advice = suggestion(step.value, names) or (f"; there are {', '.join(names)}" if names else "")
    raise file.refusal(path, f"no item of {path_text(path)} has {what}{advice}")


def _says(text: str, value: object) -> bool:
    return text == value or (not isinstance(value, str) and _same(resolve(text), value))


def _missing(file: _File, path: Path, change: Change, number: int) -> _New:
    """Return where a key goes that is not written in a mapping. Raises _Refusal if it cannot be."""
    steps = change.steps[number:]
    name = steps[0].name if isinstance(steps[0], Key) else ""
    values = file.value(path)
    merged = isinstance(values, dict) and name in values
    if merged and (len(steps) > 1 or change.value is None):
        raise file.refusal((*path, name), _through_merge((*path, name), _merge_source(file, path)))
    if change.value is None:
        where = f" of {path_text(path)}" if path else ""
        advice = suggestion(name, values) if isinstance(values, dict) else ""
        raise file.refusal(path, f"key {quoted(name)}{where} is not set, there is nothing to remove{advice}")
    keys: list[str] = []
    here = path
    for step in steps:
        if isinstance(step, Append):
            return _New(path, tuple(keys), in_list=True)
        if not isinstance(step, Key):
            raise file.refusal(path, f"{path_text(here)} is not set; set it, or append with {path_text(here)}[+]=VALUE")
        fields = file.fields(here)
        if fields and step.name not in fields:
            where = f"{path_text(here)} has" if here else f"a {file.document.kind} has"
            advice = suggestion(step.name, fields) or f"; it has {', '.join(fields)}"
            raise file.refusal(path, f"{where} no field {quoted(step.name)}{advice}")
        keys.append(step.name)
        here = (*here, step.name)
    return _New(path, tuple(keys), in_list=False)


def _merge_source(file: _File, path: Path) -> Alias | None:
    node = _node(file, path)
    assert isinstance(node, Mapping)
    merged = [value for key, value in node.pairs() if _key(key) == "\0merge"]
    found = [item for value in merged for item in (value.items if isinstance(value, Sequence) else [value])]
    return found[0] if len(found) == 1 and isinstance(found[0], Alias) else None


def _through_alias(path: Path, alias: Alias) -> str:
    where = f"line {alias.target.place.line}"
    return f"{path_text(path)} is an alias of what is anchored on {where}; edit it there, or write the value out here"


def _through_merge(path: Path, alias: Alias | None) -> str:
    where = f" of what is anchored on line {alias.target.place.line}" if alias is not None else ""
    return f"{path_text(path)} comes through a `<<`{where}; edit it there, or set {path_text(path)} as a whole here"


# making the change


def _changed(file: _File, spot: _Spot, change: Change) -> _File:
    match spot:
        case _New(parent, keys, in_list):
            value = [change.value] if in_list else change.value
            return _inserted(file, parent, keys, value)
        case _Existing(path) if change.value is None:
            return _removed(file, path)
        case _Existing(path):
            return _set(file, path, change.value)
        case _:
            assert_never(spot)


def _inserted(file: _File, parent: Path, keys: tuple[str, ...], value: object) -> _File:
    node = _node(file, parent)
    assert isinstance(node, Sequence | Mapping)
    if isinstance(node, Sequence):
        entry = Entry((), value, common_quotes(file.text, node))
        return file.with_text(parent, insert(file.text, node, len(node.items), entry, ""))
    order = file.fields(parent)
    at = _where(order, [_key(key) for key, _ in node.pairs()], keys[0])
    return file.with_text(parent, insert(file.text, node, at, Entry(keys, value), indentation(file.root)))


def _where(order: list[str], present: list[str], key: str) -> int:
    """Return the position of a new key: behind the last one that comes before it in the language's order, and behind `<<`."""
    if key not in order:
        return len(present)
    rank = order.index(key)
    ranks = [-1 if name == "\0merge" else order.index(name) if name in order else len(order) for name in present]
    before = [(each, index) for index, each in enumerate(ranks) if each < rank]
    return max(before)[1] + 1 if before else 0


def _removed(file: _File, path: Path) -> _File:
    *above, last = path
    parent = _node(file, tuple(above))
    assert isinstance(parent, Sequence | Mapping)
    at = _index(parent, last)
    entries = len(parent.items) if isinstance(parent, Sequence) else len(parent.children) // 2
    if entries > 1:
        return file.with_text(path, remove(file.text, parent, at))
    if not above:
        raise file.refusal(path, "the file would be empty; delete the file to remove the object")
    return _replaced(file, tuple(above), [] if isinstance(parent, Sequence) else {})


def _replaced(file: _File, path: Path, value: object) -> _File:
    *above, last = path
    parent = _node(file, tuple(above))
    assert isinstance(parent, Sequence | Mapping)
    return file.with_text(path, replace(file.text, parent, _index(parent, last), value))


def _set(file: _File, path: Path, value: object) -> _File:
    """Return the file with a value replaced, as little of it as will do."""
    node, old = _node(file, path), file.value(path)
    if _same(old, value):
        return file
    if isinstance(node, Mapping) and isinstance(old, dict) and isinstance(value, dict) and old and value:
        return _set_keys(file, path, old, value)
    if isinstance(node, Sequence) and isinstance(old, list) and isinstance(value, list) and old and value:
        for index, item in enumerate(value[: len(old)]):
            file = _set(file, (*path, index), item)
        for item in value[len(old) :]:
            file = _inserted(file, path, (), item)
        for index in range(len(old) - 1, len(value) - 1, -1):
            file = _removed(file, (*path, index))
        return file
    return _replaced(file, path, value)


def _set_keys(file: _File, path: Path, old: Values[str, object], new: Values[str, object]) -> _File:
    node = _node(file, path)
    assert isinstance(node, Mapping)
    own = {_key(key) for key, _ in node.pairs()}
    for key, value in new.items():
        if key in own:
            file = _set(file, (*path, key), value)
        elif key not in old or not _same(old[key], value):
            file = _inserted(file, path, (key,), value)
    for key in old:
        if key not in new:
            if key not in own:
                raise file.refusal((*path, key), _through_merge((*path, key), _merge_source(file, path)))
            file = _removed(file, (*path, key))
    return file


# making sure


def _intended(file: _File, spot: _Spot, change: Change) -> dict[str, object]:
    """Return what the file is to say, worked out on values alone."""
    body = copy.deepcopy(dict(file.document.body))
    value = change.value
    if isinstance(spot, _Existing):
        path = spot.path
    else:
        value = [value] if spot.in_list else value
        for key in reversed(spot.keys[1:]):
            value = {key: value}
        path = (*spot.parent, spot.keys[0] if spot.keys else len(_at(body, spot.parent)))
    holder = _at(body, path[:-1])
    if value is None:
        del holder[path[-1]]
    elif isinstance(holder, list) and path[-1] == len(holder):
        holder.append(value)
    else:
        holder[path[-1]] = value
    return body


def _at(value: Any, path: Path) -> Any:
    for part in path:
        value = value[part]
    return value


def _same(one: object, other: object) -> bool:
    """Whether two values are equal, with 1, 1.0 and true told apart."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def _not_alone(before: _File, after: _File, intended: dict[str, object], spot: _Spot) -> _Refusal:
    """Say what else would have changed."""
    path = spot.path if isinstance(spot, _Existing) else spot.parent
    other = _difference(dict(after.document.body), intended, ())
    if after.document.is_aliased(other):
        line = after.document.value_place(other).line
        message = f"{path_text(other)} on line {line} is an alias of it and would change too; write it out there first"
        return before.refusal(path, message)
    message = f"{path_text(path) or 'this file'} is written in a way that cannot be changed in place; edit it by hand"
    return before.refusal(path, message)


def _difference(one: object, other: object, path: Path) -> Path:
    """Return the path of the innermost first difference of two values that differ."""
    if isinstance(one, dict) and isinstance(other, dict):
        inner: list[str | int] = [key for key in one if key not in other or not _same(one[key], other[key])]
    elif isinstance(one, list) and isinstance(other, list):
        inner = [index for index, item in enumerate(one) if index >= len(other) or not _same(item, other[index])]
    else:
        return path
    for key in inner:
        here = (*path, key)
        found = _at(other, (key,)) if (key in other if isinstance(other, dict) else int(key) < len(other)) else None
        return _difference(_at(one, (key,)), found, here)
    return path
