"""`profiles[name=h100].args[+]=--foo`: what to change in an object, as a person types it. No file is looked at here.

A path is keys joined by dots; `[0]`, `[name=x]` and `[+]` are an item by its position, the item with that value, and a new
one at the end. A key with a dot in it goes into quotes: `labels."topology/zone.a"`.

A value that starts with a bracket or a quote is read as YAML in one line; any other text is one scalar as it stands, so that
`args[+]=a # b` is not cut at the `#` and `args[+]=*.gguf` is no alias. Nothing behind the `=` means: remove the key. That is
what YAML makes of it too, and no field of the language takes a null.
"""

import json
import math
import re
from dataclasses import dataclass

from llmgw.catalog.document import Path, shortened
from llmgw.catalog.reader import read_document
from llmgw.catalog.scalars import has_leading_zero, resolve
from llmgw.catalog.wording import leading_zero_hint, quoted


class BadChange(Exception):
    """What was typed is no change. The message is one line that says what to write."""


@dataclass(frozen=True, slots=True)
class Key:
    """A key of a mapping."""

    name: str


@dataclass(frozen=True, slots=True)
class Index:
    """An item of a list by its position, from 0."""

    number: int


@dataclass(frozen=True, slots=True)
class Match:
    """The one item of a list, a mapping, whose key has a value."""

    key: str
    value: str


@dataclass(frozen=True, slots=True)
class Append:
    """A new item at the end of a list; only the last step can be one."""


Step = Key | Index | Match | Append


@dataclass(frozen=True, slots=True)
class Change:
    """What to do at a path: set it to a value, or remove it if the value is None."""

    text: str
    """As it was typed, for messages."""
    steps: tuple[Step, ...]
    value: object


def parse_change(text: str) -> Change:
    """Return the change that `PATH=VALUE` is. Raises BadChange."""
    steps, end = _steps(text)
    if text[end : end + 1] != "=":
        raise BadChange(f"{quoted(text)} has no value; write PATH=VALUE, or --unset PATH to remove it")
    value = text[end + 1 :].strip()
    if value or steps[-1] != Append():
        return Change(text, steps, parse_value(value) if value else None)
    raise BadChange(f"{quoted(text)} has nothing to append; write the item behind the `=`")


def parse_removal(text: str) -> Change:
    """Return the removal of a path. Raises BadChange."""
    steps, end = _steps(text)
    if end < len(text):
        raise BadChange(f"{quoted(text)} is no path; --unset takes a path without a value")
    if steps[-1] == Append():
        raise BadChange(f"{quoted(text)} names a new item; name the one to remove by its position, as in `args[0]`")
    return Change(text, steps, None)


_PLAIN_KEY = re.compile(r"[^\s.=\[\]\"]+")
_QUOTED_KEY = re.compile(r'"(?:[^"\\]|\\.)*"')
_BRACKET = re.compile(r'\[(?:(\+)|([0-9]{1,6})|([^\s.=\[\]"]+)=("(?:[^"\\]|\\.)*"|[^\]"]*))\]')


def _steps(text: str) -> tuple[tuple[Step, ...], int]:
    """Return the steps of the path a text starts with, and where it ends."""
    if not _writable(text):
        raise BadChange(f"{quoted(text)} holds bytes that are not UTF-8; write it in UTF-8")
    steps: list[Step] = []
    at = 0
    while at < len(text) and text[at] != "=":
        if steps and steps[-1] == Append():
            raise BadChange(
                f"{quoted(text)} goes on behind `[+]`; write the whole item, as in "
                "'profiles[+]={name: x, engine: llamacpp}'"
            )
        bracket = _BRACKET.match(text, at) if steps else None
        if bracket is not None:
            steps.append(_bracket(bracket))
            at = bracket.end()
            continue
        at += 1 if steps and text[at] == "." else 0
        key = _QUOTED_KEY.match(text, at) or _PLAIN_KEY.match(text, at)
        if key is None or (steps and text[at - 1] != "."):
            raise BadChange(
                f"{quoted(text)} cannot be read at character {at + 1}; a path is written like "
                "profiles[name=x].args[0] or args[+]"
            )
        steps.append(Key(_unquoted(key[0])))
        at = key.end()
    if not steps:
        raise BadChange(f"{quoted(text)} names no field; write PATH=VALUE, as in replicas=3")
    return tuple(steps), at


def _bracket(match: re.Match[str]) -> Step:
    if match[1]:
        return Append()
    return Index(int(match[2])) if match[2] else Match(match[3], _unquoted(match[4]))


def _unquoted(text: str) -> str:
    if not text.startswith('"'):
        return text
    try:
        return str(json.loads(text))
    except ValueError:
        raise BadChange(f"{shortened(text)} has an escape that is not known; write the character itself") from None


def _writable(text: str) -> bool:
    return not re.search("[\x00\ud800-\udfff]", text)


def parse_value(text: str) -> object:
    """Return the value that a text stands for, never None. Raises BadChange."""
    if text[0] not in "[{\"'":
        return _scalar(text)
    reading = read_document("value", f"v: {text}".encode())
    if reading.problems or reading.document is None:
        raise BadChange(f"the value {quoted(text)} cannot be read: {reading.problems[0].message}")
    if set(reading.document.body) != {"v"}:
        raise BadChange(f"the value {quoted(text)} is more than one; write a single value")
    return reading.document.body["v"]


def _scalar(text: str) -> object:
    value = resolve(text)
    if has_leading_zero(text) and isinstance(value, int):
        raise BadChange(f"the value is `{text}`; {leading_zero_hint(text)}")
    if value is None:
        raise BadChange(f'`{text}` is no value; use --unset to remove the field, or write "{text}" in quotes')
    if isinstance(value, float) and not math.isfinite(value):
        raise BadChange(f"`{shortened(text)}` is not a number that any field takes; put it in quotes if it is text")
    return value


def path_text(path: Path) -> str:
    """Return the path of a value as it could be typed."""
    shown = ""
    for part in path:
        if isinstance(part, int):
            shown += f"[{part}]"
        else:
            key = part if _PLAIN_KEY.fullmatch(part) else json.dumps(part, ensure_ascii=False)
            shown += f".{key}" if shown else key
    return shown
