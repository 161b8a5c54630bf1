"""Routers on other hosts: sent the same tables as the workers here and heard for what they have in flight, over a WebSocket.

`GET /v1/router` of the admin API, with `Authorization: Bearer` and `wire.token`; the frames of `wire`, a binary message each.
A router is not started, stopped or replaced from here. It serves on by its last table when it hears nothing, so one that
cannot be heard may have anything in flight: it is counted as unknown until it is back, has said that it leaves, or was
given up by an operator. That must outlast a restart of this process, so the names of those that may serve are kept in a file.

A table for another host leaves out what cannot be reached from there: tunnels end in sockets of this host, and a
loopback address would name a port of the wrong one. So is what needs a key: keys leave this host for their upstream only.
Its version stays that of the whole, since usage is counted by it.
"""

import asyncio
import contextlib
import hmac
import ipaddress
import json
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from aiohttp import WSMsgType, web

from llmgw.base.time import EARLIEST, Clock, Instant
from llmgw.control.counting import SILENCE, Word, is_news
from llmgw.control.peers import by_of
from llmgw.control.requests import line_from
from llmgw.control.workers import not_kept
from llmgw.fleet.access import Access
from llmgw.fleet.spent import SpentBatch
from llmgw.fleet.static import keyless
from llmgw.fleet.table import Address, EndpointTable, TcpAddress
from llmgw.ports.sinks import Event, EventSink
from llmgw.runtime.latest import Latest
from llmgw.runtime.supervisor import Supervisor
from llmgw.wire.errors import ProtocolError
from llmgw.wire.frames import LIMIT, frame
from llmgw.wire.messages import (
    AccessTable,
    Refused,
    RouterHello,
    RouterLeaves,
    Spending,
    SpendingKept,
    Table,
    WorkerUsage,
    encode,
)
from llmgw.wire.session import Session
from llmgw.wire.token import router_token

log = logging.getLogger(__name__)

HEARTBEAT = 5.0
"""Seconds between two pings; a peer that does not answer one for half of that is gone."""
OFF = "routers are not taken here: start the server with --router-secret NAME, and set that secret"
WRONG = "the router's secret is wrong, or there is none; give the router and the server the same --router-secret"


@dataclass(slots=True)
class _Router:
    """One router that may serve."""

    name: str
    listen: str
    lost_at: Instant
    run: str = ""
    link: web.WebSocketResponse | None = None
    since: Instant | None = None
    usage: WorkerUsage | None = None
    at: Instant = EARLIEST
    left_out: int = 0


