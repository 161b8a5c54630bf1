"""Who may decide: the lease, the witnesses, and a store that is away."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from llmgw.base.ids import Epoch, OwnerId
from llmgw.base.time import EARLIEST, Instant, later
from llmgw.control.leadership import LEASE, TOLD_FOR, Leadership
from llmgw.ports.sinks import Lease, StoreUnavailable
from llmgw.sim.loop import SimClock, simulate
from llmgw.sim.store import FakeStore


class _HandClock:
    def __init__(self) -> None:
        self.instant: Instant = later(EARLIEST, 1000)

    def now(self) -> Instant:
        return self.instant

    def pass_time(self, seconds: float) -> None:
        self.instant = later(self.instant, seconds)


class Side:
    """One control plane's claim, and how often it changed."""

    def __init__(self, store: FakeStore, name: str) -> None:
        self.changes = 0
        self.claim = Leadership(store, OwnerId(name), self._changed, store, store.clock)

    def _changed(self) -> None:
        self.changes += 1


def _store() -> tuple[FakeStore, _HandClock]:
    clock = _HandClock()
    return FakeStore(clock), clock


async def test_the_first_leads_and_the_second_does_not_until_the_lease_ran_out() -> None:
    store, clock = _store()
    one, two = Side(store, "one"), Side(store, "two")
    await one.claim.renew()
    await two.claim.renew()
    assert (one.claim.epoch, two.claim.epoch, two.claim.leader) == (1, None, "one")
    clock.pass_time(LEASE + 1)
    await two.claim.renew()
    assert two.claim.epoch == 2
    await one.claim.renew()
    assert (one.claim.epoch, one.claim.leader) == (None, "two")


async def test_a_store_that_is_away_keeps_the_claim_and_is_told() -> None:
    store, _ = _store()
    side = Side(store, "one")
    await side.claim.renew()
    store.available = False
    for _ in range(50):
        await side.claim.renew()
    assert side.claim.epoch == 1
    assert side.claim.trouble
    store.available = True
    await side.claim.renew()
    assert (side.claim.epoch, side.claim.trouble) == (1, "")


async def test_a_higher_epoch_heard_from_an_agent_ends_the_claim_at_once_store_or_no_store() -> None:
    store, _ = _store()
    side = Side(store, "one")
    await side.claim.renew()
    store.available = False
    changes = side.changes
    side.claim.heard(Epoch(7))
    assert (side.claim.epoch, side.changes) == (None, changes + 1)
    await side.claim.renew()
    assert side.claim.epoch is None


async def test_an_epoch_that_is_ours_or_older_changes_nothing() -> None:
    store, _ = _store()
    side = Side(store, "one")
    await side.claim.renew()
    side.claim.heard(Epoch(1))
    side.claim.heard(Epoch(0))
    assert side.claim.epoch == 1


async def test_a_wiped_store_is_taken_above_everything_heard() -> None:
    store, _ = _store()
    side = Side(store, "one")
    side.claim.heard(Epoch(41))
    await side.claim.renew()
    assert side.claim.epoch == 42


async def test_released_it_is_free_for_others_at_once() -> None:
    store, _ = _store()
    one, two = Side(store, "one"), Side(store, "two")
    await one.claim.renew()
    await one.claim.release()
    assert one.claim.epoch is None
    await two.claim.renew()
    assert two.claim.epoch == 2


def strict(store: FakeStore, name: str) -> Leadership:
    return Leadership(
        store, OwnerId(name), lambda: None, store, store.clock, on_store_loss=lambda: "stop"
    )  # fmt: skip


def play(story: Callable[[FakeStore], Awaitable[None]]) -> None:
    """Run a story in virtual time, in which the store's clock and the loop's go together."""

    async def main() -> None:
        await story(FakeStore(SimClock(asyncio.get_running_loop())))  # type: ignore[arg-type]

    simulate(main, 1)


