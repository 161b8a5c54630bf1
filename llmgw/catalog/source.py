"""`SourceTree`: a whole cluster directory at one revision, as bytes; and the other things a source can say.

A source that failed is a variant of its own: it is never an empty tree.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from llmgw.base.ids import Revision


@dataclass(frozen=True, slots=True)
class SourceTree:
    """Every file of the cluster directory, by path relative to it, `/`-separated."""

    revision: Revision
    files: Mapping[str, bytes]
    refused: Mapping[str, str] = field(default_factory=dict)
    """Entries that are not plain files (path to what they are: `symlink`, `submodule`); each becomes a problem."""
    subject: str = ""
    """First line of the commit's message."""
    author: str = ""
    committed: float | None = None
    """Unix time of the commit."""
    trailers: tuple[str, ...] = ()
    """The `Key: value` lines at the end of the commit's message."""


def belongs(path: str) -> bool:
    """Whether a path is a tree's: a YAML file that is not hidden, nor below something hidden. All sources go by this."""
    return path.lower().endswith((".yaml", ".yml")) and not any(part.startswith(".") for part in path.split("/"))


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
