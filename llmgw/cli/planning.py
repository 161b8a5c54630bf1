"""`llmgw plan`: what a directory would change, as the server's own planner says."""

import base64
import json
from pathlib import Path
from typing import Any

import typer

from llmgw.cli.client import ask
from llmgw.cli.directory import tree_of
from llmgw.cli.outcomes import FAILED
from llmgw.cli.overview import act_line

CHANGES = 2
_SIGNS = {"create": "+", "update": "~", "delete": "-"}
_REPLICA_SIGNS = {"start": "+", "keep": "~", "drain": "-", "stop": "-", "withdraw": "-", "move port": "~"}


def show_plan(
    directory: Path | None, what_if: list[str], server: str, *, as_json: bool, detailed_exitcode: bool
) -> None:
    """Ask the server and print its answer. Without a directory, `what_if` is supposed of the revision in force."""
    body: dict[str, Any] = {"what_if": what_if}
    if directory is not None or not what_if:
        tree = tree_of(directory or Path())
        files = {path: base64.b64encode(data).decode() for path, data in tree.files.items()}
        body |= {"revision": tree.revision, "files": files, "refused": dict(tree.refused)}
    shown = ask(server, "POST", "/v1/plan", body)
    print(json.dumps(shown, indent=2) if as_json else text(shown))
    if not shown["valid"] or shown["violations"]:
        raise typer.Exit(FAILED)
    if detailed_exitcode and shown["changes"]:
        raise typer.Exit(CHANGES)


def text(shown: dict[str, Any]) -> str:
    """Return the plan for people: objects, then replicas, then what is held back, then one line that sums it up."""
    problems = [one for one in shown["problems"] if one["severity"] == "error"]
    if not shown["valid"]:
        lines = [f"  {one['text']}" for one in problems]
        return "\n".join(["This directory is not valid, so nothing would change:", "", *lines])
    lines = [f"If {'; and if '.join(shown['supposed'])}:", ""] if shown["supposed"] else []
    lines += [f"! {alarm}" for alarm in shown["alarms"]]
    lines += (
        [f"Against revision {shown['based_on'][:10]}, which is in force:", ""]
        if shown["based_on"] and shown["changes"]
        else []
    )
    for one in shown["objects"]:
        lines.append(f"{_SIGNS[one['actions'][0]]} {one['kind'].lower()}/{one['name']} ({one['path']})")
        lines += [f"    {_field(field)}" for field in one["fields"]]
    if shown["replicas"]:
        lines += ["", "Replicas:"]
    lines += [
        f"{_REPLICA_SIGNS[one['actions'][0]]} {one['actions'][0]} {one['replica']} on {one['node']}: {one['reason']}"
        for one in shown["replicas"]
    ]
    if shown["held"]:
        lines += ["", "Held back:"]
    lines += [f"  {one['subject']}: {one['what']}, waits for {one['waits_for']}" for one in shown["held"]]
    if shown["acts"]:
        lines += ["", "Asked for by operators:"]
    lines += [f"  {act_line(one)}" for one in shown["acts"]]
    lines += [f"! this plan breaks a rule of safety and would not be carried out: {one}" for one in shown["violations"]]
    said = [*lines, "", _summary(shown)]
    return "\n".join(line for n, line in enumerate(said) if line or (n and said[n - 1]))


def _field(field: dict[str, str]) -> str:
    return f"{field['path']}: {field['before'] or '(not set)'} -> {field['after'] or '(not set)'} [{field['impact']}]"


def _summary(shown: dict[str, Any]) -> str:
    if not shown["changes"]:
        return "No changes." if not shown["held"] else "No changes; see what is held back."
    counts = {sign: sum(_SIGNS[one["actions"][0]] == sign for one in shown["objects"]) for sign in "+~-"}
    verbs: dict[str, int] = {}
    for one in shown["replicas"]:
        verbs[one["actions"][0]] = verbs.get(one["actions"][0], 0) + 1
    replicas = ", ".join(f"{count} to {verb}" for verb, count in verbs.items()) or "none touched"
    objects = f"{counts['+']} to create, {counts['~']} to update, {counts['-']} to delete"
    return f"Plan: objects: {objects}; replicas: {replicas}."
