"""The commands about revisions: `history`, `rollback`, `suspend`, `resume`. What they do is in `revising`, imported late."""

from collections.abc import Callable
from typing import Annotated

import typer

from llmgw.cli.options import Json, Server, named

AllowRemove = Annotated[
    list[str] | None,
    typer.Option("--allow-remove", metavar="KIND/NAME", help="May be removed, whatever a guard says. May be repeated."),
]


def history(
    limit: Annotated[int, typer.Option(min=1, max=500, help="How many of the newest.")] = 50,
    server: Server = "",
    as_json: Json = False,
) -> None:
    """Show the revisions that were taken up: by whom, and how that ended."""
    from llmgw.cli.revising import show_history

    show_history(server, limit, as_json=as_json)


def rollback(
    revision: Annotated[
        str | None, typer.Argument(metavar="[REV]", help="An applied revision.", show_default="the one before")
    ] = None,
    allow_remove: AllowRemove = None,
    server: Server = "",
    as_json: Json = False,
) -> None:
    """Go back to an applied revision; the newest commit stays out until another one follows it."""
    from llmgw.cli.revising import roll_back

    roll_back(named(revision, "REV"), allow_remove or [], server, as_json=as_json)


def suspend(
    reason: Annotated[str, typer.Option("--reason", help="Why, for whoever finds it.")],
    until: Annotated[
        str, typer.Option("--until", metavar="TIME", help="24h, 90m or 2026-12-24T18:00Z; at most 7 days.")
    ] = "24h",
    server: Server = "",
    as_json: Json = False,
) -> None:
    """Take up no revision, and start, move, drain and stop nothing, for a while. What runs goes on."""
    from llmgw.cli.revising import suspend_changes

    suspend_changes(reason, until, server, as_json=as_json)


def resume(server: Server = "", as_json: Json = False) -> None:
    """End a suspension."""
    from llmgw.cli.revising import resume_changes

    resume_changes(server, as_json=as_json)


COMMANDS: tuple[Callable[..., None], ...] = (history, rollback, suspend, resume)
