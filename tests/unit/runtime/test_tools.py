"""The asyncio tools: waiting is for a condition, no task ends unseen, and tries come slower and slower."""

import asyncio
import random
from collections.abc import Coroutine
from typing import Any

import pytest

from llmgw.runtime.backoff import Backoff
from llmgw.runtime.latest import Latest
from llmgw.runtime.supervisor import LoopEnded, Supervisor, first_of
from llmgw.sim.loop import simulate


async def test_a_condition_that_holds_is_not_waited_for() -> None:
    assert await Latest(3).wait(lambda value: value == 3) == 3


def test_a_waiter_sees_the_newest_value_and_not_each_one() -> None:
    async def main() -> list[int]:
        latest = Latest(0)
        seen: list[int] = []

        async def look() -> None:
            version = latest.version
            while latest.value < 5:
                seen.append(await latest.newer(version))
                version = latest.version

        tasks = Supervisor("test")
        tasks.job("look", look())
        await asyncio.sleep(1)
        for number in (1, 2, 3):
            latest.set(number)
        await asyncio.sleep(1)
        latest.set(5)
        await asyncio.sleep(1)
        await tasks.stop()
        return seen

    assert simulate(main) == [3, 5]


def test_all_waiters_wake_and_each_asks_its_own_condition() -> None:
    async def main() -> list[int]:
        latest = Latest(0)
        waits = [latest.wait(lambda value, least=least: value >= least) for least in (1, 2, 3)]
        tasks = [asyncio.get_running_loop().create_task(wait) for wait in waits]
        for number in (1, 2, 3):
            await asyncio.sleep(1)
            latest.set(number)
        return await asyncio.gather(*tasks)

    assert simulate(main) == [1, 2, 3]


async def test_a_waiter_that_is_cancelled_is_forgotten() -> None:
    latest = Latest(0)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await latest.newer(0)
    assert not latest._waiters
    latest.set(1)
    assert await latest.newer(0) == 1


async def soon(wait: Coroutine[Any, Any, None]) -> None:
    """Await what is there already; what never comes is an error and not a hang."""
    async with asyncio.timeout(1.0):
        await wait


async def _fails() -> None:
    raise ValueError("a bug")


async def _ends() -> None:
    pass


async def _goes_on() -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize(("coroutine", "told"), [(_fails, "ValueError"), (_ends, "None")])
async def test_a_loop_that_ends_fails_its_supervisor(coroutine, told, caplog) -> None:
    tasks = Supervisor("server")
    tasks.loop("reconcile", coroutine())
    with pytest.raises(LoopEnded, match=rf"server.reconcile ended: {told}"):
        await soon(tasks.failure())
    assert [(record.levelname, record.__dict__["task"]) for record in caplog.records] == [
        ("CRITICAL", "server.reconcile")
    ]
    await tasks.stop()


async def test_a_failure_that_came_before_anybody_waited_is_still_told() -> None:
    tasks = Supervisor("server")
    tasks.loop("reconcile", _fails())
    await asyncio.sleep(0.01)
    with pytest.raises(LoopEnded) as caught:
        await soon(tasks.failure())
    assert isinstance(caught.value.__cause__, ValueError)


async def test_a_loop_that_its_owner_cancels_is_no_failure() -> None:
    tasks = Supervisor("server")
    owned = tasks.loop("session", _goes_on())
    await asyncio.sleep(0)
    owned.cancel()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await tasks.failure()
    assert owned.done


async def test_a_job_may_end_and_its_error_goes_where_the_caller_says() -> None:
    tasks = Supervisor("server")
    errors: list[str] = []
    tasks.job("good", _ends(), lambda error: errors.append(str(error)))
    tasks.job("bad", _fails(), lambda error: errors.append(str(error)))
    await asyncio.sleep(0.01)
    assert errors == ["a bug"]
    tasks.job("worse", _fails())
    with pytest.raises(LoopEnded, match="worse ended"):
        await soon(tasks.failure())


def test_stop_ends_every_task_and_waits_for_each_and_for_those_they_start() -> None:
    async def main() -> list[str]:
        tasks = Supervisor("server")
        ended: list[str] = []

        async def slow(name: str) -> None:
            try:
                await _goes_on()
            finally:
                if name == "first":
                    tasks.loop("late", slow("late"))
                    await asyncio.sleep(0)
                await asyncio.sleep(5)
                ended.append(name)

        tasks.loop("first", slow("first"))
        tasks.loop("second", slow("second"))
        await asyncio.sleep(1)
        await tasks.stop()
        return sorted(ended)

    assert simulate(main) == ["first", "late", "second"]


async def test_first_of_ends_the_others_and_raises_what_the_first_raised() -> None:
    cancelled = []

    async def other() -> None:
        try:
            await _goes_on()
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    await first_of(_ends(), other())
    with pytest.raises(ValueError, match="a bug"):
        await first_of(other(), _fails())
    assert cancelled


def test_backoff_doubles_with_jitter_up_to_its_maximum_and_begins_anew_after_reset() -> None:
    backoff = Backoff(0.5, 8.0, random.Random(1))
    bounds = [0.5, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0]
    waits = [backoff.next() for _ in bounds]
    assert all(bound / 2 <= wait <= bound for wait, bound in zip(waits, bounds, strict=True))
    assert len(set(waits)) == len(waits)
    backoff.reset()
    assert backoff.next() <= 0.5
    for _ in range(5000):
        assert backoff.next() <= 8.0


def test_backoff_is_as_random_as_its_source() -> None:
    first, second = (Backoff(1.0, 60.0, random.Random(7)) for _ in range(2))
    assert [first.next() for _ in range(9)] == [second.next() for _ in range(9)]
