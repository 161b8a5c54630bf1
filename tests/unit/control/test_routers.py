"""Routers on other hosts: both ends of their stream over a real HTTP server, and what counts while one cannot be heard."""

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from llmgw.adapters import control_stream
from llmgw.adapters.control_stream import ControlStream
from llmgw.base.ids import ModelName, ReplicaId
from llmgw.base.time import Instant
from llmgw.control.counting import Word, joined, passed_on
from llmgw.control.routers import Routers, reachable
from llmgw.fleet.access import Access, KnownKey, TenantRight
from llmgw.fleet.spent import Spent, SpentBatch
from llmgw.fleet.table import Address, Endpoint, EndpointTable, RoutedModel, TcpAddress, UnixAddress
from llmgw.fleet.usage import Active, Idle, Unknown, is_quiet
from llmgw.ports.links import LinkBroken
from llmgw.ports.sinks import Event, StoreUnavailable
from llmgw.runtime.backoff import Backoff
from llmgw.runtime.supervisor import Supervisor
from llmgw.wire.messages import PROTOCOL, EndpointUsage, RouterHello, WorkerUsage
from llmgw.wire.token import router_token

SECRET = "s\N{LATIN SMALL LETTER E WITH ACUTE}\ncret"
TOKEN = f"Bearer {router_token(SECRET)}"
M = ReplicaId("m-1-0")


def table(version: int, *addresses: Address) -> EndpointTable:
    model = RoutedModel(ModelName("m"), (), 1, 9)
    endpoints = [
        Endpoint(ReplicaId(f"m-1-{number}"), model.name, address, "m") for number, address in enumerate(addresses)
    ]
    return EndpointTable(version, (model,), tuple(endpoints))


NEAR = TcpAddress("127.0.0.1", 9)
FAR = TcpAddress("192.0.2.7", 9)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(5.0):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.002)


class Desk:
    """A control plane that has routers and nothing else."""

    def __init__(self, kept: Path, network: str = "here") -> None:
        self.time = 1000.0
        self.secret: str | None = SECRET
        self.changes = 0
        self.events: list[Event] = []
        self.routers = Routers(
            secret=lambda: self.secret,
            clock=self,
            changed=self._changed,
            kept=kept,
            network=network,
            events=self,
            spent=self.keep,
        )
        self.kept_batches: list[SpentBatch] = []
        self.full = False
        self.routers.load()
        self.url = ""

    def now(self) -> Instant:
        return Instant(self.time)

    async def keep(self, batch: SpentBatch) -> None:
        if self.full:
            raise StoreUnavailable("the disk is full")
        self.kept_batches.append(batch)

    def record(self, event: Event) -> None:
        self.events.append(event)

    def _changed(self) -> None:
        self.changes += 1

    def usage(self, version: int = 1):
        """What routers have in flight, counted against the table of this version."""
        return joined(self.routers.words(), version, self.now())

    async def start(self) -> None:
        app = web.Application()
        app.router.add_routes(self.routers.routes())
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.2)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        await self.routers.stop()
        await self._runner.cleanup()

    async def get(self, headers: dict[str, str]) -> tuple[int, str]:
        async with aiohttp.ClientSession() as session, session.get(f"{self.url}/v1/router", headers=headers) as answer:
            return answer.status, (await answer.json())["error"]

    async def forget(self, name: str, reason: str = "burnt") -> tuple[int, str]:
        body = {"router": name, "reason": reason, "by": "me"}
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{self.url}/v1/routers/forget", json=body) as answer,
        ):
            return answer.status, (await answer.json()).get("error", "")


