"""The `llmgw` command: its subcommands, and the one place where errors become exit codes.

Exit codes: 0 done · 1 failed · 2 changes present (`plan --detailed-exitcode` only) · 3 a saved plan is stale · 4 a guard
refused · 5 not done or not healthy in time · 64 wrong usage. Wrong usage is not the usual 2 of this library, since a typo in
CI would read as "changes present".
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from typer.exceptions import Abort, TyperException

from llmgw.cli.changing import COMMANDS as PLAN_COMMANDS
from llmgw.cli.operating import COMMANDS
from llmgw.cli.options import Json, Server
from llmgw.cli.outcomes import (
    FAILED,
    GUARDED,
    INTERRUPTED,
    NOT_HEALTHY,
    STALE,
    WRONG_USAGE,
    Failed,
    GuardRefused,
    NotHealthy,
    StalePlan,
    WrongUsage,
)

app = typer.Typer(
    name="llmgw",
    help="Serve language models on your own machines from a git directory of YAML.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
ctl = typer.Typer(help="Questions to a running server.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(ctl, name="ctl")
node = typer.Typer(
    help="The agent on a node: install it, see what it lacks.", no_args_is_help=True, rich_markup_mode=None
)
app.add_typer(node, name="node")


Directory = Annotated[Path, typer.Option("--dir", metavar="DIR", help="The cluster directory.")]
LogLevel = Annotated[str, typer.Option("--log-level", envvar="LLMGW_LOG_LEVEL", help="debug, info, warning or error.")]


@app.command()
def server(
    cluster: Annotated[
        Path, typer.Argument(metavar="[DIR]", envvar="LLMGW_CLUSTER", help="The cluster directory.")
    ] = Path(),
    cluster_option: Annotated[
        Path | None, typer.Option("--cluster", metavar="DIR", help="The same, as an option.")
    ] = None,
    worktree: Annotated[
        bool, typer.Option("--worktree", envvar="LLMGW_WORKTREE", help="Follow the files instead of the commits.")
    ] = False,
    listen: Annotated[str, typer.Option(envvar="LLMGW_LISTEN", help="Address of the gateway.")] = "127.0.0.1:8080",
    admin_listen: Annotated[
        str | None, typer.Option(envvar="LLMGW_ADMIN_LISTEN", help="TCP address of the admin API, besides its socket.")
    ] = None,
    admin_socket: Annotated[
        Path | None, typer.Option(envvar="LLMGW_ADMIN_SOCKET", help="Unix socket of the admin API.")
    ] = None,
    state_dir: Annotated[Path | None, typer.Option(envvar="LLMGW_STATE_DIR", help="Directory for state.")] = None,
    secrets_dir: Annotated[
        Path | None,
        typer.Option(
            envvar="LLMGW_SECRETS_DIR", help="Directory of secrets, one file each, readable by this user only."
        ),
    ] = None,
    store: Annotated[
        str | None, typer.Option(envvar="LLMGW_STORE", help="Database URL; default is SQLite in the state directory.")
    ] = None,
    workers: Annotated[int, typer.Option(min=1, envvar="LLMGW_WORKERS", help="Gateway worker processes.")] = 1,
    drain: Annotated[
        float, typer.Option(min=0, envvar="LLMGW_DRAIN", help="Seconds that streams may take to finish at a stop.")
    ] = 30.0,
    ephemeral: Annotated[bool, typer.Option("--ephemeral", help="End with the parent process.")] = False,
    log_level: LogLevel = "info",
) -> None:
    """Run the control plane and its gateway, following a cluster directory."""
    from llmgw.cli.running import serve

    serve(
        cluster=cluster_option or cluster,
        worktree=worktree,
        listen=listen,
        admin_listen=admin_listen,
        admin_socket=admin_socket,
        state_dir=state_dir,
        secrets_dir=secrets_dir,
        store=store,
        workers=workers,
        drain=drain,
        log_level=log_level,
        ephemeral=ephemeral,
    )


@app.command()
def agent(
    socket: Annotated[Path | None, typer.Option(envvar="LLMGW_AGENT_SOCKET", help="Unix socket to listen on.")] = None,
    state_dir: Annotated[
        Path | None, typer.Option(envvar="LLMGW_AGENT_STATE_DIR", help="Directory for state and engine logs.")
    ] = None,
    weights_dir: Annotated[
        Path | None, typer.Option(envvar="LLMGW_WEIGHTS_DIR", help="Where relative weight paths start.")
    ] = None,
    ephemeral: Annotated[
        bool, typer.Option("--ephemeral", help="End the engines with the agent, and the agent with its parent.")
    ] = False,
    log_level: LogLevel = "info",
) -> None:
    """Run a node's agent. Engines outlive it and are taken over by the next one."""
    from llmgw.cli.running import run_node_agent

    run_node_agent(socket, state_dir, weights_dir, ephemeral=ephemeral, log_level=log_level)


