"""`llmgw explain model/NAME`: why what is wanted does not run, node by node, and what would have to move."""

import json
from typing import Any
from urllib.parse import urlencode

from llmgw.base.time import age
from llmgw.cli.client import ask
from llmgw.cli.outcomes import WrongUsage

MOST = 30
"""Nodes that are listed one by one; nodes with the same reason share a line."""


def show_explanation(address: str, server: str, *, as_json: bool) -> None:
    """Print the explanation of a model."""
    kind, _, name = address.partition("/")
    if kind != "model" or not name:
        raise WrongUsage(f"{address!r} cannot be explained; write model/NAME")
    shown = ask(server, "GET", f"/v1/explain?{urlencode({'model': name})}")
    print(json.dumps(shown, indent=2) if as_json else text(shown))


def text(shown: dict[str, Any]) -> str:
    """Return the explanation for people: what is missing, why, and what would help."""
    count = f"{shown['serving']} of {shown['wanted']} replicas serve"
    older = ", as it is wanted now" if shown["rollout"] else ""
    missing = (
        f"; {shown['missing']} {'is' if shown['missing'] == 1 else 'are'} missing{older}" if shown["missing"] else ""
    )
    said = [f"model/{shown['model']}: {count}{missing}"]
    said += [f"  {one['replica']} on {one['node']}: {one['does']}" for one in shown["replicas"]]
    if shown["rollout"]:
        failed = f", failed: {shown['rollout']['failed']}" if shown["rollout"]["failed"] else ""
        said += [f"  rollout since {age(shown['rollout']['age'])}{failed}"]
    said += [f"  held: {one['subject']}, {one['what']}, waits for {one['waits_for']}" for one in shown["held"]]
    said += [f"  {one}" for one in shown["cannot"]]
    if shown["nodes"]:
        said += ["", "Nodes:", *_nodes(shown["nodes"])]
    if shown["moves"]:
        said += [
            "",
            "It would fit if these moved (llmgw moves nothing only to make room; `llmgw drain replica/ID` does):",
        ]
        said += [f"  {one['replica']} from {one['from']} to {one['to']}" for one in shown["moves"]]
    if shown["preempts"]:
        said += ["", f"These give way to it: {', '.join(shown['preempts'])}"]
    return "\n".join(said)


def _nodes(nodes: dict[str, str]) -> list[str]:
    by_reason: dict[str, list[str]] = {}
    for node, reason in nodes.items():
        by_reason.setdefault(reason, []).append(node)
    lines = []
    for reason, found in list(by_reason.items())[:MOST]:
        more = f" and {len(found) - 3} more" if len(found) > 3 else ""
        lines.append(f"  {', '.join(found[:3])}{more}: {reason}")
    rest = len(by_reason) - MOST
    return [*lines, *([f"  and {rest} more reasons (--json)"] if rest > 0 else [])]