def test_stop_ends_deciding_at_two_thirds_of_the_lease_and_goes_on_when_the_store_is_back() -> None:
    async def story(store: FakeStore) -> None:
        claim = strict(store, "one")
        await claim.renew()
        store.available = False
        for second in range(1, 15):
            await asyncio.sleep(1)
            await claim.renew()
            assert (claim.epoch is None) == (second >= 10), second
        assert "decides nothing (control.on_store_loss: stop)" in claim.alarms[0]
        store.available = True
        await claim.renew()
        assert claim.epoch == 1

    play(story)


def test_stop_counts_from_before_the_renewal_was_sent() -> None:
    class Slow(FakeStore):
        async def take(self, owner: OwnerId, seconds: float, at_least: Epoch) -> Lease:
            lease = await super().take(owner, seconds, at_least)
            await asyncio.sleep(4)
            return lease

    async def story(store: FakeStore) -> None:
        claim = strict(Slow(store.clock), "one")
        await claim.renew()
        await asyncio.sleep(5.9)
        assert claim.epoch == 1
        await asyncio.sleep(0.2)
        assert claim.epoch is None

    play(story)


def test_a_process_that_stood_still_asks_before_it_decides_again() -> None:
    async def story(store: FakeStore) -> None:
        one, two = Side(store, "one"), Side(store, "two")
        await one.claim.renew()
        await asyncio.sleep(LEASE + 1)  # SIGSTOP, SIGCONT: nothing of it ran meanwhile
        assert one.claim.epoch is None
        await two.claim.renew()
        await one.claim.renew()
        assert (one.claim.epoch, one.claim.leader, two.claim.epoch) == (None, "two", 2)

    play(story)


def test_a_process_that_stood_still_and_was_not_replaced_goes_on_in_its_epoch_store_or_no_store() -> None:
    async def story(store: FakeStore) -> None:
        one = Side(store, "one")
        await one.claim.renew()
        await asyncio.sleep(60)
        store.available = False
        await one.claim.renew()
        assert one.claim.epoch == 1, "asked, and not told otherwise"
        await asyncio.sleep(60)
        store.available = True
        await one.claim.renew()
        assert one.claim.epoch == 1

    play(story)


def test_a_lease_that_is_taken_away_by_force_is_left_to_others_for_its_time() -> None:
    async def story(store: FakeStore) -> None:
        one, two = Side(store, "one"), Side(store, "two")
        await one.claim.renew()
        assert not await two.claim.release_epoch(Epoch(7))
        assert await one.claim.release_epoch(Epoch(1))
        await one.claim.renew()
        assert one.claim.epoch is None, "it rests"
        await two.claim.renew()
        assert two.claim.epoch == 2
        await asyncio.sleep(LEASE + 1)
        await one.claim.renew()
        assert (one.claim.epoch, two.claim.epoch) == (3, None)

    play(story)


def test_a_leader_whose_store_is_away_when_it_is_to_give_up_its_lease_goes_on_leading() -> None:
    async def story(store: FakeStore) -> None:
        one = Side(store, "one")
        await one.claim.renew()
        store.available = False
        with pytest.raises(StoreUnavailable):
            await one.claim.release_epoch(Epoch(1))
        assert one.claim.epoch == 1
        store.available = True
        await one.claim.renew()
        assert (one.claim.epoch, one.changes) == (1, 1)

    play(story)


def test_a_change_of_the_leader_is_an_event_and_for_a_while_an_alarm_and_a_start_is_none() -> None:
    async def story(store: FakeStore) -> None:
        one, two = Side(store, "one"), Side(store, "two")
        await one.claim.renew()
        await two.claim.renew()
        assert (one.claim.alarms, two.claim.alarms) == ((), ())
        await asyncio.sleep(LEASE + 1)
        await two.claim.renew()
        await one.claim.renew()
        assert two.claim.alarms == ("this server leads with epoch 2, in place of one, 0s ago",)
        assert one.claim.alarms == ("two leads with epoch 2, in place of this one, 0s ago",)
        assert [event.kind for event in store.recorded] == ["leading", "leader_changed", "leading", "leader_changed"]
        await asyncio.sleep(TOLD_FOR)
        assert (one.claim.alarms, one.claim.changes) == ((), 1)

    play(story)
