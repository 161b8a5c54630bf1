"""Takes credentials out of text that people see: the one place that knows in which forms they hide.

A URL is shown without its user and its query, since tokens come as either. `values` are secrets known to the caller, which
are taken out wherever they stand, also percent-encoded or as half of a Basic header: git repeats in its messages what a
server sent, and a server may send back anything.
"""

import base64
import re
from collections.abc import Iterable

GONE = "…"
LINE = 16
"""Characters that a line of a secret must have to be looked for by itself, as those of a private key do."""
_USER = re.compile(r"(?i)\b([a-z][a-z0-9+.-]*(?::|%3a)(?://|%2f%2f))([^\s/?#'\"<>]+)(@|%40)")
_QUERY = re.compile(r"(?i)(\b[a-z][a-z0-9+.-]*://[^\s?#'\"<>]*)\?[^\s'\"<>]*")
_PLAIN_USER = re.compile(r"^[A-Za-z0-9_.-]+$")


def redact(text: str, values: Iterable[str] = ()) -> str:
    """Return the text without credentials."""
    known = _known(value for value in values if value)
    if known is not None:
        text = known.sub(GONE, text)
    return _QUERY.sub(rf"\1?{GONE}", _USER.sub(_without_user, text))


def _without_user(match: re.Match[str]) -> str:
    scheme, user, at = match.groups()
    if scheme.lower().startswith("ssh") and _PLAIN_USER.match(user):
        return match[0]  # a login name, which is no secret
    return f"{scheme}{GONE}{at}"


def _known(values: Iterable[str]) -> re.Pattern[str] | None:
    """Return what finds secrets, whichever of their characters are percent-encoded; lines of long ones, too."""
    parts: set[str] = set()
    for value in values:
        parts |= {value.strip(), base64.b64encode(value.encode()).decode()}
        parts |= {line for line in value.splitlines() if len(line) >= LINE}
    written = ["".join(map(_written, part)) for part in sorted(parts, key=len, reverse=True) if part]
    return re.compile("|".join(written)) if written else None


def _written(character: str) -> str:
    hexes = "".join(f"%(?i:{byte:02x})" for byte in character.encode("utf-8", "surrogatepass"))
    plus = r"|\+" if character == " " else ""
    return f"(?:{re.escape(character)}|{hexes}{plus})"
