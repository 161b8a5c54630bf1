"""The admin API: plain JSON over HTTP on a Unix socket (0600), and on a TCP address for who shows a key (see `admission`).

`GET /v1/status` · `POST /v1/plan` (a whole tree in, what it would change out) · `GET /v1/logs` · `GET /metrics` ·
`GET /health` · what `operator` and `plan_api` have.
What one of these refuses is `{"error": "one line that says what to do"}` with a 4xx or 5xx status.
"""

import asyncio
import errno
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from aiohttp import web

from llmgw.base.ids import NodeName, ReplicaId, ShardId, shard_id
from llmgw.base.printable import printable
from llmgw.catalog.compile import Accepted, Rejected
from llmgw.catalog.guard import allowed_by
from llmgw.catalog.source import SourceTree
from llmgw.control.admission import Admission
from llmgw.control.catalogs import Catalogs, Compile
from llmgw.control.operator import OperatorApi
from llmgw.control.plan_api import PlanApi
from llmgw.control.preview import preview
from llmgw.control.reconcile import Reconciler
from llmgw.control.requests import MAX_REQUEST, names_from, tree_from
from llmgw.control.revision_rows import waiting_row
from llmgw.fleet.view import Reporting
from llmgw.plan.replicas import Replica, existing
from llmgw.plan.what_if import CannotSuppose
from llmgw.ports.links import LinkBroken
from llmgw.wire.messages import LogReply, LogRequest

LONGEST_WAIT = 30.0
"""Seconds that a follower of a log may wait for one answer."""

AskLogs = Callable[[NodeName, LogRequest], Awaitable[LogReply]]


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
        operator: OperatorApi,
        plans: PlanApi,
        admission: Admission,
        more: Iterable[web.RouteDef] = (),
    ) -> None:
        self._catalogs = catalogs
        self._reconciler = reconciler
        self._status = status
        self._metrics = metrics
        self._logs = logs
        self._compile = compiler
        self._operator = operator
        self._more = tuple(more)
        self._plans = plans
        self._admission = admission
        self._runners: list[web.AppRunner] = []
        self._listening: asyncio.Server | None = None
        self._socket: Path | None = None

    async def start(self, socket: Path, listen: tuple[str, int] | None) -> None:
        """Listen. Raises OSError if an address cannot be had."""
        runner = await self._runner()
        await _clear(socket)
        fresh = socket.with_name(socket.name[:-1] + "~")  # no longer, since paths of sockets may not be
        fresh.unlink(missing_ok=True)
        await web.UnixSite(runner, str(fresh)).start()
        fresh.chmod(0o600)
        fresh.rename(socket)  # so that whoever finds it is answered, and nobody else can have come in before
        self._socket = socket
        if listen is not None:
            server = (await self._runner()).server
            assert server is not None
            # a runner of its own, so that the connections of strangers are counted by themselves
            loop = asyncio.get_running_loop()
            self._listening = await loop.create_server(self._admission.counted(server), *listen)

    async def stop(self) -> None:
        """Close everything."""
        if self._listening is not None:
            self._listening.close()
        for runner in self._runners:
            await runner.cleanup()
        if self._socket is not None:
            self._socket.unlink(missing_ok=True)

    async def _runner(self) -> web.AppRunner:
        app = web.Application(client_max_size=MAX_REQUEST, middlewares=[self._admission.middleware()])
        app.router.add_get("/health", self._get_health)
        app.router.add_get("/metrics", self._get_metrics)
        app.router.add_get("/v1/status", self._get_status)
        app.router.add_post("/v1/plan", self._post_plan)
        app.router.add_get("/v1/logs", self._get_logs)
        self._operator.add_to(app)
        app.router.add_routes(self._more)
        self._plans.add_to(app)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=2.0)
        await runner.setup()
        self._runners.append(runner)
        return runner

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
        supposed = body.get("what_if", []) if isinstance(body, dict) else []
        in_force = self._catalogs.state.value.catalog
        outcome: Accepted | Rejected | None = None
        trailers: tuple[str, ...] = ()
        tree: SourceTree | None = None
        if isinstance(body, dict) and supposed and "files" not in body and in_force is not None:
            outcome = Accepted(in_force, ())
        else:
            tree = tree_from(body)
            outcome = await self._compile(tree) if tree is not None else None
            trailers = tree.trailers if tree is not None else ()
        if outcome is None or not isinstance(supposed, list):
            return _refuse(400, 'the request must be {"revision": …, "files": {path: base64}, "what_if": [text]}')
        allowed = names_from(body, "allow_remove") | allowed_by(trailers)
        try:
            shown = preview(
                outcome, in_force, self._reconciler.snapshot(), tuple(printable(str(one)) for one in supposed), allowed
            )
        except CannotSuppose as error:
            return _refuse(400, str(error))
        waiting = waiting_row(self._catalogs.state.value.waiting)
        return web.json_response({**await self._plans.answer(shown, tree, body), "waiting": waiting})

    async def _get_logs(self, request: web.Request) -> web.Response:
        replica = ReplicaId(request.query.get("replica", ""))
        asked = _log_request(shard_id(replica, 0), request.query)
        if asked is None:
            return _refuse(400, "attempt, lines, offset and wait are whole numbers")
        snapshot = self._reconciler.snapshot()
        known = existing(snapshot) if snapshot is not None else []
        found = next((one for one in known if one.id == replica), None)
        # what is gone has left its logs on its node; which one that was, only the nodes know
        answering = [name for name, view in snapshot.nodes.items() if isinstance(view, Reporting)] if snapshot else []
        nodes = [found.node] if found is not None else sorted(answering)
        replies = await asyncio.gather(*(self._ask(node, asked) for node in nodes))
        for node, reply in zip(nodes, replies, strict=True):
            if isinstance(reply, LogReply) and (reply.attempts or found is not None):
                return _refuse(404, reply.error) if reply.error else _log_answer(replica, node, found, reply)
        broken = [reply for reply in replies if isinstance(reply, str)]
        if broken:
            return _refuse(503, broken[0])
        names = ", ".join(one.id for one in known) or "none yet; nodes may still have to report"
        return _refuse(404, f"there is no replica {replica!s}, and no node has logs of it; there are: {names}")

    async def _ask(self, node: NodeName, asked: LogRequest) -> LogReply | str:
        """Return a node's answer, or why there is none."""
        try:
            return await self._logs(node, asked)
        except LinkBroken as error:
            return str(error)


def _log_request(shard: ShardId, query: Mapping[str, str]) -> LogRequest | None:
    """Return the question that a query asks, or None if one of its numbers is none."""
    numbers = {name: query.get(name, default) for name, default in (("attempt", "0"), ("lines", "100"), ("wait", "0"))}
    offset = query.get("offset")
    given = [*numbers.values(), *([offset] if offset is not None else [])]
    if not all(number.isascii() and number.isdigit() and len(number) < 16 for number in given):
        return None
    wait = min(float(numbers["wait"]), LONGEST_WAIT)
    return LogRequest(
        0, shard, int(numbers["attempt"]), int(numbers["lines"]), int(offset) if offset is not None else None, wait
    )


def _log_answer(replica: ReplicaId, node: NodeName, found: Replica | None, reply: LogReply) -> web.Response:
    return web.json_response(
        {
            "replica": replica,
            "node": node,
            "phase": found.phase if found is not None else "gone",
            "attempt": reply.attempt,
            "attempts": reply.attempts,
            "lines": reply.lines,
            "start": reply.start,
            "next": reply.next,
            "ended": reply.ended,
        }
    )


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
