import pytest

from llmgw.base.ids import ReplicaId
from llmgw.base.time import Instant
from llmgw.routing.load import Load, SlotSpent

A, B = ReplicaId("a-0"), ReplicaId("b-0")


def test_slots_are_counted_until_they_are_given_back() -> None:
    load = Load()
    first, second = load.take(A), load.take(A)
    assert load.in_flight(A) == 2
    first.give_back(Instant(10.0))
    assert (load.in_flight(A), load.ended(A)) == (1, 10.0)
    second.give_back(Instant(12.0))
    assert (load.in_flight(A), load.ended(A), load.busy()) == (0, 12.0, ())


def test_a_slot_cannot_be_given_back_twice() -> None:
    load = Load()
    slot, other = load.take(A), load.take(A)
    slot.give_back(Instant(1.0))
    with pytest.raises(SlotSpent):
        slot.give_back(Instant(2.0))
    assert load.in_flight(A) == 1
    other.give_back(Instant(3.0))


def test_an_endpoint_that_was_never_used_has_no_end() -> None:
    load = Load()
    assert load.ended(A) is None
    load.take(A)
    assert load.ended(A) is None


def test_a_withdrawn_endpoint_is_forgotten_unless_it_is_busy() -> None:
    load = Load()
    load.take(A).give_back(Instant(1.0))
    load.take(B).give_back(Instant(1.0))
    busy = load.take(B)
    load.keep(frozenset())
    assert load.ended(A) is None
    assert load.ended(B) == 1.0
    assert load.busy() == (B,)
    busy.give_back(Instant(2.0))
    load.forget(B)
    assert load.ended(B) is None
