"""The admin API: plain JSON over HTTP on a Unix socket (0600) and, if asked for, on a TCP address. Not the data plane.

`GET /v1/status` · `POST /v1/plan` (a whole tree in, what it would change out) · `GET /v1/logs` · `GET /metrics` ·
`GET /health`.
What one of these refuses is `{"error": "one line that says what to do"}` with a 4xx or 5xx status.
"""

import asyncio
import errno
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

from aiohttp import web

from llmgw.base.ids import NodeName, ReplicaId, ShardId
from llmgw.catalog.guard import allowed_by
from llmgw.control.catalogs import Catalogs, Compile
from llmgw.control.preview import as_json, preview
from llmgw.control.reconcile import Reconciler
from llmgw.control.requests import names_from, tree_from
from llmgw.control.revision_rows import waiting_row
from llmgw.plan.replicas import existing
from llmgw.ports.links import LinkBroken
from llmgw.wire.messages import LogReply

MAX_TREE = 64 << 20
"""Bytes of a plan request; a tree of 10,000 files is far below."""

AskLogs = Callable[[NodeName, ShardId, int, int], Awaitable[LogReply]]


class AdminApi:
    """The routes. `start` and `stop` once."""

    def __init__(
        self,
        catalogs: Catalogs,
        reconciler: Reconciler,
        status: Callable[[], dict[str, Any]],
        metrics: Callable[[], tuple[bytes, str]],
        logs: AskLogs,
        compiler: Compile,
        more: Iterable[web.RouteDef] = (),
    ) -> None:
        self._catalogs = catalogs
        self._reconciler = reconciler
        self._status = status
        self._metrics = metrics
        self._logs = logs
        self._compile = compiler
        self._more = tuple(more)
        self._runner: web.AppRunner | None = None
        self._socket: Path | None = None

    async def start(self, socket: Path, listen: tuple[str, int] | None) -> None:
        """Listen. Raises OSError if an address cannot be had."""
        app = web.Application(client_max_size=MAX_TREE)
        app.router.add_get("/health", self._get_health)
        app.router.add_get("/metrics", self._get_metrics)
        app.router.add_get("/v1/status", self._get_status)
        app.router.add_post("/v1/plan", self._post_plan)
        app.router.add_get("/v1/logs", self._get_logs)
        app.router.add_routes(self._more)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=2.0)
        await self._runner.setup()
        await _clear(socket)
        await web.UnixSite(self._runner, str(socket)).start()
        socket.chmod(0o600)
        self._socket = socket
        if listen is not None:
            await web.TCPSite(self._runner, *listen).start()

    async def stop(self) -> None:
        """Close everything."""
        if self._runner is not None:
            await self._runner.cleanup()
        if self._socket is not None:
            self._socket.unlink(missing_ok=True)

    async def _get_health(self, _: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def _get_metrics(self, _: web.Request) -> web.Response:
        body, content_type = self._metrics()
        return web.Response(body=body, headers={"content-type": content_type})

    async def _get_status(self, _: web.Request) -> web.Response:
        return web.json_response(self._status())

    async def _post_plan(self, request: web.Request) -> web.Response:
        try:
            body = await request.json()
        except (ValueError, RecursionError):
            body = None
        tree = tree_from(body)
        if tree is None:
            return _refuse(400, 'the request must be {"revision": …, "files": {path: base64}}')
        outcome = await self._compile(tree)
        allowed = names_from(body, "allow_remove") | allowed_by(tree.trailers)
        shown = preview(outcome, self._catalogs.state.value.catalog, self._reconciler.snapshot(), allowed)
        waiting = waiting_row(self._catalogs.state.value.waiting)
        return web.json_response({**as_json(shown), "waiting": waiting})

    async def _get_logs(self, request: web.Request) -> web.Response:
        replica = ReplicaId(request.query.get("replica", ""))
        numbers = [request.query.get(name, default) for name, default in (("attempt", "0"), ("lines", "100"))]
        if not all(number.isascii() and number.isdigit() and len(number) < 10 for number in numbers):
            return _refuse(400, "attempt and lines are whole numbers")
        attempt, lines = (int(number) for number in numbers)
        snapshot = self._reconciler.snapshot()
        known = existing(snapshot) if snapshot is not None else []
        found = next((one for one in known if one.id == replica), None)
        if found is None:
            names = ", ".join(one.id for one in known) or "none yet; nodes may still have to report"
            return _refuse(404, f"there is no replica {replica!s}; there are: {names}")
        try:
            reply = await self._logs(found.node, found.spec.shard, attempt, lines)
        except LinkBroken as error:
            return _refuse(503, str(error))
        if reply.error is not None:
            return _refuse(404, reply.error)
        body = {"replica": replica, "attempt": reply.attempt, "attempts": reply.attempts, "lines": reply.lines}
        return web.json_response(body)


async def _clear(socket: Path) -> None:
    """Remove a socket that nobody listens on any more. Raises OSError for anything else that is there."""
    if not socket.exists():
        return
    if not socket.is_socket():
        raise OSError(errno.EEXIST, "there is a file of that name, which is not a socket")
    try:
        async with asyncio.timeout(2.0):
            _, writer = await asyncio.open_unix_connection(str(socket))
    except (ConnectionRefusedError, FileNotFoundError):
        socket.unlink(missing_ok=True)
        return
    except TimeoutError as error:
        raise OSError(errno.EADDRINUSE, "another server listens there, and does not answer") from error
    writer.close()
    raise OSError(errno.EADDRINUSE, "another server listens there")


def _refuse(status: int, text: str) -> web.Response:
    return web.json_response({"error": text}, status=status)
