"""`llmgw status`: what runs, what does not, and why."""

import json
from collections.abc import Sequence
from typing import Any

from llmgw.base.ids import Revision, short
from llmgw.base.time import age
from llmgw.cli.client import ask
from llmgw.cli.overview import lines, pools
from llmgw.cli.revising import revision_lines, revision_troubles
from llmgw.cli.screen import watch
from llmgw.cli.tables import cut, table

LONGEST = 10
"""Rows of a table that fit beside the sums; of longer ones the status shows what is not as it should be, and sums."""

QUIET = 30.0
"""Seconds without a token, with work in flight, that are worth a word."""


def show_status(server: str, *, as_json: bool, every: float | None = None) -> None:
    """Print the status; again every so many seconds if asked to."""

    def said() -> str:
        shown = ask(server, "GET", "/v1/status")
        return json.dumps(shown, indent=2) if as_json else text(shown)

    if every is None:
        print(said())
    else:
        watch(said, every)


def text(shown: dict[str, Any]) -> str:
    """Return the status for people: what is wrong first, then sums, then the tables, as far as one screen has room."""
    sums = lines(shown["overview"])
    blocks = [
        _troubles(shown),
        _head(shown),
        revision_lines(shown),
        *sums,
        _models(shown),
        _replicas(shown),
        _endpoints(shown),
        _nodes(shown),
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def _endpoints(shown: dict[str, Any]) -> list[str]:
    """Return the upstreams that somebody else runs, as far as there is room."""
    found = shown.get("endpoints", [])
    rows = [(one["name"], one["url"], cut(", ".join(one["models"]), 60)) for one in found[:LONGEST]]
    rest = len(found) - LONGEST
    return [*table(("ENDPOINT", "URL", "MODELS"), rows), *([f"  and {rest} more (get endpoints)"] if rest > 0 else [])]


def _troubles(shown: dict[str, Any]) -> list[str]:
    source = shown["source"]
    said = [f"! {alarm}" for alarm in shown["control"]["alarms"]]
    if source["refused"]:
        refused = source["refused"]
        said.append(f"! revision {short(refused['revision'])} is refused; {_short(source['in_force'])} stays in force:")
        said += [f"    {problem['text']}" for problem in refused["problems"]]
    if source["failed"]:
        said.append(f"! source: {source['state']}: {source['failed']}; {_short(source['in_force'])} stays in force")
    said += [f"! source: {notice}" for notice in source["notices"]]
    said += [f"! {notice}" for notice in shown["control"]["router_notices"]]
    said += revision_troubles(shown)
    of_nodes = []
    for node in shown["nodes"]:
        if node["state"] != "reporting":
            of_nodes.append(f"! node {node['name']} is {node['state']}: {node['why']}")
        if node["complaint"]:
            of_nodes.append(f"! node {node['name']}: {node['complaint']}")
        if node["gpu_trouble"]:
            of_nodes.append(f"! node {node['name']}: {node['gpu_trouble']}")
        of_nodes += [f"! node {node['name']}: card {card}" for card in node["gpus_unhealthy"] or ()]
    rest = len(of_nodes) - LONGEST
    more = [f"! and {rest} more of nodes (llmgw get nodes)"] if rest > 0 else []
    return [*said, *of_nodes[:LONGEST], *more]


def _head(shown: dict[str, Any]) -> list[str]:
    control, source = shown["control"], shown["source"]
    reporting = sum(node["state"] == "reporting" for node in shown["nodes"])
    ready = sum(model["ready"] for model in shown["models"])
    wanted = sum(model["wanted"] for model in shown["models"])
    models = len(shown["models"])
    leader = control.get("leader") or {}
    other = f": {leader['owner']} leads with epoch {leader['epoch']}" if leader.get("owner") else ""
    leading = f"leading, epoch {control['epoch']}" if control["leading"] else f"not leading{other}"
    since = f" for {age(source['age'])}" if source["age"] is not None else ""
    signed = f", verified: {source['verified_by']}" if source["verified_by"] else ""
    subject = f" ({source['subject']})" if source["subject"] else ""
    gateways = f"{len(control['workers'])} worker(s)"
    if control["routers"]:
        away = sum(one["connected_since"] is None for one in control["routers"])
        gateways += f", {len(control['routers'])} router(s) elsewhere" + (f" ({away} not connected)" if away else "")
    return [
        f"llmgw {control['version']} at {control['listen']}, {leading}, {gateways}",
        f"revision {_short(source['in_force'])}{subject} in force{since}{signed}, from {source['place']}",
        f"{ready} of {wanted} replicas ready, {models} model(s), {reporting} of {len(shown['nodes'])} node(s) answer",
    ]


def _models(shown: dict[str, Any]) -> list[str]:
    rows = [
        (
            model["name"],
            ", ".join(model["aliases"]) or "-",
            f"{model['ready']}/{model['wanted']}",
            cut("; ".join(model["waits_for"])) or "-",
        )
        for model in shown["models"]
        if len(shown["models"]) <= LONGEST or model["ready"] != model["wanted"]
    ]
    return _short_table(("MODEL", "ALIASES", "READY", "WAITS FOR"), rows, "models")


def _short_table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]], what: str) -> list[str]:
    rest = len(rows) - LONGEST
    more = [f"  and {rest} more (llmgw get {what})"] if rest > 0 else []
    return [*table(head, rows[:LONGEST]), *more]


