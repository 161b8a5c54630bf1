"""`Gpus`: the cards of this node, of all makers, as the agent's report has them. Reads and remembers; decides nothing.

Engines are given indices, not UUIDs: several crash on UUIDs. Indices change when a card falls off the bus, so identity
is the UUID everywhere else, and the index is looked up at the moment of a start. CUDA counts only the cards that are
there; with CUDA_DEVICE_ORDER=PCI_BUS_ID by their bus address, which is why that is always set along.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from typing import Protocol, assert_never

from llmgw.agent import container, procfs
from llmgw.agent.amd import AmdSmi
from llmgw.agent.cards import NO_INDEX, NOISE, Maker, Reading, condemning, differs, seen
from llmgw.agent.container import Devices
from llmgw.agent.driver import NvmlDriver
from llmgw.base.ids import ShardId
from llmgw.fleet.report import Gpu, Reason
from llmgw.runtime.latest import Latest

log = logging.getLogger(__name__)

INTERVAL = 5.0
"""Seconds between two looks."""

LOOK_AGAIN = 0.5
"""Seconds between two looks while somebody waits for a card to become free."""

UNEXPLAINED = 1024 * 1024 * 1024
"""Bytes that may be in use without a process that holds them, on a card that was never seen without an engine."""

NO_CARDS = {Maker.NVIDIA: {"CUDA_VISIBLE_DEVICES": ""}, Maker.AMD: {"HIP_VISIBLE_DEVICES": "-1"}}
"""What hides a maker's cards from an engine. HIP takes an empty list for none given; an index that is not there ends it."""


class CardSource(Protocol):
    """The cards of one maker. `read` is called by one task at a time and returns within some seconds, come what may."""

    @property
    def maker(self) -> Maker:
        """Whose cards these are."""
        ...

    @property
    def there(self) -> bool:
        """Whether such cards may be on this machine, without asking their driver."""
        ...

    async def read(self, *, urgent: bool) -> Reading:
        """Return the cards; `urgent` asks for what is true now, where an answer from before would do otherwise."""
        ...

    async def close(self) -> None:
        """Let go of the driver."""
        ...


def sources(rng: random.Random) -> tuple[CardSource, ...]:
    """Return the makers that are known."""
    return (NvmlDriver(rng), AmdSmi())


