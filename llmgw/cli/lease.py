"""`llmgw lease release`: take the lease away from a control plane that holds it and does not answer."""

import json
from typing import Annotated

import typer

from llmgw.cli.options import Json, Server
from llmgw.cli.outcomes import WrongUsage

lease = typer.Typer(help="The lease, which says who decides.", no_args_is_help=True, rich_markup_mode=None)


@lease.callback()
def _group() -> None:
    """The lease, which says who decides."""


@lease.command("release")
def release(
    epoch: Annotated[
        int, typer.Option("--epoch", help="The epoch it has, as `llmgw get leader` shows it: proof that you looked.")
    ] = 0,
    force: Annotated[bool, typer.Option("--force", help="Yes: whoever holds it stops deciding.")] = False,
    reason: Annotated[str, typer.Option("--reason", help="Why; kept as an event.", show_default=False)] = "",
    server: Server = "",
    as_json: Json = False,
) -> None:
    """Take the lease away from its holder, so that another control plane leads at once. What serves goes on."""
    from llmgw.cli.acts import whoami
    from llmgw.cli.client import ask

    if not force or epoch <= 0:
        raise WrongUsage(
            "look at `llmgw get leader` first, then: llmgw lease release --force --epoch N --reason TEXT; "
            "its holder stops deciding, also if it is well"
        )
    shown = ask(server, "POST", "/v1/lease/release", {"epoch": epoch, "reason": reason, "by": whoami()})
    print(json.dumps(shown, indent=2) if as_json else f"the lease of epoch {epoch} is free")
