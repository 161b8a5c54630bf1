"""The contract of `MemoryKeeper`, on the SQL store and on the fake."""

from collections.abc import AsyncIterator

import pytest

from llmgw.adapters.sql_store import SqlStore
from llmgw.base.ids import Epoch
from llmgw.base.time import EARLIEST, Instant, later
from llmgw.ports.memory import MemoryKeeper
from llmgw.sim.store import FakeStore


class _Clock:
    def now(self) -> Instant:
        return later(EARLIEST, 1000)


@pytest.fixture
async def keeper(url: str) -> AsyncIterator[MemoryKeeper]:
    if not url:
        yield FakeStore(_Clock())
        return
    store = SqlStore(url)
    await store.open()
    yield store
    await store.close()


async def test_the_newest_is_kept_with_its_age_by_the_stores_clock(keeper: MemoryKeeper) -> None:
    assert await keeper.last_memory() is None
    for content in ("one", "two"):
        assert await keeper.keep_memory(Epoch(3), content)
        kept = await keeper.last_memory()
        assert kept is not None
        assert kept.content == content
        assert 0.0 <= kept.age < 5.0


async def test_a_leader_of_the_past_changes_nothing(keeper: MemoryKeeper) -> None:
    assert await keeper.keep_memory(Epoch(3), "of three")
    assert not await keeper.keep_memory(Epoch(2), "of two")
    kept = await keeper.last_memory()
    assert kept is not None
    assert kept.content == "of three"
    assert await keeper.keep_memory(Epoch(4), "of four")
