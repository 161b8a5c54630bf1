"""Problems as text for people, and in the three forms that machines read: JSON, GitHub's workflow commands, SARIF.

Colour, exit codes and where the output goes are the command line's business. The JSON is OpenTofu's `validate -json`,
since editors and CI scripts exist that read it; `byte` offsets are left out, which its readers take as zero, and `code`
is added.
"""

import json
import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import quote

from llmgw.catalog.problems import Problem

WIDEST = 120
"""Columns of a snippet; of a longer line the part around the offending text is shown."""

_COMMANDING = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def render_text(problems: Iterable[Problem]) -> str:
    """Return each problem with its line and a caret under it, then a line that counts them; empty for no problems."""
    problems = list(problems)
    if not problems:
        return ""
    blocks = ["\n".join(_printable(line) for line in (_headline(each), *_pointed(each))) for each in problems]
    return "\n".join([*blocks, _count(problems)]) + "\n"


def _headline(problem: Problem) -> str:
    if problem.severity == "error":
        return str(problem)
    place = str(problem).removesuffix(problem.message)
    return f"{place}warning: {problem.message}"


def _pointed(problem: Problem) -> list[str]:
    """Return the source line and a line with a caret under the offending text; nothing without a snippet."""
    if not problem.snippet.strip():
        return []
    start = max(0, problem.column - 1)
    end = max(start + 1, problem.end_column - 1)
    first = max(0, min(start - WIDEST // 3, len(problem.snippet) - WIDEST))
    shown = problem.snippet[first : first + WIDEST]
    lead = "".join(_blank(character) for character in shown[: start - first])
    carets = "^" * max(1, sum(len(_blank(character)) for character in shown[start - first : end - first]))
    return [f"    {shown}", f"    {lead}{carets}"]


def _blank(character: str) -> str:
    """Return what is as wide as a character on a terminal; a tab stays one, since its width depends on where it is."""
    if character == "\t":
        return "\t"
    if unicodedata.combining(character):
        return ""
    return "  " if unicodedata.east_asian_width(character) in "WF" else " "


def _printable(line: str) -> str:
    """Replace what would command a terminal: file names and the lines of unreadable files may hold anything."""
    return _COMMANDING.sub("\N{REPLACEMENT CHARACTER}", line)


def _count(problems: Sequence[Problem]) -> str:
    errors = sum(problem.severity == "error" for problem in problems)
    parts = [_many(errors, "error"), _many(len(problems) - errors, "warning")]
    files = len({problem.path for problem in problems if problem.path})
    where = f" in {_many(files, 'file')}" if files else ""
    return ", ".join(part for part in parts if not part.startswith("0 ")) + where


def _many(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def render_json(problems: Iterable[Problem]) -> str:
    """Return OpenTofu's `validate -json` object: `valid`, the counts, and a diagnostic for each problem."""
    problems = list(problems)
    errors = sum(problem.severity == "error" for problem in problems)
    report = {
        "format_version": "1.0",
        "valid": errors == 0,
        "error_count": errors,
        "warning_count": len(problems) - errors,
        "diagnostics": [_diagnostic(problem) for problem in problems],
    }
    return json.dumps(report, indent=2) + "\n"


def _diagnostic(problem: Problem) -> dict[str, Any]:
    diagnostic: dict[str, Any] = {
        "severity": problem.severity,
        "summary": problem.message,
        "detail": "",
        "code": problem.code,
    }
    if problem.path:
        line, column = max(1, problem.line), max(1, problem.column)
        diagnostic["range"] = {
            "filename": problem.path,
            "start": {"line": line, "column": column},
            "end": {"line": line, "column": max(column, problem.end_column)},
        }
    if problem.snippet:
        start = max(0, problem.column - 1)
        diagnostic["snippet"] = {
            "context": None,
            "code": problem.snippet,
            "start_line": problem.line,
            "highlight_start_offset": start,
            "highlight_end_offset": max(start, problem.end_column - 1),
            "values": [],
        }
    return diagnostic


def render_github(problems: Iterable[Problem]) -> str:
    """Return one workflow command for each problem, which GitHub shows beside the line in a pull request."""
    return "".join(f"::{problem.severity} {_properties(problem)}::{_data(problem.message)}\n" for problem in problems)


def _properties(problem: Problem) -> str:
    properties: dict[str, object] = {"file": problem.path} if problem.path else {}
    if problem.path and problem.line:
        properties |= {"line": problem.line, "col": problem.column}
        if problem.end_column > problem.column:
            properties["endColumn"] = problem.end_column
    properties["title"] = problem.code
    return ",".join(f"{name}={_property(str(value))}" for name, value in properties.items())


def _data(text: str) -> str:
    return _printable(text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A"))


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def render_sarif(problems: Iterable[Problem], tool_version: str) -> str:
    """Return a SARIF 2.1.0 log with one run, for code-scanning services."""
    problems = list(problems)
    codes = sorted({problem.code for problem in problems})
    run = {
        "tool": {"driver": {"name": "llmgw", "version": tool_version, "rules": [{"id": code} for code in codes]}},
        "columnKind": "unicodeCodePoints",
        "results": [_result(problem, codes.index(problem.code)) for problem in problems],
    }
    return json.dumps({"$schema": _SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2) + "\n"


def _result(problem: Problem, rule: int) -> dict[str, Any]:
    result: dict[str, Any] = {
        "ruleId": problem.code,
        "ruleIndex": rule,
        "level": problem.severity,
        "message": {"text": problem.message},
    }
    if problem.path:
        location: dict[str, Any] = {"artifactLocation": {"uri": quote(problem.path, errors="surrogateescape")}}
        if problem.line:
            location["region"] = _region(problem)
        result["locations"] = [{"physicalLocation": location}]
    return result


def _region(problem: Problem) -> dict[str, Any]:
    region: dict[str, Any] = {"startLine": problem.line, "startColumn": problem.column}
    if problem.end_column > problem.column:
        region["endColumn"] = problem.end_column
    if problem.snippet:
        region["snippet"] = {"text": problem.snippet}
    return region
