"""`ControlStream`: a router's way to the control plane, over a WebSocket of its admin API, tried for ever.

It is the remote side of `llmgw.control.routers`: tables come, usage goes, whole every time, twice a second and at once
when a decision may hang on it. The control plane is where tables come from, not what serving depends on.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence

from aiohttp import (
    ClientError,
    ClientSession,
    ClientWebSocketResponse,
    ClientWSTimeout,
    WSMsgType,
    WSServerHandshakeError,
)

from llmgw.fleet.access import Access
from llmgw.fleet.spent import SpentBatch
from llmgw.fleet.table import EndpointTable
from llmgw.ports.links import LinkBroken
from llmgw.runtime.backoff import Backoff
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

CONNECT = 10.0
"""Seconds that a control plane may take to answer a call."""
HEARTBEAT = 5.0
"""Seconds between two pings; a peer that does not answer one for half of that is gone."""
USAGE_INTERVAL = 0.5
"""Seconds."""
CONFIRM = 4.0
"""Seconds in which a control plane is to say that it has kept a batch; a worker says it again after five."""
FAREWELL = 2.0
"""Seconds that saying goodbye may take."""
REFUSALS = {
    403: "it does not know this router's secret; give both the same --router-secret",
    404: "it takes no routers; start it with --router-secret NAME, the same secret as here",
}


class ControlStream:
    """One connection at a time, to one of the control planes after the other."""

    def __init__(
        self,
        controls: Sequence[str],
        secret: Callable[[], str | None],
        hello: Callable[[], RouterHello],
        take: Callable[[EndpointTable], None],
        admit: Callable[[Access], None],
        usage: Callable[[], WorkerUsage],
        backoff: Backoff,
    ) -> None:
        """`take` gets each table, `admit` who may ask for what; `usage` returns what the router has in flight now."""
        self._controls = controls
        self._secret = secret
        self._hello = hello
        self._take = take
        self._admit = admit
        self._unconfirmed: dict[tuple[str, int], asyncio.Future[None]] = {}
        self._usage = usage
        self._backoff = backoff
        self._link: ClientWebSocketResponse | None = None
        self._due = asyncio.Event()
        self._leaving = False
        self._said: dict[str, str] = {}

    async def run(self) -> None:
        """Follow a control plane, and the next one whenever that is over, until cancelled."""
        async with ClientSession() as session:
            while True:
                for url in self._controls:
                    try:
                        why = await self._follow(session, url)
                    except (OSError, TimeoutError, ClientError, ProtocolError) as error:
                        why = _why(error)
                    if self._leaving:
                        await asyncio.Event().wait()
                    if self._said.get(url) != why:
                        self._said[url] = why
                        log.warning("not following a control plane; serving on", extra={"control": url, "why": why})
                    await asyncio.sleep(self._backoff.next())

    def say_usage(self) -> None:
        """Say what is in flight now rather than later."""
        self._due.set()

    async def pass_on(self, batch: SpentBatch) -> None:
        """Return once a control plane has kept a batch. Raises LinkBroken if none has, for all that is known."""
        link, name = self._link, (batch.source, batch.sequence)
        if link is None:
            raise LinkBroken("no control plane is connected")
        confirmed = self._unconfirmed[name] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(CONFIRM):
                await link.send_bytes(frame(encode(Spending(batch))))
                await confirmed
        except (OSError, ClientError, TimeoutError) as error:
            raise LinkBroken("no control plane has confirmed it") from error
        finally:
            if self._unconfirmed.get(name) is confirmed:
                del self._unconfirmed[name]

    async def leave(self) -> None:
        """Say that nothing is in flight here any more, if somebody listens."""
        self._leaving = True
        link = self._link
        if link is None:
            log.warning("no control plane heard that this router has ended; it counts as unknown there")
            return
        with contextlib.suppress(OSError, TimeoutError, ClientError):
            async with asyncio.timeout(FAREWELL):
                await link.send_bytes(frame(encode(RouterLeaves())))
                await link.close()

    async def _follow(self, session: ClientSession, url: str) -> str:
        """Follow one control plane until it is over, and return why it is. Raises what a connection can."""
        secret = self._secret()
        if not secret:
            return "the secret that --router-secret names is gone"
        async with asyncio.timeout(CONNECT):
            link = await session.ws_connect(
                f"{url}/v1/router",
                headers={"Authorization": f"Bearer {router_token(secret)}"},
                heartbeat=HEARTBEAT,
                max_msg_size=LIMIT + 4,
                timeout=ClientWSTimeout(ws_close=FAREWELL),
            )
        tasks = Supervisor("control stream")
        try:
            await link.send_bytes(frame(encode(self._hello())))
            self._link = link
            tasks.job("usage", self._say(link), lambda _: None)
            return await self._hear(link, url)
        finally:
            self._link = None
            await tasks.stop()
            await link.close()

    async def _hear(self, link: ClientWebSocketResponse, url: str) -> str:
        session = Session("router")
        heard = False
        async for data in link:
            if data.type is not WSMsgType.BINARY:
                continue
            for message in session.feed(data.data):
                match message:
                    case Refused(reason):
                        return reason
                    case AccessTable(access):
                        self._admit(access)
                    case SpendingKept(source, sequence):
                        confirmed = self._unconfirmed.get((source, sequence))
                        if confirmed is not None and not confirmed.done():
                            confirmed.set_result(None)
                    case Table(table):
                        self._take(table)
                        if not heard:
                            heard = True
                            self._said.clear()
                            self._backoff.reset()
                            log.info("following a control plane", extra={"control": url})
                    case _:
                        raise ProtocolError(f"{message.type!r} is not for a router")
        return "it closed the connection"

    async def _say(self, link: ClientWebSocketResponse) -> None:
        while True:
            self._due.clear()
            await link.send_bytes(frame(encode(self._usage())))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(USAGE_INTERVAL):
                    await self._due.wait()


def _why(error: Exception) -> str:
    if isinstance(error, WSServerHandshakeError):
        return REFUSALS.get(
            error.status, f"it answers with status {error.status}; is it the --admin-listen of a server?"
        )
    if isinstance(error, TimeoutError):
        return f"it did not answer within {CONNECT:.0f} s"
    return str(error)
