"""`llmgw get`: the tables behind the status, with filters and an order; and how tables are printed."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

from llmgw.base.time import age
from llmgw.cli.client import ask
from llmgw.cli.outcomes import WrongUsage

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its title, and what of a row it shows. `wide` ones are shown by `-o wide` only."""

    title: str
    shows: Callable[[Row], object]
    wide: bool = False
    key: str = ""
    """The field that rows are put in order by, where it is another than what is shown."""

    def value(self, row: Row) -> object:
        """Return what rows are put in order by."""
        return row[self.key] if self.key else self.shows(row)

    def cell(self, row: Row) -> str:
        """Return the cell; what is not known is `-`."""
        value = self.shows(row)
        return "-" if value is None or value == "" else str(value)


def _field(title: str, key: str, *, wide: bool = False) -> Column:
    return Column(title, lambda row: row[key], wide)


def _age(title: str, key: str, *, wide: bool = False) -> Column:
    return Column(title, lambda row: age(row[key]) if row[key] is not None else None, wide, key)


def _gib(title: str, key: str, *, wide: bool = False) -> Column:
    return Column(title, lambda row: f"{row[key] >> 30}GiB" if row[key] is not None else None, wide, key)


def _at(row: Row) -> str:
    return datetime.fromtimestamp(row["at"], UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


TABLES: dict[str, tuple[str, tuple[Column, ...]]] = {
    "nodes": (
        "/v1/status",
        (
            _field("NODE", "name"),
            _field("STATE", "state"),
            _field("SHARDS", "shards"),
            _field("CORDONED", "cordoned"),
            _field("CPUS", "cpus"),
            _gib("MEMORY", "memory"),
            _field("AGENT", "agent_version", wide=True),
            _field("GENERATION", "generation", wide=True),
            _field("REFUSED", "refused_orders", wide=True),
            _field("WHY", "why"),
        ),
    ),
    "gpus": (
        "/v1/gpus",
        (
            _field("NODE", "node"),
            _field("INDEX", "index"),
            _field("CLASS", "class"),
            _field("STATE", "state"),
            _gib("MEMORY", "memory"),
            _gib("USED", "memory_used"),
            _field("UUID", "uuid"),
            _field("NAME", "name", wide=True),
            _field("WHY", "why"),
        ),
    ),
    "models": (
        "/v1/status",
        (
            _field("MODEL", "name"),
            _field("READY", "ready"),
            _field("WANTED", "wanted"),
            _field("REPLICAS", "replicas"),
            Column("ALIASES", lambda row: ", ".join(row["aliases"]), wide=True),
            Column("WAITS FOR", lambda row: "; ".join(row["waits_for"])),
        ),
    ),
    "replicas": (
        "/v1/status",
        (
            _field("REPLICA", "replica"),
            _field("MODEL", "model"),
            _field("NODE", "node"),
            Column("PHASE", lambda row: row["phase"] + ("" if row["node_answers"] else " (node away)")),
            _age("FOR", "age"),
            _field("IN FLIGHT", "in_flight"),
            _age("IDLE FOR", "idle_for"),
            _field("PID", "pid", wide=True),
            _field("ADDRESS", "address", wide=True),
            _field("ATTEMPT", "attempt", wide=True),
            _field("REASON", "reason"),
        ),
    ),
    "endpoints": (
        "/v1/endpoints",
        (
            _field("ENDPOINT", "endpoint"),
            _field("MODEL", "model"),
            _field("ADDRESS", "address"),
            _field("IN FLIGHT", "in_flight"),
            _age("IDLE FOR", "idle_for"),
        ),
    ),
    "leader": (
        "/v1/leader",
        (
            _field("LEADER", "owner"),
            _field("EPOCH", "epoch"),
            Column("HERE", lambda row: "yes" if row["here"] else "no"),
            _field("CHANGES", "changes"),
            _field("STORE", "store"),
            _field("ASKED", "asked", wide=True),
        ),
    ),
    "events": (
        "/v1/events",
        (
            Column("AT", _at),
            _age("AGO", "age"),
            _field("KIND", "kind"),
            _field("SUBJECT", "subject"),
            _field("CAUSE", "cause", wide=True),
            _field("TEXT", "text"),
        ),
    ),
    "audit": (
        "/v1/audit",
        (
            Column("AT", _at),
            _age("AGO", "age"),
            _field("WHO", "who"),
            _field("SAID", "said", wide=True),
            _field("ACT", "act"),
            _field("SUBJECT", "subject"),
            _field("OUTCOME", "outcome"),
            _field("CAUSE", "cause", wide=True),
            _field("TEXT", "text"),
        ),
    ),
}


@dataclass(frozen=True, slots=True)
class Asked:
    """What the command line asks of a table."""

    what: str
    output: str = ""
    filters: tuple[str, ...] = ()
    sort: str = ""
    limit: int = 50
    since: str = ""


def show_table(asked: Asked, server: str) -> None:
    """Print a table."""
    if asked.what not in TABLES:
        raise WrongUsage(f"there is no table {asked.what!r}; there are: {', '.join(TABLES)}")
    if asked.output not in ("", "wide", "json"):
        raise WrongUsage(f"-o {asked.output} is not known; write -o wide or -o json")
    path, _ = TABLES[asked.what]
    if asked.what in ("events", "audit"):
        wanted = {"limit": str(asked.limit), "since": asked.since, "subject": _subject(asked)}
        path += "?" + urlencode({key: value for key, value in wanted.items() if value})
    rows = chosen(ask(server, "GET", path)[asked.what], asked)
    if asked.output == "json":
        print(json.dumps(rows, indent=2))
    else:
        print("\n".join(text(rows, asked)) or f"no {asked.what}{' of that kind' if asked.filters else ''}")


def chosen(rows: list[Row], asked: Asked) -> list[Row]:
    """Return the rows that pass all filters, in the order asked for. Raises WrongUsage."""
    columns = TABLES[asked.what][1]
    for pair in asked.filters:
        key, equals, value = pair.partition("=")
        if not equals:
            raise WrongUsage(f"--filter {pair} is not understood; write --filter COLUMN=VALUE")
        column = _column(columns, key)
        if pair != f"subject={_subject(asked)}":
            rows = [row for row in rows if value in (column.cell(row), str(column.value(row)))]
    if asked.sort:
        column = _column(columns, asked.sort.removeprefix("-"))
        known = [row for row in rows if column.value(row) is not None]
        known.sort(key=lambda row: _rank(column.value(row)), reverse=asked.sort.startswith("-"))
        rows = known + [row for row in rows if column.value(row) is None]
    return rows


def text(rows: list[Row], asked: Asked) -> list[str]:
    """Return the table's lines."""
    columns = [one for one in TABLES[asked.what][1] if asked.output == "wide" or not one.wide]
    most = 10_000 if asked.output == "wide" else 100
    return table(
        tuple(one.title for one in columns), [tuple(cut(one.cell(row), most) for one in columns) for row in rows]
    )


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Return a table's lines, columns two blanks apart; nothing for no rows."""
    if not rows:
        return []
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in [head, *rows]
    ]


def cut(text: str, width: int = 100) -> str:
    """Return a table's cell; the whole text is in JSON."""
    return text if len(text) <= width else text[: width - 1] + "…"


def _column(columns: tuple[Column, ...], name: str) -> Column:
    wanted = name.lower().replace("_", " ").replace("-", " ")
    found = next((one for one in columns if one.title.lower() == wanted), None)
    if found is None:
        known = ", ".join(one.title.lower().replace(" ", "-") for one in columns)
        raise WrongUsage(f"there is no column {name!r}; there are: {known}")
    return found


def _rank(value: object) -> tuple[bool, float, str]:
    """Order numbers as numbers and texts as texts; what is not known comes last."""
    if isinstance(value, int | float):
        return (False, float(value), "")
    return (value is None, 0.0, str(value))


def _subject(asked: Asked) -> str:
    """Return the one subject of events that is filtered by; the server looks for it among all that it has."""
    found = [pair.partition("=")[2] for pair in asked.filters if pair.startswith("subject=")]
    return found[0] if asked.what == "events" and len(found) == 1 else ""
