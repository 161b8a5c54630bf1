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

from llmgw.cli.changing import COMMANDS as CHANGING
from llmgw.cli.key_commands import COMMANDS as USAGE
from llmgw.cli.key_commands import keys
from llmgw.cli.lease import lease
from llmgw.cli.node_commands import node_check, node_install
from llmgw.cli.operating import COMMANDS as OPERATING
from llmgw.cli.options import (
    AccessLog,
    Drain,
    Json,
    Listen,
    LogLevel,
    OtelEndpoint,
    RouterSecret,
    SecretsDir,
    Server,
    StateDir,
    StaticEndpoints,
    TlsCert,
    TlsKey,
    Workers,
)
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
from llmgw.cli.revision_commands import COMMANDS as REVISIONS
from llmgw.cli.router import router

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
app.add_typer(keys, name="keys")
app.add_typer(lease, name="lease")


Directory = Annotated[Path, typer.Option("--dir", metavar="DIR", envvar="LLMGW_CLUSTER", help="The cluster directory.")]


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
    listen: Listen = "127.0.0.1:8080",
    admin_listen: Annotated[
        str | None,
        typer.Option(
            envvar="LLMGW_ADMIN_LISTEN", help="TCP address for webhooks, routers, /metrics and whoever shows a key."
        ),
    ] = None,
    admin_socket: Annotated[
        Path | None, typer.Option(envvar="LLMGW_ADMIN_SOCKET", help="Unix socket of the admin API.")
    ] = None,
    state_dir: StateDir = None,
    secrets_dir: SecretsDir = None,
    store: Annotated[
        str | None, typer.Option(envvar="LLMGW_STORE", help="Database URL; default is SQLite in the state directory.")
    ] = None,
    workers: Workers = 1,
    drain: Drain = 30.0,
    endpoint: StaticEndpoints = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    access_log: AccessLog = None,
    otel_endpoint: OtelEndpoint = None,
    router_secret: RouterSecret = None,
    ephemeral: Annotated[bool, typer.Option("--ephemeral", help="End with the parent process.")] = False,
    git: Annotated[
        str | None,
        typer.Option("--git", envvar="LLMGW_GIT", metavar="URL", help="Follow this repository instead of DIR."),
    ] = None,
    branch: Annotated[str, typer.Option(envvar="LLMGW_BRANCH", help="Its branch.")] = "main",
    path: Annotated[
        str,
        typer.Option(envvar="LLMGW_PATH", help="The cluster directory inside the repository.", show_default="its top"),
    ] = "",
    git_secret: Annotated[
        str | None,
        typer.Option(
            envvar="LLMGW_GIT_SECRET", metavar="NAME", help="Secret: a token for https, a private key for ssh."
        ),
    ] = None,
    git_user: Annotated[str, typer.Option(envvar="LLMGW_GIT_USER", help="User that goes with it for https.")] = "git",
    git_known_hosts: Annotated[
        Path | None, typer.Option(envvar="LLMGW_GIT_KNOWN_HOSTS", help="Host keys for ssh, as ssh-keyscan prints them.")
    ] = None,
    git_ca: Annotated[
        Path | None,
        typer.Option("--git-ca", envvar="LLMGW_GIT_CA", help="Certificates that https trusts instead of the system's."),
    ] = None,
    git_allow_file: Annotated[
        bool, typer.Option("--git-allow-file", help="Let --git be a file:// URL of this machine.")
    ] = False,
    hook_secret: Annotated[
        str | None,
        typer.Option(envvar="LLMGW_HOOK_SECRET", metavar="NAME", help="Secret by which webhooks on /hooks/ are known."),
    ] = None,
    forge: Annotated[
        str | None, typer.Option(envvar="LLMGW_FORGE", help="Show commit statuses on github, gitlab or gitea.")
    ] = None,
    forge_api: Annotated[
        str, typer.Option(envvar="LLMGW_FORGE_API", metavar="URL", help="Its API.", show_default="the public one's")
    ] = "",
    forge_repository: Annotated[
        str, typer.Option(envvar="LLMGW_FORGE_REPOSITORY", metavar="OWNER/NAME", help="The repository there.")
    ] = "",
    forge_secret: Annotated[
        str,
        typer.Option(envvar="LLMGW_FORGE_SECRET", metavar="NAME", help="Secret with a token that may set statuses."),
    ] = "",
    lease_seconds: Annotated[
        float, typer.Option("--lease", envvar="LLMGW_LEASE", min=0.5, max=600.0, hidden=True)
    ] = 15.0,
    log_level: LogLevel = "info",
) -> None:
    """Run the control plane and its gateway, following a cluster directory."""
    from llmgw.cli.following import forge_of, remote_of
    from llmgw.cli.running import processes_of, serve

    serve(
        processes_of(
            "server",
            listen,
            state_dir,
            workers,
            drain,
            log_level,
            endpoint,
            tls_cert,
            tls_key,
            access_log,
            otel_endpoint,
        ),
        cluster=cluster_option or cluster,
        worktree=worktree,
        admin_listen=admin_listen,
        admin_socket=admin_socket,
        secrets_dir=secrets_dir,
        store=store,
        lease=lease_seconds,
        router_secret=router_secret,
        ephemeral=ephemeral,
        remote=remote_of(git, branch, path, git_secret, git_user, git_known_hosts, git_ca, allow_file=git_allow_file),
        path=path,
        hook_secret=hook_secret,
        forge=forge_of(forge, forge_api, forge_repository, forge_secret),
    )


