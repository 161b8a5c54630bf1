"""The contract of `LeaseKeeper`, on the SQL store and on the fake."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import pytest

from llmgw.adapters.sql_store import SqlStore
from llmgw.base.ids import Epoch, OwnerId
from llmgw.base.time import EARLIEST, Instant, later
from llmgw.ports.sinks import LeaseKeeper
from llmgw.sim.store import FakeStore

A, B = OwnerId("a"), OwnerId("b")
ANY = Epoch(1)


class _HandClock:
    def __init__(self) -> None:
        self.instant: Instant = later(EARLIEST, 1000)

    def now(self) -> Instant:
        return self.instant


@dataclass
class Place:
    """A keeper, and how to let a lease of so many seconds run out."""

    keeper: LeaseKeeper
    pass_time: Callable[[float], Awaitable[None]]


@pytest.fixture
async def place(url: str) -> AsyncIterator[Place]:
    if not url:
        clock = _HandClock()

        async def advance(seconds: float) -> None:
            clock.instant = later(clock.instant, seconds)

        yield Place(FakeStore(clock), advance)
        return
    store = SqlStore(url)
    await store.open()
    yield Place(store, asyncio.sleep)
    await store.close()


async def test_the_first_taker_wins_and_a_renewal_keeps_the_epoch(place: Place) -> None:
    first = await place.keeper.take(A, 60, ANY)
    assert (first.owner, first.mine) == (A, True)
    again = await place.keeper.take(A, 60, ANY)
    assert again == first


async def test_others_are_refused_while_it_is_held_and_learn_who_leads(place: Place) -> None:
    first = await place.keeper.take(A, 60, ANY)
    other = await place.keeper.take(B, 60, ANY)
    assert (other.owner, other.epoch, other.mine) == (A, first.epoch, False)


async def test_an_expired_lease_is_taken_and_the_epoch_grows(place: Place) -> None:
    first = await place.keeper.take(A, 0.05, ANY)
    await place.pass_time(0.1)
    taken = await place.keeper.take(B, 60, ANY)
    assert (taken.owner, taken.mine, taken.epoch) == (B, True, first.epoch + 1)
    late = await place.keeper.take(A, 60, ANY)
    assert (late.owner, late.mine) == (B, False)


async def test_a_holder_that_was_late_keeps_its_epoch_if_nobody_came(place: Place) -> None:
    first = await place.keeper.take(A, 0.05, ANY)
    await place.pass_time(0.1)
    assert await place.keeper.take(A, 60, ANY) == first


async def test_releasing_frees_it_at_once(place: Place) -> None:
    first = await place.keeper.take(A, 60, ANY)
    await place.keeper.release(B)
    assert not (await place.keeper.take(B, 60, ANY)).mine, "only the holder can give it up"
    await place.keeper.release(A)
    taken = await place.keeper.take(B, 60, ANY)
    assert (taken.mine, taken.epoch) == (True, first.epoch + 1)


async def test_the_epoch_grows_to_what_is_asked_for(place: Place) -> None:
    first = await place.keeper.take(A, 60, Epoch(7))
    assert first.epoch == 7
    raised = await place.keeper.take(A, 60, Epoch(12))
    assert (raised.mine, raised.epoch) == (True, 12)
    assert (await place.keeper.take(A, 60, ANY)).epoch == 12
    assert (await place.keeper.take(B, 60, Epoch(99))).epoch == 12, "one that does not hold it cannot raise it"


async def test_no_two_owners_share_an_epoch_however_they_race(place: Place) -> None:
    owners = [OwnerId(f"owner-{number}") for number in range(8)]
    seen: dict[Epoch, OwnerId] = {}
    for _ in range(25):
        leases = await asyncio.gather(*(place.keeper.take(owner, 60, ANY) for owner in owners))
        winners = [lease for lease in leases if lease.mine]
        assert len(winners) == 1
        assert seen.setdefault(winners[0].epoch, winners[0].owner) == winners[0].owner
        await place.keeper.release(winners[0].owner)
    assert len(seen) == 25
