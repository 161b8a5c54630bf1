"""The commands with which operators look closer and act: what each takes. What they do is in modules of their own."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from llmgw.cli.options import Json, Server
from llmgw.cli.outcomes import WrongUsage

Target = Annotated[str, typer.Argument(metavar="TARGET", help="node/NAME, gpu/UUID or replica/ID.")]
Reason = Annotated[str, typer.Option("--reason", help="Why; shown in plans and status.", show_default=False)]
Until = Annotated[
    str,
    typer.Option("--until", help="When it ends by itself: 2h, or 2026-12-24T18:00Z.", show_default="never"),
]


def cordon(target: Target, reason: Reason = "", until: Until = "", server: Server = "", as_json: Json = False) -> None:
    """Place nothing new on a node or a card; what is there stays."""
    from llmgw.cli.acts import act

    act("cordon", target, reason, until, server, as_json=as_json)


def drain(
    target: Target,
    reason: Reason = "",
    until: Until = "",
    wait: Annotated[bool, typer.Option("--wait", help="Wait until all has left it.")] = False,
    timeout: Annotated[str, typer.Option(help="Longest wait; after it, exit code 5.")] = "10m",
    server: Server = "",
    as_json: Json = False,
) -> None:
    """Place nothing new on a node or a card, and have what is there replaced elsewhere, replacement first."""
    from llmgw.cli.acts import act, seconds_of, wait_drained

    limit = seconds_of(timeout)
    act("drain", target, reason, until, server, as_json=as_json)
    if wait:
        wait_drained(target, limit, server)


def uncordon(target: Target, server: Server = "", as_json: Json = False) -> None:
    """Take back a cordon or a drain."""
    from llmgw.cli.acts import take_back

    take_back(target, server, as_json=as_json)


def restart(
    target: Annotated[str, typer.Argument(metavar="TARGET", help="model/NAME or replica/ID.")],
    reason: Reason = "",
    server: Server = "",
    as_json: Json = False,
) -> None:
    """Replace the replicas there are now by new ones, new before old where there is room."""
    from llmgw.cli.acts import act

    act("restart", target, reason, "", server, as_json=as_json)


def forget(
    target: Annotated[str, typer.Argument(metavar="TARGET", help="node/NAME or router/NAME.")],
    reason: Reason = "",
    server: Server = "",
    as_json: Json = False,
) -> None:
    """Give up a node that left the cluster directory, or a router, that will never answer again."""
    from llmgw.cli.acts import forget_target

    forget_target(target, reason, server, as_json=as_json)


def get(
    what: Annotated[
        str,
        typer.Argument(
            metavar="TABLE", help="nodes, gpus, models, replicas, endpoints, leader, events, audit or snapshot."
        ),
    ],
    output: Annotated[str, typer.Option("--output", "-o", help="wide or json.", show_default=False)] = "",
    filters: Annotated[
        list[str] | None, typer.Option("--filter", metavar="COLUMN=VALUE", help="Only such rows. May be repeated.")
    ] = None,
    sort: Annotated[str, typer.Option(metavar="COLUMN", help="Order of rows; -COLUMN for the reverse.")] = "",
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Most events, or acts.")] = 50,
    since: Annotated[str, typer.Option(help="Oldest ones: 2h, or 2026-12-24T18:00Z.", show_default="any")] = "",
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Where a snapshot goes.")] = None,
    server: Server = "",
    as_json: Annotated[bool, typer.Option("--json", help="The same as -o json.")] = False,
) -> None:
    """Show a table (nodes, gpus, models, replicas, endpoints, leader, events, audit), or save a plan's input (snapshot)."""
    from llmgw.cli.tables import Asked, show_table

    if as_json and output not in ("", "json"):
        raise WrongUsage(f"--json and -o {output} exclude each other")
    output = "json" if as_json else output

    if what == "snapshot":
        from llmgw.cli.offline import save_snapshot

        save_snapshot(out, server)
        return
    if out is not None:
        raise WrongUsage("--out is for `llmgw get snapshot`; tables go to standard output")
    show_table(Asked(what, output, tuple(filters or ()), sort, limit, since), server)


def explain(
    address: Annotated[str, typer.Argument(metavar="model/NAME", help="What to explain.")],
    server: Server = "",
    as_json: Json = False,
) -> None:
    """Say why replicas of a model do not run, node by node, and what would make room."""
    from llmgw.cli.explaining import show_explanation

    show_explanation(address, server, as_json=as_json)


def sim(
    script: Annotated[
        Path | None,
        typer.Argument(metavar="SCRIPT", help="A script; `-` reads it from standard input.", show_default=False),
    ] = None,
    words: Annotated[bool, typer.Option("--words", help="Explain the words of scripts.")] = False,
    seed: Annotated[int, typer.Option(help="Which of the possible orders of events.")] = 1,
) -> None:
    """Play a script of nodes, models, faults and edits against a simulated fleet, and show what happens."""
    from llmgw.cli.sim import explain_words, play_script

    if script is None or words:
        explain_words()
    else:
        play_script(script, seed)


COMMANDS: tuple[Callable[..., None], ...] = (cordon, drain, uncordon, restart, forget, get, explain, sim)
