"""What the admin API lets in: over its Unix socket anything, over TCP what needs no trust, proves itself or shows a key.

The Unix socket belongs to one user, whom the kernel tells from others. Nothing tells who speaks over TCP, not even that it
is no web page in the browser of somebody on this host, but an administrator's key. So what may be asked there without one is
listed, by the route's own pattern and not by what a stranger wrote as its path; everything else needs a key of the scope that
`scopes` says. A route that is listed and changes something authenticates who asks by itself, as webhooks do.

Every act that is let in goes into the audit trail here, with what became of it: no route can forget to write it.

A TCP address is also met by whoever scans it: so its connections are counted, and one that is cut makes no traceback.
"""

import asyncio
import logging
import socket
from collections.abc import Callable

import aiohttp
import orjson
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from llmgw.base.time import Clock
from llmgw.control.peers import WHO, socket_of, user_of
from llmgw.control.requests import LONGEST, BadRequest, line_from
from llmgw.control.scopes import is_act, is_enough, scope_needed
from llmgw.control.trail import described
from llmgw.ports.audit import Entry
from llmgw.ports.keys import Scope
from llmgw.routing.access import Failures

log = logging.getLogger(__name__)

OVER_TCP = (("GET", "/health"), ("GET", "/metrics"), ("POST", "/hooks/*"), ("GET", "/v1/router"))
"""Methods and patterns of routes; one that ends in `*` stands for all that begin with it.

Whoever asks for the last one, a gateway on another host, proves itself by a secret.
"""
NO_KEY = (
    "over TCP this server needs an administrator's key: set LLMGW_TOKEN to one, as `llmgw keys create --admin --scope read` "
    "makes it on the server's host; or ask over its Unix socket, as with `llmgw status --server /PATH/OF/admin.sock`"
)
WRONG_KEY = "the key in LLMGW_TOKEN is no administrator's key of this server: it is wrong, has expired, or was revoked"
CONNECTIONS = 256
"""Open at once on the TCP address. More are closed at once: the process has a thousand files for everything."""
TELL = 60.0
"""Seconds between two lines about connections that were cut or closed."""


class Admission:
    """The middleware, and the count of TCP connections. One for an admin API."""

    def __init__(self) -> None:
        self._known: Callable[[str], tuple[str, Scope] | None] = lambda _: None
        self._audit: Callable[[Entry], None] = lambda _: None
        self._clock: Clock | None = None
        self._failures = Failures()
        self._untold: dict[str, int] = {}
        self._told: dict[str, float] = {}

    def known_by(self, known: Callable[[str], tuple[str, Scope] | None], clock: Clock) -> None:
        """Have this say whose key a credential is: (id, scope), or None. Once, before start; without it no key is right."""
        self._known = known
        self._clock = clock

    def audited_by(self, record: Callable[[Entry], None]) -> None:
        """Have this take a line of the audit trail for every act. Once, before start, after `known_by`."""
        self._audit = record

    def middleware(self) -> Middleware:
        """Return what stands before every route."""

        @web.middleware
        async def admit(request: web.Request, handler: Handler) -> web.StreamResponse:
            if over_unix(request):
                request[WHO] = user_of(request)
            elif not _listed(request):
                refused = self._by_key(request)
                if refused is not None:
                    return refused
            try:
                answer = await answered(request, handler)
            except Exception:
                # aiohttp makes it a 500; what the act did until then it has done
                await self._note(request, _refuse(500, "the server failed while it did this; see its log"))
                raise
            await self._note(request, answer)
            return answer

        async def answered(request: web.Request, handler: Handler) -> web.StreamResponse:
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

    def _by_key(self, request: web.Request) -> web.Response | None:
        """Note whose key a request shows; or return why that will not do."""
        scheme, _, credential = request.headers.get("Authorization", "").partition(" ")
        found = self._known(credential.strip()) if scheme.lower() == "bearer" else None
        if found is None:
            return self._wrong(request, NO_KEY if not credential else WRONG_KEY)
        name, scope = found
        needed = scope_needed(request.method, _pattern(request))
        if not is_enough(scope, needed):
            text = f"key {name} has the scope `{scope}`, and this needs `{needed}`; make one with --scope {needed}"
            return web.json_response({"error": text, "denied": True}, status=403)
        request[WHO] = f"key/{name}"
        return None

    def _wrong(self, request: web.Request, text: str) -> web.Response:
        wait, worth_a_line = None, True
        if self._clock is not None:
            wait, worth_a_line = self._failures.failed(request.remote or "", self._clock.now())
        if worth_a_line:
            log.warning("on the admin API somebody without a valid key is refused", extra={"from": request.remote})
        if wait is not None:
            text = f"too many requests without a valid key came from this address; come again in {wait} s"
            return web.json_response({"error": text}, status=429, headers={"Retry-After": str(wait)})
        return web.json_response({"error": text}, status=401, headers={"WWW-Authenticate": "Bearer"})

    async def _note(self, request: web.Request, answer: web.StreamResponse) -> None:
        """Write an act, done or refused, into the audit trail."""
        pattern = _pattern(request)
        if self._clock is None or not is_act(request.method, pattern):
            return
        try:
            body = await request.json()
        except (ValueError, RecursionError, web.HTTPException, ConnectionError, aiohttp.ClientPayloadError):
            body = None
        told = orjson.loads(answer.body) if isinstance(answer, web.Response) and isinstance(answer.body, bytes) else {}
        asked = body if isinstance(body, dict) else {}
        act, subject, text, cause = described(request.method, pattern, request.query, asked, told)
        outcome = "done" if answer.status < 400 else f"refused: {told.get('error', answer.status)}"[:LONGEST]
        said = line_from(asked, "by")
        self._audit(Entry(self._clock.now(), request.get(WHO, ""), said, act, subject, text, outcome, cause))

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
    sock = socket_of(request)
    return sock is not None and sock.family == socket.AF_UNIX


def _listed(request: web.Request) -> bool:
    canonical = _pattern(request)
    method = "GET" if request.method == "HEAD" else request.method
    return any(
        method == allowed and (canonical.startswith(pattern[:-1]) if pattern.endswith("*") else canonical == pattern)
        for allowed, pattern in OVER_TCP
    )


def _pattern(request: web.Request) -> str:
    """Return the route's own pattern; empty if there is none."""
    resource = request.match_info.route.resource
    return resource.canonical if resource is not None else ""


def _refuse(status: int, text: str) -> web.Response:
    return web.json_response({"error": text}, status=status)