@app.command()
def demo(
    once: Annotated[bool, typer.Option("--once", help="Stop after the answer.")] = False,
    listen: Annotated[str, typer.Option(help="Address of the gateway.")] = "127.0.0.1:8080",
) -> None:
    """Serve a small real model from a git directory made for it, and chat with it."""
    from llmgw.cli.demo import run_demo

    run_demo(listen, once=once)


@app.command()
def validate(
    directory: Annotated[
        Path, typer.Argument(metavar="[DIR]", envvar="LLMGW_CLUSTER", help="The cluster directory.")
    ] = Path(),
    output: Annotated[str, typer.Option("--format", help="text, json, github or sarif.")] = "text",
    index: Annotated[
        bool | None,
        typer.Option(
            "--index/--no-index",
            help="Check what is staged, or the files as they are.",
            show_default="staged in a git hook, except under pre-commit",
        ),
    ] = None,
) -> None:
    """Check a whole cluster directory."""
    from llmgw.cli.directory import validate_directory

    validate_directory(directory, output, index=index)


@app.command()
def init(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where to put it; made if it is not there.")],
) -> None:
    """Write a starter cluster directory: a model for this machine's CPU, schemas for editors, checks for git and CI."""
    from llmgw.cli.starter import write_starter

    write_starter(directory)


@app.command("set")
def set_fields(
    address: Annotated[str, typer.Argument(metavar="KIND/NAME", help="model/NAME, node/NAME, cluster, …")],
    changes: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PATH=VALUE...",
            help="What to set, as in replicas=3, 'args[+]=--flag' or profiles[name=x].cpus=2; PATH= removes.",
            show_default=False,
        ),
    ] = None,
    unset: Annotated[list[str] | None, typer.Option("--unset", metavar="PATH", help="What to remove.")] = None,
    directory: Directory = Path(),
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the difference; write nothing.")] = False,
    commit: Annotated[bool, typer.Option("--commit", help="Commit the file, and nothing else.")] = False,
    message: Annotated[str, typer.Option("--message", "-m", help="Message of the commit.", show_default=False)] = "",
) -> None:
    """Change fields of an object in its file; every other byte of the file stays."""
    from llmgw.cli.editing import set_in_file

    set_in_file(
        directory, address, changes or [], unset or [], dry_run=dry_run, commit=commit or bool(message), message=message
    )


@app.command()
def show(
    address: Annotated[str, typer.Argument(metavar="KIND/NAME", help="model/NAME, node/NAME, cluster, …")],
    directory: Directory = Path(),
    impact: Annotated[bool, typer.Option("--impact", help="Say what a change of each field costs.")] = False,
    as_json: Json = False,
) -> None:
    """Show an object with its defaults, and where each value was written."""
    from llmgw.cli.editing import show_object

    show_object(directory, address, impacts=impact, as_json=as_json)


