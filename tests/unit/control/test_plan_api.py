"""Saved plans behind the admin API: verified by what is there now, used once, and gone with a store that is away."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from llmgw.base.time import EARLIEST, Instant
from llmgw.catalog.compile import Accepted
from llmgw.catalog.source import SourceTree
from llmgw.control.catalogs import Catalogs, CatalogState
from llmgw.control.plan_api import PlanApi
from llmgw.control.plan_file import USED, PlanFile, load_plan
from llmgw.control.preview import preview
from llmgw.control.requests import BadRequest
from llmgw.plan.saved import load_snapshot
from llmgw.plan.snapshot import Snapshot
from llmgw.ports.sinks import Event, StoreUnavailable
from llmgw.sim.source import FakeSource
from llmgw.sim.store import FakeStore
from llmgw.sim.used_plans import FakePlans
from tests.builders import COMPILER, Desk, model, node, tree

BEFORE = tree(node("a"), model("m", 1))
AFTER = tree(node("a"), model("m", 2), revision="r2")


class BrokenPlans(FakePlans):
    """A store that is away when asked."""

    away = False
    meanwhile: Callable[[], None] = staticmethod(lambda: None)

    async def use_plan(self, plan: str, now: Instant, expires: Instant) -> bool:
        self.meanwhile()
        return await super().use_plan(plan, now, expires)

    async def used_plans(self) -> frozenset[str]:
        if self.away:
            raise StoreUnavailable("the database does not answer")
        return await super().used_plans()


class Place:
    """A desk behind the API."""

    def __init__(self) -> None:
        self.desk = Desk.of(node("a"), model("m", 1))
        self.desk.settle()
        self.store = FakeStore(self)
        self.keeper = BrokenPlans()
        catalogs = Catalogs(FakeSource(), self.store, self, lambda: None)
        catalogs.state.set(CatalogState(catalog=self.desk.catalog, tree=BEFORE))
        self.drawn = 0
        self.url = ""
        self.api = PlanApi(catalogs, self.snapshot, self.store, self.keeper, self, self, "0.1.0")

    def now(self) -> Instant:
        return self.desk.now

    def new(self) -> str:
        self.drawn += 1
        return f"id-{self.drawn}"

    def snapshot(self) -> Snapshot | None:
        return self.desk.snapshot()

    async def planned(self, wanted: SourceTree = AFTER, **body: object) -> dict[str, object]:
        shown = preview(COMPILER.compile(wanted), self.desk.catalog, self.desk.snapshot())
        return await self.api.answer(shown, wanted, {"save": True, **body})

    async def saved(self, **body: object) -> PlanFile:
        return load_plan(json.dumps((await self.planned(**body))["saved"]))  # type: ignore[arg-type]

    async def verify(self, body: object) -> tuple[int, dict[str, object]]:
        async with aiohttp.ClientSession() as client, client.post(f"{self.url}/v1/plan/verify", json=body) as answer:
            return answer.status, await answer.json()


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    found = Place()
    app = web.Application()
    found.api.add_to(app)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    found.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield found
    await runner.cleanup()


async def test_a_plan_may_be_used_once(place: Place) -> None:
    plan = await place.saved()
    other = await place.saved()
    assert plan.id != other.id
    assert await place.api.refusals(plan) == ()
    answers = await asyncio.gather(*(place.api.take(plan) for _ in range(4)))
    assert sorted(answers) == [(), *[(USED,)] * 3]
    assert await place.api.refusals(plan) == (USED,)
    assert await place.api.refusals(other) == ()


async def test_what_does_not_hold_is_not_used_up(place: Place) -> None:
    plan = await place.saved()
    known = place.desk.views.copy()
    place.desk.lose("a")
    assert len(await place.api.take(plan)) == 1
    place.desk.views = known
    assert await place.api.take(plan) == ()


async def test_what_changes_while_it_is_being_taken_is_stale(place: Place) -> None:
    plan = await place.saved()
    place.keeper.meanwhile = lambda: place.desk.lose("a")
    assert len(await place.api.take(plan)) == 1


async def test_it_is_good_for_as_long_as_was_asked_and_an_hour_otherwise(place: Place) -> None:
    for asked, seconds in ((60, 60), (None, 3600), ("x", 3600), (-1, 3600), (1e9, 7 * 86400)):
        plan = await place.saved(**({"valid_for": asked} if asked is not None else {}))
        assert plan.expires - plan.created == seconds


async def test_verifying_answers_what_changed_and_refuses_what_is_no_plan(place: Place) -> None:
    row = (await place.planned())["saved"]
    assert isinstance(row, dict)
    status, answer = await place.verify({"plan": row})
    assert (status, answer["holds"], answer["stale"]) == (200, True, [])
    place.desk.lose("a")
    status, answer = await place.verify({"plan": row})
    assert (status, answer["holds"]) == (200, False)
    assert answer["stale"] == [
        "node/a has changed: whether it answers, or takes new replicas (now: it does not answer)"
    ]
    for body in ({}, [], {"plan": 3}, None):
        assert (await place.verify(body))[0] == 400
    status, answer = await place.verify({"plan": {**row, "epoch": 9}})
    assert (status, "not as it was written" in str(answer["error"])) == (422, True)
    place.keeper.away = True
    status, answer = await place.verify({"plan": row})
    assert (status, "store cannot be used" in str(answer["error"])) == (503, True)


async def test_nothing_is_saved_that_could_not_be_applied(place: Place) -> None:
    broken = SourceTree(AFTER.revision, {**AFTER.files, "x.yaml": b"kind: ["})
    assert "saved" not in await place.planned(broken)
    shown = preview(Accepted(place.desk.catalog, ()), place.desk.catalog, place.desk.snapshot(), ("node a lost",))
    assert "saved" not in await place.api.answer(shown, AFTER, {"save": True})
    assert "saved" not in await place.api.answer(shown, None, {"save": True})
    assert "saved" not in await place.planned(save=False)


async def test_a_store_that_is_away_costs_a_plan_only_the_cold_starts(place: Place) -> None:
    for at, kind in ((1.0, "start"), (43.0, "publish")):
        place.store.record(Event(Instant(EARLIEST + at), kind, "replica/m-1-0", "", ""))
    assert (await place.planned())["replicas"][0]["last_cold_start"] == 42.0  # type: ignore[index]
    place.store.available = False
    assert (await place.planned())["replicas"][0]["last_cold_start"] is None  # type: ignore[index]


async def test_the_snapshot_is_that_of_the_moment(place: Place) -> None:
    async with aiohttp.ClientSession() as client, client.get(f"{place.url}/v1/snapshot") as answer:
        said = await answer.text()
    loaded, kept = load_snapshot(said, place.desk.engines)
    assert (loaded.now, kept, list(loaded.nodes)) == (place.desk.now, BEFORE, ["a"])


@pytest.mark.parametrize("seconds", [10**400, 1e300, float("nan")], ids=["huge", "large", "nan"])
async def test_a_validity_beyond_all_is_refused(place: Place, seconds: float) -> None:
    with pytest.raises(BadRequest, match="valid_for"):
        await place.planned(valid_for=seconds)
