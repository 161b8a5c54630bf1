"""What the admin API lets in: over its Unix socket anything, over TCP only what needs no trust or proves itself.

The Unix socket belongs to one user, whom the kernel tells from others. Nothing tells who speaks over TCP, not even that it
is no web page in the browser of somebody on this host, until there are keys. So what may be asked there is listed, by the
route's own pattern and not by what a stranger wrote as its path; everything else is refused. A route that is listed and
changes something authenticates who asks by itself, as webhooks do.

A TCP address is also met by whoever scans it: so its connections are counted, and one that is cut makes no traceback.
"""

import asyncio
import logging
import socket
from collections.abc import Callable

import aiohttp
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from llmgw.control.requests import BadRequest

log = logging.getLogger(__name__)

OVER_TCP = (("GET", "/health"), ("GET", "/metrics"), ("POST", "/hooks/*"), ("GET", "/v1/router"))
"""Methods and patterns of routes; one that ends in `*` stands for all that begin with it.

Whoever asks for the last one, a gateway on another host, proves itself by a secret.
"""
SOCKET_ONLY = (
    "over TCP this server answers health, metrics, webhooks and routers only; ask it on its own host over its Unix socket, "
    "as with `llmgw status --server /PATH/OF/admin.sock`"
)
"""What everything else is told; `socket_only` beside it tells it from what a guard refuses."""
CONNECTIONS = 256
"""Open at once on the TCP address. More are closed at once: the process has a thousand files for everything."""
TELL = 60.0
"""Seconds between two lines about connections that were cut or closed."""


class Admission:
    """The middleware, and the count of TCP connections. One for an admin API."""

    def __init__(self) -> None:
        self._untold: dict[str, int] = {}
        self._told: dict[str, float] = {}

    def middleware(self) -> Middleware:
        """Return what stands before every route."""

        @web.middleware
        async def admit(request: web.Request, handler: Handler) -> web.StreamResponse:
            if not over_unix(request) and not _listed(request):
                return web.json_response({"error": SOCKET_ONLY, "socket_only": True}, status=403)
            if request.method == "POST" and request.content_type != "application/json":
                return _refuse(415, "the content type of the request must be application/json")
            try:
                return await handler(request)
            except BadRequest as error:
                return _refuse(400, str(error))
            except web.HTTPRequestEntityTooLarge as error:
                most = f"{request.client_max_size / (1 << 20):.0f} MiB"
                return _refuse(error.status, f"the request has more than {most}; is this a cluster directory?")
            except web.HTTPException as error:
                return _refuse(error.status, f"{error.reason}: {request.method} {request.path}")
            except (ConnectionError, aiohttp.ClientPayloadError):
                self._tell("requests were cut off by who sent them")
                return _refuse(400, "the request was cut off")

        return admit

    def counted(self, server: web.Server) -> Callable[[], asyncio.BaseProtocol]:
        """Return what makes the protocol of each TCP connection: the server's own while there is room."""

        def accept() -> asyncio.BaseProtocol:
            if len(server.connections) < CONNECTIONS:
                return server()
            self._tell(f"connections were closed, since {CONNECTIONS} are open at once")
            return _Closed()

        return accept

    def _tell(self, what: str) -> None:
        """Log what happened, with how often, once in `TELL` seconds."""
        self._untold[what] = self._untold.get(what, 0) + 1
        now = asyncio.get_running_loop().time()
        if now - self._told.get(what, now - TELL) < TELL:
            return
        log.warning("on the admin API %s", what, extra={"count": self._untold.pop(what)})
        self._told[what] = now


class _Closed(asyncio.Protocol):
    """Closes a connection at once."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Close it."""
        assert isinstance(transport, asyncio.Transport)
        transport.abort()


def over_unix(request: web.Request) -> bool:
    """Whether a request came over the Unix socket; not if that cannot be told."""
    sock = request.transport.get_extra_info("socket") if request.transport is not None else None
    return sock is not None and sock.family == socket.AF_UNIX


def _listed(request: web.Request) -> bool:
    resource = request.match_info.route.resource
    if resource is None:
        return False
    method = "GET" if request.method == "HEAD" else request.method
    return any(
        method == allowed
        and (resource.canonical.startswith(pattern[:-1]) if pattern.endswith("*") else resource.canonical == pattern)
        for allowed, pattern in OVER_TCP
    )


def _refuse(status: int, text: str) -> web.Response:
    return web.json_response({"error": text}, status=status)
