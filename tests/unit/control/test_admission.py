"""What the admin API lets in over TCP, on real sockets, and how strangers are kept from filling it."""

import asyncio
import contextlib
import logging
import os
import pwd
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from llmgw.base.time import Instant
from llmgw.control import admission
from llmgw.control.admission import Admission
from llmgw.ports.audit import Entry
from llmgw.routing.access import FAILURES

LARGEST = 1000
JSON = {"content-type": "application/json"}
KEYS = {"sk-r": ("r1", "read"), "sk-a": ("a1", "apply"), "sk-x": ("x1", "admin")}


class Desk:
    """A few routes behind the middleware, on a Unix socket and over TCP as `AdminApi` has them."""

    def __init__(self, socket: Path) -> None:
        self.socket = str(socket)
        self.asked: list[str] = []
        self.admission = Admission()
        self.time = 1000.0
        self.trail: list[Entry] = []
        self.admission.known_by(KEYS.get, self)
        self.admission.audited_by(self.trail.append)
        self.runners: list[web.AppRunner] = []

    def now(self) -> Instant:
        return Instant(self.time)

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append(f"{request.method} {request.path}")
        return web.json_response({"length": len(await request.read())})

    async def runner(self) -> web.AppRunner:
        app = web.Application(client_max_size=LARGEST, middlewares=[self.admission.middleware()])
        for path in ("/health", "/metrics", "/v1/status"):
            app.router.add_get(path, self.answer)
        for path in ("/hooks/{forge}", "/v1/apply", "/v1/source/accept", "/v1/rollback"):
            app.router.add_post(path, self.answer)
        app.router.add_delete("/v1/acts", self.answer)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        self.runners.append(runner)
        return runner

    async def start(self) -> None:
        await web.UnixSite(await self.runner(), self.socket).start()
        server = (await self.runner()).server
        assert server is not None
        loop = asyncio.get_running_loop()
        self.listening = await loop.create_server(self.admission.counted(server), "127.0.0.1", 0)
        self.port = self.listening.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        self.listening.close()
        for runner in self.runners:
            await runner.cleanup()

    async def ask(self, method: str, path: str, body: bytes = b"{}", *, unix: bool = False, **headers: str) -> int:
        connector = aiohttp.UnixConnector(self.socket) if unix else aiohttp.TCPConnector()
        data = body if method == "POST" else None
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.request(
                method, f"http://127.0.0.1:{self.port}{path}", data=data, headers={**JSON, **headers}
            ) as answer,
        ):
            if answer.status >= 400 and method != "HEAD":
                assert "\n" not in (await answer.json())["error"]
            return answer.status


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    desk = Desk(tmp_path / "s")
    await desk.start()
    yield desk
    await desk.stop()


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/health"), ("HEAD", "/health"), ("GET", "/metrics"), ("POST", "/hooks/github"), ("POST", "/hooks/x%2Fy")],
)
async def test_what_is_listed_is_answered_over_tcp(desk: Desk, method: str, path: str) -> None:
    assert await desk.ask(method, path) == 200


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/status"),
        ("POST", "/v1/apply"),
        ("POST", "/v1/rollback"),
        ("POST", "/v1/source/accept"),
        ("DELETE", "/v1/acts"),
        ("POST", "/health"),
        ("GET", "/hooks/github"),
        ("POST", "/hooks/../v1/apply"),
        ("POST", "/hooks/%2e%2e/v1/apply"),
        ("POST", "//v1/apply"),
        ("GET", "/nowhere"),
    ],
)
async def test_everything_else_needs_a_key_over_tcp_and_none_over_the_socket(
    desk: Desk, method: str, path: str
) -> None:
    assert await desk.ask(method, path) == 401
    assert desk.asked == []
    assert await desk.ask(method, path, unix=True) != 401


async def test_what_a_web_page_may_send_anywhere_is_refused(desk: Desk) -> None:
    assert await desk.ask("POST", "/v1/apply", unix=True, **{"content-type": "text/plain"}) == 415
    assert await desk.ask("POST", "/hooks/github", **{"content-type": "text/plain"}) == 415
    assert desk.asked == []
    assert await desk.ask("POST", "/v1/apply", unix=True, **{"content-type": "application/json; charset=utf-8"}) == 200


async def test_what_is_too_large_is_refused_in_json(desk: Desk) -> None:
    assert await desk.ask("POST", "/v1/apply", b"x" * (LARGEST + 1), unix=True) == 413


