"""The contract of `LeaseKeeper`, on the SQL store and on the fake."""

import asyncio
import multiprocessing
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest
import sqlalchemy as sa

from llmgw.adapters.sql_store import SqlStore
from llmgw.app.places import owner_name
from llmgw.base.ids import Epoch, OwnerId
from llmgw.base.time import EARLIEST, Instant, later
from llmgw.ports.sinks import LeaseKeeper
from llmgw.runtime.clock import RandomIds
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


async def test_a_lease_is_taken_away_by_its_epoch_and_by_no_other(place: Place) -> None:
    first = await place.keeper.take(A, 60, ANY)
    assert not await place.keeper.release_epoch(Epoch(first.epoch + 1))
    assert (await place.keeper.take(B, 60, ANY)).owner == A
    assert await place.keeper.release_epoch(first.epoch)
    assert not await place.keeper.release_epoch(first.epoch), "nobody has it"
    taken = await place.keeper.take(B, 60, ANY)
    assert (taken.mine, taken.epoch) == (True, first.epoch + 1)
    late = await place.keeper.take(A, 60, ANY)
    assert (late.mine, late.owner, late.epoch) == (False, B, taken.epoch)


async def test_a_restarted_process_does_not_match_its_own_stale_lease(sql_url: str) -> None:
    ids = RandomIds()
    epochs = []
    for _ in range(2):
        store = SqlStore(sql_url)
        await store.open()
        owner = OwnerId(owner_name(ids.new()))
        assert len(owner) <= 64
        lease = await store.take(owner, 60, ANY)
        epochs.append((lease.mine, lease.epoch))
        await store.close()  # as if killed: nothing was released
    assert epochs == [(True, 1), (False, 1)]


async def test_clocks_that_are_apart_by_minutes_change_nothing(sql_url: str) -> None:
    """When a lease is over is the store's to say: no process tells it a time, so none can tell a wrong one."""
    said: list[object] = []
    store = SqlStore(sql_url)
    await store.open()
    sa.event.listen(store._lease_thread.engine, "before_cursor_execute", lambda *given: said.append(given[3]))
    await store.take(A, 60, ANY)
    await store.close()
    numbers = [value for given in said for value in _values(given) if isinstance(value, int | float)]
    assert numbers != []
    assert all(number < 1e6 or number == 2440587.5 for number in numbers), "an instant of ours went to the store"


def _values(given: object) -> list[object]:
    return list(given.values() if isinstance(given, dict) else given) if given else []  # type: ignore[call-overload]


RACERS, ROUNDS = 3, 334


def race(url: str, name: str, start: "multiprocessing.synchronize.Barrier", told: "multiprocessing.Queue[Any]") -> None:
    """Take the lease whenever it is free, and give it up or let it run out: a thousand rounds between all of them."""

    async def run() -> list[int]:
        store = SqlStore(url)
        await store.open()
        start.wait()
        won = []
        for number in range(ROUNDS):
            owner = OwnerId(f"{name}-{number}")
            lease = await store.take(owner, 60 if number % 2 else 0.001, ANY)
            while not lease.mine:
                lease = await store.take(owner, 60 if number % 2 else 0.001, ANY)
            won.append(int(lease.epoch))
            if number % 2:
                await store.release(owner)
        await store.close()
        return won

    told.put(asyncio.run(run()))


def test_processes_that_race_over_a_thousand_rounds_never_share_an_epoch(sql_url: str) -> None:
    context = multiprocessing.get_context("spawn")
    start, told = context.Barrier(RACERS), context.Queue()
    processes = [context.Process(target=race, args=(sql_url, f"racer-{one}", start, told)) for one in range(RACERS)]
    for process in processes:
        process.start()
    won = [epoch for _ in processes for epoch in told.get(timeout=120)]
    for process in processes:
        process.join()
    assert len(won) == RACERS * ROUNDS
    assert len(set(won)) == len(won), "two owners of one epoch"