@app.command()
def accept(
    revision: Annotated[str, typer.Argument(help="The revision that is held, as `llmgw status` names it.")],
    server: Server = "",
) -> None:
    """Take a revision that is held: its history was rewritten, or its signature is not trusted."""
    from llmgw.cli.following import accept_revision

    accept_revision(revision, server)


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
    bare: Annotated[
        bool, typer.Option("--bare", help="Make a bare repository to push to instead, which refuses what is not valid.")
    ] = False,
    branch: Annotated[str, typer.Option(help="With --bare: the branch that is followed.")] = "main",
    path: Annotated[str, typer.Option(help="With --bare: the cluster directory inside the repository.")] = "",
) -> None:
    """Write a starter cluster directory: a model for this machine's CPU, schemas for editors, checks for git and CI."""
    if bare:
        from llmgw.cli.hooks import make_bare

        make_bare(directory, branch, path)
        return
    from llmgw.cli.starter import write_starter

    write_starter(directory)


@app.command()
def hook(
    name: Annotated[str, typer.Argument(metavar="HOOK", help="pre-receive")],
    branch: Annotated[
        str | None, typer.Option(help="The branch that is checked.", show_default="the one that HEAD names")
    ] = None,
    path: Annotated[str, typer.Option(help="The cluster directory inside the repository.")] = "",
) -> None:
    """Check a push in a git hook of a bare repository, before it lands; its lines are read from standard input."""
    from llmgw.cli.hooks import run_hook

    run_hook(name, branch, path)


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


@app.command("fit")
def fit_model(
    address: Annotated[str, typer.Argument(metavar="model/NAME")],
    directory: Directory = Path(),
    weights: Annotated[
        Path | None,
        typer.Option(
            "--weights", help="A GGUF file, a directory with config.json, or a config.json; instead of the model's."
        ),
    ] = None,
    weights_dir: Annotated[
        Path | None, typer.Option(envvar="LLMGW_WEIGHTS_DIR", help="Where relative weight paths start.")
    ] = None,
    context: Annotated[
        int, typer.Option(min=0, help="Tokens of a request.", show_default="the profile's, else the model's")
    ] = 0,
    concurrency: Annotated[
        int, typer.Option(min=0, help="Requests of that length at once.", show_default="the profile's, else 1")
    ] = 0,
    as_json: Json = False,
) -> None:
    """Say what one card needs for a model, line by line, and whether it fits; from headers on this machine."""
    from llmgw.cli.fit import show_fit

    show_fit(directory, address, weights, weights_dir, (context, concurrency), as_json=as_json)


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


@app.command()
def doctor(
    directory: Annotated[
        Path, typer.Argument(metavar="[DIR]", envvar="LLMGW_CLUSTER", help="The cluster directory.")
    ] = Path(),
    listen: Annotated[str, typer.Option(envvar="LLMGW_LISTEN", help="Address of the gateway.")] = "127.0.0.1:8080",
    state_dir: StateDir = None,
    server: Server = "",
    as_json: Json = False,
) -> None:
    """Say what this machine lacks to run the control plane, each with the command that mends it."""
    from llmgw.cli.doctor import examine

    examine(directory, listen, state_dir, server, as_json=as_json)


for command in (router, *OPERATING, *CHANGING, *REVISIONS, *USAGE):
    app.command()(command)
node.command("install")(node_install)
node.command("check")(node_check)


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
