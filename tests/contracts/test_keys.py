"""The contract of `KeyKeeper`: on the SQL store and on the fake."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from llmgw.adapters.sql_store import SqlStore
from llmgw.base.time import Instant
from llmgw.ports.keys import KeptKeys, Key, KeyKeeper
from llmgw.sim.keys import FakeKeys

NOW = Instant(1000.0)
LATER = Instant(2000.0)


@pytest.fixture
async def keeper(url: str) -> AsyncIterator[KeyKeeper]:
    if not url:
        yield FakeKeys()
        return
    store = SqlStore(url)
    await store.open()
    yield store.keys
    await store.close()


def key(name: str, tenant: str = "t", **more: object) -> Key:
    return replace(Key(name, tenant, None, "a note; 'quoted'", "ab" * 32, NOW, "user/ann"), **more)


async def test_keys_come_back_as_they_were_with_a_version_that_grows(keeper: KeyKeeper) -> None:
    assert await keeper.keys() == KeptKeys(0)
    admin = key("c1", "", scope="apply", expires=LATER)
    for number, one in enumerate((key("b1", "b"), key("a2", "a", created=LATER), key("a1", "a"), admin), 1):
        assert await keeper.add(one)
        assert await keeper.version() == number
    found = await keeper.keys()
    assert found == KeptKeys(4, (admin, key("a1", "a"), key("a2", "a", created=LATER), key("b1", "b")))


async def test_an_id_is_given_once(keeper: KeyKeeper) -> None:
    assert sorted(await asyncio.gather(*(keeper.add(key("a")) for _ in range(4)))) == [False, False, False, True]
    assert await keeper.version() == 1


async def test_a_key_is_revoked_once_and_stays_so(keeper: KeyKeeper) -> None:
    await keeper.add(key("a"))
    assert await keeper.revoke("a", NOW)
    assert not await keeper.revoke("a", LATER)
    assert not await keeper.revoke("b", NOW)
    assert await keeper.keys() == KeptKeys(2, (key("a", revoked=NOW),))


async def test_a_rotation_is_whole_or_nothing_and_never_lengthens_a_life(keeper: KeyKeeper) -> None:
    await keeper.add(key("old"))
    await keeper.add(key("short", expires=NOW))
    assert await keeper.add(key("new"), "old", LATER)
    assert await keeper.add(key("new2"), "short", LATER)
    ends = {one.id: one.expires for one in (await keeper.keys()).keys}
    assert ends == {"old": LATER, "short": NOW, "new": None, "new2": None}
    await keeper.revoke("old", NOW)
    before = await keeper.keys()
    assert not await keeper.add(key("x"), "old", LATER)  # revoked
    assert not await keeper.add(key("x"), "nowhere", LATER)
    assert not await keeper.add(key("new"), "short", Instant(1.0))  # its id is taken, so nothing of it holds
    assert await keeper.keys() == before


async def test_when_a_key_was_used_only_moves_on_and_is_no_news(keeper: KeyKeeper) -> None:
    await keeper.add(key("a"))
    await keeper.add(key("b"))
    await keeper.note_used({"a": LATER, "nowhere": LATER})
    await keeper.note_used({"a": NOW, "b": NOW})
    await keeper.note_used({})
    assert await keeper.keys() == KeptKeys(2, (key("a", last_used=LATER), key("b", last_used=NOW)))


async def test_what_is_over_for_long_is_dropped(keeper: KeyKeeper) -> None:
    for one in (key("a"), key("b", expires=NOW), key("c", expires=LATER), key("d")):
        await keeper.add(one)
    await keeper.revoke("d", NOW)
    await keeper.forget(Instant(1500.0))
    assert await keeper.keys() == KeptKeys(6, (key("a"), key("c", expires=LATER)))
    await keeper.forget(Instant(1500.0))
    assert await keeper.version() == 6


async def test_two_stores_on_one_database_see_each_other(sql_url: str) -> None:
    stores = [SqlStore(sql_url) for _ in range(2)]
    for store in stores:
        await store.open()
    await stores[0].keys.add(key("a"))
    assert await stores[1].keys.version() == 1
    assert await stores[1].keys.revoke("a", NOW)
    assert await stores[0].keys.keys() == KeptKeys(2, (key("a", revoked=NOW),))
    for store in stores:
        await store.close()