async def test_connections_are_limited_and_a_free_place_is_used(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(admission, "CONNECTIONS", 2)
    held = [await asyncio.open_connection("127.0.0.1", desk.port) for _ in range(2)]
    for _, writer in held:
        writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
    for reader, _ in held:
        assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
    for _ in range(3):
        reader, writer = await asyncio.open_connection("127.0.0.1", desk.port)
        with contextlib.closing(writer), pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await asyncio.wait_for(reader.readexactly(1), 5)
    assert await desk.ask("GET", "/health", unix=True) == 200, "the socket has its own"
    said = [record for record in caplog.records if "closed" in record.getMessage()]
    assert len(said) == 1, "a line a minute at most"
    held[0][1].close()
    await held[0][1].wait_closed()
    for _ in range(100):  # until the server has seen the end of that one
        if await _served(desk):
            break
    else:
        pytest.fail("the free place is not used")
    held[1][1].close()
    await held[1][1].wait_closed()


async def _served(desk: Desk) -> bool:
    reader, writer = await asyncio.open_connection("127.0.0.1", desk.port)
    writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    with contextlib.closing(writer), contextlib.suppress(ConnectionResetError):
        return (await asyncio.wait_for(reader.readline(), 5)).startswith(b"HTTP/1.1 200 ")
    return False


async def test_requests_that_are_cut_off_make_one_line_and_no_traceback(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    for _ in range(5):
        _, writer = await asyncio.open_connection("127.0.0.1", desk.port)
        writer.write(
            b"POST /hooks/github HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\nx"
        )
        await writer.drain()
        await asyncio.sleep(0.1)  # until the request is being read; nothing tells from outside
        writer.close()
        await writer.wait_closed()
    await asyncio.sleep(0.3)
    assert len(desk.asked) == 5
    assert [record.getMessage() for record in caplog.records] == [
        "on the admin API requests were cut off by who sent them"
    ]
    assert all(record.exc_info is None for record in caplog.records)


@pytest.mark.parametrize(
    ("method", "path", "statuses"),
    [
        ("GET", "/v1/status", {"sk-r": 200, "sk-a": 200, "sk-x": 200, "sk-no": 401}),
        ("POST", "/v1/apply", {"sk-r": 403, "sk-a": 200, "sk-x": 200, "sk-no": 401}),
        ("DELETE", "/v1/acts", {"sk-r": 403, "sk-a": 200, "sk-x": 200}),
        ("GET", "/nowhere", {"sk-r": 403, "sk-x": 404}),
    ],
)
async def test_over_tcp_a_key_opens_what_its_scope_includes(
    desk: Desk, method: str, path: str, statuses: dict[str, int]
) -> None:
    for key, status in statuses.items():
        assert await desk.ask(method, path, Authorization=f"Bearer {key}") == status
    assert await desk.ask(method, path, Authorization="Basic sk-x") == 401


async def test_every_act_is_in_the_trail_with_who_the_server_knows_it_was(desk: Desk) -> None:
    body = b'{"by": "ann", "revision": "r1"}'
    assert await desk.ask("POST", "/v1/apply", body, Authorization="Bearer sk-a") == 200
    assert await desk.ask("POST", "/v1/rollback", body, unix=True) == 200
    assert await desk.ask("DELETE", "/v1/acts?target=node/a", unix=True) == 200
    assert await desk.ask("POST", "/v1/apply", b"x" * (LARGEST + 1), unix=True) == 413
    await desk.ask("POST", "/v1/apply", body)  # not let in
    await desk.ask("GET", "/v1/status", unix=True)
    await desk.ask("POST", "/hooks/github", body)
    me = f"user/{pwd.getpwuid(os.getuid()).pw_name}"
    assert [(one.who, one.said, one.act, one.subject, one.outcome[:7]) for one in desk.trail] == [
        ("key/a1", "ann", "apply", "r1", "done"),
        (me, "ann", "rollback", "r1", "done"),
        (me, "", "uncordon", "node/a", "done"),
        (me, "", "apply", "", "refused"),
    ]


async def test_who_guesses_is_told_to_wait_and_logged_without_what_it_guessed(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    told = [await desk.ask("GET", "/v1/status", Authorization="Bearer gu3ss") for _ in range(FAILURES + 1)]
    assert told == [401] * FAILURES + [429]
    assert await desk.ask("GET", "/v1/status", Authorization="Bearer sk-r") == 200
    assert len(caplog.records) == 2
    assert "gu3ss" not in caplog.text
