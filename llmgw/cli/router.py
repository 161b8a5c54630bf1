"""`llmgw router`: a gateway without a cluster directory, or beside a control plane on another host."""

import re
import socket
from typing import Annotated
from urllib.parse import urlsplit

import typer

from llmgw.cli.options import (
    AccessLog,
    Drain,
    Listen,
    LogLevel,
    OtelEndpoint,
    RouterSecret,
    SecretsDir,
    StateDir,
    StaticEndpoints,
    TlsCert,
    TlsKey,
    Workers,
)
from llmgw.cli.outcomes import Failed, WrongUsage


def router(
    endpoint: StaticEndpoints = None,
    control: Annotated[
        list[str] | None,
        typer.Option(
            "--control",
            envvar="LLMGW_CONTROL",
            metavar="URL",
            help="Follow the server whose --admin-listen this is. Repeat it for others to try when it does not answer.",
            show_default=False,
        ),
    ] = None,
    router_secret: RouterSecret = None,
    secrets_dir: SecretsDir = None,
    client_secret: Annotated[
        str,
        typer.Option(
            envvar="LLMGW_CLIENT_SECRET",
            metavar="NAME",
            help="Secret that clients show as their API key. With --control, keys come from the server instead.",
            show_default=False,
        ),
    ] = "",
    name: Annotated[
        str,
        typer.Option(
            envvar="LLMGW_ROUTER_NAME",
            help="What the server calls this router.",
            show_default="this host, and the port",
        ),
    ] = "",
    listen: Listen = "127.0.0.1:8080",
    workers: Workers = 1,
    drain: Drain = 30.0,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    access_log: AccessLog = None,
    otel_endpoint: OtelEndpoint = None,
    metrics_listen: Annotated[
        str | None,
        typer.Option(
            envvar="LLMGW_METRICS_LISTEN",
            metavar="HOST:PORT",
            help="Address of GET /metrics and /health.",
            show_default=False,
        ),
    ] = None,
    state_dir: StateDir = None,
    log_level: LogLevel = "info",
) -> None:
    """Run the gateway alone, with a list of endpoints, or following a server's."""
    from llmgw.agent.main import CannotStart
    from llmgw.app.logs import configure
    from llmgw.app.places import RouterSettings
    from llmgw.app.router import run_router
    from llmgw.cli.running import address, known_directory, processes_of

    gateway = processes_of(
        "router", listen, state_dir, workers, drain, log_level, endpoint, tls_cert, tls_key, access_log, otel_endpoint
    )
    controls = tuple(_control(url) for url in control or ())
    if not gateway.endpoints and not controls:
        raise WrongUsage("a router needs --endpoint id=URL=model[,model], or the --control URL of a server to follow")
    if controls and not router_secret:
        raise WrongUsage("--control needs --router-secret NAME, the same secret as the server's --router-secret")
    if controls and client_secret:
        raise WrongUsage(
            "--control and --client-secret exclude each other: clients show the keys of the server's tenants"
        )
    settings = RouterSettings(
        gateway=gateway,
        name=_name(name, gateway.listen[1]),
        controls=controls,
        router_secret=router_secret or "",
        secrets_dir=known_directory(secrets_dir),
        client_secret=client_secret,
        metrics_listen=address(metrics_listen, "--metrics-listen") if metrics_listen else None,
    )
    configure("router", gateway.log_level)
    try:
        run_router(settings)
    except CannotStart as error:
        raise Failed(str(error)) from error


def _control(url: str) -> str:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), 0
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0 or "@" in parts.netloc:
        raise WrongUsage(f"--control {url} is not understood; write http://HOST:PORT of a server's --admin-listen")
    return url.rstrip("/")


def _name(given: str, port: int) -> str:
    name = given or f"{socket.gethostname()}-{port}"
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
        raise WrongUsage(f"--name {name!r} will not do: letters, digits, '.', '_' and '-', at most 100")
    return name
