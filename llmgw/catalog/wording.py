"""The words of problems: names of things, what was found, and what to write instead.

A message speaks YAML (text, whole number, true or false, list, mapping), never Python. The hints are for what people
bring from YAML 1.1 and from tools that convert: each looks at the text as it was written, since `1.10` is 1.1 by the
time it is a value.
"""

import difflib
import re
from collections.abc import Iterable

from llmgw.catalog.document import Path, shortened
from llmgw.catalog.scalars import has_leading_zero

_TRUE = frozenset({"yes", "y", "on", "true"})
_FALSE = frozenset({"no", "n", "off", "false"})
_GROUPED = re.compile(r"[-+]?[0-9][0-9_]*_[0-9_]*")
_SEXAGESIMAL = re.compile(r"[-+]?[0-9]+(:[0-5]?[0-9])+")
_NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?")
_LOOSE_DURATION = re.compile(
    r"([0-9]+(?:\.[0-9]+)?)\s*(ms|msec|millis|s|sec|secs|seconds?|m|min|mins|minutes?|h|hr|hrs|hours?|d|days?)",
    re.IGNORECASE,
)
_LOOSE_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kmgt])(?:i?b)?", re.IGNORECASE)


def quoted(text: object) -> str:
    """Return a text in quotes, shortened, with what cannot be seen escaped."""
    return repr(shortened(str(text)))


def subject(path: Path) -> str:
    """Name a value by its key: `'replicas'`, `item 2 of 'args'`."""
    if not path:
        return "the file"
    last = path[-1]
    if isinstance(last, str):
        return quoted(last)
    parent = next((part for part in reversed(path) if isinstance(part, str)), "")
    return f"item {last + 1} of {quoted(parent)}"


def found(value: object, plain: str | None) -> str:
    """Say what stands where something else was expected."""
    match value:
        case bool():
            return f"{plain or str(value).lower()}"
        case int() | float():
            return f"the number {shortened(plain or str(value))}"
        case str():
            return f"the text {quoted(value)}"
        case list():
            return "a list"
        case dict():
            return "a mapping"
        case _:
            return "nothing"


def suggestion(word: str, known: Iterable[str]) -> str:
    """Return `, did you mean 'x'?` if a known word is close, else nothing."""
    by_lower = {each.lower(): each for each in known}
    close = difflib.get_close_matches(word.lower()[:100], sorted(by_lower), n=1, cutoff=0.6)
    return f", did you mean {quoted(by_lower[close[0]])}?" if close else ""


def listing(words: Iterable[str]) -> str:
    """Join words with commas, and an `or` before the last."""
    *most, last = words
    return f"{', '.join(most)} or {last}" if most else last


def text_hint(value: object, plain: str | None) -> str:
    """What to write where text is wanted and something else was found."""
    if isinstance(value, bool | int | float):
        return f'write "{shortened(plain or str(value))}" in quotes'
    return ""


def list_hint(value: object, plain: str | None) -> str:
    """What to write where a list is wanted."""
    if plain is not None and re.match("-[^- ]", plain):
        return "write a space after each `-`"
    return "write each item after a `- `" if isinstance(value, str | dict) else ""


def mapping_hint(value: object, plain: str | None) -> str:
    """What to write where a mapping is wanted."""
    if plain is not None and ":" in plain:
        return "write a space after the `:`"
    return "write `key: value`, without the `- `" if isinstance(value, list) else ""


def whole_number_hint(value: object, plain: str | None) -> str:
    """What to write where a whole number is wanted."""
    if isinstance(value, float) and not isinstance(value, bool) and value.is_integer() and abs(value) < 1e15:
        return f"write {int(value)}"
    if isinstance(value, str):
        if plain is None and re.fullmatch(r"[-+]?[0-9]{1,18}", value):
            return f"write {int(value)} without quotes"
        if _GROUPED.fullmatch(value):
            return f"write {value.replace('_', '')}"
        if _SEXAGESIMAL.fullmatch(value):
            return "numbers to base 60 are not read; write the number in full"
    return ""


def truth_hint(value: object, plain: str | None) -> str:
    """What to write where true or false is wanted."""
    word = value.lower() if isinstance(value, str) else plain
    if word in _TRUE or word == "1":
        return "write true"
    if word in _FALSE or word == "0":
        return "write false"
    return ""


def duration_hint(value: object, plain: str | None) -> str:
    """What to write where a duration is wanted."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        written = plain if plain is not None and _NUMBER.fullmatch(plain) and not has_leading_zero(plain) else "30"
        return f"write {written}s if seconds are meant"
    if isinstance(value, str):
        if _NUMBER.fullmatch(value):
            return f"write {value}s if seconds are meant"
        loose = _LOOSE_DURATION.fullmatch(value)
        if loose is not None:
            unit = loose[2].lower()
            return f"write {loose[1]}{'ms' if unit in ('ms', 'msec', 'millis') else unit[0]}"
        if _SEXAGESIMAL.fullmatch(value):
            return "numbers to base 60 are not read; write 90m or 45s"
    return ""


def size_hint(value: object, plain: str | None) -> str:
    """What to write where a size is wanted."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"write the unit, as in {plain or value}GiB or {plain or value}MiB"
    if isinstance(value, str):
        if _NUMBER.fullmatch(value):
            return f"write the unit, as in {value}GiB or {value}MiB"
        loose = _LOOSE_SIZE.fullmatch(value)
        if loose is not None:
            return f"write {loose[1]}{loose[2].upper()}iB"
    return ""


def leading_zero_hint(plain: str) -> str:
    """What to write for `0644`, which is 644 to YAML 1.2 and 420 to YAML 1.1."""
    digits = plain.lstrip("+-").lstrip("0") or "0"
    octal = f", or 0o{digits} for the octal number" if not set(digits) & set("89") and digits != "0" else ""
    return f'write {digits} without the leading zero{octal}, or "{plain}" in quotes if it is text'
