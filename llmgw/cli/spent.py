"""What `llmgw usage` does: sums of what requests cost, as a table, CSV or JSON."""

import csv
import json
import sys
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

from llmgw.cli.client import ask
from llmgw.cli.outcomes import WrongUsage
from llmgw.cli.tables import table

SUMS = ("requests", "failed", "prompt_tokens", "completion_tokens", "cached_tokens", "estimated_tokens")
TITLES = ("REQUESTS", "FAILED", "IN", "OUT", "CACHED", "ESTIMATED")


def show_usage(by: str, since: str, until: str, output: str, server: str) -> None:
    """Print it."""
    if output not in ("table", "csv", "json"):
        raise WrongUsage(f"-o {output} is not known; write -o table, -o csv or -o json")
    wanted = {"by": by, "since": since, "until": until}
    shown = ask(server, "GET", "/v1/usage?" + urlencode({name: value for name, value in wanted.items() if value}))
    names = ("tenant", "key") if shown["by"] == "key" else (shown["by"],)
    match output:
        case "json":
            print(json.dumps(shown, indent=2))
        case "csv":
            writer = csv.writer(sys.stdout, lineterminator="\n")
            writer.writerow((*names, *SUMS))
            writer.writerows([*(_name(row, name, "") for name in names), *_sums(row)] for row in shown["usage"])
        case _:
            print("\n".join(lines(shown, names)))


def lines(shown: dict[str, Any], names: tuple[str, ...]) -> list[str]:
    """Return the table's lines, with the sum of all below where there is more than one."""
    rows = [(*(_name(row, name, "-") for name in names), *map(str, _sums(row))) for row in shown["usage"]]
    if len(rows) > 1:
        rows.append(("total", *("" for _ in names[1:]), *map(str, _sums(shown["total"]))))
    return table((*(name.upper() for name in names), *TITLES), rows) or ["nothing was asked for in that time"]


def _name(row: dict[str, Any], name: str, nothing: str) -> str:
    if name in ("hour", "day"):
        return datetime.fromtimestamp(row[name], UTC).strftime("%Y-%m-%dT%H:00Z" if name == "hour" else "%Y-%m-%d")
    return str(row[name]) or nothing


def _sums(row: dict[str, Any]) -> list[int]:
    return [row[name] for name in SUMS]
