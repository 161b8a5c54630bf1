"""`llmgw history`, `rollback`, `suspend`, `resume`, and what `llmgw status` says of revisions."""

import getpass
import json
import socket
from typing import Any

from llmgw.base.ids import short
from llmgw.base.time import age
from llmgw.cli.client import ask

LISTED = 50


def me() -> str:
    """Say who asks, for the history: user@host."""
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (OSError, KeyError):
        return f"somebody@{socket.gethostname()}"


def show_history(server: str, limit: int, *, as_json: bool) -> None:
    """Print the newest revisions, newest first."""
    shown = ask(server, "GET", f"/v1/history?limit={limit}")
    print(json.dumps(shown, indent=2) if as_json else history_text(shown))


def roll_back(revision: str, allowed: list[str], server: str, *, as_json: bool) -> None:
    """Go back to an applied revision."""
    body = {"revision": revision, "by": me(), "allow_remove": allowed}
    shown = ask(server, "POST", "/v1/rollback", body)
    print(json.dumps(shown, indent=2) if as_json else rollback_text(shown))


def suspend_changes(reason: str, until: str, server: str, *, as_json: bool) -> None:
    """Let nothing change for a while."""
    shown = ask(server, "POST", "/v1/suspend", {"reason": reason, "until": until, "by": me()})
    if as_json:
        print(json.dumps(shown, indent=2))
        return
    print(f"Suspended by {shown['suspended']['text']}. Nothing is changed until then; `llmgw resume` ends it earlier.")


def resume_changes(server: str, *, as_json: bool) -> None:
    """End a suspension."""
    shown = ask(server, "POST", "/v1/resume", {"by": me()})
    if as_json:
        print(json.dumps(shown, indent=2))
        return
    print(f"Resumed; it was suspended by {shown['ended']['by']} ({shown['ended']['reason']}).")


def history_text(shown: dict[str, Any]) -> str:
    """Return the history as a table."""
    rows = [
        (
            short(one["revision"]),
            one["outcome"].replace("_", " "),
            age(one["age"]),
            one["by"],
            one["how"],
            _cut(": ".join(filter(None, (one["subject"], one["note"])))) or "-",
        )
        for one in shown["revisions"]
    ]
    head = ("REVISION", "OUTCOME", "AGE", "BY", "HOW", "SUBJECT")
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in [head, *rows]
    ]
    return "\n".join(lines) if rows else "No revision was taken up yet."


def rollback_text(shown: dict[str, Any]) -> str:
    """Return what a rollback did, and how to make it permanent."""
    lines = [
        f"Revision {short(shown['revision'])} is in force again, instead of {short(shown['left'])}.",
        f"{short(shown['left'])} stays out, even if it is pushed again; the next commit after it ends that.",
    ]
    if shown["revert"]:
        lines.append(f"To make it permanent, in the cluster directory: {shown['revert']} && git push")
    return "\n".join(lines)


def revision_troubles(shown: dict[str, Any]) -> list[str]:
    """Return what stands against the newest revision, for the status; nothing if it is in force."""
    lines = []
    suspended, waiting, attempt = shown.get("suspended"), shown.get("waiting"), shown.get("attempt")
    if suspended:
        lines.append(f"! suspended by {suspended['text']}: nothing is changed; `llmgw resume` ends it")
    if shown.get("by_operator"):
        lines.append(f"! {shown['by_operator']}")
    validated = (shown.get("revisions") or {}).get("validated")
    if waiting and validated and waiting["kind"] not in ("leader", "suspended"):
        text = waiting["text"]
        lines.append(
            f"! {text}" if waiting["kind"] == "guard" else f"! revision {short(validated['revision'])} waits: {text}"
        )
    if attempt and attempt["outcome"] == "failed":
        lines.append(f"! revision {short(attempt['revision'])} failed: {attempt['note']}")
    return lines


def revision_lines(shown: dict[str, Any]) -> list[str]:
    """Return the four revisions, for the status."""
    four = shown.get("revisions")
    if not four:
        return []
    rows = [(name, four[name]) for name in ("fetched", "validated", "attempted", "applied")]
    return [
        f"{name:<9}  {short(one['revision']):<10}  {age(one['age']):>4} ago  {_cut(_who(one))}".rstrip()
        if one
        else f"{name:<9}  none yet"
        for name, one in rows
    ]


def _who(one: dict[str, Any]) -> str:
    return f"{one['subject']} ({one['author']})" if one["author"] else one["subject"]


def _cut(text: str, width: int = 100) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
