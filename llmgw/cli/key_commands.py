"""`llmgw keys …` and `llmgw usage`: what each takes. What they do is in `keys` and `spent`."""

from collections.abc import Callable
from typing import Annotated

import typer

from llmgw.cli.options import Json, Server
from llmgw.cli.outcomes import WrongUsage

keys = typer.Typer(
    help="Keys of tenants, for the gateway, and of administrators, for this program.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
Which = Annotated[str, typer.Argument(metavar="KEY|TENANT", help="A key's id, or a tenant that has only one.")]


@keys.command()
def create(
    tenant: Annotated[
        str, typer.Argument(metavar="[TENANT]", help="Whose key it is, as the cluster directory names it.")
    ] = "",
    admin: Annotated[
        bool, typer.Option("--admin", help="An administrator's key instead, for the admin API over TCP.")
    ] = False,
    scope: Annotated[
        str, typer.Option(metavar="SCOPE", help="With --admin: read, apply (also changes what runs) or admin (all).")
    ] = "",
    note: Annotated[str, typer.Option(help="For whoever reads the list later.", show_default=False)] = "",
    expires: Annotated[str, typer.Option(help="When it ends: 90d, or 2026-12-24T18:00Z.", show_default="never")] = "",
    server: Server = "",
    as_json: Json = False,
) -> None:
    """Make a key, and print it: this once, since nothing but a hash of it is kept."""
    from llmgw.cli.keys import create_key

    if admin == bool(tenant):
        raise WrongUsage("name a tenant, as in `llmgw keys create research`, or write --admin --scope read")
    if admin != bool(scope):
        raise WrongUsage("--admin and --scope go together: --scope read, apply or admin")
    create_key({"tenant": tenant, "scope": scope, "note": note, "expires": expires}, server, as_json=as_json)


@keys.command("list")
def list_keys(
    tenant: Annotated[str, typer.Argument(metavar="[TENANT]", help="Only this one's.", show_default=False)] = "",
    every: Annotated[bool, typer.Option("--all", help="Also those that expired or were revoked.")] = False,
    server: Server = "",
    as_json: Json = False,
) -> None:
    """List keys: whose, until when, used when."""
    from llmgw.cli.keys import show_keys

    show_keys(tenant, server, every=every, as_json=as_json)


@keys.command()
def rotate(
    which: Which,
    overlap: Annotated[str, typer.Option(help="How long the old one holds on.")] = "24h",
    server: Server = "",
    as_json: Json = False,
) -> None:
    """Make a key in place of another, and print it; both hold for a while."""
    from llmgw.cli.keys import rotate_key

    rotate_key(which, overlap, server, as_json=as_json)


@keys.command()
def revoke(
    which: Which,
    every: Annotated[bool, typer.Option("--all", help="Every key of the tenant.")] = False,
    reason: Annotated[str, typer.Option("--reason", help="Why; for the audit trail.", show_default=False)] = "",
    server: Server = "",
    as_json: Json = False,
) -> None:
    """Have a key hold no longer, within two seconds everywhere."""
    from llmgw.cli.keys import revoke_key

    revoke_key(which, reason, server, every=every, as_json=as_json)


def usage(
    by: Annotated[str, typer.Option(help="tenant, key, model, hour or day.")] = "tenant",
    since: Annotated[str, typer.Option(help="From when on: 7d, or 2026-12-24T18:00Z.")] = "7d",
    until: Annotated[str, typer.Option(help="To when: 1d (ago), or 2026-12-24T18:00Z.", show_default="now")] = "",
    output: Annotated[str, typer.Option("--output", "-o", help="table, csv or json.")] = "table",
    server: Server = "",
    as_json: Annotated[bool, typer.Option("--json", help="The same as -o json.")] = False,
) -> None:
    """Show what requests cost: how many, and their tokens. Counted by the hour."""
    from llmgw.cli.spent import show_usage

    if as_json and output not in ("table", "json"):
        raise WrongUsage(f"--json and -o {output} exclude each other")
    show_usage(by, since, until, "json" if as_json else output, server)


COMMANDS: tuple[Callable[..., None], ...] = (usage,)
