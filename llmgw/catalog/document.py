"""`Document`: one file as plain values, and where each of them was written.

Values are what YAML 1.2's core schema makes of the text: text, whole number, number, true or false, list, mapping.
Marks are kept beside the values instead of inside them (no subclasses of `str` and `int`), so that everything after the
reader sees ordinary Python and nothing has to be unwrapped before it is hashed, compared or stored.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from llmgw.catalog.problems import Problem, Severity

Path = tuple[str | int, ...]
"""Keys and list positions from the root to a value."""

LONGEST_SNIPPET = 500
"""A longer line is not shown: a thousand problems in one line of 200 KB would otherwise be 200 MB of snippets."""

_LINE_END = re.compile(r"\r\n|\n|\r")


LONGEST_WORD = 40
"""A longer piece of a file is cut where a message repeats it."""


def shortened(text: str) -> str:
    """Return a piece of a file as a message may repeat it."""
    return text if len(text) <= LONGEST_WORD else text[: LONGEST_WORD - 3] + "..."


@dataclass(frozen=True, slots=True)
class Place:
    """Where something starts, and where it ends if that is on the same line. From 1, in characters."""

    line: int
    column: int
    end_column: int = 0


@dataclass(frozen=True, slots=True)
class Mark:
    """Where a value and its key were written; what came through an alias has the alias's place."""

    value: Place
    key: Place | None = None
    plain: str | None = None
    """The source text of a scalar written without quotes, before it became a number or a truth value."""
    aliased: bool = False
    """Whether it came through an alias, so that it is written, and told of, elsewhere too."""


class SourceText:
    """One file's text: what problems take their snippets from."""

    __slots__ = ("lines", "path", "text")

    def __init__(self, path: str, text: str) -> None:
        self.path = path
        self.text = text
        self.lines = _LINE_END.split(text)

    def line(self, number: int) -> str:
        """Return a line by its number from 1, without its end; empty outside the file."""
        return self.lines[number - 1] if 0 < number <= len(self.lines) else ""

    def problem(self, place: Place, code: str, message: str, severity: Severity = "error") -> Problem:
        """Return a problem at a place of this file, snippet included."""
        snippet = self.line(place.line)
        return Problem(
            path=self.path,
            line=place.line,
            column=place.column,
            message=message,
            code=code,
            severity=severity,
            snippet=snippet if len(snippet) <= LONGEST_SNIPPET else "",
            end_column=place.end_column,
        )


@dataclass(frozen=True, slots=True)
class Document:
    """What one file says. Not yet valid: only its YAML has been checked."""

    source: SourceText
    kind: str
    """Empty if the file does not say."""
    name: str
    """Empty if the file does not say."""
    body: Mapping[str, object]
    marks: Mapping[Path, Mark]
    flawed: frozenset[Path] = field(default_factory=frozenset)
    """Values that already have a problem, so that nothing more is said of them."""
    incomplete: frozenset[Path] = field(default_factory=frozenset)
    """Mappings with a key that could not be read, so that no key is said to be missing in them."""

    @property
    def path(self) -> str:
        """The file's path relative to the cluster directory."""
        return self.source.path

    def value_place(self, path: Path) -> Place:
        """Where a value is; for what was not written, where the nearest value around it is."""
        return self._mark(path).value

    def key_place(self, path: Path) -> Place:
        """Where a value's key is; its own place if it is an item of a list."""
        mark = self._mark(path)
        return mark.key or mark.value

    def is_aliased(self, path: Path) -> bool:
        """Whether a value came through an alias."""
        return self._mark(path).aliased

    def _mark(self, path: Path) -> Mark:
        while path and path not in self.marks:
            path = path[:-1]
        return self.marks[path]

    def problem(self, path: Path, code: str, message: str, severity: Severity = "error") -> Problem:
        """Return a problem at a value."""
        return self.source.problem(self.value_place(path), code, message, severity)

    def key_problem(self, path: Path, code: str, message: str, severity: Severity = "error") -> Problem:
        """Return a problem at a value's key."""
        return self.source.problem(self.key_place(path), code, message, severity)

    def where(self, path: Path) -> str:
        """Return `file:line:column` of a value, to be named in the message of a problem elsewhere."""
        place = self.value_place(path)
        return f"{self.path}:{place.line}:{place.column}"
