"""The commands that run until they are told to stop."""

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from llmgw.agent.main import CannotStart
from llmgw.cli.outcomes import Failed, WrongUsage

if TYPE_CHECKING:
    from llmgw.adapters.forge_status import ForgeSettings
    from llmgw.adapters.git_remote import Remote
    from llmgw.app.places import GatewayProcesses


def address(text: str, option: str) -> tuple[str, int]:
    """Return (host, port) of `HOST:PORT`, `:PORT` or `[IPV6]:PORT`. Raises WrongUsage."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535:
        raise WrongUsage(f"{option} {text} is not an address; write HOST:PORT, as in 127.0.0.1:8080")
    return host.strip("[]") or "0.0.0.0", int(port)


def processes_of(
    program: str,
    listen: str,
    state_dir: Path | None,
    workers: int,
    drain: float,
    log_level: str,
    endpoints: list[str] | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    access_log: str | None,
    otel_endpoint: str | None,
) -> "GatewayProcesses":
    """Return what was said of the gateway's workers. A router has a state directory a port. Raises WrongUsage."""
    from llmgw.app.places import GatewayProcesses, TlsFiles, default_state_dir
    from llmgw.fleet.static import static_endpoints

    where = address(listen, "--listen")
    try:
        static = static_endpoints(endpoints or ())
    except ValueError as error:
        raise WrongUsage(f"--endpoint: {error}") from error
    if (tls_cert is None) != (tls_key is None):
        missing = "--tls-key" if tls_key is None else "--tls-cert"
        raise WrongUsage(f"--tls-cert and --tls-key go together; name the other one with {missing}")
    default = default_state_dir(program)
    return GatewayProcesses(
        listen=where,
        state_dir=(state_dir or (default / str(where[1]) if program == "router" else default)).absolute(),
        workers=workers,
        drain=drain,
        log_level=_level(log_level),
        tls=TlsFiles(tls_cert.absolute(), tls_key.absolute()) if tls_cert and tls_key else None,
        endpoints=static,
        access_log=_appendable(access_log),
        collector=_collector(otel_endpoint),
    )


def _collector(url: str | None) -> str | None:
    """Return where spans go. Raises WrongUsage for what is no URL, Failed if what sends them is not installed."""
    from llmgw.app.tracing import MissingExtra, collector_of, has_extra

    if url is not None and not re.fullmatch(r"https?://[^\s/@?#]+(/[^\s?#]*)?", url):
        raise WrongUsage(f"--otel-endpoint {url} is not understood; write http://HOST:4318 of an OTLP/HTTP collector")
    try:
        return collector_of(url, os.environ, installed=has_extra)
    except MissingExtra as error:
        raise Failed(str(error)) from error


def _appendable(access_log: str | None) -> str | None:
    """Return the file that workers write to, which they could not say was none. Raises WrongUsage."""
    if access_log is None or access_log == "-":
        return access_log
    path = Path(access_log).absolute()
    try:
        path.open("ab").close()
    except OSError as error:
        raise WrongUsage(f"--access-log {access_log} cannot be written: {error.strerror}") from error
    return str(path)


def serve(
    gateway: "GatewayProcesses",
    *,
    cluster: Path,
    worktree: bool,
    admin_listen: str | None,
    admin_socket: Path | None,
    store: str | None,
    lease: float,
    ephemeral: bool,
    secrets_dir: Path | None = None,
    remote: "Remote | None",
    path: str,
    hook_secret: str | None,
    forge: "ForgeSettings | None",
    router_secret: str | None,
) -> None:
    """Run the control plane."""
    from llmgw.app.logs import configure
    from llmgw.app.places import ServerSettings
    from llmgw.app.server import run_server

    if remote is not None and worktree:
        raise WrongUsage("--git and --worktree exclude each other: a mirror has no files; leave one of them out")
    settings = ServerSettings(
        cluster=cluster.absolute(),
        worktree=worktree,
        gateway=gateway,
        admin_listen=address(admin_listen, "--admin-listen") if admin_listen else None,
        admin_socket=(admin_socket or gateway.state_dir / "admin.sock").absolute(),
        state_dir=gateway.state_dir,
        store=store,
        lease=lease,
        ephemeral=ephemeral,
        secrets_dir=known_directory(secrets_dir),
        remote=remote,
        path=path,
        hook_secret=hook_secret,
        forge=forge,
        router_secret=router_secret,
    )
    configure("server", gateway.log_level)
    try:
        run_server(settings)
    except CannotStart as error:
        raise Failed(str(error)) from error


def known_directory(secrets_dir: Path | None) -> Path | None:
    """Return where secrets lie. Raises Failed if there is no such directory."""
    if secrets_dir is not None and not secrets_dir.is_dir():
        raise Failed(f"there is no directory {secrets_dir}; create it (mode 0700), or name another with --secrets-dir")
    return secrets_dir.absolute() if secrets_dir else None


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
