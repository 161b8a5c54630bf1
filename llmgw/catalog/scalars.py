"""YAML 1.2's core schema: which plain scalars are numbers, truth values or nothing, and which are text.

Written out here instead of taken from the library, whose resolver is a superset (timestamps, `1_000`, `0b1`) that
differs with its mode and with a directive in the file. Everything that this schema does not name is text; the hints for
those who expected YAML 1.1 come later, when it is known which type the field wants.
"""

import math
import re

Value = str | int | float | bool | None

_INT = re.compile(r"[-+]?[0-9]+")
_OCTAL = re.compile(r"0o[0-7]+")
_HEX = re.compile(r"0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_WORDS: dict[str, Value] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), math.nan),
    **{sign + word: math.inf for sign in ("", "+") for word in (".inf", ".Inf", ".INF")},
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), -math.inf),
}
_NUMBER_START = frozenset("+-.0123456789")
MOST_DIGITS = 30
"""Longer numbers become infinite, which no field takes: Python refuses to convert very long ones with an exception."""


def resolve(text: str) -> Value:
    """Return what a plain scalar stands for."""
    if text in _WORDS:
        return _WORDS[text]
    if text[0] not in _NUMBER_START:
        return text
    if _INT.fullmatch(text):
        return int(text) if len(text) <= MOST_DIGITS else math.inf
    if _FLOAT.fullmatch(text):
        return float(text)
    if _OCTAL.fullmatch(text):
        return int(text, 8) if len(text) <= MOST_DIGITS else math.inf
    if _HEX.fullmatch(text):
        return int(text, 16) if len(text) <= MOST_DIGITS else math.inf
    return text


def has_leading_zero(text: str) -> bool:
    """Whether a plain scalar is a whole number such as `0644`, which is 644 to YAML 1.2 and 420 to YAML 1.1."""
    digits = text.lstrip("+-")
    return len(digits) > 1 and digits.startswith("0") and digits.isdecimal()