class Gpus:
    """The node's cards. One for the agent's life: `run` it, then `close` it. Use from the event loop's thread."""

    def __init__(
        self,
        makers: tuple[CardSource, ...],
        owner: Callable[[int], ShardId | None],
        *,
        command: Callable[[int], str] = procfs.command_of,
        interval: float = INTERVAL,
    ) -> None:
        """`owner` says which shard of this agent a process belongs to, None for a stranger's."""
        self._makers = makers
        self._owner = owner
        self._command = command
        self._interval = interval
        self._cards: dict[Maker, tuple[Gpu, ...]] = {source.maker: () for source in makers}
        self._drivers: dict[Maker, str] = {}
        self._troubles: dict[Maker, str] = {}
        self._unread: set[Maker] = set()
        self._condemned: dict[str, int] = {}
        self._unexplained: dict[str, int] = {}
        self._told: tuple[tuple[Gpu, ...], str, str] = ((), "", "")
        self._kick = asyncio.Event()
        self._looks = Latest(0)
        self._begun = 0
        self.changes = Latest(0)
        """Counts the changes that others should know of; used memory that moves a little is none."""

    @property
    def cards(self) -> tuple[Gpu, ...]:
        """Every card that is there or was there in the agent's life, NVIDIA's first, by bus address."""
        return tuple(gpu for source in self._makers for gpu in self._cards[source.maker])

    @property
    def driver(self) -> str:
        """The version of the driver, empty without one; of each, where there are two."""
        return ", ".join(self._drivers[source.maker] for source in self._makers if self._drivers.get(source.maker))

    @property
    def trouble(self) -> str:
        """Why the cards are not known, or not all of them; empty if they are.

        Before the first look they are not: a report that names none would otherwise say that all of them are gone.
        """
        if not self.known and any(source.there for source in self._makers):
            return "the cards have not been looked at yet"
        return "; ".join(self._troubles[source.maker] for source in self._makers if self._troubles.get(source.maker))

    @property
    def known(self) -> bool:
        """Whether there was a first look."""
        return self._looks.value > 0

    async def first_look(self) -> None:
        """Wait for the first look; it takes some seconds where a driver has to be opened, and is bounded. Needs `run`."""
        await self._looks.wait(lambda looked: looked > 0)

    def wake(self) -> None:
        """Look at once rather than within seconds."""
        self._kick.set()

    async def run(self) -> None:
        """Keep looking, until cancelled."""
        urgent = True
        while True:
            self._kick.clear()
            self._begun += 1
            await asyncio.gather(*(self._look(source, urgent=urgent) for source in self._makers))
            self._looks.set(self._begun)
            self._tell()
            try:
                async with asyncio.timeout(self._interval):
                    await self._kick.wait()
                urgent = True
            except TimeoutError:
                urgent = False

    async def close(self) -> None:
        """Let go of the drivers. After `run` was cancelled."""
        await asyncio.gather(*(source.close() for source in self._makers))

    def environment(self, uuids: tuple[str, ...]) -> Mapping[str, str] | Reason:
        """Return the variables that give an engine these cards, in this order, and no others; or why it cannot have them.

        Without cards they hide all of them, where this machine may have any: an engine that is meant for the CPU takes
        every card that it sees, and the memory of what serves there with it.
        """
        if not uuids:
            hidden: dict[str, str] = {}
            for source in self._makers:
                if source.there or self._cards[source.maker]:
                    hidden |= NO_CARDS[source.maker]
            return hidden
        found = self._wanted(uuids)
        if isinstance(found, Reason):
            return found
        maker, cards = found
        indices = ",".join(str(gpu.index) for gpu in cards)
        match maker:
            case Maker.NVIDIA:
                return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": indices}
            case Maker.AMD:
                return {"HIP_VISIBLE_DEVICES": indices}
            case _:
                assert_never(maker)

    def devices(self, uuids: tuple[str, ...], runtime: str) -> Devices | Reason:
        """Return what gives a container these cards and no others; or why it cannot have them."""
        if not uuids:
            return container.devices(runtime, None, ())
        found = self._wanted(uuids)
        return found if isinstance(found, Reason) else container.devices(runtime, *found)

    def _wanted(self, uuids: tuple[str, ...]) -> tuple[Maker, list[Gpu]] | Reason:
        """Return these cards, which are one maker's, in this order."""
        found: list[tuple[Maker, Gpu]] = []
        for uuid in uuids:
            one = next(((maker, gpu) for maker, gpus in self._cards.items() for gpu in gpus if gpu.uuid == uuid), None)
            if one is None:
                return Reason("gpu_missing", self._missing(uuid))
            if one[1].unhealthy:
                return Reason("gpu_unhealthy", f"{_named(one[1])}: {one[1].unhealthy}")
            found.append(one)
        makers = {maker for maker, _ in found}
        if len(makers) > 1:
            return Reason("gpu_unhealthy", "cards of two makers cannot serve one engine; give it cards of one")
        return makers.pop(), [gpu for _, gpu in found]

    async def released(self, uuids: tuple[str, ...], pids: frozenset[int], patience: float) -> str:
        """Wait until nothing of these processes is left on these cards; return what is left after `patience` seconds.

        Empty means free: none of the pids is there, and no more memory is in use than other processes account for. A
        card that fell off the bus counts as free of them: it is placed on no more. Needs `run` to be running.
        """
        if not uuids:
            return ""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + patience
        left = "the cards could not be read in time"
        try:
            async with asyncio.timeout_at(deadline):
                while True:
                    begun = self._begun  # the look that runs now may have begun before the end that is waited for
                    self.wake()
                    await self._looks.wait(lambda looked, begun=begun: looked > begun)  # type: ignore[misc]
                    left = self._left(uuids, pids)
                    if not left:
                        return ""
                    await asyncio.sleep(LOOK_AGAIN)
        except TimeoutError:
            return left

    async def _look(self, source: CardSource, *, urgent: bool) -> None:
        maker = source.maker
        reading = await source.read(urgent=urgent)
        for uuid, xid in reading.xids:
            self._heard(maker, uuid, xid, reading)
        before = self._cards[maker]
        self._cards[maker] = seen(before, reading, self._condemned, self._owner, self._command)
        if reading.cards is None:
            self._unread.add(maker)
        else:
            self._unread.discard(maker)
            self._drivers[maker] = reading.driver
        if reading.trouble != self._troubles.get(maker, ""):
            log.log(logging.ERROR if reading.trouble else logging.INFO, "gpus", extra={"trouble": reading.trouble})
        self._troubles[maker] = reading.trouble
        if reading.cards is not None:
            self._account(maker)
        self._log_health(before, self._cards[maker])

    def _heard(self, maker: Maker, uuid: str, xid: int, reading: Reading) -> None:
        log.warning("a card reported an error", extra={"gpu": uuid or "unknown", "xid": xid})
        if not condemning(xid):
            return
        whose = [uuid] if uuid else [gpu.uuid for gpu in self._cards[maker]] + [c.uuid for c in reading.cards or ()]
        for one in whose:
            self._condemned.setdefault(one, xid)

    def _account(self, maker: Maker) -> None:
        """Remember the least memory in use that no process accounts for: what a card without engines has."""
        for gpu in self._cards[maker]:
            unexplained = _unexplained(gpu, frozenset())
            if not gpu.unhealthy and unexplained is not None:
                self._unexplained[gpu.uuid] = min(unexplained, self._unexplained.get(gpu.uuid, UNEXPLAINED))

    def _left(self, uuids: tuple[str, ...], pids: frozenset[int]) -> str:
        for maker, gpu in ((maker, gpu) for maker, gpus in self._cards.items() for gpu in gpus):
            if gpu.uuid not in uuids or gpu.index == NO_INDEX:
                continue
            if maker in self._unread:
                return f"whether {_named(gpu)} is free is not known: {gpu.unhealthy}"
            for user in gpu.users:
                if user.pid in pids:
                    return f"pid {user.pid} ({user.command}) still holds {_size(user.memory)} of {_named(gpu)}"
            unexplained = _unexplained(gpu, pids)
            allowed = self._unexplained.get(gpu.uuid, UNEXPLAINED) + NOISE
            if unexplained is not None and unexplained > allowed:
                return f"{_size(unexplained)} of {_named(gpu)} are in use, and no process that is visible holds them"
        return ""

    def _tell(self) -> None:
        cards, driver, trouble = self._told
        now = (self.cards, self.driver, self.trouble)
        if (driver, trouble) != now[1:] or differs(cards, now[0]):
            self._told = now
            self.changes.set(self.changes.value + 1)

    def _missing(self, uuid: str) -> str:
        if not self.known:
            return f"the cards of this node are not known yet; {uuid} is looked for"
        if self.trouble:
            return f"card {uuid} is not known on this node: {self.trouble}"
        here = ", ".join(_named(gpu) for gpu in self.cards)
        return f"card {uuid} is not on this node, which has {here or 'none'}"

    @staticmethod
    def _log_health(before: tuple[Gpu, ...], now: tuple[Gpu, ...]) -> None:
        known = {gpu.uuid: gpu.unhealthy for gpu in before}
        for gpu in now:
            if gpu.unhealthy != known.get(gpu.uuid, ""):
                level = logging.ERROR if gpu.unhealthy else logging.INFO
                log.log(level, "a card's health changed", extra={"gpu": gpu.uuid, "unhealthy": gpu.unhealthy or "no"})


def _named(gpu: Gpu) -> str:
    return f"GPU {gpu.index} ({gpu.uuid})" if gpu.index != NO_INDEX else f"GPU {gpu.uuid}"


def _unexplained(gpu: Gpu, ended: frozenset[int]) -> int | None:
    """Return the bytes in use that no process accounts for; None if a living one does not say how much it has."""
    sizes = [user.memory for user in gpu.users if user.pid not in ended]
    if any(size is None for size in sizes):
        return None
    return max(0, gpu.memory_used - sum(size for size in sizes if size is not None))


def _size(memory: int | None) -> str:
    return "memory" if memory is None else f"{memory / 2**20:.0f} MiB"
