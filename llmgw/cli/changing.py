"""The commands that plan and apply: what each takes. What they do is in modules of their own."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from llmgw.cli.options import Json, Server, named
from llmgw.cli.outcomes import WrongUsage

Rev = Annotated[
    str | None,
    typer.Option(
        "--rev",
        metavar="R",
        help="A commit of the repository that DIR is in, instead of the files.",
        show_default=False,
    ),
]


def plan(
    directory: Annotated[
        Path | None,
        typer.Argument(metavar="[DIR]", envvar="LLMGW_CLUSTER", help="The cluster directory.", show_default="."),
    ] = None,
    rev: Rev = None,
    what_if: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT",
            help="Suppose this: 'node NAME lost', 'node NAME cordoned', 'gpu UUID unhealthy' or 'model NAME replicas=N'. "
            "May be repeated; without DIR, of the revision in force.",
        ),
    ] = None,
    fleet: Annotated[
        Path | None,
        typer.Option("--fleet", metavar="FILE", help="Plan offline, from what `llmgw get snapshot` saved."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Save the plan; `llmgw apply FILE` does just that, once."),
    ] = None,
    valid_for: Annotated[
        str, typer.Option("--valid-for", metavar="TIME", help="How long a saved plan is good.")
    ] = "1h",
    verify: Annotated[
        Path | None,
        typer.Option("--verify", metavar="FILE", help="Say whether a saved plan still holds; exit with 3 if not."),
    ] = None,
    server: Server = "",
    as_json: Json = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print it for a pull request's comment.")] = False,
    detailed_exitcode: Annotated[
        bool, typer.Option("--detailed-exitcode", help="Exit with 2 if there are changes.")
    ] = False,
) -> None:
    """Say what a cluster directory would change in the running cluster, and why."""
    from llmgw.cli.planning import Asked, show_plan, verify_plan

    if verify is not None:
        verify_plan(verify, server, as_json=as_json)
        return
    asked = Asked(directory, named(rev, "--rev"), tuple(what_if or ()), fleet, out, valid_for)
    show_plan(asked, server, as_json=as_json, as_markdown=markdown, detailed_exitcode=detailed_exitcode)


def apply(
    what: Annotated[
        Path | None,
        typer.Argument(
            metavar="[DIR|PLAN]",
            envvar="LLMGW_CLUSTER",
            help="The cluster directory, or a saved plan.",
            show_default=".",
        ),
    ] = None,
    rev: Rev = None,
    timeout: Annotated[str, typer.Option(metavar="TIME", help="Longest wait; after it, exit code 5.")] = "1h",
    no_wait: Annotated[bool, typer.Option("--no-wait", help="End as soon as the server has taken it up.")] = False,
    allow_remove: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-remove", metavar="KIND/NAME", help="May be removed, whatever a guard says. May be repeated."
        ),
    ] = None,
    wait_for_other: Annotated[
        bool, typer.Option("--wait-for-other", help="If another apply is under way, wait for its end first.")
    ] = False,
    supersede: Annotated[
        bool, typer.Option("--supersede", help="If another apply is under way, put this one in its place.")
    ] = False,
    server: Server = "",
    as_json: Json = False,
) -> None:
    """Put a directory, a commit or a saved plan in force, and wait until all of it runs and is healthy."""
    from llmgw.cli.acts import seconds_of
    from llmgw.cli.applying import Wanted, apply_it

    if no_wait and wait_for_other:
        raise WrongUsage("--no-wait ends as soon as the server has taken it up, --wait-for-other waits; leave one out")
    wanted = Wanted(what, named(rev, "--rev"), tuple(allow_remove or ()), wait_for_other, supersede)
    apply_it(wanted, server, None if no_wait else seconds_of(timeout), as_json=as_json)


COMMANDS: tuple[Callable[..., None], ...] = (plan, apply)
