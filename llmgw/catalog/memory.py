"""What was read of a file before, so that it need not be scanned again: nearly all the time of a compile is scanning.

An entry is found by a digest of the file's bytes and path, of the language (the schemas) and of llmgw's version; so it can
only be what reading would give now. Only faultless documents are kept: problems are told from the text. Where entries are
kept between runs is not known here (`adapters.document_cache`).
"""

import hashlib
import json
from collections.abc import Mapping
from functools import cache
from typing import Any, Protocol

from llmgw import __version__
from llmgw.catalog.document import Document, Mark, Place, SourceText
from llmgw.spec.schema import schema_files


class Memory(Protocol):
    """Entries by digest. For one caller at a time; neither call raises."""

    def get(self, digest: str) -> object:
        """Return an entry, or None."""
        ...

    def put(self, digest: str, entry: object) -> None:
        """Keep an entry: JSON values only."""
        ...


class NoMemory:
    """Remembers nothing."""

    def get(self, digest: str) -> object:  # noqa: ARG002 - the protocol's signature
        """Return None."""
        return None

    def put(self, digest: str, entry: object) -> None:
        """Drop the entry."""


def digest_of(path: str, data: bytes) -> str:
    """Return what an entry is found by."""
    digest = hashlib.sha256(_language())
    digest.update(path.encode("utf-8", "backslashreplace") + b"\0")
    digest.update(data)
    return digest.hexdigest()


@cache
def _language() -> bytes:
    """Digest of everything besides the file that its reading depends on."""
    return hashlib.sha256(json.dumps([__version__, schema_files()], sort_keys=True).encode()).digest()


def to_entry(document: Document) -> object:
    """Return a faultless document as JSON values; `from_entry` makes it again."""
    marks = [
        [list(path), _place(mark.value), _place(mark.key), mark.plain, mark.aliased]
        for path, mark in document.marks.items()
    ]
    return [document.kind, document.name, document.body, marks]


def from_entry(entry: object, path: str, data: bytes) -> Document | None:
    """Return the document of an entry; None if it is not one."""
    match entry:
        case [str() as kind, str() as name, dict() as body, list() as marks]:
            text = data.decode("utf-8-sig")
            return Document(SourceText(path, text), kind, name, body, _Marks(marks))
        case _:
            return None


class _Marks(Mapping[tuple[str | int, ...], Mark]):
    """The marks of an entry, made when the first is asked for: a directory without a fault asks for none."""

    __slots__ = ("_entry", "_made")

    def __init__(self, entry: list[Any]) -> None:
        self._entry = entry
        self._made: dict[tuple[str | int, ...], Mark] | None = None

    def __getitem__(self, path: tuple[str | int, ...]) -> Mark:
        return self._all()[path]

    def __iter__(self) -> Any:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._entry)

    def _all(self) -> dict[tuple[str | int, ...], Mark]:
        if self._made is None:
            self._made = {
                tuple(path): Mark(Place(*value), Place(*key) if key else None, plain, aliased)
                for path, value, key, plain, aliased in self._entry
            }
        return self._made


def _place(place: Place | None) -> list[int] | None:
    return [place.line, place.column, place.end_column] if place is not None else None
