"""What `llmgw keys` does: asks the server, and prints a new key alone on standard output, so that a script can take it."""

import json
import sys
from typing import Any
from urllib.parse import urlencode

from llmgw.base.time import age
from llmgw.cli.acts import whoami
from llmgw.cli.client import ask
from llmgw.cli.tables import table


def create_key(asked: dict[str, str], server: str, *, as_json: bool) -> None:
    """Make a key, and print it."""
    _print_new(ask(server, "POST", "/v1/keys", {**_given(asked), "by": whoami()}), as_json=as_json)


def rotate_key(which: str, overlap: str, server: str, *, as_json: bool) -> None:
    """Make a key in place of another, and print it."""
    asked = {"key": which, "overlap": overlap, "by": whoami()}
    _print_new(ask(server, "POST", "/v1/keys/rotate", asked), as_json=as_json, overlap=overlap)


def revoke_key(which: str, reason: str, server: str, *, every: bool, as_json: bool) -> None:
    """Have one or several hold no longer."""
    asked = {"key": which, "all": every, "reason": reason, "by": whoami()}
    shown = ask(server, "POST", "/v1/keys/revoke", asked)
    if as_json:
        print(json.dumps(shown, indent=2))
    else:
        print("\n".join(f"revoked: key {one['id']} of {_owner(one)}" for one in shown["keys"]))


def show_keys(tenant: str, server: str, *, every: bool, as_json: bool) -> None:
    """Print the list."""
    path = "/v1/keys" + (f"?{urlencode({'tenant': tenant})}" if tenant else "")
    rows = [one for one in ask(server, "GET", path)["keys"] if every or one["state"] == "valid"]
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    head = ("KEY", "OF", "STATE", "AGE", "LAST USED", "EXPIRES IN", "BY", "NOTE")
    print("\n".join(table(head, [_cells(one) for one in rows])) or "no keys; make one with `llmgw keys create TENANT`")


def _cells(one: dict[str, Any]) -> tuple[str, ...]:
    used = f"{age(one['last_used_ago'])} ago" if one["last_used_ago"] is not None else "never"
    left = age(one["expires_in"]) if one["expires_in"] is not None and one["state"] == "valid" else "-"
    return (one["id"], _owner(one), one["state"], age(one["age"]), used, left, one["by"], one["note"] or "-")


def _print_new(shown: dict[str, Any], *, as_json: bool, overlap: str = "") -> None:
    if as_json:
        print(json.dumps(shown, indent=2))
        return
    row = shown["keys"][0]
    old = f"; {shown['old']} holds for another {overlap} at most" if shown.get("old") else ""
    print(f"key {row['id']} of {_owner(row)}, in force everywhere within 2 s, shown this once{old}:", file=sys.stderr)
    print(shown["credential"])


def _owner(row: dict[str, Any]) -> str:
    return row["tenant"] or f"administrators ({row['scope']})"


def _given(asked: dict[str, str]) -> dict[str, Any]:
    return {name: value for name, value in asked.items() if value}
