"""What the bodies of admin requests hold, checked as they are taken apart."""

import base64
import binascii
from collections.abc import Mapping

from llmgw.base.ids import Revision
from llmgw.base.printable import printable
from llmgw.catalog.source import MAX_TREE, SourceTree

MAX_REQUEST = 4 * MAX_TREE
"""Bytes of a request: an apply of a saved plan has the tree twice, in base64."""
LONGEST = 500
"""Characters of a reason or a name."""
MOST_SECONDS = 1e11
"""Since 1970, 3,000 years; git takes larger times, which no calendar shows."""


class BadRequest(ValueError):
    """A request holds what cannot be; the message says what."""


def tree_from(body: object) -> SourceTree | None:
    """Return the tree of `{"revision": …, "files": {path: base64}, …}`, or None if it is not one. Raises BadRequest."""
    if not isinstance(body, dict) or not isinstance(body.get("files"), dict):
        return None
    try:
        files = {str(path): base64.b64decode(data, validate=True) for path, data in body["files"].items()}
    except (TypeError, ValueError, binascii.Error):
        return None
    refused = body.get("refused", {})
    trailers = body.get("trailers", [])
    if not isinstance(refused, dict) or not isinstance(trailers, list):
        return None
    texts = {str(path): str(what) for path, what in refused.items()}
    _check_text("a path", *files, *texts, *texts.values())
    return SourceTree(
        Revision(revision_from(body) or "worktree"),
        files,
        texts,
        line_from(body, "subject"),
        line_from(body, "author"),
        seconds_from(body, "committed"),
        tuple(printable(str(each)) for each in trailers),
    )


def revision_from(body: object) -> str:
    """Return the revision that a request names, or nothing. Raises BadRequest if that is no text of one line."""
    value = body.get("revision") if isinstance(body, dict) else None
    if value is None:
        return ""
    text = str(value)
    if not text.isprintable() or len(text) > LONGEST:
        raise BadRequest(f"the revision is not a text of one line with {LONGEST} characters at most")
    return text.strip()


def seconds_from(body: object, key: str) -> float | None:
    """Return a number of seconds, or None if there is none. Raises BadRequest for one beyond all calendars."""
    value = body.get(key) if isinstance(body, dict) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if not abs(value) <= MOST_SECONDS:  # not a number is not, either
        raise BadRequest(f"{key} is not a number of seconds, or too large a one")
    return float(value)


def line_from(body: object, key: str, default: str = "") -> str:
    """Return a text of one line, of at most `LONGEST` characters; U+FFFD stands for what has no shape."""
    value = body.get(key) if isinstance(body, Mapping) else None
    text = " ".join(printable(value.strip()).split()) if isinstance(value, str) else ""
    return text[:LONGEST] or default


def names_from(body: object, key: str) -> frozenset[str]:
    """Return a list of names; what is not a list of texts names nothing."""
    value = body.get(key) if isinstance(body, dict) else None
    return (
        frozenset(printable(one) for one in value if isinstance(one, str)) if isinstance(value, list) else frozenset()
    )


def _check_text(what: str, *texts: str) -> None:
    """Raise BadRequest if a text is one that no UTF-8 can hold."""
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise BadRequest(f"{what} holds half a character: {printable(text)!r}") from error