@dataclass(slots=True)
class Routers:
    """All of them, those that cannot be heard included. Use from one event loop."""

    secret: Callable[[], str | None]
    clock: Clock
    changed: Callable[[], None]
    kept: Path
    """Where the names of those that may serve are written down."""
    network: str
    """That of this process; see `RouterHello.network`."""
    events: EventSink
    spent: Callable[[SpentBatch], Awaitable[None]]
    """Returns once a batch is kept. Raises StoreUnavailable; the router says it again then."""
    _access: Latest[Access | None] = field(default_factory=lambda: Latest(None))
    _table: Latest[EndpointTable | None] = field(default_factory=lambda: Latest(None))
    _settled: asyncio.Event = field(default_factory=asyncio.Event)
    _routers: dict[str, _Router] = field(default_factory=dict)
    _told_left_out: bool = False

    def load(self) -> None:
        """Go on with those that served under an earlier control plane. Once, before anything is decided."""
        try:
            known = json.loads(self.kept.read_bytes())
            self._routers = {name: _Router(name, str(known[name]), self.clock.now()) for name in known}
        except FileNotFoundError:
            return
        except (OSError, ValueError, TypeError) as error:
            log.critical("which routers may serve is not known: %s", error, extra={"file": self.kept})

    async def stop(self) -> None:
        """Close all connections; routers serve on."""
        for link in [router.link for router in self._routers.values() if router.link is not None]:
            await link.close(code=1001)

    def routes(self) -> list[web.RouteDef]:
        """Return what to add to the admin API."""
        return [web.get("/v1/router", self._get_router), web.post("/v1/routers/forget", self._post_forget)]

    def publish(self, table: EndpointTable, *, settled: bool) -> None:
        """Make this the newest table."""
        if self._table.value != table:
            self._table.set(table)
        if settled:
            self._settled.set()

    def admit(self, access: Access) -> None:
        """Make this what they go by."""
        if self._access.value != access:
            self._access.set(access)

    def words(self) -> list[Word]:
        """Return what each of them said last."""
        return [Word(f"router {one.name}", one.usage, one.at, lost=one.link is None) for one in self._routers.values()]

    @property
    def connected(self) -> tuple[str, ...]:
        """Those that can be heard now, by name."""
        return tuple(sorted(one.name for one in self._routers.values() if one.link is not None))

    def moved(self, names: frozenset[str]) -> None:
        """Let go of those of these that cannot be heard here: another control plane hears them, and counts them."""
        for router in [one for one in self._routers.values() if one.link is None and one.name in names]:
            log.info("a router follows another control plane now", extra={"router": router.name})
            self._leave(router)

    @property
    def alarms(self) -> tuple[str, ...]:
        """What people must know."""
        now = self.clock.now()
        return tuple(
            f"router {one.name} ({one.listen}) is not connected, so what it has in flight is unknown and nothing that it may "
            f"use is stopped; if it is gone for good: llmgw forget router/{one.name} --reason TEXT"
            for one in self._routers.values()
            if one.link is None and now - one.lost_at > SILENCE
        )

    @property
    def notices(self) -> tuple[str, ...]:
        """What people should know."""
        worst = max((one.left_out for one in self._routers.values() if one.link is not None), default=0)
        return (_left_out(worst),) if worst else ()

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each, as the admin API shows it."""
        version = self._table.value.version if self._table.value is not None else 0
        return [
            {
                "name": one.name,
                "address": one.listen,
                "connected_since": one.since,
                "table_version": one.usage.table_version if one.usage else None,
                "current": one.link is not None and one.usage is not None and one.usage.table_version == version,
                "in_flight": sum(each.in_flight for each in one.usage.endpoints) if one.usage and one.link else None,
                "left_out": one.left_out,
            }
            for _, one in sorted(self._routers.items())
        ]

    async def _post_forget(self, request: web.Request) -> web.Response:
        """Give up one that cannot be heard."""
        try:
            asked = await request.json()
        except (ValueError, RecursionError):
            asked = None
        asked = asked if isinstance(asked, dict) else {}
        name, reason = line_from(asked, "router"), line_from(asked, "reason")
        router = self._routers.get(name)
        if not name or not reason:
            return _refuse('the request must be {"router": …, "reason": …}', 400)
        if router is None:
            known = ", ".join(sorted(self._routers)) or "none"
            return _refuse(f"there is no router {name!r}; there are: {known}", 404)
        if router.link is not None:
            return _refuse(f"router {name} is connected; stop it, and it is gone", 409)
        self._leave(router)
        text = f"{by_of(request, line_from(asked, 'by'))} says that it is gone: {reason}"
        self.events.record(Event(self.clock.now(), "router_forgotten", f"router/{name}", text, ""))
        return web.json_response({"router": name})

    async def _get_router(self, request: web.Request) -> web.StreamResponse:
        secret = self.secret()
        if not secret:
            return _refuse(OFF, 404)
        given = request.headers.get("Authorization", "").encode(errors="surrogateescape")
        if not hmac.compare_digest(given, f"Bearer {router_token(secret)}".encode()):
            log.warning("a router is refused: its secret is wrong", extra={"from": request.remote})
            return _refuse(WRONG, 403)
        link = web.WebSocketResponse(heartbeat=HEARTBEAT, max_msg_size=LIMIT + 4, compress=False)
        if not link.can_prepare(request).ok:
            return _refuse("this is for `llmgw router --control`", 400)
        await link.prepare(request)
        tasks = Supervisor("router")
        try:
            await self._hear(link, tasks)
        except ProtocolError as error:
            log.warning("a router is refused: %s", error, extra={"from": request.remote})
            with contextlib.suppress(OSError):
                await link.send_bytes(frame(encode(Refused(str(error)))))
        finally:
            await tasks.stop()
            await link.close()
        return link

    async def _hear(self, link: web.WebSocketResponse, tasks: Supervisor) -> None:
        """Take what a router says until its connection ends. Raises ProtocolError."""
        session = Session("control_of_router")
        router: _Router | None = None
        try:
            async for data in link:
                if data.type is not WSMsgType.BINARY:
                    raise ProtocolError("the router sent text; is it another program?")
                for message in session.feed(data.data):
                    if router is not None and router.link is not link:
                        return  # it has called again since; what is still said here is old
                    match message:
                        case RouterHello():
                            router = self._greeted(message, link)
                            tasks.job("access", self._accesses(link), _cannot_send)
                            tasks.job("tables", self._tables(router, message, link), _cannot_send)
                        case WorkerUsage():
                            assert router is not None
                            self._take_usage(router, message)
                        case Spending(batch):
                            tasks.job("spending", self._keep_spending(batch, link), not_kept)
                        case RouterLeaves():
                            assert router is not None
                            self._leave(router)
                            log.info("a router has ended", extra={"router": router.name})
                        case _:
                            raise ProtocolError(f"{message.type!r} is not for a control plane")
        finally:
            if router is not None and router.link is link:
                router.link = router.since = None
                router.lost_at = self.clock.now()
                if self._routers.get(router.name) is router:
                    log.warning("a router is not connected any more", extra={"router": router.name})
                    self.changed()

    def _greeted(self, hello: RouterHello, link: web.WebSocketResponse) -> _Router:
        """Count a router in. Raises ProtocolError if another one of its name is connected, or if it would ask for no keys."""
        if not hello.keys:
            raise ProtocolError(f"the router ({hello.version}) is of a version that knows no keys; upgrade it")
        now = self.clock.now()
        known = self._routers.get(hello.name)
        if known is not None and known.link is not None and known.run != hello.run and now - known.at < SILENCE:
            raise ProtocolError(
                f"another router called {hello.name} ({known.listen}) is connected; give this one another --name"
            )
        router = known or _Router(hello.name, hello.listen, now)
        router.run, router.listen, router.link, router.since = hello.run, hello.listen, link, now
        router.usage, router.at = None, now
        self._routers[hello.name] = router
        self._keep()
        log.info("a router is connected", extra={"router": hello.name, "address": hello.listen})
        self.changed()
        return router

    async def _accesses(self, link: web.WebSocketResponse) -> None:
        while True:
            version = self._access.version
            if self._access.value is not None:
                await link.send_bytes(frame(encode(AccessTable(self._access.value))))
            await self._access.newer(version)

    async def _keep_spending(self, batch: SpentBatch, link: web.WebSocketResponse) -> None:
        await self.spent(batch)
        await link.send_bytes(frame(encode(SpendingKept(batch.source, batch.sequence))))

    async def _tables(self, router: _Router, hello: RouterHello, link: web.WebSocketResponse) -> None:
        if hello.serving:
            await self._settled.wait()  # what it has serves better than a table of a part of the fleet
        while True:
            version = self._table.version
            table = self._table.value
            if table is not None:
                sent = reachable(table, same_host=hello.network == self.network != "")
                router.left_out = len(table.endpoints) - len(sent.endpoints)
                if router.left_out and not self._told_left_out:
                    self._told_left_out = True
                    log.warning(_left_out(router.left_out), extra={"router": router.name})
                await link.send_bytes(frame(encode(Table(sent))))
            await self._table.newer(version)

    def _take_usage(self, router: _Router, usage: WorkerUsage) -> None:
        before = router.usage
        router.usage, router.at = usage, self.clock.now()
        if is_news(before, usage):
            self.changed()

    def _leave(self, router: _Router) -> None:
        if self._routers.get(router.name) is router:
            del self._routers[router.name]
            self._keep()
            self.changed()

    def _keep(self) -> None:
        fresh = self.kept.with_suffix(".new")
        try:
            fresh.write_text(json.dumps({one.name: one.listen for one in self._routers.values()}))
            fresh.replace(self.kept)
        except OSError as error:
            log.warning("which routers may serve cannot be kept: %s", error.strerror, extra={"file": self.kept})


def reachable(table: EndpointTable, *, same_host: bool) -> EndpointTable:
    """Return the table without what a router does not reach, there or on another host, or has no key for."""
    table = keyless(table, ())
    endpoints = [one for one in table.endpoints if isinstance(one.address, TcpAddress)]
    if not same_host:
        endpoints = [one for one in endpoints if not _is_loopback(one.address)]
    return replace(table, endpoints=tuple(endpoints))


def _is_loopback(address: Address) -> bool:
    if not isinstance(address, TcpAddress):
        return False
    try:
        return ipaddress.ip_address(address.host).is_loopback
    except ValueError:
        return address.host == "localhost"


def _left_out(count: int) -> str:
    return (
        f"routers on other hosts are not sent {count} endpoint(s), which only this host reaches or has the key of; "
        "for engines on nodes, `traffic: direct` makes them reachable"
    )


def _refuse(text: str, status: int) -> web.Response:
    return web.json_response({"error": text}, status=status)


def _cannot_send(error: BaseException) -> None:
    log.warning("a router cannot be sent a table: %s", error)
