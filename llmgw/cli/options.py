"""Options that several commands share."""

from typing import Annotated

import typer

from llmgw.cli.outcomes import WrongUsage

Server = Annotated[
    str,
    typer.Option(
        "--server",
        envvar="LLMGW_SERVER",
        help="Admin socket of the server (a path), or http://HOST:PORT of a tunnel to it.",
        show_default="the socket of a server of this user",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def named(revision: str | None, option: str) -> str:
    """Return the revision that was named, or nothing if none was. Raises WrongUsage for a name that is empty.

    An empty one comes of a variable that is not set, and must not mean another revision than the one that was meant.
    """
    if revision is None:
        return ""
    if not revision.strip():
        raise WrongUsage(f"{option} is empty; name a revision, or leave it out")
    return revision