def _replicas(shown: dict[str, Any]) -> list[str]:
    rows = []
    notes = []
    for one in shown["replicas"]:
        if len(shown["replicas"]) > LONGEST and one["phase"] == "ready" and one["node_answers"]:
            continue
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
                cut(_reason(one)) or "-",
            )
        )
        end = one["last_end"]
        if end is not None:
            notes.append(
                f"  {one['replica']}: attempt {end['attempt']} {end['text']}, {age(end['age'])} ago; "
                f"its log: llmgw logs {one['replica']} --attempt {end['attempt']}"
            )
    head = ("REPLICA", "NODE", "PHASE", "FOR", "PID", "ADDRESS", "ATTEMPT", "USE", "REASON")
    return [*_short_table(head, rows, "replicas"), *notes[:LONGEST]]


def _reason(one: dict[str, Any]) -> str:
    reason = "; ".join(said for said in (one["reason"] or one["degraded"], one["progress"], _quiet(one)) if said)
    if one["phase"] == "failed":
        return f"given up until its spec changes: {reason}"
    return str(reason)


def _quiet(one: dict[str, Any]) -> str:
    """Say that an engine with work makes no tokens, before it is stopped for that."""
    quiet = one["quiet_for"]
    return f"no token for {age(quiet)} with {one['engine_in_flight']} in flight" if quiet and quiet >= QUIET else ""


def _nodes(shown: dict[str, Any]) -> list[str]:
    if len(shown["nodes"]) > LONGEST and shown["overview"] is not None:
        return pools(shown["overview"])
    rows = [
        (
            node["name"],
            node["state"] + (", cordoned" if node["cordoned"] else "") + ("" if node["in_catalog"] else ", leaving"),
            str(node["shards"] if node["shards"] is not None else "-"),
            str(node["cpus"] or "-"),
            f"{node['memory'] >> 30}GiB" if node["memory"] else "-",
            _cards(node),
            f"{node['disk_free'] / (1 << 30):.0f}GiB" if node["disk_free"] is not None else "-",
            node["agent_version"] or "-",
            str(node["refused_orders"] if node["refused_orders"] is not None else "-"),
        )
        for node in shown["nodes"]
    ]
    return table(("NODE", "STATE", "SHARDS", "CPUS", "MEMORY", "GPUS", "DISK FREE", "AGENT", "REFUSED ORDERS"), rows)


def _cards(node: dict[str, Any]) -> str:
    if not node["gpus"]:
        return "-"
    lost = len(node["gpus_unhealthy"])
    return f"{node['gpus']}" + (f" ({lost} unhealthy)" if lost else "")


def _short(revision: str | None) -> str:
    return short(Revision(revision)) if revision else "none"
