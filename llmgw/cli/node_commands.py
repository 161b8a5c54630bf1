"""The commands about nodes: `node install`, `node check`. What they do is in `nodes`, imported late."""

from pathlib import Path
from typing import Annotated

import typer

from llmgw.cli.options import Json

Directory = Annotated[Path, typer.Option("--dir", metavar="DIR", envvar="LLMGW_CLUSTER", help="The cluster directory.")]
UserUnit = Annotated[
    bool | None,
    typer.Option(
        "--user-unit/--system",
        help="A unit of the login user's systemd, or of the machine's.",
        show_default="the machine's for root",
    ),
]
Prefix = Annotated[
    str,
    typer.Option(
        "--prefix", metavar="PATH", help="Where it goes on the node.", show_default="/opt/llmgw, or the user's"
    ),
]
SecretsDir = Annotated[
    Path | None, typer.Option("--secrets-dir", envvar="LLMGW_SECRETS_DIR", help="Directory of secrets, a file each.")
]


def node_install(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The node, as its YAML names it.")],
    directory: Directory = Path(),
    user_unit: UserUnit = None,
    no_unit: Annotated[bool, typer.Option("--no-unit", help="Without a unit: you start the agent yourself.")] = False,
    prefix: Prefix = "",
    offline: Annotated[bool, typer.Option("--offline", help="Install from a wheelhouse, without an index.")] = False,
    wheelhouse: Annotated[
        Path | None, typer.Option("--wheelhouse", metavar="DIR", help="Directory of wheels for the node's Python.")
    ] = None,
    secrets_dir: SecretsDir = None,
    as_json: Json = False,
) -> None:
    """Install or upgrade a node's agent over SSH. Its engines run on; a second run changes nothing."""
    from llmgw.cli.nodes import install_node, manager_of

    install_node(
        name,
        directory,
        manager=manager_of(user_unit=user_unit, no_unit=no_unit),
        prefix=prefix,
        offline=offline,
        wheelhouse=wheelhouse,
        secrets_dir=secrets_dir,
        as_json=as_json,
    )


def node_check(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="The nodes.", show_default=False)
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Every node of the directory.")] = False,
    directory: Directory = Path(),
    user_unit: UserUnit = None,
    prefix: Prefix = "",
    secrets_dir: SecretsDir = None,
    as_json: Json = False,
) -> None:
    """Say what nodes lack, in order, each with the command that mends it. Ends with 1 if something is missing."""
    from llmgw.cli.nodes import check_nodes, manager_of

    check_nodes(
        names or [],
        directory,
        every=every,
        manager=manager_of(user_unit=user_unit, no_unit=False),
        prefix=prefix,
        secrets_dir=secrets_dir,
        as_json=as_json,
    )
