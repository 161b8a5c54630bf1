"""`Problem`: one thing that is wrong in a cluster directory, where, and what to do about it."""

from dataclasses import dataclass
from typing import Literal

Severity = Literal["error", "warning"]


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """One diagnostic. Ordered by file, line and column."""

    path: str
    """Relative to the cluster directory; empty for what concerns the directory as a whole."""
    line: int
    """From 1; 0 where there is no position."""
    column: int
    """From 1, in characters; 0 where there is no position."""
    message: str
    """A sentence without a capital and without a full stop; what to do follows after a comma, semicolon or colon."""
    code: str = "invalid"
    """Stable short name of the rule, in kebab-case."""
    severity: Severity = "error"
    snippet: str = ""
    """The source line, without its line end."""
    end_column: int = 0
    """Column just after the offending text, on the same line; 0 where unknown."""

    def __str__(self) -> str:
        """Return `path:line:column message`, the form that editors make a link of."""
        place = self.path
        if self.line:
            place += f":{self.line}:{self.column}"
        return f"{place} {self.message}" if place else self.message
