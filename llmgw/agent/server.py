"""The agent's Unix socket: any number of control planes at once, each with a session of its own.

Every connection gets a report at once, after every change, and every `REPORT_EVERY` seconds: nothing depends on having
heard an earlier one. Logs go through the same connection, a bounded reply at a time, so they do not hold up reports.
"""

import asyncio
import logging
from pathlib import Path

from llmgw import __version__
from llmgw.agent.disk import Disk
from llmgw.agent.log_reader import LogReader
from llmgw.agent.runner import Runner
from llmgw.base.ids import NodeName
from llmgw.runtime.supervisor import Owned, Supervisor
from llmgw.wire.errors import ProtocolError
from llmgw.wire.frames import frame
from llmgw.wire.messages import (
    PROTOCOL,
    FromAgent,
    Hello,
    LogReply,
    LogRequest,
    Order,
    Refused,
    Said,
    Using,
    Welcome,
    encode,
)
from llmgw.wire.session import Session

log = logging.getLogger(__name__)

REPORT_EVERY = 10.0
"""Seconds between two reports when nothing changes."""
SEND_LIMIT = 30.0
"""Seconds that a peer may take to read what it is sent; then it is gone for us."""
QUESTIONS = 16
"""Questions for logs that one connection may have open at a time."""
LOOK_EVERY = 5.0
"""Seconds between two looks whether the socket is still there."""
LONGEST_SOCKET_PATH = 107
"""Bytes of a Unix socket's path that the kernel takes (108 with the final zero)."""


class SocketTaken(Exception):
    """The socket cannot be used; the message says why and what to do."""


class AgentServer:
    """Listens for control planes. Needs a runner that has adopted what there is."""

    def __init__(self, path: Path, runner: Runner, disk: Disk) -> None:
        self._path = path
        self._runner = runner
        self._disk = disk
        self._connections = Supervisor("connection")
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen. Raises SocketTaken if another agent does, or if the path will not do."""
        text = str(self._path)
        if len(text.encode()) > LONGEST_SOCKET_PATH:
            raise SocketTaken(
                f"socket path {text} has {len(text.encode())} bytes, at most {LONGEST_SOCKET_PATH} will do; "
                "choose a shorter one with --socket"
            )
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            if self._path.is_socket():
                await self._clear_stale()
            self._server = await asyncio.start_unix_server(self._accept, path=text)
            self._path.chmod(0o600)
        except OSError as error:
            raise SocketTaken(
                f"cannot listen on {text}: {error.strerror}; choose another place with --socket"
            ) from error

    async def keep(self) -> None:
        """Listen again if the socket's file was removed, for ever: what clears old files in /tmp does not ask who listens."""
        while True:
            await asyncio.sleep(LOOK_EVERY)
            if self._server is None or self._path.exists():
                continue
            log.error("the socket was removed; listening again", extra={"socket": self._path})
            self._server.close()
            try:
                await self.start()
            except SocketTaken as error:
                log.warning("nobody new can connect", extra={"reason": str(error)})

    async def stop(self) -> None:
        """Close the socket and every connection."""
        if self._server is not None:
            self._server.close()
            self._path.unlink(missing_ok=True)
        await self._connections.stop()

    async def _clear_stale(self) -> None:
        try:
            async with asyncio.timeout(2.0):
                _, writer = await asyncio.open_unix_connection(str(self._path))
        except (ConnectionRefusedError, FileNotFoundError):
            self._path.unlink(missing_ok=True)
            return
        except TimeoutError as error:
            raise SocketTaken(f"another agent holds {self._path} and does not answer; stop it first") from error
        writer.close()
        raise SocketTaken(f"another agent listens on {self._path}; stop it, or choose another place with --socket")

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # asyncio's own task for the callback would have no owner; the connection runs in one of ours
        self._connections.job("peer", _Connection(reader, writer, self._runner, self._disk).run(), self._lost)

    def _lost(self, error: BaseException) -> None:
        if not isinstance(error, ProtocolError | OSError | TimeoutError):
            raise error  # a fault of ours: asyncio's handler shows all of it, instead of one line that hides it
        log.warning("a control plane's connection ended", extra={"error": str(error) or type(error).__name__})


class _Connection:
    """One control plane's session."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, runner: Runner, disk: Disk) -> None:
        self._reader = reader
        self._writer = writer
        self._runner = runner
        self._logs = LogReader(disk, runner.writes)
        self._questions: set[Owned] = set()
        self._session = Session("agent")
        self._node = NodeName("")
        self._cluster = ""
        self._tasks = Supervisor("session")

    async def run(self) -> None:
        try:
            while data := await self._reader.read(1 << 16):
                for message in self._session.feed(data):
                    match message:
                        case Hello():
                            await self._greet(message)
                        case Order():
                            self._runner.obey(message.order, self._cluster, message.secrets)
                        case Using():
                            self._runner.heed(message)
                        case LogRequest():
                            self._ask(message)
                        case _:
                            raise ProtocolError(f"{message.type!r} is not for an agent")
        finally:
            await self._tasks.stop()
            self._writer.close()

    async def _greet(self, hello: Hello) -> None:
        mine = self._runner.belongs_to_another(hello.cluster)
        if mine:
            await self._send(
                Refused(
                    f"the agent of this node runs engines for cluster {mine}, not {hello.cluster}; remove the node from one of "
                    "the two, or run a second agent with its own --socket and --state-dir"
                )
            )
            raise ProtocolError(
                f"a control plane of cluster {hello.cluster} was refused; this agent obeys cluster {mine}"
            )
        self._cluster = hello.cluster
        self._node = hello.node
        log.info("a control plane connected", extra={"node": hello.node, "version": hello.version})
        await self._send(Welcome(PROTOCOL, __version__, users=True))
        self._tasks.job("reports", self._reports(), self._give_up)

    def _ask(self, request: LogRequest) -> None:
        """Answer on the side: a follower's question waits for lines, and orders must not wait with it."""
        self._questions = {question for question in self._questions if not question.done}
        if len(self._questions) < QUESTIONS:
            answer = self._log(request)
        else:
            error = f"{QUESTIONS} questions for logs wait at this node already; end some of the followers"
            answer = self._send(LogReply(request.id, 0, (), (), error))
        self._questions.add(self._tasks.job("log", answer, self._give_up))

    def _give_up(self, error: BaseException) -> None:
        log.warning(
            "a control plane does not take what it is sent", extra={"error": str(error) or type(error).__name__}
        )
        self._writer.transport.abort()  # closing would wait for the peer to read first

    async def _reports(self) -> None:
        while True:
            version = self._runner.changes.version
            await self._send(Said(self._runner.report(self._node)))
            try:
                async with asyncio.timeout(REPORT_EVERY):
                    await self._runner.changes.newer(version)
            except TimeoutError:
                continue

    async def _send(self, message: FromAgent) -> None:
        self._writer.write(frame(encode(message)))
        async with asyncio.timeout(SEND_LIMIT):
            await self._writer.drain()

    async def _log(self, request: LogRequest) -> None:
        await self._send(await self._logs.answer(request))
