"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

from llmgw.cli.outcomes import WrongUsage

Server = Annotated[
    str,
    typer.Option(
        "--server",
        envvar="LLMGW_SERVER",
        help="Admin socket of the server (a path), or http(s)://HOST:PORT of its --admin-listen, with a key in LLMGW_TOKEN.",
        show_default="the socket of a server of this user",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]

LogLevel = Annotated[str, typer.Option("--log-level", envvar="LLMGW_LOG_LEVEL", help="debug, info, warning or error.")]

# of what runs a gateway
Listen = Annotated[str, typer.Option("--listen", envvar="LLMGW_LISTEN", help="Address of the gateway.")]
Workers = Annotated[
    int,
    typer.Option(
        "--workers",
        min=0,
        envvar="LLMGW_WORKERS",
        help="Gateway worker processes, which share its port; 0 serves in this process, for tests and tiny installs.",
    ),
]
Drain = Annotated[
    float,
    typer.Option("--drain", min=0, envvar="LLMGW_DRAIN", help="Seconds that streams may take to finish at a stop."),
]
StaticEndpoints = Annotated[
    list[str] | None,
    typer.Option(
        "--endpoint",
        envvar="LLMGW_ENDPOINT",
        metavar="ID=URL=MODEL[,MODEL]",
        help="An engine that somebody else runs, and its models. Repeat it for more; in the environment, put spaces between.",
        show_default=False,
    ),
]
TlsCert = Annotated[
    Path | None,
    typer.Option("--tls-cert", envvar="LLMGW_TLS_CERT", metavar="FILE", help="Serve https with this PEM chain."),
]
TlsKey = Annotated[
    Path | None,
    typer.Option("--tls-key", envvar="LLMGW_TLS_KEY", metavar="FILE", help="The PEM key that goes with it."),
]
AccessLog = Annotated[
    str | None,
    typer.Option(
        "--access-log",
        envvar="LLMGW_ACCESS_LOG",
        metavar="FILE",
        help="Write a line of JSON for every request; `-` is standard output.",
    ),
]
OtelEndpoint = Annotated[
    str | None,
    typer.Option(
        "--otel-endpoint",
        envvar="LLMGW_OTEL_ENDPOINT",
        metavar="URL",
        help="Send a span of every request to this OTLP/HTTP collector, as in http://127.0.0.1:4318; needs llmgw[otel].",
        show_default="OTEL_EXPORTER_OTLP_ENDPOINT, if that is set",
    ),
]
StateDir = Annotated[Path | None, typer.Option("--state-dir", envvar="LLMGW_STATE_DIR", help="Directory for state.")]
SecretsDir = Annotated[
    Path | None,
    typer.Option(
        "--secrets-dir",
        envvar="LLMGW_SECRETS_DIR",
        help="Directory of secrets, one file each, readable by this user only.",
    ),
]
RouterSecret = Annotated[
    str | None,
    typer.Option(
        "--router-secret",
        envvar="LLMGW_ROUTER_SECRET",
        metavar="NAME",
        help="Secret by which routers on other hosts (llmgw router --control) and this server know each other.",
    ),
]


def named(revision: str | None, option: str) -> str:
    """Return the revision that was named, or nothing if none was. Raises WrongUsage for a name that is empty.

    An empty one comes of a variable that is not set, and must not mean another revision than the one that was meant.
    """
    if revision is None:
        return ""
    if not revision.strip():
        raise WrongUsage(f"{option} is empty; name a revision, or leave it out")
    return revision