@dataclass
class Router:
    """The other side, without workers: it goes by each table at once."""

    controls: tuple[str, ...]
    name: str = "edge"
    run: str = "r1"
    network: str = "there"
    secret: str = SECRET
    tables: list[EndpointTable] = field(default_factory=list)
    accesses: list[Access] = field(default_factory=list)
    in_flight: dict[str, int] = field(default_factory=dict)
    confirms: bool = True
    keys: bool = True
    retry: float = 0.01
    """Seconds before it calls again, at first."""

    def __post_init__(self) -> None:
        backoff = Backoff(self.retry, 2 * self.retry, random.Random(1))
        self.stream = ControlStream(
            self.controls,
            lambda: self.secret,
            self.hello,
            self.tables.append,
            self.accesses.append,
            self.usage,
            backoff,
        )
        self.tasks = Supervisor("test")
        self.tasks.loop("stream", self.stream.run())

    def hello(self) -> RouterHello:
        return RouterHello(
            PROTOCOL, "1", self.name, self.run, "http://edge/v1", self.network, bool(self.tables), self.keys
        )

    def usage(self) -> WorkerUsage:
        version = self.tables[-1].version if self.tables and self.confirms else 0
        flights = tuple(EndpointUsage(ReplicaId(name), count, None) for name, count in self.in_flight.items())
        return WorkerUsage(version, flights, 0)

    async def end(self) -> None:
        """Go away without a word."""
        await self.tasks.stop()


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_stream, "CONFIRM", 0.3)


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    desk = Desk(tmp_path / "routers.json")
    await desk.start()
    yield desk
    await desk.stop()


@contextlib.asynccontextmanager
async def connected(desk: Desk, **options: object) -> AsyncIterator[Router]:
    router = Router((desk.url,), **options)
    try:
        await until(lambda: any(row["current"] and row["name"] == router.name for row in desk.routers.rows()))
        yield router
    finally:
        await router.end()


async def test_without_the_secret_nobody_gets_a_table(desk: Desk) -> None:
    desk.routers.publish(table(1, FAR), settled=True)
    for given in (
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": f"{TOKEN}0"},
    ):
        status, said = await desk.get(given)
        assert status == 403
        assert "the same --router-secret" in said
        assert SECRET not in said
    status, said = await desk.get({"Authorization": TOKEN})
    assert (status, said) == (400, "this is for `llmgw router --control`")
    desk.secret = None
    status, said = await desk.get({"Authorization": "Bearer None"})
    assert status == 404
    assert "start the server with --router-secret NAME" in said
    assert desk.routers.rows() == []


@pytest.mark.parametrize(("secret", "said"), [(SECRET, "same --router-secret"), (None, "it takes no routers")])
async def test_a_router_says_why_it_follows_nobody(
    desk: Desk, caplog: pytest.LogCaptureFixture, secret: str | None, said: str
) -> None:
    desk.secret = secret
    router = Router((desk.url,), secret="other")
    await until(lambda: len(caplog.records) >= (2 if secret else 1))
    await router.end()
    assert any(said in str(getattr(record, "why", "")) for record in caplog.records)
    assert len([record for record in caplog.records if "not following" in record.message]) == 1


async def test_a_router_gets_every_table_and_is_counted_like_a_worker(desk: Desk) -> None:
    desk.routers.publish(table(1, FAR), settled=True)
    async with connected(desk) as router:
        assert router.tables == [table(1, FAR)]
        assert is_quiet(desk.usage(1).of(M))
        assert desk.usage(1).current
        router.in_flight[M] = 2
        router.stream.say_usage()
        await until(lambda: desk.usage(1).of(M) == Active(2))
        router.confirms = False
        desk.routers.publish(table(2), settled=True)
        assert not desk.usage(2).current
        assert desk.usage(2).of(M) == Active(2)
        await until(lambda: router.tables[-1].version == 2)
        assert desk.usage(2).of(ReplicaId("x")) == Unknown("router edge goes by an older table")
        router.confirms = True
        router.stream.say_usage()
        await until(lambda: desk.usage(2).current)
        changes = desk.changes
        router.in_flight[M] = 0
        router.stream.say_usage()
        await until(lambda: desk.usage(2).of(M) != Active(2))
        assert is_quiet(desk.usage(2).of(M))
        assert desk.changes == changes + 1
        (row,) = desk.routers.rows()
        assert {**row, "connected_since": 0} == {
            "name": "edge", "address": "http://edge/v1", "connected_since": 0,
            "table_version": 2, "current": True, "in_flight": 0, "left_out": 0,
        }  # fmt: skip


