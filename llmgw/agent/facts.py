"""`NodeFacts`: what the node is besides its cards: size, kernel, engine programs, weights on its disk, foreign ports.

A report must never wait for a fact. Everything slow is looked up in the background, in a thread that may hang on a dead
network disk without holding up anything else, and `current` answers from what was found last. The thread is a daemon,
and there is one at most: neither the loop's end nor the next look waits for one that hangs.
"""

import asyncio
import logging
import os
import platform
import socket
import threading
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import psutil

from llmgw import __version__
from llmgw.agent import container_programs, procfs
from llmgw.agent.inventory import Inventory, weights_below
from llmgw.agent.shapes import Shapes
from llmgw.engines.shape import Shape
from llmgw.fleet.report import Adoptions, Containers, Facts, Program
from llmgw.runtime.latest import Latest

log = logging.getLogger(__name__)

T = TypeVar("T")

PORTS_EVERY = 5.0
"""Seconds between two looks at listening ports and free disk space."""

WEIGHTS_EVERY = 60.0
"""Seconds between two looks at the weights and the engine programs."""

CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class _Looked:
    """What the thread found."""

    foreign: frozenset[int] = frozenset()
    disk_free: int | None = None
    weights: Mapping[str, int] = field(default_factory=dict)
    shapes: Mapping[str, Shape] = field(default_factory=dict)


class NodeFacts:
    """The node's facts. Use from the event loop's thread; `run` it for what takes time."""

    def __init__(
        self,
        weights_dir: Path | None,
        state_dir: Path,
        own_ports: Callable[[], frozenset[int]],
        inventory: Inventory | None = None,
        scan: Callable[[Path], Mapping[str, int]] = weights_below,
        containers: Callable[[], Awaitable[tuple[Containers, ...]]] = container_programs.all_there,
    ) -> None:
        """`own_ports` says which ports the agent's engines have now; asked on the loop's thread."""
        self._weights_dir = weights_dir
        self._own_ports = own_ports
        self._scan = scan
        self._shapes = Shapes()
        self._ordered_dir: Path | None = None
        self._state_dir = state_dir
        self._inventory = inventory or Inventory()
        # the first report must not offer a stranger's port; this takes milliseconds
        self._looked = _Looked(foreign=frozenset(procfs.listening_ports()))
        self._programs: tuple[Program, ...] = ()
        self._ask_for_containers = containers
        self._containers: tuple[Containers, ...] | None = None
        self._memory = memory_limit(psutil.virtual_memory().total, _memberships(), CGROUP)
        self._kick = asyncio.Event()
        self.changes = Latest(0)
        """Counts the changes of programs, weights and ports; free disk space that moves is none."""

    def use_weights_dir(self, path: Path | None) -> None:
        """Look for weights where an order says they lie, instead of where the agent was told at its start."""
        if path != self._ordered_dir:
            self._ordered_dir = path
            self.wake()

    def wake(self) -> None:
        """Look at once: weights came or went."""
        self._kick.set()

    async def run(self) -> None:
        """Keep looking, until cancelled."""
        loop = asyncio.get_running_loop()
        weights_due = loop.time()
        while True:
            all_of_it = loop.time() >= weights_due or self._kick.is_set()
            self._kick.clear()
            try:
                await self._look(all_of_it=all_of_it)
            except OSError as error:  # nothing can be opened now: what was seen last is still the best there is
                log.warning("the node could not be looked at", extra={"error": error.strerror})
            if all_of_it:
                weights_due = loop.time() + WEIGHTS_EVERY
            try:
                async with asyncio.timeout(PORTS_EVERY):
                    await self._kick.wait()
            except TimeoutError:
                continue

    def current(
        self,
        *,
        complaint: str = "",
        driver: str = "",
        gpu_trouble: str = "",
        cgroups: str = "",
        adoptions: Adoptions | None = None,
    ) -> Facts:
        """Return the facts as they are known now."""
        place = self._place
        return Facts(
            hostname=socket.gethostname(),
            cpus=len(os.sched_getaffinity(0)),
            memory=self._memory,
            kernel=platform.release(),
            agent_version=__version__,
            agent_pid=os.getpid(),
            weights_dir=str(place) if place else None,
            foreign_ports=tuple(sorted(self._looked.foreign - self._own_ports())),
            complaint=complaint,
            driver=driver,
            gpu_trouble=gpu_trouble,
            disk_free=self._looked.disk_free,
            programs=self._programs,
            weights=self._looked.weights,
            shapes=self._looked.shapes,
            cgroups=cgroups,
            adoptions=adoptions or Adoptions(),
            containers=self._containers,
        )

    @property
    def _place(self) -> Path | None:
        return self._ordered_dir or self._weights_dir

    async def _look(self, *, all_of_it: bool) -> None:
        place, state_dir, known = self._place, self._state_dir, self._looked
        # an engine that ends while this looks must not be taken for a stranger on its port
        own = self._own_ports()

        def looked() -> _Looked:
            weights, shapes = known.weights, known.shapes
            if place is None:
                weights, shapes = {}, {}
            elif all_of_it:
                weights = self._scan(place)
                shapes = self._shapes.of(place, weights)
            return _Looked(
                foreign=frozenset(procfs.listening_ports()) - own,
                disk_free=_free(place) if place is not None and place.is_dir() else _free(state_dir),
                weights=weights,
                shapes=shapes,
            )

        before = (self._looked.foreign, self._looked.weights, self._programs, self._containers)
        self._looked = await aside(looked)
        if all_of_it:
            self._programs = await self._inventory.programs()
            self._containers = await self._ask_for_containers()
        if before != (self._looked.foreign, self._looked.weights, self._programs, self._containers):
            self.changes.set(self.changes.value + 1)


