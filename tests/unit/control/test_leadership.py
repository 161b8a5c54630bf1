"""Who may decide: the lease, the witnesses, and a store that is away."""

from llmgw.base.ids import Epoch, OwnerId
from llmgw.base.time import EARLIEST, Instant, later
from llmgw.control.leadership import LEASE, Leadership
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
        self.claim = Leadership(store, OwnerId(name), self._changed)

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
