"""`model/NAME`: which object of a directory a command means, also while other files of it are broken."""

from dataclasses import dataclass

from llmgw.catalog.compile import is_object_file
from llmgw.catalog.document import Document
from llmgw.catalog.reader import read_document
from llmgw.catalog.source import SourceTree
from llmgw.catalog.wording import listing, quoted, suggestion
from llmgw.spec.kinds import KINDS

_WORDS = {kind.lower(): kind for kind in KINDS}


class NoSuchObject(Exception):
    """The address names nothing. The message is one line that says what to write."""


class BadAddress(NoSuchObject):
    """It is no address: it names nothing in any directory."""


@dataclass(frozen=True, slots=True)
class Found:
    """One object's file."""

    path: str
    data: bytes
    document: Document


def locate(tree: SourceTree, address: str) -> Found:
    """Return the file of the object that an address names: `KIND/NAME`, or `cluster`. Raises NoSuchObject."""
    kind, name = _parsed(address)
    read = [(path, read_document(path, tree.files[path])) for path in sorted(tree.files) if is_object_file(path)]
    of_kind = [each.document for _, each in read if each.document is not None and each.document.kind == kind]
    found = [document for document in of_kind if document.name == name or (not name and kind == "Cluster")]
    if len(found) == 1:
        path = found[0].path
        return Found(path, tree.files[path], found[0])
    if found:
        places = ", ".join(document.path for document in found)
        raise NoSuchObject(f"{address} is defined more than once: {places}; keep one of them")
    names = [document.name for document in of_kind if document.name]
    advice = suggestion(name, names) or (f"; there are {', '.join(sorted(names)[:20])}" if names else "")
    unread = sum(each.document is None for _, each in read)
    hidden = f" ({unread} file(s) cannot be read, see `llmgw validate`)" if unread else ""
    what = f"{kind.lower()} {quoted(name)}" if name else kind
    raise NoSuchObject(f"there is no {what} in this directory{hidden}{advice}")


def _parsed(address: str) -> tuple[str, str]:
    word, slash, name = address.partition("/")
    kind = _WORDS.get(word.lower())
    if kind is None:
        advice = suggestion(word, _WORDS) or f"; write {listing(f'{each}/NAME' for each in _WORDS)}"
        raise BadAddress(f"there is no kind {quoted(word)}{advice}")
    if not name and (slash or kind != "Cluster"):
        raise BadAddress(f"{quoted(address)} names no object; write {word.lower()}/NAME")
    return kind, name
