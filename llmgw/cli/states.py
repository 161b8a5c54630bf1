"""`llmgw status` and `llmgw logs`: what runs, what does not, and why."""

import json
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode

from llmgw.base.time import age
from llmgw.cli.client import ask
from llmgw.cli.revising import revision_lines, revision_troubles


def show_status(server: str, *, as_json: bool) -> None:
    """Print the status."""
    shown = ask(server, "GET", "/v1/status")
    print(json.dumps(shown, indent=2) if as_json else text(shown))


def show_logs(replica: str, attempt: int, lines: int, server: str, *, as_json: bool) -> None:
    """Print the end of an engine's log."""
    query = urlencode({"replica": replica, "attempt": attempt, "lines": lines})
    shown = ask(server, "GET", f"/v1/logs?{query}")
    if as_json:
        print(json.dumps(shown, indent=2))
        return
    print("\n".join(shown["lines"]))


def text(shown: dict[str, Any]) -> str:
    """Return the status for people: what is wrong first, then sums, then the tables."""
    blocks = [_troubles(shown), _head(shown), revision_lines(shown), _models(shown), _replicas(shown), _nodes(shown)]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def _troubles(shown: dict[str, Any]) -> list[str]:
    source = shown["source"]
    lines = [f"! {alarm}" for alarm in shown["control"]["alarms"]]
    if source["refused"]:
        refused = source["refused"]
        lines.append(f"! revision {refused['revision'][:10]} is refused; {_short(source['in_force'])} stays in force:")
        lines += [f"    {problem['text']}" for problem in refused["problems"]]
    if source["failed"]:
        lines.append(f"! the source cannot be read: {source['failed']}")
    lines += revision_troubles(shown)
    for node in shown["nodes"]:
        if node["state"] != "reporting":
            lines.append(f"! node {node['name']} is {node['state']}: {node['why']}")
        if node["complaint"]:
            lines.append(f"! node {node['name']}: {node['complaint']}")
    return lines


def _head(shown: dict[str, Any]) -> list[str]:
    control, source = shown["control"], shown["source"]
    reporting = sum(node["state"] == "reporting" for node in shown["nodes"])
    ready = sum(model["ready"] for model in shown["models"])
    wanted = sum(model["wanted"] for model in shown["models"])
    models = len(shown["models"])
    leading = f"leading, epoch {control['epoch']}" if control["leading"] else "not leading"
    since = f" for {age(source['age'])}" if source["age"] is not None else ""
    subject = f" ({source['subject']})" if source["subject"] else ""
    return [
        f"llmgw {control['version']} at {control['listen']}, {leading}, {len(control['workers'])} worker(s)",
        f"revision {_short(source['in_force'])}{subject} in force{since}, from {source['place']}",
        f"{ready} of {wanted} replicas ready, {models} model(s), {reporting} of {len(shown['nodes'])} node(s) answer",
    ]


def _models(shown: dict[str, Any]) -> list[str]:
    rows = [
        (
            model["name"],
            ", ".join(model["aliases"]) or "-",
            f"{model['ready']}/{model['wanted']}",
            _cut("; ".join(model["waits_for"])) or "-",
        )
        for model in shown["models"]
    ]
    return table(("MODEL", "ALIASES", "READY", "WAITS FOR"), rows)


def _replicas(shown: dict[str, Any]) -> list[str]:
    rows = []
    notes = []
    for one in shown["replicas"]:
        uses = (
            "-"
            if one["usage"] == "unknown"
            else (f"{one['in_flight']} in flight" if one["usage"] == "active" else f"idle {age(one['idle_for'])}")
        )
        rows.append(
            (
                one["replica"],
                one["node"],
                one["phase"],
                age(one["age"]) if one["age"] is not None else "-",
                str(one["pid"] or "-"),
                one["address"] or f"port {one['port']}",
                str(one["attempt"]),
                uses,
                _cut(_reason(one)) or "-",
            )
        )
        end = one["last_end"]
        if end is not None:
            notes.append(
                f"  {one['replica']}: attempt {end['attempt']} {end['text']}, {age(end['age'])} ago; "
                f"its log: llmgw logs {one['replica']} --attempt {end['attempt']}"
            )
    head = ("REPLICA", "NODE", "PHASE", "FOR", "PID", "ADDRESS", "ATTEMPT", "USE", "REASON")
    return [*table(head, rows), *notes]


def _reason(one: dict[str, Any]) -> str:
    reason = one["reason"] or one["degraded"] or ""
    if one["phase"] == "failed":
        return f"given up until its spec changes: {reason}"
    return str(reason)


def _cut(text: str, width: int = 100) -> str:
    """Return a table's cell; the whole text is in `--json`."""
    return text if len(text) <= width else text[: width - 1] + "…"


def _nodes(shown: dict[str, Any]) -> list[str]:
    rows = [
        (
            node["name"],
            node["state"] + (", cordoned" if node["cordoned"] else "") + ("" if node["in_catalog"] else ", leaving"),
            str(node["shards"] if node["shards"] is not None else "-"),
            str(node["cpus"] or "-"),
            f"{node['memory'] >> 30}GiB" if node["memory"] else "-",
            node["agent_version"] or "-",
            str(node["refused_orders"] if node["refused_orders"] is not None else "-"),
        )
        for node in shown["nodes"]
    ]
    return table(("NODE", "STATE", "SHARDS", "CPUS", "MEMORY", "AGENT", "REFUSED ORDERS"), rows)


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Return a table's lines, columns two blanks apart; nothing for no rows."""
    if not rows:
        return []
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in [head, *rows]
    ]


def _short(revision: str | None) -> str:
    return revision[:10] if revision else "none"
