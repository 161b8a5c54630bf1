"""What the bodies of admin requests hold, checked as they are taken apart."""

import base64
import binascii

from llmgw.base.ids import Revision
from llmgw.catalog.source import MAX_TREE, SourceTree

MAX_REQUEST = 4 * MAX_TREE
"""Bytes of a request: an apply of a saved plan has the tree twice, in base64."""
LONGEST = 500
"""Characters of a reason or a name."""


def tree_from(body: object) -> SourceTree | None:
    """Return the tree of `{"revision": …, "files": {path: base64}, …}`, or None if it is not one."""
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
    committed = body.get("committed")
    return SourceTree(
        Revision(str(body.get("revision", "worktree"))),
        files,
        {str(path): str(what) for path, what in refused.items()},
        line_from(body, "subject"),
        line_from(body, "author"),
        float(committed) if isinstance(committed, int | float) else None,
        tuple(map(str, trailers)),
    )


def line_from(body: object, key: str, default: str = "") -> str:
    """Return a text of one line, of at most `LONGEST` characters."""
    value = body.get(key) if isinstance(body, dict) else None
    text = (
        " ".join("".join(each if each.isprintable() else " " for each in value).split())
        if isinstance(value, str)
        else ""
    )
    return text[:LONGEST] or default


def names_from(body: object, key: str) -> frozenset[str]:
    """Return a list of names; what is not a list of texts names nothing."""
    value = body.get(key) if isinstance(body, dict) else None
    return frozenset(one for one in value if isinstance(one, str)) if isinstance(value, list) else frozenset()
