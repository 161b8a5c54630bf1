"""Planning without a server: from a snapshot of its live state that was saved before. The planner is the same one."""

import json
import os
from pathlib import Path
from typing import Any

from llmgw import __version__
from llmgw.base.ids import short
from llmgw.catalog.compile import Accepted, compile_tree
from llmgw.catalog.guard import allowed_by
from llmgw.catalog.source import SourceTree
from llmgw.cli.client import ask
from llmgw.cli.outcomes import Failed, WrongUsage
from llmgw.control.plan_file import Terms, plan_row, save
from llmgw.control.preview import as_json, preview
from llmgw.plan.saved import BadSnapshot, load_snapshot
from llmgw.plan.what_if import CannotSuppose
from llmgw.runtime.clock import RandomIds, SystemClock


def save_snapshot(out: Path | None, server: str) -> None:
    """Write the server's snapshot to a file that only its owner can read, or to standard output."""
    shown = ask(server, "GET", "/v1/snapshot")
    if out is None:
        print(json.dumps(shown))
        return
    write_private(out, json.dumps(shown) + "\n")
    nodes = len(shown["nodes"])
    print(f"wrote {out}: revision {short(shown['tree']['revision'])}, {nodes} node(s); `llmgw plan DIR --fleet {out}`")


def plan_offline(
    fleet: Path, tree: SourceTree | None, what_if: tuple[str, ...], valid_for: float | None
) -> dict[str, Any]:
    """Return what the server would have answered, had it been in the saved state. With `valid_for`, the plan as a file too.

    Raises Failed.
    """
    try:
        snapshot, in_force = load_snapshot(fleet.read_bytes())
    except OSError as error:
        raise Failed(f"cannot read {fleet}: {error.strerror}") from error
    except BadSnapshot as error:
        raise Failed(f"{fleet} cannot be used: {error}") from error
    outcome = compile_tree(tree) if tree is not None else Accepted(snapshot.catalog, ())
    try:
        allowed = allowed_by(tree.trailers) if tree is not None else frozenset()
        shown = preview(outcome, snapshot.catalog, snapshot, what_if, allowed)
    except CannotSuppose as error:
        raise WrongUsage(str(error)) from error
    row = as_json(shown)
    if valid_for is not None and tree is not None and shown.decision is not None and not shown.violations:
        terms = Terms(RandomIds().new(), SystemClock().now(), valid_for, __version__)
        row["saved"] = plan_row(save(shown.decision.plan, shown.decision.there, in_force, tree, terms))
    return row


def write_private(file: Path, said: str) -> None:
    """Write a file, whole or not at all, that only its owner can read. Raises Failed."""
    part = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        part.unlink(missing_ok=True)
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "w", encoding="utf-8") as output:  # noqa: PTH123 - of a descriptor
            output.write(said)
        part.replace(file)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise Failed(f"cannot write {file}: {error.strerror}; choose another place") from error
