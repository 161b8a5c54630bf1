"""`llmgw plan`: what a directory would change, as the server's own planner says, or the same planner offline."""

import asyncio
import base64
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from llmgw.base.ids import short
from llmgw.base.time import age
from llmgw.catalog.source import SourceFailed, SourceTree
from llmgw.cli.acts import seconds_of
from llmgw.cli.client import ask
from llmgw.cli.directory import tree_of
from llmgw.cli.outcomes import FAILED, Failed, NoServer, StalePlan, WrongUsage
from llmgw.cli.plan_markdown import markdown
from llmgw.cli.plan_text import coloured, text

CHANGES = 2


@dataclass(frozen=True, slots=True)
class Asked:
    """What is to be planned, from what, and where it is saved."""

    directory: Path | None
    rev: str = ""
    what_if: tuple[str, ...] = ()
    fleet: Path | None = None
    out: Path | None = None
    valid_for: str = "1h"


def show_plan(asked: Asked, server: str, *, as_json: bool, as_markdown: bool, detailed_exitcode: bool) -> None:
    """Plan and print. Without a directory, what is supposed is supposed of the revision in force."""
    if as_json and as_markdown:
        raise WrongUsage("--json and --markdown exclude each other")
    if asked.out is not None and asked.what_if:
        raise WrongUsage("a plan of what is supposed cannot be applied; leave out --out or --what-if")
    valid_for = _valid_for(asked.valid_for) if asked.out is not None else None
    tree = None
    if asked.directory is not None or asked.rev or not asked.what_if:
        tree = wanted_tree(asked.directory or Path(), asked.rev)
    shown = _planned(asked, tree, valid_for, server)
    saved = shown.pop("saved", None)
    if as_json:
        print(json.dumps({**shown, "plan_id": saved["id"] if saved else None}, indent=2))
    elif as_markdown:
        print(markdown(shown), end="")
    else:
        print(coloured(text(shown)) if in_colour() else text(shown))
    if not shown["valid"] or shown["violations"]:
        raise typer.Exit(FAILED)
    if asked.out is not None:
        _save(asked.out, saved, shown.get("guard", []), quiet=as_json or as_markdown)
    if detailed_exitcode and shown["changes"]:
        raise typer.Exit(CHANGES)


def verify_plan(file: Path, server: str, *, as_json: bool) -> None:
    """Say whether a saved plan may still be applied. Raises StalePlan."""
    shown = ask(server, "POST", "/v1/plan/verify", {"plan": read_plan(file)})
    if as_json:
        print(json.dumps(shown, indent=2))
    if shown["stale"]:
        raise StalePlan(why_stale(file, shown["stale"]))
    if not as_json:
        print(f"{file} still holds, for another {age(shown['expires_in'])}: revision {short(shown['revision'])}")


def read_plan(file: Path) -> dict[str, Any]:
    """Return a saved plan as it lies in its file. Raises Failed if it is none."""
    from llmgw.control.plan_file import BadPlanFile, load_plan, plan_row

    try:
        return plan_row(load_plan(file.read_bytes()))
    except OSError as error:
        raise Failed(f"cannot read {file}: {error.strerror}") from error
    except BadPlanFile as error:
        raise Failed(f"{file} cannot be used: {error}") from error


def why_stale(file: Path, stale: list[str]) -> str:
    """Say in one line why a saved plan is refused, and what to do."""
    return f"{file} is stale, nothing was changed: {'; '.join(stale)}. Plan again with `llmgw plan --out {file}`"


def wanted_tree(directory: Path, rev: str) -> SourceTree:
    """Return the directory's files, or those of a revision of the repository that it is in. Raises Failed."""
    if not rev:
        return tree_of(directory)
    from llmgw.adapters.git_source import GitSource
    from llmgw.runtime.clock import SystemClock

    source = asyncio.run(GitSource(directory, SystemClock(), revision=rev).current())
    if isinstance(source, SourceFailed):
        raise Failed(source.reason)
    return source


def tree_row(tree: SourceTree) -> dict[str, Any]:
    """Return a tree as it is sent to the server."""
    return {
        "revision": tree.revision,
        "files": {path: base64.b64encode(data).decode() for path, data in tree.files.items()},
        "refused": dict(tree.refused),
        "subject": tree.subject,
        "author": tree.author,
        "committed": tree.committed,
        "trailers": list(tree.trailers),
    }


def in_colour() -> bool:
    """Whether standard output is a terminal whose user did not ask for none."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _planned(asked: Asked, tree: SourceTree | None, valid_for: float | None, server: str) -> dict[str, Any]:
    if asked.fleet is not None:
        from llmgw.cli.offline import plan_offline

        return plan_offline(asked.fleet, tree, asked.what_if, valid_for)
    body: dict[str, Any] = {"what_if": list(asked.what_if)}
    body |= tree_row(tree) if tree is not None else {}
    body |= {"save": True, "valid_for": valid_for} if valid_for is not None else {}
    try:
        return ask(server, "POST", "/v1/plan", body)
    except NoServer as error:
        raise Failed(
            f"{error}. Without one, `llmgw plan --fleet FILE` plans from what `llmgw get snapshot --out FILE` saved earlier"
        ) from error


def _valid_for(said: str) -> float:
    from llmgw.control.plan_file import LONGEST

    try:
        seconds = seconds_of(said)
    except WrongUsage:
        raise WrongUsage(f"--valid-for {said!r} is not understood; write 30m, 1h or 2d") from None
    if not 0 < seconds <= LONGEST:
        raise WrongUsage(f"--valid-for {said}: a saved plan is good for at most {age(LONGEST)}")
    return seconds


def _save(out: Path, saved: dict[str, Any] | None, guard: list[dict[str, Any]], *, quiet: bool) -> None:
    from llmgw.cli.offline import write_private
    from llmgw.control.plan_file import dump_plan, load_plan

    if saved is None:
        raise Failed("nothing was saved: the server has no valid revision yet, or is an older one that saves no plans")
    plan = load_plan(json.dumps(saved))
    write_private(out, dump_plan(plan))
    if not quiet:
        good = f"\nSaved as {out}, good for {age(plan.expires - plan.created)}; "
        if guard:
            from llmgw.cli.applying import allowing

            print(f"{good}a guard refuses it unless it is applied with `{allowing(out, guard)}`.")
        else:
            print(f"{good}`llmgw apply {out}` does exactly this, once.")
