"""Whatever a valid document looks like and whatever is changed in it: it says exactly what was wanted, all else stays.

The documents are written by a writer of this test's own, which knows where it put each value. `LLMGW_FUZZ=20` runs twenty
times as many examples.
"""

import copy
import json
import os
import random
from collections.abc import Iterator
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmgw.catalog.document import Path
from llmgw.catalog.edit import edit
from llmgw.catalog.edit_paths import Append, Change, parse_removal, path_text
from llmgw.catalog.reader import read_document

SCALE = int(os.environ.get("LLMGW_FUZZ", "1"))
EFFORT = settings(
    max_examples=250 * SCALE,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=SCALE == 1,
)

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=6) | st.sampled_from(
    ["--flag", "a: b", "a #b", "4096", "yes", "- x", "[a]", "*.gguf", "", " ", "it's", '"', "😀", "a\nb", "{{ x }}"]
)
names = st.sampled_from(["a", "b2", "cpu", "h100", "x.y"])
numbers = st.integers(0, 50)
profile = st.fixed_dictionaries(
    {"engine": names},
    optional={
        "name": names,
        "args": st.lists(texts, max_size=3),
        "env": st.dictionaries(st.sampled_from(["A", "B_C", "ON", "d.e"]), texts, max_size=3),
        "gpu": st.fixed_dictionaries({"class": names}, optional={"count": numbers}),
        "cpus": numbers,
    },
)
model = st.fixed_dictionaries(
    {"weights": st.fixed_dictionaries({"path": texts}), "profiles": st.lists(profile, max_size=3)},
    optional={
        "aliases": st.lists(texts, max_size=3),
        "replicas": numbers,
        "priority": numbers,
        "limits": st.dictionaries(st.sampled_from(["queue", "inflight"]), numbers, max_size=2),
        "rollout": st.dictionaries(st.sampled_from(["max_surge", "auto_revert"]), numbers | st.booleans(), max_size=2),
        "protect": st.booleans(),
    },
)  # fmt: skip


