"""Values as YAML text that reads back equal: plain where that is safe, in quotes where it is not.

Safe means more than YAML 1.2 asks: words and numbers of YAML 1.1 (`yes`, `1_000`, `22:22`, a date) are quoted too, since other
programs read these files. Whether a plain text would be read as itself is asked of the reader instead of being worked out
from the grammar a second time.
"""

import json
import re

from llmgw.catalog.document import SourceText
from llmgw.catalog.nodes import Scalar, Sequence, Stopped, compose
from llmgw.catalog.scalars import resolve

_ESCAPED = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff\ufffe\uffff]")
"""What must not stand in a file as it is."""
_OTHERWISE = re.compile(
    r"(?:y|n|yes|no|on|off|=|<<)|[-+]?[0-9][0-9_,]*_[0-9_.]*|[-+]?[0-9]+(?::[0-5]?[0-9])+(?:\.[0-9]*)?|[-+]?0b[01_]+"
    r"|[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}(?:[Tt ].*)?",
    re.IGNORECASE,
)
"""What is no text to YAML 1.1."""


def scalar_text(value: object, *, flow: bool, quote: str = "") -> str:
    """Return a text, number or truth value. `flow`: inside brackets. `quote`: the quotes a text is to have if it can."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    assert isinstance(value, str), value
    if quote != '"' and not _ESCAPED.search(value):
        if not quote and _plain(value, flow=flow):
            return value
        if quote == "'":
            return "'" + value.replace("'", "''") + "'"
    return _ESCAPED.sub(_escape, json.dumps(value, ensure_ascii=False))


def _escape(match: re.Match[str]) -> str:
    return f"\\u{ord(match[0]):04X}"


def _plain(text: str, *, flow: bool) -> bool:
    """Whether a text can stand without quotes."""
    if not text or not isinstance(resolve(text), str) or _OTHERWISE.fullmatch(text) or "{{" in text or "{%" in text:
        return False
    try:
        composed = compose(SourceText("", f"[{text}\n]" if flow else f"- {text}\n"))
    except Stopped:
        return False
    match composed.root:
        case Sequence(items=[Scalar(text=read, plain=True)]):
            return read == text and not composed.problems
        case _:
            return False


def flow_text(value: object, *, flow: bool, quote: str = "") -> str:
    """Return a value of any kind in one line, collections in brackets."""
    match value:
        case list():
            return "[" + ", ".join(flow_text(item, flow=True) for item in value) + "]"
        case dict():
            return "{" + ", ".join(pair_text((key,), item, flow=True) for key, item in value.items()) + "}"
        case _:
            return scalar_text(value, flow=flow, quote=quote)


def pair_text(keys: tuple[str, ...], value: object, *, flow: bool) -> str:
    """Return `key: value` in one line; several keys are mappings one in the other, in braces."""
    first, *rest = keys
    text = flow_text(value, flow=flow) if not rest else "{" + pair_text(tuple(rest), value, flow=True) + "}"
    return f"{scalar_text(first, flow=flow)}: {text}"


def pair_lines(keys: tuple[str, ...], value: object, indent: str, step: str) -> list[str]:
    """Return the same as lines of a block; the first goes where `indent` ends already."""
    first, *rest = keys
    if not rest:
        return [pair_text(keys, value, flow=False)]
    inner = pair_lines(tuple(rest), value, indent + step, step)
    return [f"{scalar_text(first, flow=False)}:", indent + step + inner[0], *inner[1:]]
