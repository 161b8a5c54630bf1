"""Options that several commands share."""

from typing import Annotated

import typer

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
