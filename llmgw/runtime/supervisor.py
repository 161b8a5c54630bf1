"""`Supervisor`: the owner of tasks. A task that ends, fails or is cancelled is an outcome that somebody handles.

Two kinds of task. A **loop** must not end: if it raises or returns, that is a bug, so it is logged with its traceback
and the supervisor fails, which ends the process; an outer service manager starts it afresh. A loop that ends silently
would be a zombie: a server that serves, looks healthy and decides nothing. A **job** may end; the caller says what is
done with its exception.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

log = logging.getLogger(__name__)


class LoopEnded(Exception):
    """A task that must not end did; the cause is chained."""


class Owned:
    """A task that a supervisor owns; whoever asked for it may end it early."""

    __slots__ = ("_task",)

    def __init__(self, task: asyncio.Task[None]) -> None:
        self._task = task

    @property
    def done(self) -> bool:
        """Whether it has ended."""
        return self._task.done()

    def cancel(self) -> None:
        """End it; the supervisor waits for it."""
        self._task.cancel()


class Supervisor:
    """Owns tasks. Use from the event loop's thread only; `stop` ends every task and waits for each."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._tasks: set[asyncio.Task[Any]] = set()
        self._failed: asyncio.Future[None] | None = None
        self._stopping = False

    def loop(self, name: str, coroutine: Coroutine[Any, Any, None]) -> Owned:
        """Run a task that must not end before `stop`, or before its own task is cancelled by its owner."""
        return self._start(name, coroutine, self._loop_ended)

    def job(
        self, name: str, coroutine: Coroutine[Any, Any, None], on_error: Callable[[BaseException], None] | None = None
    ) -> Owned:
        """Run a task that may end. Its exception goes to `on_error`; without that it fails the supervisor."""

        def ended(task: asyncio.Task[None]) -> None:
            if task.cancelled() or task.exception() is None:
                return
            error = task.exception()
            assert error is not None
            if on_error is not None:
                on_error(error)
            else:
                self._fail(name, error)

        return self._start(name, coroutine, ended)

    async def failure(self) -> None:
        """Wait until a task failed. Raises LoopEnded then; never returns otherwise."""
        if self._failed is None:
            self._failed = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._failed)

    async def stop(self) -> None:
        """Cancel every task and wait until each has ended."""
        self._stopping = True
        while self._tasks:
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            self._tasks.difference_update(tasks)

    def _start(
        self, name: str, coroutine: Coroutine[Any, Any, None], ended: Callable[[asyncio.Task[None]], None]
    ) -> Owned:
        loop = asyncio.get_running_loop()
        if self._failed is None:
            self._failed = loop.create_future()
        task = loop.create_task(coroutine, name=f"{self._name}.{name}")
        self._tasks.add(task)

        def done(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            ended(task)

        task.add_done_callback(done)
        return Owned(task)

    def _loop_ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or self._stopping:
            return
        self._fail(task.get_name(), task.exception())

    def _fail(self, name: str, error: BaseException | None) -> None:
        log.critical("task ended that must not", extra={"task": name}, exc_info=error)
        if self._failed is not None and not self._failed.done():
            failure = LoopEnded(f"{name} ended: {error!r}")
            failure.__cause__ = error
            self._failed.set_exception(failure)
            self._failed.exception()  # it is raised by failure(); nobody waiting yet is no reason for a warning


async def first_of(*waits: Coroutine[Any, Any, Any]) -> None:
    """Wait until one of them ends, end the others, and raise what it raised."""
    tasks = [asyncio.get_running_loop().create_task(wait) for wait in waits]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
