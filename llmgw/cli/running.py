"""The commands that run until they are told to stop."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from llmgw.agent.main import CannotStart
from llmgw.cli.outcomes import Failed, WrongUsage

if TYPE_CHECKING:
    from llmgw.adapters.forge_status import ForgeSettings
    from llmgw.adapters.git_remote import Remote


def address(text: str, option: str) -> tuple[str, int]:
    """Return (host, port) of `HOST:PORT`, `:PORT` or `[IPV6]:PORT`. Raises WrongUsage."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535:
        raise WrongUsage(f"{option} {text} is not an address; write HOST:PORT, as in 127.0.0.1:8080")
    return host.strip("[]") or "0.0.0.0", int(port)


def serve(
    *,
    cluster: Path,
    worktree: bool,
    listen: str,
    admin_listen: str | None,
    admin_socket: Path | None,
    state_dir: Path | None,
    store: str | None,
    workers: int,
    drain: float,
    log_level: str,
    ephemeral: bool,
    secrets_dir: Path | None = None,
    remote: "Remote | None",
    path: str,
    hook_secret: str | None,
    forge: "ForgeSettings | None",
) -> None:
    """Run the control plane."""
    from llmgw.app.logs import configure
    from llmgw.app.places import ServerSettings, default_state_dir
    from llmgw.app.server import run_server

    if secrets_dir is not None and not secrets_dir.is_dir():
        raise Failed(f"there is no directory {secrets_dir}; create it (mode 0700), or name another with --secrets-dir")
    if remote is not None and worktree:
        raise WrongUsage("--git and --worktree exclude each other: a mirror has no files; leave one of them out")
    directory = (state_dir or default_state_dir()).absolute()
    settings = ServerSettings(
        cluster=cluster.absolute(),
        worktree=worktree,
        listen=address(listen, "--listen"),
        admin_listen=address(admin_listen, "--admin-listen") if admin_listen else None,
        admin_socket=(admin_socket or directory / "admin.sock").absolute(),
        state_dir=directory,
        store=store,
        workers=workers,
        drain=drain,
        log_level=_level(log_level),
        ephemeral=ephemeral,
        secrets_dir=secrets_dir.absolute() if secrets_dir else None,
        remote=remote,
        path=path,
        hook_secret=hook_secret,
        forge=forge,
    )
    configure("server", log_level)
    try:
        run_server(settings)
    except CannotStart as error:
        raise Failed(str(error)) from error


def run_node_agent(
    socket: Path | None, state_dir: Path | None, weights_dir: Path | None, *, ephemeral: bool, log_level: str
) -> None:
    """Run an agent."""
    from llmgw.agent.main import default_socket, default_state_dir, run_agent
    from llmgw.app.logs import configure

    configure("agent", _level(log_level))
    if weights_dir is not None and not weights_dir.is_dir():
        raise Failed(f"there is no directory {weights_dir}; create it, or name another with --weights-dir")
    try:
        run_agent(
            (socket or default_socket()).absolute(),
            (state_dir or default_state_dir()).absolute(),
            weights_dir.absolute() if weights_dir else None,
            ephemeral=ephemeral,
        )
    except CannotStart as error:
        raise Failed(str(error)) from error
    sys.stderr.flush()


def _level(text: str) -> str:
    if text.lower() not in ("debug", "info", "warning", "error"):
        raise WrongUsage(f"--log-level {text} is not known; use debug, info, warning or error")
    return text.lower()