@app.command()
def schema(
    check: Annotated[bool, typer.Option("--check", help="Fail if a file is not up to date; write nothing.")] = False,
    directory: Annotated[Path, typer.Option("--dir", help="Where the files go.")] = Path("schemas"),
) -> None:
    """Write the JSON Schemas of the YAML language."""
    from llmgw.cli.directory import write_schemas

    write_schemas(directory, check=check)


@app.command()
def status(
    server: Server = "",
    as_json: Json = False,
    watch: Annotated[bool, typer.Option("--watch", help="Show it again and again, until Ctrl-C.")] = False,
    every: Annotated[float, typer.Argument(metavar="[SECONDS]", min=0.1, help="Pause of --watch.")] = 2.0,
) -> None:
    """Show what runs, what does not and why."""
    from llmgw.cli.states import show_status

    show_status(server, as_json=as_json, every=every if watch else None)


ctl.command("status")(status)


@app.command()
def logs(
    replica: Annotated[str, typer.Argument(help="The replica, as `llmgw status` names it.")],
    attempt: Annotated[int, typer.Option(min=0, help="Which start of it; 0 is the newest.")] = 0,
    lines: Annotated[int, typer.Option(min=1, max=10_000, help="How many of the last lines.")] = 100,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what is added.")] = False,
    server: Server = "",
    as_json: Json = False,
) -> None:
    """Show an engine's output, also of earlier attempts and of replicas that are gone."""
    from llmgw.cli.logs import show_logs

    show_logs(replica, attempt, lines, server, follow=follow, as_json=as_json)


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


@node.command("install")
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


@node.command("check")
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


@app.command()
def doctor(
    directory: Annotated[
        Path, typer.Argument(metavar="[DIR]", envvar="LLMGW_CLUSTER", help="The cluster directory.")
    ] = Path(),
    listen: Annotated[str, typer.Option(envvar="LLMGW_LISTEN", help="Address of the gateway.")] = "127.0.0.1:8080",
    state_dir: Annotated[Path | None, typer.Option(envvar="LLMGW_STATE_DIR", help="Directory for state.")] = None,
    server: Server = "",
    as_json: Json = False,
) -> None:
    """Say what this machine lacks to run the control plane, each with the command that mends it."""
    from llmgw.cli.doctor import examine

    examine(directory, listen, state_dir, server, as_json=as_json)


for command in (*COMMANDS, *PLAN_COMMANDS):
    app.command()(command)


def _version(value: bool) -> None:
    if value:
        from llmgw import __version__

        print(__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Serve language models on your own machines from a git directory of YAML."""


def main() -> None:
    """Run a command and end the process with its exit code."""
    try:
        code = exit_code(lambda: app(standalone_mode=False))
        sys.stdout.flush()
    except BrokenPipeError:
        # the reader of our output went away; nothing more can be said, not even when Python closes the stream
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = FAILED
    sys.exit(code)


def exit_code(command: Callable[[], object]) -> int:
    """Run a command and return its exit code, with any error told in one line on standard error."""
    try:
        code = command()
    except TyperException as error:
        if error.__class__.__name__ == "NoArgsIsHelpError":
            print(error.format_message())
            return WRONG_USAGE
        path = getattr(getattr(error, "ctx", object()), "command_path", "llmgw")
        _complain(f"{error.format_message().rstrip('.')}. Try `{path} --help`.")
        return WRONG_USAGE
    except Failed as error:
        _complain(str(error))
        return _code_of(error)
    except (KeyboardInterrupt, Abort):
        return INTERRUPTED
    return code if isinstance(code, int) else 0


def _code_of(error: Failed) -> int:
    codes: dict[type[Failed], int] = {
        WrongUsage: WRONG_USAGE,
        StalePlan: STALE,
        GuardRefused: GUARDED,
        NotHealthy: NOT_HEALTHY,
    }
    return codes.get(type(error), FAILED)


def _complain(text: str) -> None:
    print(f"llmgw: {text}", file=sys.stderr)


if __name__ == "__main__":
    main()
