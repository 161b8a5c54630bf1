"""When an endpoint is left alone, for how long, and what never does it."""

from dataclasses import replace

import pytest

from llmgw.base.ids import ModelName, ReplicaId
from llmgw.base.time import Instant
from llmgw.fleet.table import Endpoint, TcpAddress
from llmgw.routing.breaker import ENOUGH, FAILURES, FIRST_OPEN, LONGEST_OPEN, PROBE, Breakers

A = Endpoint(ReplicaId("a"), ModelName("m"), TcpAddress("a.test", 1), "m", "1.10")
B = Endpoint(ReplicaId("b"), ModelName("m"), TcpAddress("b.test", 1), "m", "1.20")
BOTH = (A, B)


def at(seconds: float) -> Instant:
    return Instant(1000.0 + seconds)


def opened() -> Breakers:
    breakers = Breakers()
    for _ in range(FAILURES):
        breakers.failed(A, at(0))
    return breakers


def test_failures_in_a_row_open_it_for_a_while_and_then_one_request_is_let_through() -> None:
    breakers = Breakers()
    for _ in range(FAILURES - 1):
        breakers.failed(A, at(0))
    assert not breakers.any_open
    breakers.failed(A, at(0))
    assert breakers.barred(at(0)) == {"a": FIRST_OPEN}
    assert breakers.state(A.id, at(0)) == "open"
    assert breakers.barred(at(FIRST_OPEN)) == {}
    assert breakers.state(A.id, at(FIRST_OPEN)) == "half_open"
    breakers.taken(A, at(FIRST_OPEN))
    assert breakers.barred(at(FIRST_OPEN)) == {"a": PROBE}, "the others wait for how it ends"
    breakers.answered(A, 200, BOTH, at(FIRST_OPEN + 1))
    assert not breakers.any_open


def test_a_probe_that_fails_opens_it_for_longer_and_one_that_never_ends_lets_another_through() -> None:
    breakers, now, waits = opened(), 0.0, []
    for _ in range(8):
        (wait,) = breakers.barred(at(now)).values()
        waits.append(wait)
        now += wait
        breakers.taken(A, at(now))
        breakers.failed(A, at(now))
    assert waits == [1, 2, 4, 8, 16, LONGEST_OPEN, LONGEST_OPEN, LONGEST_OPEN]
    (wait,) = breakers.barred(at(now)).values()
    breakers.taken(A, at(now + wait))
    assert breakers.barred(at(now + wait + PROBE)) == {}


def test_a_response_that_ends_well_begins_the_count_anew_and_one_that_only_began_does_not() -> None:
    breakers = Breakers()
    for _ in range(10):
        breakers.answered(A, 200, BOTH, at(0))
        breakers.failed(A, at(0))
        breakers.answered(A, 200, BOTH, at(0))
        breakers.ended_well(A)
    assert not breakers.any_open
    for _ in range(FAILURES):
        assert not breakers.any_open
        breakers.answered(A, 200, BOTH, at(0))
        breakers.failed(A, at(0))
    assert breakers.any_open, "streams that break after their head are failures in a row"


def test_what_breaks_with_the_one_that_opened_it_opens_it_no_longer() -> None:
    breakers = opened()
    for _ in range(50):
        breakers.failed(A, at(0.1))
    assert breakers.barred(at(0)) == {"a": FIRST_OPEN}


def test_after_a_probe_that_was_answered_one_failure_opens_it_again_for_longer() -> None:
    breakers = opened()
    breakers.taken(A, at(FIRST_OPEN))
    breakers.answered(A, 429, BOTH, at(FIRST_OPEN))
    assert not breakers.any_open, "any answer shows that it can be reached"
    breakers.failed(A, at(FIRST_OPEN))
    assert breakers.barred(at(FIRST_OPEN)) == {"a": 2 * FIRST_OPEN}


def test_a_probe_of_which_nothing_came_lets_another_one_through() -> None:
    breakers = opened()
    breakers.taken(A, at(FIRST_OPEN))
    breakers.released(A, at(FIRST_OPEN + 1))
    assert breakers.barred(at(FIRST_OPEN + 1)) == {}
    assert breakers.state(A.id, at(FIRST_OPEN + 1)) == "half_open"


@pytest.mark.parametrize("status", [200, 302, 400, 401, 404, 422, 429, 503])
def test_what_is_the_client_s_or_a_sign_of_load_never_opens_it(status: int) -> None:
    breakers = Breakers()
    for _ in range(1000):
        breakers.answered(A, status, BOTH, at(0))
        breakers.answered(B, 200, BOTH, at(0))
    assert not breakers.any_open


def test_errors_open_it_only_where_the_others_answer_better() -> None:
    breakers = Breakers()
    for _ in range(1000):
        breakers.answered(A, 500, (A,), at(0))
    assert not breakers.any_open, "there is nobody to compare with"
    breakers = Breakers()
    for _ in range(1000):
        breakers.answered(A, 500, BOTH, at(0))
        breakers.answered(B, 500, BOTH, at(0))
    assert not breakers.any_open, "a poisonous request fails everywhere"
    breakers = Breakers()
    for _ in range(ENOUGH):
        breakers.answered(B, 200, BOTH, at(0))
    for count in range(ENOUGH):
        assert not breakers.any_open, count
        breakers.answered(A, 500, BOTH, at(0))
    assert breakers.barred(at(0)) == {"a": FIRST_OPEN}


def test_old_errors_are_forgotten() -> None:
    breakers = Breakers()
    for _ in range(ENOUGH):
        breakers.answered(B, 200, BOTH, at(0))
    for second in range(ENOUGH * 5):
        breakers.answered(A, 500, BOTH, at(second * 10))
    assert not breakers.any_open


def test_another_process_is_not_judged_by_what_the_one_before_did() -> None:
    breakers = opened()
    breakers.keep({A.id: A})
    assert breakers.any_open
    new = replace(A, process="2.30")
    breakers.keep({A.id: new})
    assert not breakers.any_open
    breakers = opened()
    breakers.failed(new, at(0))
    assert not breakers.any_open
    breakers = opened()
    breakers.keep({})
    assert not breakers.any_open
