"""What is read of a card, and what that means: is it well, is it there. Pure functions of values, no driver in sight.

The policy on health follows what NVIDIA's own device plugin and gpustack do, and errs to the safe side: a card that
answers a question with an error, rather than with "not supported", is not well.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from llmgw.base.ids import ShardId
from llmgw.fleet.report import Gpu, GpuUser

APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 109})
"""Errors that a program brings upon itself (k8s-device-plugin, internal/rm/health.go); every other condemns the card."""

XID_TEXTS = {
    48: "double-bit memory error",
    63: "memory row marked for remapping",
    64: "memory row could not be remapped",
    74: "NVLink error",
    79: "fell off the bus",
    94: "contained memory error",
    95: "uncontained memory error",
    119: "its own processor (GSP) does not answer",
    120: "its own processor (GSP) failed",
    154: "the driver asks for a recovery",
}

RECOVERIES = {
    1: "the driver asks for a reset of the card (nvidia-smi --gpu-reset)",
    2: "the driver asks for a reboot of the node",
    3: "the driver asks to drain its NVLink peers",
    4: "the driver asks to drain it and reset it (nvidia-smi --gpu-reset)",
    5: "the driver asks to recover its IMEX domain",
    6: "the driver asks for a reset of its bus",
    7: "the driver asks for a reboot of the node",
}
"""Field NVML_FI_DEV_GET_GPU_RECOVERY_ACTION; 0 means none."""

GPU_IS_LOST = 15
RESET_REQUIRED = 16
OFF_THE_BUS = "it fell off the bus; reset or reboot the node"

NO_INDEX = -1
"""Index of a card that is not there: CUDA does not count it."""

NOISE = 256 * 1024 * 1024
"""Bytes by which used memory may change unsaid."""


class Maker(StrEnum):
    """Whose card it is, and so which variable makes it visible to an engine."""

    NVIDIA = "nvidia"
    AMD = "amd"


@dataclass(frozen=True, slots=True)
class CallError:
    """A question that a card answered with an error."""

    code: int
    text: str


@dataclass(frozen=True, slots=True)
class Fabric:
    """Where a card of an NVSwitch system is in joining its fabric."""

    state: int
    """0 not supported, 1 not started, 2 in progress, 3 completed; CUDA fails before 3."""
    status: int
    """How joining ended: 0 is success."""
    route_broken: bool


@dataclass(frozen=True, slots=True)
class Card:
    """One card as its driver tells of it. None, and False, where it does not say."""

    maker: Maker
    uuid: str
    bus: str
    name: str
    memory: int | None
    """Bytes in all."""
    used: int | None
    """Bytes in use."""
    users: tuple[tuple[int, int | None], ...] = ()
    """(pid, bytes)."""
    index: int | None = None
    """What its runtime calls it, if the driver says; else its place in the order of bus addresses counts."""
    numa: int | None = None
    peers: tuple[str, ...] = ()
    """Bus addresses at the far ends of its links: cards, or switches that others hang on as well."""
    errors: tuple[CallError, ...] = ()
    ecc: int | None = None
    """Uncorrected memory errors since the driver was loaded."""
    remap_pending: bool = False
    remap_failed: bool = False
    recovery: int | None = None
    partitioned: bool = False
    """It is split: MIG, or AMD's compute partitions. An instance serves one process, and engines that take several
    cards cannot use it; so a split card is not placeable, rather than its instances being cards."""
    fabric: Fabric | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """One look at all cards of a maker."""

    driver: str = ""
    cards: tuple[Card, ...] | None = ()
    """None if they could not be read, which is not the same as none."""
    trouble: str = ""
    """Why the cards are not known, or not all."""
    xids: tuple[tuple[str, int], ...] = ()
    """(UUID, error) since the last look; the UUID may be empty where the driver does not say which card."""


def verdict(card: Card, xid: int | None = None) -> str:
    """Return why nothing may be placed on a card; empty if it is well. `xid` is an error that condemns it."""
    codes = {error.code for error in card.errors}
    # the first that holds is told: what is worst, or what names the remedy
    findings = (
        (GPU_IS_LOST in codes, OFF_THE_BUS),
        (RESET_REQUIRED in codes, "it needs a reset (nvidia-smi --gpu-reset)"),
        (card.recovery, RECOVERIES.get(card.recovery or 0, f"the driver asks for recovery action {card.recovery}")),
        (card.remap_failed, "a failed memory row cannot be remapped any more; replace the card"),
        (card.remap_pending, "a failed memory row waits to be remapped; reset the card when nothing uses it"),
        (card.ecc, f"uncorrected memory errors since the driver was loaded: {card.ecc}"),
        (xid is not None, _xid_verdict(xid or 0)),
        (card.errors, f"it does not answer: {card.errors[0].text if card.errors else ''}"),
        (card.memory is None or card.used is None, "its memory cannot be read"),
        (card.partitioned, f"it is split, and only whole cards are placed; `{_WHOLE[card.maker]}` makes it whole"),
    )
    return next((text for holds, text in findings if holds), "") or _fabric_verdict(card.fabric)


def _xid_verdict(xid: int) -> str:
    what = f" ({XID_TEXTS[xid]})" if xid in XID_TEXTS else ""
    return f"the driver reported Xid {xid}{what}; reset the card or reboot, then restart the agent"


def _fabric_verdict(fabric: Fabric | None) -> str:
    if fabric is None or fabric.state == 0:
        return ""
    if fabric.state != 3:
        return "it has not joined the NVLink fabric yet; is nvidia-fabricmanager running?"
    if fabric.status != 0:
        return f"joining the NVLink fabric failed with status {fabric.status}; see nvidia-fabricmanager's log"
    return "its routes in the NVLink fabric are broken" if fabric.route_broken else ""


_WHOLE = {Maker.NVIDIA: "nvidia-smi -mig 0", Maker.AMD: "amd-smi set --compute-partition SPX"}


def condemning(xid: int) -> bool:
    """Whether an Xid says that the card, rather than a program on it, is at fault."""
    return xid not in APPLICATION_XIDS


def links(cards: tuple[Card, ...]) -> dict[str, tuple[str, ...]]:
    """Return for each UUID the UUIDs that it has an NVLink (or xGMI) to, directly or over one switch."""
    found = {}
    by_bus = {card.bus: card for card in cards}
    for card in cards:
        direct = {by_bus[bus].uuid for bus in card.peers if bus in by_bus}
        switches = set(card.peers) - set(by_bus)
        shared = {other.uuid for other in cards if switches & set(other.peers)}
        found[card.uuid] = tuple(sorted((direct | shared) - {card.uuid}))
    return found


def seen(
    before: tuple[Gpu, ...],
    reading: Reading,
    condemned: Mapping[str, int],
    owner: Callable[[int], ShardId | None],
    command: Callable[[int], str],
) -> tuple[Gpu, ...]:
    """Return the cards after a reading: those there by bus address, then those known before and gone.

    A card stays known: one that is missing is neither used nor free, and cards that could not be read are as they were,
    with the reason, for unknown is not empty.
    """
    if reading.cards is None:
        return tuple(replace(gpu, unhealthy=_still(gpu, reading.trouble)) for gpu in before)
    there = sorted(reading.cards, key=lambda card: card.bus)
    peers = links(reading.cards)
    found = []
    place = 0
    for card in there:
        why = verdict(card, condemned.get(card.uuid))
        # what counts is whether CUDA sees it: one that returned after a reset is counted, though it may stay condemned
        lost = why == OFF_THE_BUS
        index = NO_INDEX if lost else card.index if card.index is not None else place
        place += 0 if lost else 1
        users = tuple(
            GpuUser(pid=pid, memory=memory, command=command(pid), shard=owner(pid))
            for pid, memory in sorted(card.users)
        )
        found.append(
            Gpu(
                uuid=card.uuid,
                index=index,
                name=card.name,
                memory=card.memory or 0,
                memory_used=card.used or 0,
                users=users,
                unhealthy=why,
                numa=card.numa,
                links=peers[card.uuid],
                bus=card.bus,
            )
        )
    known = {gpu.uuid: gpu for gpu in before}
    found = [_as_known(gpu, known.get(gpu.uuid)) for gpu in found]
    present = {gpu.uuid for gpu in found}
    gone = [
        replace(gpu, unhealthy=OFF_THE_BUS, index=NO_INDEX, users=(), links=())
        for gpu in before
        if gpu.uuid not in present
    ]
    return (*found, *gone)


def _as_known(gpu: Gpu, known: Gpu | None) -> Gpu:
    """Fill in what a failing card does not say any more."""
    if known is None or not gpu.unhealthy:
        return gpu
    return replace(
        gpu,
        name=gpu.name or known.name,
        memory=gpu.memory or known.memory,
        memory_used=gpu.memory_used or known.memory_used,
        numa=gpu.numa if gpu.numa is not None else known.numa,
        bus=gpu.bus or known.bus,
    )


def _still(gpu: Gpu, trouble: str) -> str:
    return OFF_THE_BUS if gpu.index == NO_INDEX else trouble


def differs(told: tuple[Gpu, ...], now: tuple[Gpu, ...]) -> bool:
    """Whether others should hear of a change: anything but used memory that moved a little."""
    if [_without_memory(gpu) for gpu in told] != [_without_memory(gpu) for gpu in now]:
        return True
    pairs = zip(told, now, strict=True)
    return any(abs(old.memory_used - new.memory_used) > NOISE for old, new in pairs)


def _without_memory(gpu: Gpu) -> Gpu:
    return replace(gpu, memory_used=0, users=tuple(replace(user, memory=None) for user in gpu.users))
