"""`SourceTree`: a whole cluster directory at one revision, as bytes; and the other things a source can say.

A source that failed is a variant of its own: it is never an empty tree.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from llmgw.base.ids import Revision

MAX_BYTES = 256 << 10
"""Of one file. What is larger is no object's, and is not even read."""
MAX_TREE = 32 << 20
"""Bytes of all files that are read of one tree, each counted as often as it is named."""

LINK = "symlink"
"""One that leads out of the tree, to another link, or to nothing."""
LINK_TO_FILE = "symlink to a file"
LINK_TO_DIRECTORY = "symlink to a directory"
SUBMODULE = "submodule"
SPECIAL = "special file"
TWO_NAMES = "name that two files share once it is text"
TOO_LARGE = f"file of more than {MAX_BYTES >> 10} KiB"
BEYOND = f"file beyond the first {MAX_TREE >> 20} MiB of the directory"


@dataclass(frozen=True, slots=True)
class SourceTree:
    """Every file of the cluster directory, by path relative to it, `/`-separated."""

    revision: Revision
    files: Mapping[str, bytes]
    refused: Mapping[str, str] = field(default_factory=dict)
    """Entries that are not read, by path, and what they are: one of the constants above. See `hides`."""
    subject: str = ""
    """First line of the commit's message."""
    author: str = ""
    committed: float | None = None
    """Unix time of the commit."""
    trailers: tuple[str, ...] = ()
    """The `Key: value` lines at the end of the commit's message."""


def without_contents(tree: SourceTree) -> SourceTree:
    """Return what tells a tree from others, for one that will not be read again."""
    return replace(tree, files={}, refused={})


def belongs(path: str) -> bool:
    """Whether a path is a tree's: a YAML file that is not hidden, nor below something hidden. All sources go by this."""
    return path.lower().endswith((".yaml", ".yml")) and not hidden(path)


def hidden(path: str) -> bool:
    """Whether a name of a path starts with a dot."""
    return any(part.startswith(".") for part in path.split("/"))


def hides(path: str, what: str) -> bool:
    """Whether an entry that is not read may hold objects: then they would vanish without a word if the tree were taken.

    A symlink whose target is not known may be a directory unless its name has an ending, as README.md has.
    """
    if hidden(path):
        return False
    if what == LINK_TO_FILE:
        return belongs(path)
    return belongs(path) or what != LINK or "." not in path.rpartition("/")[2]


class Trouble(StrEnum):
    """Why nothing new is taken from a source. Each is another errand for a person."""

    UNREACHABLE = "unreachable"
    """It could not be read: the network, rights, damage."""
    BRANCH_MISSING = "branch missing"
    EMPTY = "empty repository"
    """There is no commit at all."""
    REWRITTEN = "history rewritten"
    """The branch no longer contains the revision in force."""
    UNVERIFIED = "not verified"
    """A signature that `source.verify` asks for is missing or not trusted."""


@dataclass(frozen=True, slots=True)
class SourceFailed:
    """The source could not be read; the reason says what to do. Nothing is known of what it holds."""

    reason: str
    trouble: Trouble = Trouble.UNREACHABLE


Source = SourceTree | SourceFailed
