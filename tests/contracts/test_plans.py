"""The contract of `PlanKeeper`: on the SQL store and on the fake."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from llmgw.adapters.sql_store import SqlStore
from llmgw.base.time import Instant
from llmgw.ports.plans import PlanKeeper
from llmgw.sim.used_plans import FakePlans

NOW = Instant(1000.0)
LATER = Instant(4600.0)


@pytest.fixture
async def keeper(url: str) -> AsyncIterator[PlanKeeper]:
    if not url:
        yield FakePlans()
        return
    store = SqlStore(url)
    await store.open()
    yield store.plans
    await store.close()


async def test_a_plan_is_used_once(keeper: PlanKeeper) -> None:
    assert await keeper.use_plan("a", NOW, LATER)
    assert not await keeper.use_plan("a", NOW, LATER)
    assert await keeper.use_plan("b", NOW, LATER)
    assert await keeper.used_plans() == {"a", "b"}


async def test_of_two_at_once_one_gets_it(keeper: PlanKeeper) -> None:
    answers = await asyncio.gather(*(keeper.use_plan("a", NOW, LATER) for _ in range(8)))
    assert sorted(answers) == [False] * 7 + [True]


async def test_what_expired_is_forgotten_but_not_given_out_again_by_the_same_word(keeper: PlanKeeper) -> None:
    assert await keeper.use_plan("old", NOW, Instant(1100.0))
    assert not await keeper.use_plan("old", LATER, Instant(1100.0))
    assert await keeper.use_plan("new", Instant(2000.0), LATER)
    assert await keeper.used_plans() == {"new"}


async def test_it_outlives_the_store_s_process(sql_url: str) -> None:
    for expected in (True, False):
        store = SqlStore(sql_url)
        await store.open()
        assert await store.plans.use_plan("a", NOW, LATER) is expected
        await store.close()
