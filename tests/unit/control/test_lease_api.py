"""The lease over the admin API: who leads, and taking it away by force with the epoch as proof."""

from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from llmgw.adapters.prometheus import exposition
from llmgw.base.ids import OwnerId
from llmgw.cli.lease import release
from llmgw.cli.outcomes import WrongUsage
from llmgw.control.leadership import Leadership
from llmgw.control.lease_api import LeaseApi, leader_row
from llmgw.runtime.clock import SystemClock
from llmgw.sim.store import FakeStore


class Place:
    """Two claims on one store; the second one's API is asked."""

    def __init__(self) -> None:
        self.clock = SystemClock()
        self.store = FakeStore(self.clock)
        self.first, self.second = (
            Leadership(self.store, OwnerId(name), lambda: None, self.store, self.clock) for name in ("one", "two")
        )


@pytest.fixture
async def asked() -> AsyncIterator[tuple[Place, TestClient]]:  # type: ignore[type-arg]
    place = Place()
    await place.first.renew()
    await place.second.renew()
    app = web.Application()
    app.add_routes(LeaseApi(place.second, place.store, place.clock).routes())
    async with TestClient(TestServer(app)) as client:
        yield place, client


async def test_a_standby_says_who_leads(asked: tuple[Place, TestClient]) -> None:  # type: ignore[type-arg]
    answer = await (await asked[1].get("/v1/leader")).json()
    assert answer["leader"] == [
        {"owner": "one", "epoch": 1, "here": False, "asked": "two", "store": "ok", "changes": 0}
    ]


async def test_the_lease_is_taken_away_with_the_epoch_as_proof(asked: tuple[Place, TestClient]) -> None:  # type: ignore[type-arg]
    place, client = asked
    wrong = await client.post("/v1/lease/release", json={"epoch": 2})
    assert (wrong.status, (await wrong.json())["error"]) == (
        409, "no lease of epoch 2 is held; `llmgw get leader` shows the one that is",
    )  # fmt: skip
    freed = await client.post("/v1/lease/release", json={"epoch": 1, "reason": "it hangs", "by": "ann"})
    assert freed.status == 200
    assert place.store.recorded[-1].text == "ann took the lease of epoch 1 away: it hangs"
    await place.second.renew()
    assert place.second.epoch == 2
    await place.first.renew()
    assert place.first.epoch is None


@pytest.mark.parametrize(
    "body", ["", "[]", "{}", '{"epoch": "1"}', '{"epoch": true}', '{"epoch": 0}', '{"epoch": 1e99}']
)
async def test_what_is_no_epoch_is_refused(asked: tuple[Place, TestClient], body: str) -> None:  # type: ignore[type-arg]
    answer = await asked[1].post("/v1/lease/release", data=body)
    assert answer.status == 400
    assert asked[0].first.epoch == 1


async def test_a_store_that_is_away_is_said(asked: tuple[Place, TestClient]) -> None:  # type: ignore[type-arg]
    asked[0].store.available = False
    answer = await asked[1].post("/v1/lease/release", json={"epoch": 1})
    assert answer.status == 503


async def test_the_leader_is_a_metric(asked: tuple[Place, TestClient]) -> None:  # type: ignore[type-arg]
    row = leader_row(asked[0].second)
    shown = {"leading": False, "alarms": [], "leader": row}
    status = {"control": shown, "source": {"refused": None}, "nodes": [], "models": [], "replicas": []}
    text = exposition(list, lambda: status)()[0].decode()
    assert "llmgw_leading 0.0" in text
    assert "llmgw_leader_epoch 1.0" in text
    assert "llmgw_leader_changes_total 0.0" in text
    assert "llmgw_store_usable 1.0" in text


@pytest.mark.parametrize(("epoch", "force"), [(0, True), (3, False)])
def test_the_command_wants_the_epoch_and_the_word(epoch: int, force: bool) -> None:
    with pytest.raises(WrongUsage, match="llmgw get leader"):
        release(epoch, force)