class Writer:
    """Writes a body as YAML in a style of chance, and notes where each scalar is."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.text = ""
        self.spans: dict[Path, tuple[int, int]] = {}
        self.comments = 0
        self.text_in_lines = False
        self.step = chance.choice([1, 2, 4])

    def document(self, body: dict[str, Any]) -> str:
        items = list(body.items())
        self.chance.shuffle(items)
        self._block({"apiVersion": "llmgw/v1", "kind": "Model", "name": "m", **dict(items)}, (), 0)
        if self.chance.random() < 0.2:
            self.text = self.text.rstrip("\n")
        return self.text

    def _comment(self) -> str:
        self.comments += 1
        return f"# c{self.comments} 😀"

    def _line(self) -> None:
        """End a line, perhaps with a comment, perhaps with more lines that say nothing."""
        self.text += f" {self._comment()}\n" if self.chance.random() < 0.2 else "\n"

    def _between(self, indent: int) -> None:
        if self.chance.random() < 0.15:
            self.text += "\n"
        if self.chance.random() < 0.15:
            # Below a text in lines it could be more of that text, at once or when what is in between is removed.
            deeper = indent if self.text_in_lines else indent + 2
            self.text += " " * self.chance.choice([0, indent, deeper]) + self._comment() + "\n"

    def _block(self, value: Any, path: Path, indent: int, *, inline: bool = False) -> None:
        """Write a collection that is not empty as lines; `inline` if the first one has begun."""
        entries = value.items() if isinstance(value, dict) else enumerate(value)
        for number, (key, item) in enumerate(entries):
            if number or not inline:
                self._between(indent)
                self.text += " " * indent
            inner = (*path, key)
            if isinstance(value, list):
                self.text += "-"
                self._entry(item, inner, indent, in_list=True)
            else:
                self.text += self._key(key) + ":"
                self._entry(item, inner, indent, in_list=False)

    def _entry(self, item: Any, path: Path, indent: int, *, in_list: bool) -> None:
        if isinstance(item, dict | list) and item and self.chance.random() < 0.6:
            if in_list and self.chance.random() < 0.7:
                gap = self.chance.choice([1, 1, 3])
                self.text += " " * gap
                self._block(item, path, indent + 1 + gap, inline=True)
                return
            self._line()
            less = 0 if isinstance(item, list) and not in_list and self.chance.random() < 0.4 else self.step
            self._block(item, path, indent + less)
            return
        self.text += " " * self.chance.choice([1, 1, 1, 3])
        if isinstance(item, str) and item.isprintable() and item.strip() == item != "" and self.chance.random() < 0.2:
            start = len(self.text)
            self.text += "|-\n" + " " * (indent + self.step) + item
            self.spans[path] = (start, len(self.text))
            self.text += "\n"
            self.text_in_lines = True
            return
        self._flow(item, path, indent)
        self._line()

    def _flow(self, item: Any, path: Path, indent: int) -> None:
        if not isinstance(item, dict | list):
            start = len(self.text)
            self.text += self._scalar(item)
            self.spans[path] = (start, len(self.text))
            return
        lines = bool(item) and self.chance.random() < 0.3
        blank = " " if item and not lines and self.chance.random() < 0.3 else ""
        self.text += ("{" if isinstance(item, dict) else "[") + blank
        entries = list(item.items() if isinstance(item, dict) else enumerate(item))
        for number, (key, inner) in enumerate(entries):
            if lines:
                self._line()
                self.text += " " * (indent + 3)
            if isinstance(item, dict):
                self.text += self._key(key) + ": "
            self._flow(inner, (*path, key), indent + 3)
            if number + 1 < len(entries):
                self.text += "," if lines else ", "
            elif item and self.chance.random() < 0.2:
                self.text += ","
        if lines and self.chance.random() < 0.8:
            self._line()
            self.text += " " * (indent + 1)
        self.text += blank + ("}" if isinstance(item, dict) else "]")

    def _key(self, key: str) -> str:
        return self.chance.choice([key, key, key, f'"{key}"', f"'{key}'"])

    def _scalar(self, value: Any) -> str:
        if not isinstance(value, str):
            return json.dumps(value)
        styles = ['"' + "".join(c if " " <= c <= "~" and c not in '"\\' else f"\\U{ord(c):08X}" for c in value) + '"']
        if value.isprintable():
            styles.append("'" + value.replace("'", "''") + "'")
        if value.isascii() and value.isidentifier() and value.lower() not in ("true", "false", "null"):
            styles += [value] * 3
        return self.chance.choice(styles)


def paths(value: Any, path: Path = ()) -> Iterator[Path]:
    yield path
    for key, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from paths(item, (*path, key))


def at(value: Any, path: Path) -> Any:
    for part in path:
        value = value[part]
    return value


def is_part(short: str, long: str) -> bool:
    rest = iter(long)
    return all(character in rest for character in short)


def same(one: object, other: object) -> bool:
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


@st.composite
def documents(draw: st.DrawFn) -> tuple[dict[str, Any], bytes, Writer, str]:
    """A body, its bytes, its writer and the line end in it."""
    body = draw(model)
    writer = Writer(draw(st.randoms(use_true_random=False)))
    text = writer.document(body)
    end = draw(st.sampled_from(["\n", "\n", "\r\n"]))
    mark = draw(st.sampled_from([b"", b"", b"\xef\xbb\xbf"]))
    return (
        {"apiVersion": "llmgw/v1", "kind": "Model", "name": "m", **body},
        mark + text.replace("\n", end).encode(),
        writer,
        end,
    )


def check(before: bytes, steps: str, value: object, wanted: object, *, append: bool = False) -> bytes:
    parsed = parse_removal(steps).steps
    after = edit("m.yaml", before, Change(steps, (*parsed, Append()) if append else parsed, value))
    assert isinstance(after, bytes), f"{after}\n{before.decode()}"
    reading = read_document("m.yaml", after)
    assert reading.problems == (), (reading.problems, after.decode())
    assert reading.document is not None
    assert same(dict(reading.document.body), wanted), f"{before.decode()}\n{after.decode()}"
    return after


@EFFORT
@given(documents())
def test_the_writer_writes_what_it_is_given(document: tuple[dict[str, Any], bytes, Writer, str]) -> None:
    body, data, _, _ = document
    reading = read_document("m.yaml", data)
    assert reading.problems == (), data.decode()
    assert reading.document is not None
    assert same(dict(reading.document.body), body)


@EFFORT
@given(documents(), st.data(), texts | numbers | st.booleans())
def test_a_scalar_is_replaced_and_nothing_else(
    document: tuple[dict[str, Any], bytes, Writer, str], data: st.DataObject, value: object
) -> None:
    body, before, writer, end = document
    path = data.draw(st.sampled_from(sorted(writer.spans, key=str)))
    if path == ("kind",):
        return
    wanted = copy.deepcopy(body)
    at(wanted, path[:-1])[path[-1]] = value
    after = check(before, path_text(path), value, wanted)
    start, stop = writer.spans[path]
    head, tail = writer.text[:start].replace("\n", end).encode(), writer.text[stop:].replace("\n", end).encode()
    assert after.removeprefix(b"\xef\xbb\xbf").startswith(head)
    assert after.endswith(tail)


@EFFORT
@given(
    documents(), st.data(), texts | numbers | st.lists(texts, max_size=2) | st.dictionaries(names, texts, max_size=2)
)
def test_an_appended_item_is_all_that_is_new(
    document: tuple[dict[str, Any], bytes, Writer, str], data: st.DataObject, value: object
) -> None:
    body, before, _, _ = document
    lists = [path for path in paths(body) if isinstance(at(body, path), list)]
    path = data.draw(st.sampled_from(lists))
    wanted = copy.deepcopy(body)
    at(wanted, path).append(value)
    after = check(before, path_text(path), value, wanted, append=True)
    assert is_part(before.decode(), after.decode())


@EFFORT
@given(documents(), st.data(), texts | numbers | st.lists(texts, max_size=2))
def test_a_new_key_is_all_that_is_new(
    document: tuple[dict[str, Any], bytes, Writer, str], data: st.DataObject, value: object
) -> None:
    body, before, _, _ = document
    places: list[Path] = [("aliases",), ("replicas",), ("limits", "queue"), ("rollout", "min_ready"), ("adapters",)]
    for index in range(len(body["profiles"])):
        places += [("profiles", index, key) for key in ("name", "args", "cpus", "image")]
        places += [
            ("profiles", index, "gpu", "count"),
            ("profiles", index, "env", "N.1"),
            ("profiles", index, "env", "on"),
        ]
    path = data.draw(st.sampled_from(places))
    wanted = copy.deepcopy(body)
    holder = wanted
    for part in path[:-1]:
        holder = holder.setdefault(part, {}) if isinstance(part, str) else holder[part]
    if path[-1] in holder:
        return
    holder[path[-1]] = value
    after = check(before, path_text(path), value, wanted)
    assert is_part(before.decode(), after.decode())


@EFFORT
@given(documents(), st.data())
def test_a_removed_key_or_item_is_all_that_is_gone(
    document: tuple[dict[str, Any], bytes, Writer, str], data: st.DataObject
) -> None:
    body, before, _, _ = document
    path = data.draw(st.sampled_from([path for path in paths(body) if path]))
    wanted = copy.deepcopy(body)
    del at(wanted, path[:-1])[path[-1]]
    after = check(before, path_text(path), None, wanted)
    if at(wanted, path[:-1]):
        assert is_part(after.decode(), before.decode())


@EFFORT
@given(documents(), st.data(), model)
def test_a_collection_becomes_another(
    document: tuple[dict[str, Any], bytes, Writer, str], data: st.DataObject, other: dict[str, Any]
) -> None:
    body, before, _, _ = document
    values = [at(other, path) for path in paths(other) if path]
    path = data.draw(st.sampled_from([path for path in paths(body) if path and path != ("kind",)]))
    value = data.draw(st.sampled_from(values))
    wanted = copy.deepcopy(body)
    at(wanted, path[:-1])[path[-1]] = value
    check(before, path_text(path), value, wanted)
