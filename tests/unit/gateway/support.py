"""A gateway with its fake engines, and a client that sees bytes: what the gateway's tests are written with."""

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from llmgw.base.ids import ModelName, ReplicaId
from llmgw.fleet.access import OPEN
from llmgw.fleet.table import Address, Endpoint, EndpointTable, GatewaySettings, RoutedModel, TcpAddress, UnixAddress
from llmgw.gateway.server import Gateway
from llmgw.runtime.clock import SystemClock
from tests.fakes.engine import FakeEngine, running_engine

PATIENCE = 5.0


async def until(condition: Callable[[], object]) -> None:
    """Wait for what sockets bring about; there is no event to wait for."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.002)


async def settled_size(transport: asyncio.WriteTransport) -> int:
    """Wait until nobody takes anything from a buffer any more, and return what is left in it, in bytes."""
    size = -1
    while size != (size := transport.get_write_buffer_size()):  # noqa: ASYNC110
        await asyncio.sleep(0.1)
    return size


def endpoint(number: int, address: Address, model: str = "m") -> Endpoint:
    return Endpoint(ReplicaId(f"{model}-{number}"), ModelName(model), address, model)


def table(
    *endpoints: Endpoint, version: int = 1, wanted: int = 1, keep_alive: float | None = None, **limits: Any
) -> EndpointTable:
    model = RoutedModel(ModelName("m"), ("alias",), wanted, 9, keep_alive)
    return EndpointTable(version, (model,), endpoints, GatewaySettings(**{"connect": 2.0, **limits}))


def address_of(engine: FakeEngine) -> Address:
    return UnixAddress(engine.path) if engine.path else TcpAddress("127.0.0.1", engine.port)


@dataclass
class Response:
    status: int
    headers: list[tuple[str, str]]
    body: bytearray = field(default_factory=bytearray)
    chunks: list[bytes] = field(default_factory=list)
    whole: bool = False
    """Whether the body ended the way its head had announced."""

    def header(self, name: str) -> str | None:
        return next((value for known, value in self.headers if known == name), None)

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def code(self) -> str:
        return self.json["error"]["code"]

    @property
    def events(self) -> list[bytearray]:
        return [event for event in self.body.split(b"\n\n") if event]


class Client:
    """One connection; reads responses by the letter of HTTP/1.1, and says when one was cut."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    def post(self, body: object, path: str = "/v1/chat/completions", headers: str = "", version: str = "1.1") -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send(
            f"POST {path} HTTP/{version}\r\nhost: gw\r\n{headers}content-length: {len(data)}\r\n\r\n".encode() + data
        )

    def get(self, path: str, method: str = "GET", headers: str = "") -> None:
        self.send(f"{method} {path} HTTP/1.1\r\nhost: gw\r\n{headers}\r\n".encode())

    async def head(self) -> Response:
        async with asyncio.timeout(PATIENCE):
            text = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = text[:-4].split("\r\n")
        headers = [(name.lower(), value.strip()) for name, _, value in (line.partition(":") for line in lines)]
        return Response(int(first.split(" ")[1]), headers)

    async def body(self, response: Response, bodiless: bool = False) -> Response:
        async with asyncio.timeout(PATIENCE):
            length = response.header("content-length")
            try:
                if bodiless or response.status in {204, 304} or 100 <= response.status < 200:
                    response.whole = True
                elif response.header("transfer-encoding") == "chunked":
                    await self._chunks(response)
                elif length is not None:
                    response.body += await self.reader.readexactly(int(length))
                    response.whole = True
                else:
                    response.body += await self.reader.read()
                    response.whole = True
            except asyncio.IncompleteReadError as error:
                response.body += error.partial
        return response

    async def chunk(self, response: Response) -> bytes:
        """Read one chunk; empty at the end."""
        async with asyncio.timeout(PATIENCE):
            size = int(await self.reader.readuntil(b"\r\n"), 16)
            data = await self.reader.readexactly(size)
            assert await self.reader.readexactly(2) == b"\r\n"
        response.body += data
        return data

    async def _chunks(self, response: Response) -> None:
        while data := await self.chunk(response):
            response.chunks.append(data)
        response.whole = True

    async def response(self, bodiless: bool = False) -> Response:
        return await self.body(await self.head(), bodiless)

    async def closed(self) -> bool:
        """Wait for the gateway to close; whether nothing came before that."""
        async with asyncio.timeout(PATIENCE):
            return await self.reader.read() == b""

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()

    def reset(self) -> None:
        self.writer.transport.abort()


@dataclass
class Serving:
    """A running gateway, and the engines behind it."""

    gateway: Gateway
    engines: tuple[FakeEngine, ...]
    clients: list[Client] = field(default_factory=list)

    @property
    def port(self) -> int:
        return int(self.gateway.address.rpartition(":")[2])

    async def client(self) -> Client:
        client = Client(*await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 20))
        self.clients.append(client)
        return client

    async def ask(self, body: object, path: str = "/v1/chat/completions", headers: str = "") -> Response:
        client = await self.client()
        client.post(body, path, headers)
        response = await client.response()
        await client.close()
        return response

    @property
    def in_flight(self) -> int:
        return sum(usage.in_flight for usage in self.gateway.usage())


@asynccontextmanager
async def gateway_before(*engines: FakeEngine, routed: EndpointTable | None = None) -> AsyncIterator[Serving]:
    """Run a gateway; afterwards nothing may be left: no slot, no client, no task."""
    before = asyncio.all_tasks()
    gateway = Gateway(SystemClock(), random.Random(7))
    gateway.set_access(OPEN)
    await gateway.start(("127.0.0.1", 0))
    listed = [endpoint(number, address_of(engine)) for number, engine in enumerate(engines)]
    gateway.set_table(routed if routed is not None else table(*listed))
    serving = Serving(gateway, engines)
    try:
        yield serving
        for client in serving.clients:
            await client.close()
        await until(lambda: serving.in_flight == 0)
        await until(lambda: gateway.clients == 0)
    finally:
        await gateway.stop(0.05)
        for client in serving.clients:
            await client.close()
    assert serving.in_flight == 0
    assert gateway.clients == 0
    # a client that was left in the middle closes its generators in tasks of its own
    await until(lambda: asyncio.all_tasks() - before <= {asyncio.current_task()})


@asynccontextmanager
async def serving(count: int = 1, **switches: object) -> AsyncIterator[Serving]:
    """Run a gateway before so many engines, `m-0` onwards, each named by an alias of its own and all alike."""
    async with contextlib.AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(running_engine(f"e{n}", **switches)) for n in range(count)]
        yield await stack.enter_async_context(gateway_before(*engines))


CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
STREAM = {**CHAT, "stream": True}