async def test_silence_is_unknown_and_never_idle(desk: Desk) -> None:
    desk.routers.publish(table(1, FAR), settled=True)
    async with connected(desk) as router:
        router.in_flight[M] = 1
        router.stream.say_usage()
        await until(lambda: desk.usage(1).of(M) == Active(1))
    await until(lambda: desk.routers.rows()[0]["connected_since"] is None)
    assert desk.usage(1).of(M) == Active(1)  # what was in flight, may be still
    assert desk.usage(1).of(ReplicaId("other")) == Unknown("router edge is not connected")
    assert not desk.usage(1).current
    assert desk.routers.alarms == ()
    desk.time += 11
    assert "llmgw forget router/edge --reason TEXT" in desk.routers.alarms[0]
    async with connected(desk):
        assert is_quiet(desk.usage(1).of(M))
        assert desk.routers.alarms == ()
        desk.time += 11  # connected, and says nothing for so long
        assert desk.usage(1).of(M) == Unknown("router edge has not reported")


async def test_a_router_that_says_goodbye_is_gone(desk: Desk, tmp_path: Path) -> None:
    desk.routers.publish(table(1, FAR), settled=True)
    async with connected(desk) as router:
        assert json.loads((tmp_path / "routers.json").read_text()) == {"edge": "http://edge/v1"}
        await router.stream.leave()
        await until(lambda: desk.routers.rows() == [])
        await asyncio.sleep(0.05)
        assert desk.routers.rows() == []  # and does not come back
    assert json.loads((tmp_path / "routers.json").read_text()) == {}
    assert desk.routers.words() == []


async def test_a_later_control_plane_knows_who_may_serve_still(desk: Desk, tmp_path: Path) -> None:
    desk.routers.publish(table(1, FAR), settled=True)
    async with connected(desk):
        later = Desk(tmp_path / "routers.json")
        assert later.usage(1).of(M) == Unknown("router edge is not connected")
        assert (await desk.forget("edge"))[0] == 409
        assert (await desk.forget("other"))[1] == "there is no router 'other'; there are: edge"
    await later.start()
    assert (await later.forget("edge", reason=""))[0] == 400
    assert (await later.forget("edge"))[0] == 200
    assert later.routers.words() == []
    assert [(one.kind, one.subject, one.text) for one in later.events] == [
        ("router_forgotten", "router/edge", "me says that it is gone: burnt")
    ]
    assert Desk(tmp_path / "routers.json").routers.words() == []
    await later.stop()
    (tmp_path / "routers.json").write_text("[1")
    Desk(tmp_path / "routers.json")


