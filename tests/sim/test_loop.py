"""The simulation's loop keeps asyncio's promises, waits for nothing real, replays by its seed, and cannot hang."""

import asyncio
import itertools
from collections.abc import Coroutine
from typing import Any

import pytest

from llmgw.runtime.latest import Latest
from llmgw.runtime.supervisor import Supervisor
from llmgw.sim.loop import EPOCH, Deadlock, SimClock, SimLoop, TooLong, simulate


async def racing(tasks: int = 5, turns: int = 3) -> list[str]:
    """Return the order in which tasks that are ready at the same time get to run."""
    seen: list[str] = []

    async def run(name: str) -> None:
        for turn in range(turns):
            seen.append(f"{name}{turn}")
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        for number in range(tasks):
            group.create_task(run(chr(ord("a") + number)))
    return seen


def test_a_seed_gives_one_order_and_other_seeds_others() -> None:
    orders = [simulate(racing, seed) for seed in range(20)]
    assert orders == [simulate(racing, seed) for seed in range(20)]
    assert len({tuple(order) for order in orders}) > 15


def test_a_task_sees_its_own_turns_in_order() -> None:
    for seed in range(20):
        order = simulate(racing, seed)
        for name in "abcde":
            assert [each for each in order if each[0] == name] == [f"{name}{turn}" for turn in range(3)]


def test_callbacks_of_one_object_and_plain_functions_keep_their_order() -> None:
    async def main() -> tuple[list[int], list[int]]:
        loop = asyncio.get_running_loop()
        methods: list[int] = []
        functions: list[int] = []

        def note(number: int) -> None:
            functions.append(number)

        for number in range(10):
            loop.call_soon(methods.append, number)
            loop.call_soon(note, number)
        await asyncio.sleep(1)
        return methods, functions

    for seed in range(20):
        assert simulate(main, seed) == (list(range(10)), list(range(10)))


def test_time_jumps_and_an_hour_costs_nothing() -> None:
    async def main() -> tuple[float, float, int]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        await asyncio.sleep(3600)
        return loop.time(), SimClock(loop).now(), loop.steps

    assert simulate(main) == (3600.0, EPOCH + 3600.0, 2)


def test_timers_fire_in_the_order_of_their_times() -> None:
    async def main() -> list[tuple[float, float]]:
        loop = asyncio.get_running_loop()
        fired: list[tuple[float, float]] = []
        for delay in (3.0, 1.0, 2.0, 1.5):
            loop.call_later(delay, lambda delay=delay: fired.append((delay, loop.time())))
        loop.call_later(1.2, fired.append, (0.0, 0.0)).cancel()
        await asyncio.sleep(10)
        return fired

    assert simulate(main) == [(delay, delay) for delay in (1.0, 1.5, 2.0, 3.0)]


def test_timeouts_cancel_at_their_virtual_time() -> None:
    async def main() -> float:
        loop = asyncio.get_running_loop()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(35.0):
                await loop.create_future()
        return loop.time()

    assert simulate(main) == 35.0


def test_nothing_ready_and_no_timer_is_a_deadlock_and_not_a_hang() -> None:
    async def main() -> None:
        await Latest(0).newer(0)

    with pytest.raises(Deadlock):
        simulate(main)


def test_a_loop_that_spins_without_letting_time_pass_is_told() -> None:
    async def main() -> None:
        while True:  # noqa: ASYNC110 - the mistake that is to be found
            await asyncio.sleep(0)

    with pytest.raises(TooLong, match="at virtual second 0"):
        simulate(main)


def test_threads_are_refused() -> None:
    async def main() -> None:
        await asyncio.to_thread(print)

    with pytest.raises(NotImplementedError, match="no threads"):
        simulate(main)


def test_after_step_sees_every_turn_and_what_it_raises_ends_the_run() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        turns = itertools.count()

        def check() -> None:
            assert next(turns) < 5, "the sixth turn"

        loop.after_step = check
        try:
            for _ in range(100):
                await asyncio.sleep(1)
        finally:
            loop.after_step = None

    with pytest.raises(AssertionError, match="the sixth turn"):
        simulate(main)


def test_the_projects_own_tools_run_on_it() -> None:
    async def main() -> list[int]:
        latest = Latest(0)
        seen: list[int] = []
        tasks = Supervisor("test")

        async def writer() -> None:
            for number in range(1, 4):
                await asyncio.sleep(1)
                latest.set(number)
            await asyncio.Event().wait()

        async def reader() -> None:
            version = latest.version
            while True:
                seen.append(await latest.newer(version))
                version = latest.version

        tasks.loop("writer", writer())
        tasks.loop("reader", reader())
        await asyncio.sleep(10)
        await tasks.stop()
        return seen

    assert simulate(main) == [1, 2, 3]


async def with_a_race_on_a_shared_list() -> list[str]:
    """Two tasks of which each assumes that it goes first; FIFO for all would always let the first one win."""
    shared: list[str] = []

    async def claim(name: str) -> None:
        await asyncio.sleep(1)
        shared.append(name)

    claims: list[Coroutine[Any, Any, None]] = [claim("first"), claim("second")]
    await asyncio.gather(*claims)
    return shared


def test_tasks_due_at_the_same_instant_go_in_either_order() -> None:
    winners = {simulate(with_a_race_on_a_shared_list, seed)[0] for seed in range(20)}
    assert winners == {"first", "second"}