async def aside(work: Callable[[], T]) -> T:
    """Return what `work` returns, from a thread that nobody waits for when this is cancelled or the process ends."""
    loop = asyncio.get_running_loop()
    result: asyncio.Future[T] = loop.create_future()

    def settle(value: T | None, error: BaseException | None) -> None:
        if result.done():
            return
        if error is not None:
            result.set_exception(error)
        else:
            result.set_result(value)  # type: ignore[arg-type]

    def body() -> None:
        value, error = None, None
        try:
            value = work()
        except Exception as caught:  # noqa: BLE001 - handed on, whatever it is, to the one who waits
            error = caught
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, value, error)

    threading.Thread(target=body, name="facts", daemon=True).start()
    return await result


def memory_limit(total: int, memberships: str, root: Path) -> int:
    """Return the bytes of memory that engines on this node can have: the machine's, or less where the agent is confined.

    In a container, or below a slice with a limit, the kernel ends engines at that limit; what the machine has besides is
    not theirs. `memberships` is the text of /proc/self/cgroup. On v2 the agent's own group is left out: its engines have
    groups of their own beside it, so a limit on the agent alone is none of theirs. Except at the root, which a container
    sees as its own; and except on v1, where the engines' groups lie below the agent's.
    """
    groups: list[Path] = []
    for line in memberships.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            groups += [root / str(part).lstrip("/") for part in Path(path).parents] or [root]
        elif "memory" in controllers.split(","):
            groups += [root / "memory" / str(part).lstrip("/") for part in (Path(path), *Path(path).parents)]
    limits = [limit for group in groups if (limit := _limit_of(group)) is not None]
    return min([total, *limits])


def _limit_of(group: Path) -> int | None:
    for name in ("memory.max", "memory.limit_in_bytes"):
        try:
            text = (group / name).read_text().strip()
        except OSError:
            continue
        return int(text) if text.isdigit() else None
    return None


def _memberships() -> str:
    try:
        return Path("/proc/self/cgroup").read_text()
    except OSError:
        return ""


def _free(path: Path) -> int | None:
    try:
        space = os.statvfs(path)
    except OSError:
        return None
    return space.f_bavail * space.f_frsize
