"""The contracts of `EventSink` with `EventSource`, and of `ActKeeper`: on the SQL store and on the fake."""

from collections.abc import AsyncIterator

import pytest

from llmgw.adapters.sql_store import SqlStore
from llmgw.base.time import EARLIEST, Instant, later
from llmgw.plan.snapshot import Act
from llmgw.ports.sinks import ActKeeper, Event, EventSink, EventSource, StoreUnavailable
from llmgw.sim.store import FakeStore


class _Clock:
    def now(self) -> Instant:
        return later(EARLIEST, 1000)


class Place(EventSink, EventSource, ActKeeper):
    """What both are."""


@pytest.fixture
async def place(url: str) -> AsyncIterator[Place]:
    if not url:
        yield FakeStore(_Clock())  # type: ignore[misc]
        return
    store = SqlStore(url)
    await store.open()
    yield store  # type: ignore[misc]
    await store.close()


def event(at: float, subject: str, text: str = "") -> Event:
    return Event(Instant(at), "start", subject, text, "r1#1")


async def test_events_come_back_newest_first_and_no_more_than_asked_for(place: Place) -> None:
    kept = [event(float(n), "replica/m-1-0", f"event {n}") for n in range(5)]
    for one in kept:
        place.record(one)
    assert await place.events(2) == [kept[4], kept[3]]
    assert await place.events(50) == kept[::-1]


async def test_events_can_be_had_from_an_instant_on(place: Place) -> None:
    for n in range(5):
        place.record(event(float(n), "source"))
    assert [one.at for one in await place.events(50, since=Instant(3.0))] == [4.0, 3.0]


async def test_the_events_of_a_model_are_those_of_its_replicas_and_of_no_model_whose_name_begins_alike(
    place: Place,
) -> None:
    subjects = ["replica/m-1-0", "replica/m-x-1-0", "model/m", "replica/mm-1-0", "replica/m-12-3", "node/m", "source"]
    for n, subject in enumerate(subjects):
        place.record(event(float(n), subject))
    found = await place.events(50, subject="model/m")
    assert [one.subject for one in found] == ["replica/m-12-3", "model/m", "replica/m-1-0"]
    assert [one.subject for one in await place.events(50, subject="node/m")] == ["node/m"]
    assert [one.subject for one in await place.events(50, subject="model/m-x")] == ["replica/m-x-1-0"]


async def test_a_name_with_a_joker_of_the_database_is_only_a_name(place: Place) -> None:
    place.record(event(1.0, "replica/mxy-1-0"))
    place.record(event(2.0, "replica/m_y-1-0"))
    assert [one.subject for one in await place.events(50, subject="model/m_y")] == ["replica/m_y-1-0"]


async def test_acts_are_kept_whole_and_in_place_of_those_before(place: Place) -> None:
    assert await place.last_acts() == ()
    drain = Act("drain", "node/b", "new memory", Instant(5.0), Instant(99.5), "ann")
    cordon = Act("cordon", "gpu/GPU-1", "noise; 'quoted'", Instant(6.0))
    await place.keep_acts([drain, cordon])
    assert await place.last_acts() == (cordon, drain)
    await place.keep_acts([cordon])
    assert await place.last_acts() == (cordon,)
    await place.keep_acts([])
    assert await place.last_acts() == ()


async def test_acts_outlive_the_process(sql_url: str) -> None:
    act = Act("drain", "node/a", "new memory", Instant(5.0))
    for expected in ((), (act,)):
        store = SqlStore(sql_url)
        await store.open()
        assert await store.last_acts() == expected
        await store.keep_acts([act])
        await store.close()


async def test_a_store_that_is_away_says_so() -> None:
    store = FakeStore(_Clock(), available=False)
    with pytest.raises(StoreUnavailable):
        await store.keep_acts([])
    with pytest.raises(StoreUnavailable):
        await store.events(1)
