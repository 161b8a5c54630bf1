"""Webhooks: who may wake the server, over a real HTTP server, with what each forge really sends."""

import asyncio
import base64
import hashlib
import hmac
from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web

from llmgw.base.time import Instant
from llmgw.control import hooks
from llmgw.control.hooks import SourceRoutes

SECRET = "k\N{LATIN SMALL LETTER E WITH ACUTE}y"
BODY = b'{"ref": "refs/heads/main"}'
JSON = {"content-type": "application/json"}


class Desk:
    """The routes on a TCP port."""

    def __init__(self) -> None:
        self.hints = 0
        self.permitted: list[str] = []
        self.secret: str | None = SECRET
        self.time = 1_800_000_000.0
        self.routes = SourceRoutes(self._hint, self._permit, lambda: self.secret, self)

    def now(self) -> Instant:
        return Instant(self.time)

    def _hint(self) -> None:
        self.hints += 1

    def _permit(self, revision: str) -> str | None:
        self.permitted.append(revision)
        return None if revision == "abcdef0" else "no revision is held"

    async def start(self) -> None:
        app = web.Application()
        app.router.add_routes(self.routes.routes())
        self.runner = web.AppRunner(app, access_log=None)
        await self.runner.setup()
        site = web.TCPSite(self.runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self.runner.addresses[0][1]}"

    async def post(self, forge: str, headers: dict[str, str], body: bytes = BODY) -> int:
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{self.url}/hooks/{forge}", data=body, headers={**JSON, **headers}) as answer,
        ):
            text = await answer.text()
            assert SECRET not in text
            return answer.status

    async def accept(self, body: bytes) -> int:
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{self.url}/v1/source/accept", data=body, headers=JSON) as answer,
        ):
            return answer.status


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    desk = Desk()
    await desk.start()
    yield desk
    await desk.runner.cleanup()


def _hex(body: bytes = BODY, secret: str = SECRET) -> str:
    return hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()


def _signed(
    desk: Desk, key: bytes = SECRET.encode(), body: bytes = BODY, *, at: float = 0.0, identity: str = "d1"
) -> dict[str, str]:
    stamp = str(int(desk.time + at))
    digest = hmac.new(key, f"{identity}.{stamp}.".encode() + body, hashlib.sha256).digest()
    signature = f"v1,{base64.b64encode(digest).decode()}"
    return {"webhook-id": identity, "webhook-timestamp": stamp, "webhook-signature": f"v1,AAAA {signature}"}


@pytest.mark.parametrize(
    ("forge", "headers"),
    [
        ("github", {"X-Hub-Signature-256": f"sha256={_hex()}"}),
        ("gitea", {"X-Gitea-Signature": _hex()}),
        ("gitea", {"X-Forgejo-Signature": _hex()}),
        ("gitea", {"X-Hub-Signature-256": f"sha256={_hex()}"}),
        ("gitlab", {"X-Gitlab-Token": "key"}),
    ],
)
async def test_a_delivery_of_each_forge_wakes_once(desk: Desk, forge: str, headers: dict[str, str]) -> None:
    if forge == "gitlab":
        desk.secret = "key"
    assert await desk.post(forge, headers) == 202
    assert await desk.post(forge, headers) == 200, "a replay is told so"
    assert await desk.post(forge, {**headers, "X-GitHub-Delivery": "another"}) == 200, "whose id nobody signed"
    assert desk.hints == 1


async def test_gitlabs_signed_form_counts_where_it_is_given(desk: Desk) -> None:
    assert await desk.post("gitlab", _signed(desk)) == 202
    assert await desk.post("gitlab", _signed(desk)) == 200
    assert await desk.post("gitlab", _signed(desk, identity="d2")) == 202
    desk.secret = "whsec_" + base64.b64encode(b"raw key").decode()
    assert await desk.post("gitlab", _signed(desk, b"raw key", identity="d3")) == 202
    desk.secret = SECRET
    bad = {**_signed(desk, b"wrong"), "X-Gitlab-Token": SECRET.encode().decode("latin-1")}
    assert await desk.post("gitlab", bad) == 401, "the older form does not rescue a bad signature"


@pytest.mark.parametrize("at", [-301, 301])
async def test_a_signed_delivery_of_another_time_is_refused(desk: Desk, at: float) -> None:
    assert await desk.post("gitlab", _signed(desk, at=at)) == 401
    assert await desk.post("gitlab", _signed(desk, at=at * 0.9)) == 202


