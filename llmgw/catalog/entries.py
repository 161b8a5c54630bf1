"""Which entries of a directory are read as a cluster directory's files, and what the others are. All sources go by this.

Commits, the index, a push and the files on a disk are listed by other means each; what a listing means must not depend on
them, or a push passes its check and is refused later, or loses the objects behind a link without a word. So every source
hands over all its entries, those of no interest too: they tell where a symlink leads. A link is judged by its text and the
listing alone: what lies outside the directory is another thing on each machine.
"""

import posixpath
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum, auto

from llmgw.catalog.source import (
    BEYOND,
    LINK,
    LINK_TO_DIRECTORY,
    LINK_TO_FILE,
    MAX_BYTES,
    MAX_TREE,
    SPECIAL,
    SUBMODULE,
    TOO_LARGE,
    TWO_NAMES,
    belongs,
    hidden,
)


class Kind(Enum):
    """What an entry of a directory is, as far as it matters here."""

    FILE = auto()
    LINK = auto()
    REPOSITORY = auto()
    """A submodule; on a disk, any repository inside another one."""
    SPECIAL = auto()
    """A pipe, a socket, a device."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry; its path is relative to the cluster directory, `/`-separated."""

    path: str
    kind: Kind
    size: int = 0
    """Bytes of a file."""
    target: str | None = None
    """Of a link; None if it is too long to be one."""


@dataclass(frozen=True, slots=True)
class Sorted:
    """What to read, in the order of the paths, and what is not read."""

    files: tuple[str, ...]
    refused: dict[str, str]


def sort_out(entries: Iterable[Entry]) -> Sorted:
    """Tell the files to read from the entries that are refused. Hidden entries are neither."""
    visible = sorted((entry for entry in entries if not hidden(entry.path)), key=lambda entry: entry.path)
    named = Counter(entry.path for entry in visible)
    plain = {entry.path for entry in visible if entry.kind is Kind.FILE}
    directories = {parent for path in plain for parent in _parents(path)}
    files, refused, total = [], {}, 0
    for entry in visible:
        match entry.kind:
            case Kind.LINK:
                refused[entry.path] = _link(entry, plain, directories)
            case Kind.REPOSITORY:
                refused[entry.path] = SUBMODULE
            case _ if not belongs(entry.path):
                continue
            case Kind.SPECIAL:
                refused[entry.path] = SPECIAL
            case Kind.FILE if named[entry.path] > 1:
                refused[entry.path] = TWO_NAMES
            case Kind.FILE if entry.size > MAX_BYTES:
                refused[entry.path] = TOO_LARGE
            case Kind.FILE:
                total += entry.size
                if total > MAX_TREE:
                    refused[entry.path] = BEYOND
                else:
                    files.append(entry.path)
    return Sorted(tuple(files), refused)


def _link(entry: Entry, plain: set[str], directories: set[str]) -> str:
    if entry.target is None:
        return LINK
    leads = posixpath.normpath(posixpath.join(posixpath.dirname(entry.path), entry.target))
    if leads in plain and not entry.target.endswith("/"):
        return LINK_TO_FILE
    return LINK_TO_DIRECTORY if leads in directories else LINK


def _parents(path: str) -> Iterator[str]:
    while path:
        path = path.rpartition("/")[0]
        yield path or "."
