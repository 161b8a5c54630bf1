"""The contracts of `UsageKeeper` and `AuditKeeper`: on the SQL store and on the fakes."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

import pytest

from llmgw.adapters.sql_store import SqlStore
from llmgw.base.time import Instant
from llmgw.fleet.spent import Spent, SpentBatch
from llmgw.ports.audit import AuditKeeper, Entry
from llmgw.ports.usage import UsageKeeper
from llmgw.sim.usage import FakeAudit, FakeUsage

NOW = Instant(1000.0)


@dataclass
class Place:
    usage: UsageKeeper
    audit: AuditKeeper


@pytest.fixture
async def place(url: str) -> AsyncIterator[Place]:
    if not url:
        yield Place(FakeUsage(), FakeAudit())
        return
    store = SqlStore(url)
    await store.open()
    yield Place(store.usage, store.audit)
    await store.close()


def spent(tenant: str = "t", key: str = "k", model: str = "m", hour: int = 10, times: int = 1) -> Spent:
    return Spent(tenant, key, model, hour, times, 0, 2 * times, 3 * times, times, 0)


def batch(sequence: int, *rows: Spent, source: str = "w1") -> SpentBatch:
    return SpentBatch(source, sequence, rows)


async def test_a_batch_is_counted_once_however_often_it_comes(place: Place) -> None:
    one = batch(1, spent(), spent(model="n"))
    await asyncio.gather(*(place.usage.keep(one, NOW) for _ in range(4)))
    await place.usage.keep(batch(2, spent()), NOW)
    await place.usage.keep(one, NOW)
    await place.usage.keep(batch(1, spent(), source="w2"), NOW)  # another worker's has the same number
    assert await place.usage.usage("tenant", 0, 100) == (spent("t", "", "", 0, 4),)
    assert await place.usage.usage("model", 0, 100) == (spent("", "", "m", 0, 3), spent("", "", "n", 0, 1))


async def test_sums_are_grouped_as_asked_and_of_the_hours_asked_for(place: Place) -> None:
    rows = (
        spent("a", "k1", "m", 23),
        spent("a", "k2", "m", 24),
        spent("b", "k3", "n", 25),
        spent("", "", "m", 48),
    )
    await place.usage.keep(batch(1, *rows), NOW)
    assert await place.usage.usage("tenant", 0, 48) == (spent("a", "", "", 0, 2), spent("b", "", "", 0))
    assert await place.usage.usage("key", 24, 49) == (
        spent("", "", "", 0),
        spent("a", "k2", "", 0),
        spent("b", "k3", "", 0),
    )
    assert [one.hour for one in await place.usage.usage("hour", 24, 49)] == [24, 25, 48]
    days = await place.usage.usage("day", 0, 100)
    assert [(one.hour, one.requests) for one in days] == [(0, 1), (24, 2), (48, 1)]
    assert await place.usage.usage("tenant", 49, 100) == ()


async def test_large_numbers_and_all_sums_are_kept(place: Place) -> None:
    large = Spent("t", "k", "m", 1, 1 << 40, 1, 1 << 41, 1 << 42, 1 << 43, 1 << 44)
    await place.usage.keep(batch(1, large), NOW)
    await place.usage.keep(batch(2, large), NOW)
    assert await place.usage.usage("hour", 0, 2) == (replace(large.plus(large), tenant="", key="", model=""),)


async def test_what_is_old_is_dropped(place: Place) -> None:
    await place.usage.keep(batch(1, spent(hour=10), spent(hour=11)), NOW)
    await place.usage.forget(11, NOW)
    assert [one.hour for one in await place.usage.usage("hour", 0, 100)] == [11]
    await place.usage.keep(batch(1, spent()), NOW)  # the source is not forgotten with its rows
    assert [one.hour for one in await place.usage.usage("hour", 0, 100)] == [11]


def entry(at: float) -> Entry:
    return Entry(Instant(at), "user/ann", "ci; 'quoted'", "drain", "node/a", "new memory", "done", f"r1#{at}")


async def test_the_trail_comes_back_newest_first_and_is_dropped_by_age(place: Place) -> None:
    for at in (1.0, 2.0, 3.0):
        place.audit.record(entry(at))
    assert await place.audit.entries(2) == [entry(3.0), entry(2.0)]
    assert await place.audit.entries(9, Instant(3.0)) == [entry(3.0)]
    await place.audit.forget(Instant(2.0))
    assert await place.audit.entries(9) == [entry(3.0), entry(2.0)]


ODD = [
    replace(entry(2), act="x" * 100, subject="\0"),
    replace(entry(3), text="lone \ud800"),
    replace(entry(4), outcome="fine \x1b[31m"),
]


async def test_a_line_that_a_store_will_not_take_holds_up_no_other(
    sql_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = SqlStore(sql_url)
    await store.open()
    lines = [entry(1), *ODD, entry(5)]
    for line in lines:
        store.audit.record(line)
    await store.audit.entries(1)  # what was recorded before is written by then
    kept = await store.audit.entries(10)
    assert {one.cause for one in kept} >= {"r1#1", "r1#5"}
    for line in ODD:
        assert (line in kept) != (repr(line) in caplog.text), "either it is kept, or all of it is logged"
    await store.close()


async def test_it_all_outlives_the_process(sql_url: str) -> None:
    for expected in (0, 1):
        store = SqlStore(sql_url)
        await store.open()
        assert len(await store.audit.entries(9)) == len(await store.usage.usage("tenant", 0, 100)) == expected
        await store.usage.keep(batch(1, spent()), NOW)
        store.audit.record(entry(1.0))
        await store.close()  # what was only handed over is written