@pytest.mark.parametrize(
    ("forge", "headers"),
    [
        ("github", {}),
        ("github", {"X-Hub-Signature-256": ""}),
        ("github", {"X-Hub-Signature-256": "sha256="}),
        ("github", {"X-Hub-Signature-256": f"sha256={_hex(b'other')}"}),
        ("github", {"X-Hub-Signature-256": f"sha256={_hex(secret='other')}"}),
        ("github", {"X-Hub-Signature": "sha1=x"}),
        ("github", {"X-Gitea-Signature": _hex()}),
        ("gitea", {"X-Gitea-Signature": _hex(secret="")}),
        ("gitlab", {}),
        ("gitlab", {"X-Gitlab-Token": "wrong"}),
        ("gitlab", {"X-Gitlab-Token": ""}),
        ("github", {"X-Hub-Signature-256": "sha256=\udce4"}),
        ("gitlab", {"X-Gitlab-Token": "\udce4"}),
        ("gitlab", {"webhook-signature": "v1,AAAA"}),
        ("gitlab", {"webhook-signature": "v1,AAAA", "webhook-id": "x", "webhook-timestamp": "nan"}),
        ("gitlab", {"webhook-signature": "v1,AAAA", "webhook-id": "x", "webhook-timestamp": "9" * 300}),
    ],
)
async def test_who_does_not_know_the_secret_wakes_nobody(desk: Desk, forge: str, headers: dict[str, str]) -> None:
    assert await desk.post(forge, headers) == 401
    assert desk.hints == 0


async def test_without_a_secret_webhooks_are_off(desk: Desk) -> None:
    for secret in (None, ""):
        desk.secret = secret
        assert await desk.post("github", {"X-Hub-Signature-256": f"sha256={_hex(secret='')}"}) == 404
    desk.secret = SECRET
    assert await desk.post("bitbucket", {}) == 404
    assert desk.hints == 0


async def test_what_is_too_large_or_not_json_is_refused(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    headers = {"X-Hub-Signature-256": f"sha256={_hex()}"}
    assert await desk.post("github", {**headers, "content-type": "application/x-www-form-urlencoded"}) == 415
    monkeypatch.setattr(hooks, "LARGEST", len(BODY))
    assert await desk.post("github", headers) == 202
    assert await desk.post("github", headers, BODY + b" ") == 413
    assert desk.hints == 1


async def test_the_memory_of_deliveries_is_bounded_and_strangers_do_not_fill_it(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hooks, "REMEMBERED", 2)
    for number in range(4):
        body = b'{"n": %d}' % number
        assert await desk.post("github", {"X-Hub-Signature-256": "sha256=no"}, body) == 401
        assert await desk.post("github", {"X-Hub-Signature-256": f"sha256={_hex(body)}"}, body) == 202
    assert len(desk.routes._seen) == 2


async def test_a_held_revision_is_accepted_by_name(desk: Desk) -> None:
    assert await desk.accept(b'{"revision": "abcdef0"}') == 200
    assert await desk.accept(b'{"revision": "0000000"}') == 409
    for wrong in (b"", b"[]", b'{"revision": 1}', b"[" * 10_000):
        assert await desk.accept(wrong) == 400
    assert desk.permitted == ["abcdef0", "0000000"]


async def _begin(desk: Desk, header: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Send the head of a webhook and one byte of its body."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(desk.url.rpartition(":")[2]))
    head = b"POST /hooks/github HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n"
    writer.write(head + header + b"\r\nx")
    return reader, writer


async def test_a_body_that_does_not_come_is_not_waited_for(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hooks, "BODY_WITHIN", 0.2)
    reader, writer = await _begin(desk)
    assert (await asyncio.wait_for(reader.readline(), 5)).startswith(b"HTTP/1.1 408 ")
    writer.close()
    assert desk.hints == 0


async def _answers(desk: Desk, but: int = 202) -> int:
    """Post, over and over, until the answer is another one; each but the last has another body."""
    for number in range(200):
        body = b'{"n": %d}' % number
        answer = await desk.post("github", {"X-Hub-Signature-256": f"sha256={_hex(body)}"}, body)
        if answer != but:
            return answer
        await asyncio.sleep(0.02)
    return but


async def test_only_so_many_bodies_are_read_at_once(desk: Desk) -> None:
    slow = [await _begin(desk) for _ in range(hooks.READ_AT_ONCE)]
    assert await _answers(desk) == 503
    slow[0][1].close()
    assert await _answers(desk, but=503) == 202
    for _, writer in slow:
        writer.close()


@pytest.mark.parametrize("name", [b"X-Hub-Signature-256: sha256=", b"X-Hub-Signature-256: "])
async def test_a_signature_of_bytes_that_are_no_text_is_a_wrong_one(desk: Desk, name: bytes) -> None:
    reader, writer = await _begin(desk, name + b"\xff\xfe\r\n")
    writer.write(b"y" * 99)
    assert (await asyncio.wait_for(reader.readline(), 5)).startswith(b"HTTP/1.1 401 ")
    writer.close()
