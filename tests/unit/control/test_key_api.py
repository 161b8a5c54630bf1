"""The routes for keys, usage and the trail: what they take, what they show, and one clear line for what they do not take."""

from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web

from llmgw.base.time import Instant
from llmgw.control.key_api import KeyApi
from llmgw.fleet.spent import Spent, SpentBatch
from llmgw.ports.audit import Entry
from llmgw.sim.usage import FakeAudit, FakeUsage
from tests.unit.control.test_key_book import Desk

NOW = 1_800_000_000.0
HOUR = int(NOW) // 3600


class Api(Desk):
    """A key book with the routes over it."""

    def __init__(self) -> None:
        super().__init__()
        self.time = NOW
        self.usage, self.audit = FakeUsage(), FakeAudit()

    async def start(self) -> None:
        await self.book.load()
        app = web.Application()
        app.router.add_routes(KeyApi(self.book, self.usage, self.audit, self).routes())
        self.runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.2)
        await self.runner.setup()
        await web.TCPSite(self.runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self.runner.addresses[0][1]}"

    async def ask(self, path: str, **body: object):
        method = "POST" if body else "GET"
        async with aiohttp.ClientSession() as session:
            answer = await session.request(method, f"{self.url}{path}", json=body or None)
            return answer.status, await answer.json()


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    api = Api()
    await api.start()
    yield api
    await api.runner.cleanup()


async def test_a_key_is_shown_once_and_its_hash_never(api: Api) -> None:
    status, made = await api.ask("/v1/keys", tenant="a", note="ci", expires="90d", by="ann")
    (row,) = made["keys"]
    assert status == 200
    assert made["credential"].startswith(f"sk-llmgw-{row['id']}-")
    assert (row["tenant"], row["scope"], row["note"], row["state"], row["by"]) == ("a", None, "ci", "valid", "ann")
    assert row["expires_in"] == 90 * 86400
    _, listed = await api.ask("/v1/keys?tenant=a")
    assert listed == {"keys": [row]}
    assert (await api.ask("/v1/keys?tenant=b"))[1] == {"keys": []}
    _, turned = await api.ask("/v1/keys/rotate", key="a", overlap="1h")
    assert turned["old"] == row["id"]
    assert (await api.ask("/v1/keys"))[1]["keys"][0]["expires_in"] == 3600
    _, gone = await api.ask("/v1/keys/revoke", key="a", all=True)
    assert len(gone["keys"]) == 2
    assert {one["state"] for one in (await api.ask("/v1/keys"))[1]["keys"]} == {"revoked"}


@pytest.mark.parametrize(
    ("path", "body", "status", "said"),
    [
        ("/v1/keys", {"note": "x"}, 400, "name a tenant, or the scope of an administrator's key"),
        ("/v1/keys", {"tenant": "a", "scope": "read"}, 400, "not both"),
        ("/v1/keys", {"scope": "root"}, 400, "there is no scope 'root'; there are read, apply, admin"),
        ("/v1/keys", {"tenant": "nobody"}, 404, "there is no tenant 'nobody'; there are: a, b"),
        ("/v1/keys", {"tenant": "a", "expires": "soon"}, 400, "--expires 'soon' is not understood; write 2h"),
        ("/v1/keys/rotate", {"key": "a"}, 404, "no key that holds is called 'a'"),
        ("/v1/keys/rotate", {"key": "a", "overlap": "1000d"}, 400, "--overlap 1000d is too long; 90d is the most"),
        ("/v1/keys/revoke", {"key": "x"}, 404, "see `llmgw keys list`"),
        ("/v1/usage?by=colour", {}, 400, "--by is one of tenant, key, model, hour, day"),
        ("/v1/usage?since=x", {}, 400, "--since 'x' is not understood"),
        ("/v1/usage?since=1d&until=2d", {}, 400, "--until is not after --since"),
        ("/v1/audit?limit=0", {}, 400, "limit is a whole number from 1"),
        ("/v1/audit?limit=0000000019999", {}, 400, "limit is a whole number from 1"),
    ],
)
async def test_what_cannot_be_is_told_in_one_line(
    api: Api, path: str, body: dict[str, object], status: int, said: str
) -> None:
    found, told = await api.ask(path, **body)
    assert found == status
    assert said in told["error"]
    assert "\n" not in told["error"]


async def test_usage_is_of_the_hours_asked_for_the_present_one_included(api: Api) -> None:
    rows = (
        Spent("a", "k", "m", HOUR, 2, 1, 3, 4),
        Spent("b", "l", "m", HOUR - 24 * 8, 5),
        Spent("", "", "m", HOUR - 1, 1),
    )
    await api.usage.keep(SpentBatch("w", 1, rows), Instant(NOW))
    status, shown = await api.ask("/v1/usage")
    assert status == 200
    assert [(one["tenant"], one["requests"]) for one in shown["usage"]] == [("", 1), ("a", 2)]
    assert (shown["total"]["requests"], shown["total"]["failed"], shown["total"]["prompt_tokens"]) == (3, 1, 3)
    _, before = await api.ask("/v1/usage?by=key&since=10d&until=1d")
    assert [(one["tenant"], one["key"]) for one in before["usage"]] == [("b", "l")]
    api.usage.available = False
    assert (await api.ask("/v1/usage"))[0] == 503


async def test_the_trail_is_shown_newest_first(api: Api) -> None:
    for at in (NOW - 7200, NOW - 60):
        api.audit.record(Entry(Instant(at), "user/ann", "", "drain", "node/a", "memory", "done"))
    _, shown = await api.ask("/v1/audit")
    assert [one["age"] for one in shown["audit"]] == [60, 7200]
    assert len((await api.ask("/v1/audit?since=1h"))[1]["audit"]) == 1