async def test_a_second_router_of_the_same_name_is_refused_and_a_new_connection_is_not(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    desk.routers.publish(table(1, FAR), settled=True)
    async with connected(desk, retry=60.0) as first:
        second = Router((desk.url,), run="r2")
        await until(lambda: any("another --name" in str(getattr(one, "why", "")) for one in caplog.records))
        assert second.tables == []
        await second.end()
        again = Router((desk.url,), run="r1")  # its own first connection hangs, and nobody noticed yet
        await until(lambda: again.tables and desk.usage(1).current)
        first.in_flight[M] = 7
        first.stream.say_usage()
        await asyncio.sleep(0.05)
        assert is_quiet(desk.usage(1).of(M))
        await again.end()
    async with connected(desk, run="r3"):
        assert len(desk.routers.rows()) == 1


async def test_what_another_host_does_not_reach_is_left_out_and_that_is_said_once(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    whole = table(1, UnixAddress("/s"), NEAR, FAR)
    desk.routers.publish(whole, settled=True)
    async with connected(desk) as far, connected(desk, name="near", network="here") as near:
        assert [one.address for one in far.tables[0].endpoints] == [FAR]
        assert [one.address for one in near.tables[0].endpoints] == [NEAR, FAR]
        assert far.tables[0] == replace(whole, endpoints=whole.endpoints[2:])
        desk.routers.publish(replace(whole, version=2), settled=True)
        await until(lambda: desk.usage(2).current)
        assert [row["left_out"] for row in desk.routers.rows()] == [2, 1]
        assert "not sent 2 endpoint(s)" in desk.routers.notices[0]
    assert len([one for one in caplog.records if "only this host reaches" in one.message]) == 1


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback_is_of_one_host(host: str) -> None:
    assert reachable(table(1, TcpAddress(host, 1)), same_host=False).endpoints == ()
    assert len(reachable(table(1, TcpAddress(host, 1)), same_host=True).endpoints) == 1


async def test_one_that_serves_by_a_table_waits_until_the_fleet_is_known_and_a_new_one_does_not(desk: Desk) -> None:
    desk.routers.publish(table(1), settled=False)
    async with connected(desk, name="new"):
        old = Router((desk.url,), name="old")
        old.tables.append(table(9, FAR))
        await until(lambda: len(desk.routers.rows()) == 2)
        await asyncio.sleep(0.05)
        assert old.tables == [table(9, FAR)]
        desk.routers.publish(table(2, FAR), settled=True)
        await until(lambda: old.tables[-1].version == 2)
        await old.end()


async def test_when_a_control_plane_is_gone_the_next_one_is_followed(desk: Desk, tmp_path: Path) -> None:
    other = Desk(tmp_path / "other.json")
    await other.start()
    for one, version in ((desk, 1), (other, 2)):
        one.routers.publish(table(version, FAR), settled=True)
    router = Router(("http://127.0.0.1:1", desk.url, other.url))
    await until(lambda: router.tables and router.tables[-1].version == 1)
    await desk.routers.stop()
    desk.secret = None
    await until(lambda: router.tables[-1].version == 2)
    await until(lambda: other.usage(2).current)
    await router.end()
    await other.stop()


async def test_control_planes_that_do_not_answer_are_said_once_each(caplog: pytest.LogCaptureFixture) -> None:
    router = Router(("http://127.0.0.1:1", "http://127.0.0.1:2"))
    await asyncio.sleep(0.3)
    await router.end()
    assert [record.control for record in caplog.records] == ["http://127.0.0.1:1", "http://127.0.0.1:2"]


async def test_what_does_not_speak_the_protocol_is_refused(desk: Desk) -> None:
    headers = {"Authorization": TOKEN}
    async with aiohttp.ClientSession() as session:
        for sent in ("text", b"\0\0\0\2{}"):
            async with session.ws_connect(f"{desk.url}/v1/router", headers=headers) as link:
                await (link.send_str(sent) if isinstance(sent, str) else link.send_bytes(sent))
                refused = await link.receive()
                assert b'"refused"' in refused.data
    assert desk.routers.rows() == []


def test_what_a_router_passes_on_is_what_its_workers_said() -> None:
    now = Instant(50.0)
    idle, quiet = EndpointUsage(ReplicaId("i"), 0, 4.0), EndpointUsage(ReplicaId("q"), 0, None)
    said = WorkerUsage(3, (EndpointUsage(M, 2, None), idle, quiet), 1)
    view = joined([Word("a", said, now), Word("b", replace(said, endpoints=said.endpoints[:2]), now)], 3, now)
    assert view.of(ReplicaId("i")) == Idle(Instant(46.0))
    assert passed_on(view, 3, 9, now) == WorkerUsage(3, (EndpointUsage(M, 4, None), idle, quiet), 9)
    late = joined([Word("a", said, now), Word("b", None, now)], 3, now)
    assert passed_on(late, 3, 9, now) == WorkerUsage(0, (EndpointUsage(M, 2, None),), 9)
    assert passed_on(joined([], 3, now), 3, 9, now) == WorkerUsage(0, (), 9)


async def test_a_router_gets_keys_before_tables_and_hands_over_what_requests_cost(desk: Desk) -> None:
    keys = Access(1, True, (KnownKey("k", "0" * 64, "t"),), (TenantRight("t", ("*",)),))
    desk.routers.admit(keys)
    desk.routers.publish(table(1, FAR), settled=True)
    async with connected(desk) as router:
        assert router.accesses == [keys]
        desk.routers.admit(keys)  # nothing new
        newer = replace(keys, version=2, keys=())
        desk.routers.admit(newer)
        await until(lambda: router.accesses == [keys, newer])
        batch = SpentBatch("w", 1, (Spent("t", "k", "m", 9, 1),))
        await router.stream.pass_on(batch)
        assert desk.kept_batches == [batch]
        desk.full = True
        with pytest.raises(LinkBroken):
            await router.stream.pass_on(replace(batch, sequence=2))
    with pytest.raises(LinkBroken):
        await router.stream.pass_on(batch)


async def test_a_router_that_knows_no_keys_gets_no_table(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    desk.routers.publish(table(1, FAR), settled=True)
    router = Router((desk.url,), keys=False)
    await until(lambda: any("knows no keys; upgrade it" in str(getattr(one, "why", "")) for one in caplog.records))
    await router.end()
    assert router.tables == []
    assert desk.routers.rows() == []
