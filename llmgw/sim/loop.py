"""An asyncio event loop with virtual time and seeded chance: the whole control plane and its agents in one thread, replayable.

When nothing is ready, time jumps to the next timer; real time is never waited for, so an hour of a cluster's life takes as
long as its work does. When nothing is ready and no timer is set, a real loop would hang for ever: this one raises `Deadlock`.

Within one turn of the loop the ready callbacks are shuffled by the seed, but those of one owner (a task, or the object
whose method it is) stay in the order in which they were scheduled, and plain functions are one owner together. asyncio
promises FIFO for `call_soon`, and code may rely on it where it schedules several things itself. Which of two independent
tasks becomes ready first is another matter: with real sockets and timers it is chance, so code that relies on it is
wrong, and that is what the shuffle finds. Rejected: shuffling everything, which breaks promises that asyncio makes; and
FIFO for all, which tries one interleaving of very many. Tasks are put in the order of their creation before the shuffle:
asyncio and `Latest` wake what waits in the order of a set, which is another one in every process.

Not here, and refused: threads, sockets, subprocesses, signals. A simulation that needs one is not replayable.
"""

import asyncio
import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn, TypeVar
from weakref import WeakKeyDictionary

from llmgw.base.time import Instant

T = TypeVar("T")

EPOCH = 1_800_000_000.0
"""What `SimClock` shows at the start of every simulation."""


class Deadlock(Exception):
    """Nothing is ready and no timer is set, so nothing can ever happen again."""


class TooLong(Exception):
    """More steps were taken at one instant than any simulation needs: something spins without letting time pass."""


class SimLoop(asyncio.BaseEventLoop):
    """One simulation's loop. `after_step` is called after every turn, when all its callbacks have run."""

    MOST_STEPS_AT_ONCE = 20_000

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._now = 0.0
        self._rng = random.Random(seed)
        self._at_this_instant = 0
        self._born: WeakKeyDictionary[asyncio.Future[Any], int] = WeakKeyDictionary()
        self._births = itertools.count()
        self.steps = 0
        self.after_step: Callable[[], None] | None = None

    def create_task(self, *args: Any, **kwargs: Any) -> asyncio.Task[Any]:
        """Create a task and remember which one it is."""
        task = super().create_task(*args, **kwargs)
        self._born[task] = next(self._births)
        return task

    def time(self) -> float:
        """Return the virtual seconds since the start."""
        return self._now

    def _run_once(self) -> None:
        """Run one turn: what is ready now, or what the next timer makes ready."""
        while self._scheduled and self._scheduled[0]._cancelled:
            heapq.heappop(self._scheduled)._scheduled = False
        if not self._ready and not self._stopping:
            if not self._scheduled:
                raise Deadlock("nothing is ready and no timer is set")
            if self._scheduled[0]._when > self._now:
                self._now = self._scheduled[0]._when
                self._at_this_instant = 0
        while self._scheduled and self._scheduled[0]._when <= self._now:
            handle = heapq.heappop(self._scheduled)
            handle._scheduled = False
            self._ready.append(handle)
        turn, self._ready = self._shuffled(self._ready), deque()
        for handle in turn:
            if not handle._cancelled:
                handle._run()
        self.steps += 1
        self._at_this_instant += 1
        if self._at_this_instant > self.MOST_STEPS_AT_ONCE:
            raise TooLong(f"{self._at_this_instant} turns at virtual second {self._now:.3f}")
        if self.after_step is not None:
            self.after_step()

    def _shuffled(self, ready: deque[asyncio.Handle]) -> list[asyncio.Handle]:
        tasks: dict[int, deque[asyncio.Handle]] = {}
        others: dict[int, deque[asyncio.Handle]] = {}
        for handle in ready:
            owner = getattr(handle._callback, "__self__", None)
            if isinstance(owner, asyncio.Task) and owner in self._born:
                tasks.setdefault(self._born[owner], deque()).append(handle)
            else:
                others.setdefault(id(owner), deque()).append(handle)
        turn = []
        queues = [*(tasks[born] for born in sorted(tasks)), *others.values()]
        while queues:
            chosen = self._rng.randrange(len(queues))
            turn.append(queues[chosen].popleft())
            if not queues[chosen]:
                del queues[chosen]
        return turn

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Cancelled timers leave the heap when they reach its top."""

    def call_soon_threadsafe(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuse."""
        raise NotImplementedError("no threads in a simulation")

    def run_in_executor(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuse."""
        raise NotImplementedError("no threads in a simulation")

    def _process_events(self, event_list: object) -> None:
        """There are no sockets."""


class SimClock:
    """A `Clock` that shows a loop's virtual time."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def now(self) -> Instant:
        """Return the virtual time as seconds since the Unix epoch."""
        return Instant(EPOCH + self._loop.time())


class OwnClock:
    """A machine's clock, which is wrong by so many seconds and gains or loses so much of every second."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ahead: float, gain: float) -> None:
        self._loop = loop
        self._ahead = ahead
        self._gain = gain

    def now(self) -> Instant:
        """Return what the machine takes for the present."""
        return Instant(EPOCH + self._ahead + self._loop.time() * (1 + self._gain))


def simulate(main: Callable[[], Coroutine[Any, Any, T]], seed: int = 0) -> T:
    """Run a coroutine to its end in a simulation of its own."""
    with asyncio.Runner(loop_factory=lambda: SimLoop(seed)) as runner:
        return runner.run(main())
