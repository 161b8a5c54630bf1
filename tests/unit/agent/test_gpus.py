"""The node's cards as the agent reports them: what is well, what is known, who uses it, what an engine is given."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from llmgw.agent.cards import (
    APPLICATION_XIDS,
    NO_INDEX,
    OFF_THE_BUS,
    CallError,
    Card,
    Fabric,
    Maker,
    Reading,
    condemning,
    differs,
    seen,
    verdict,
)
from llmgw.agent.gpus import Gpus
from llmgw.base.ids import ShardId
from llmgw.fleet.report import Gpu, Reason
from llmgw.runtime.supervisor import Supervisor
from llmgw.sim.loop import simulate

GIB = 1024**3
MIB = 1024**2

SHARDS = {101: ShardId("chat-a1b2c3.0")}
COMMANDS = {101: "VLLM::EngineCor", 900: "python3"}


def _card(number: int, **changes: Any) -> Card:
    card = Card(
        maker=Maker.NVIDIA,
        uuid=f"GPU-{number}",
        bus=f"00000000:{0x19 + number:02x}:00.0",
        name="NVIDIA H100 80GB HBM3",
        memory=80 * GIB,
        used=4 * MIB,
        ecc=0,
        recovery=0,
        fabric=Fabric(state=3, status=0, route_broken=False),
    )
    return replace(card, **changes)


def _seen(before: tuple[Gpu, ...], *cards: Card, condemned: dict[str, int] | None = None) -> tuple[Gpu, ...]:
    reading = Reading(driver="570", cards=cards)
    return seen(before, reading, condemned or {}, SHARDS.get, lambda pid: COMMANDS.get(pid, "?"))


@dataclass
class FakeCards:
    """A maker's driver with the answers that a test puts in."""

    maker: Maker = Maker.NVIDIA
    there: bool = True
    reading: Reading = field(default_factory=Reading)
    takes: float = 0.0
    looks: int = 0
    closed: bool = False

    async def read(self, *, urgent: bool) -> Reading:
        self.looks += 1
        answer = self.reading
        await asyncio.sleep(self.takes)
        if self.reading.xids:
            self.reading = replace(self.reading, xids=())
        return answer

    async def close(self) -> None:
        self.closed = True


def _with(source: FakeCards, body: Callable[[Gpus], Coroutine[Any, Any, None]], *more: FakeCards) -> None:
    """Run a test's body against the cards of a source, in virtual time, after the first look."""

    async def main() -> None:
        gpus = Gpus((source, *more), SHARDS.get, command=lambda pid: COMMANDS.get(pid, "?"))
        tasks = Supervisor("test")
        tasks.loop("gpus", gpus.run())
        await gpus.first_look()
        try:
            await body(gpus)
        finally:
            await tasks.stop()
            await gpus.close()
        assert source.closed

    simulate(main)


def test_before_the_first_look_the_cards_are_not_known_which_is_not_that_there_are_none() -> None:
    async def story() -> None:
        source = FakeCards(takes=3.0)
        gpus = Gpus((source,), SHARDS.get)
        tasks = Supervisor("test")
        tasks.loop("gpus", gpus.run())
        assert (gpus.cards, gpus.trouble) == ((), "the cards have not been looked at yet")
        await gpus.first_look()
        assert gpus.trouble == ""
        assert Gpus((FakeCards(there=False),), SHARDS.get).trouble == "", (
            "a machine without a driver has none to look at"
        )
        await tasks.stop()
        await gpus.close()

    simulate(story)


# --- verdicts


def test_a_well_card_is_well() -> None:
    assert verdict(_card(0)) == ""
    assert verdict(_card(0, ecc=None, recovery=None, fabric=None)) == ""
    assert verdict(_card(0, fabric=Fabric(state=0, status=0, route_broken=False))) == ""


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"errors": (CallError(15, "nvmlDeviceGetName: GPU is lost"),)}, OFF_THE_BUS),
        ({"errors": (CallError(16, "x"),), "ecc": 1}, "it needs a reset (nvidia-smi --gpu-reset)"),
        (
            {"errors": (CallError(999, "nvmlDeviceGetName: Unknown Error"),)},
            "it does not answer: nvmlDeviceGetName: Unknown Error",
        ),
        ({"recovery": 1, "ecc": 3}, "the driver asks for a reset of the card (nvidia-smi --gpu-reset)"),
        ({"recovery": 4}, "the driver asks to drain it and reset it (nvidia-smi --gpu-reset)"),
        (
            {"remap_failed": True, "remap_pending": True},
            "a failed memory row cannot be remapped any more; replace the card",
        ),
        ({"remap_pending": True}, "a failed memory row waits to be remapped; reset the card when nothing uses it"),
        ({"ecc": 3}, "uncorrected memory errors since the driver was loaded: 3"),
        ({"used": None}, "its memory cannot be read"),
        ({"partitioned": True}, "it is split, and only whole cards are placed; `nvidia-smi -mig 0` makes it whole"),
        ({"fabric": Fabric(1, 0, False)}, "it has not joined the NVLink fabric yet; is nvidia-fabricmanager running?"),
        (
            {"fabric": Fabric(3, 999, False)},
            "joining the NVLink fabric failed with status 999; see nvidia-fabricmanager's log",
        ),
        ({"fabric": Fabric(3, 0, True)}, "its routes in the NVLink fabric are broken"),
    ],
)
def test_each_finding_has_its_sentence_and_the_worst_is_told(changes: dict[str, Any], says: str) -> None:
    assert verdict(_card(0, **changes)) == says


@pytest.mark.parametrize("xid", sorted(APPLICATION_XIDS))
def test_errors_of_programs_do_not_condemn_a_card(xid: int) -> None:
    assert not condemning(xid)


@pytest.mark.parametrize("xid", [48, 63, 64, 74, 79, 92, 94, 95, 119, 120, 143, 154])
def test_every_other_error_condemns_it(xid: int) -> None:
    assert condemning(xid)
    assert verdict(_card(0), xid) != ""


# --- what is known


def test_cards_are_counted_by_bus_address_whatever_order_they_are_told_in() -> None:
    gpus = _seen((), _card(2), _card(0), _card(1))
    assert [(gpu.uuid, gpu.index) for gpu in gpus] == [("GPU-0", 0), ("GPU-1", 1), ("GPU-2", 2)]


def test_users_are_told_with_their_shard_or_as_strangers() -> None:
    (gpu,) = _seen((), _card(0, users=((900, None), (101, 60 * GIB))))
    assert [(user.pid, user.memory, user.command, user.shard) for user in gpu.users] == [
        (101, 60 * GIB, "VLLM::EngineCor", "chat-a1b2c3.0"),
        (900, None, "python3", None),
    ]


def test_a_card_that_is_gone_stays_known_and_the_others_are_counted_without_it() -> None:
    before = _seen((), _card(0), _card(1, users=((101, GIB),)), _card(2))
    after = _seen(before, _card(0), _card(2))
    assert [(gpu.uuid, gpu.index, gpu.unhealthy) for gpu in after] == [
        ("GPU-0", 0, ""),
        ("GPU-2", 1, ""),
        ("GPU-1", NO_INDEX, OFF_THE_BUS),
    ]
    assert after[2].users == ()
    assert after[2].memory == 80 * GIB


def test_a_card_that_only_answers_with_errors_is_counted_as_gone_and_keeps_its_name_and_size() -> None:
    before = _seen((), _card(0), _card(1))
    lost = _card(0, name="", memory=None, used=None, errors=(CallError(15, "x"),))
    after = _seen(before, lost, _card(1))
    assert [(gpu.uuid, gpu.index, gpu.memory, gpu.name) for gpu in after] == [
        ("GPU-0", NO_INDEX, 80 * GIB, "NVIDIA H100 80GB HBM3"),
        ("GPU-1", 0, 80 * GIB, "NVIDIA H100 80GB HBM3"),
    ]


def test_a_card_that_returns_is_well_again() -> None:
    before = _seen(_seen((), _card(0), _card(1)), _card(0))
    assert [gpu.unhealthy for gpu in _seen(before, _card(0), _card(1))] == ["", ""]


def test_cards_that_cannot_be_read_are_as_they_were_and_not_to_be_used() -> None:
    before = _seen(
        _seen((), _card(0), _card(1, users=((101, GIB),)), _card(2)), _card(0), _card(1, users=((101, GIB),))
    )
    after = seen(before, Reading(cards=None, trouble="the driver does not answer"), {}, SHARDS.get, str)
    assert [(gpu.uuid, gpu.unhealthy) for gpu in after] == [
        ("GPU-0", "the driver does not answer"),
        ("GPU-1", "the driver does not answer"),
        ("GPU-2", OFF_THE_BUS),
    ]
    assert after[1].users == before[1].users


@pytest.mark.parametrize(
    ("changes", "heard"),
    [
        ({"used": 100 * MIB}, False),
        ({"users": ((101, GIB),)}, True),
        ({"used": 4 * MIB + 257 * MIB}, True),
        ({"ecc": 1}, True),
        ({"numa": 1}, True),
    ],
)
def test_others_hear_of_changes_but_not_of_noise(changes: dict[str, Any], heard: bool) -> None:
    before = _seen((), _card(0))
    assert differs(before, _seen(before, _card(0, **changes))) is heard


# --- the cards over time


def test_used_memory_that_creeps_is_told_when_it_has_crept_far() -> None:
    source = FakeCards(reading=Reading("570", (_card(0),)))

    async def body(gpus: Gpus) -> None:
        told = gpus.changes.value
        for step in range(1, 4):
            source.reading = Reading("570", (_card(0, used=4 * MIB + step * 100 * MIB),))
            await asyncio.sleep(6)
            assert (gpus.changes.value > told) is (step == 3)

    _with(source, body)


def test_an_error_condemns_a_card_for_as_long_as_the_agent_lives() -> None:
    source = FakeCards(reading=Reading("570", (_card(0), _card(1)), xids=(("GPU-1", 79), ("GPU-0", 31))))

    async def body(gpus: Gpus) -> None:
        assert gpus.cards[0].unhealthy == ""
        assert gpus.cards[1].unhealthy.startswith("the driver reported Xid 79 (fell off the bus)")
        assert gpus.cards[1].index == 1, "it answers again, so CUDA counts it"
        source.reading = replace(source.reading, xids=(("GPU-0", 119),))
        await asyncio.sleep(11)
        assert "Xid 119 (its own processor (GSP) does not answer)" in gpus.cards[0].unhealthy
        assert "Xid 79" in gpus.cards[1].unhealthy

    _with(source, body)


def test_an_error_of_a_card_that_is_not_named_condemns_all() -> None:
    source = FakeCards(reading=Reading("570", (_card(0), _card(1)), xids=(("", 48),)))

    async def body(gpus: Gpus) -> None:
        assert all("Xid 48" in gpu.unhealthy for gpu in gpus.cards)

    _with(source, body)


def test_trouble_is_told_at_once_and_passes() -> None:
    source = FakeCards(reading=Reading("570", (_card(0),)))

    async def body(gpus: Gpus) -> None:
        told = gpus.changes.value
        source.reading = Reading(cards=None, trouble="the driver does not answer (nvmlDeviceGetCount, 10 s)")
        await asyncio.sleep(6)
        assert gpus.trouble == "the driver does not answer (nvmlDeviceGetCount, 10 s)"
        assert gpus.driver == "570", "what is known stays known"
        assert gpus.cards[0].unhealthy == gpus.trouble
        assert gpus.changes.value == told + 1
        source.reading = Reading("570", (_card(0),))
        await asyncio.sleep(6)
        assert (gpus.trouble, gpus.cards[0].unhealthy) == ("", "")

    _with(source, body)


# --- what an engine is given


def test_an_engine_is_given_indices_in_the_order_asked_for() -> None:
    source = FakeCards(reading=Reading("570", (_card(0), _card(1), _card(2))))

    async def body(gpus: Gpus) -> None:
        assert gpus.environment(("GPU-2", "GPU-0")) == {
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "CUDA_VISIBLE_DEVICES": "2,0",
        }
        source.reading = Reading("570", (_card(0), _card(2)))
        await asyncio.sleep(6)
        given = gpus.environment(("GPU-2",))
        assert given == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "1"}, "counted without the lost one"
        assert gpus.environment(("GPU-2", "GPU-1")) == Reason("gpu_unhealthy", f"GPU GPU-1: {OFF_THE_BUS}")
        assert gpus.environment(("GPU-7",)) == Reason(
            "gpu_missing", "card GPU-7 is not on this node, which has GPU 0 (GPU-0), GPU 1 (GPU-2), GPU GPU-1"
        )

    _with(source, body)


def test_an_engine_without_cards_sees_none_where_there_may_be_any() -> None:
    nvidia, amd = FakeCards(), FakeCards(maker=Maker.AMD, there=False)

    async def body(gpus: Gpus) -> None:
        assert gpus.environment(()) == {"CUDA_VISIBLE_DEVICES": ""}
        amd.there = True
        assert gpus.environment(()) == {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "-1"}
        nvidia.there = amd.there = False
        assert gpus.environment(()) == {}

    _with(nvidia, body, amd)


def test_amds_cards_are_named_to_hip_by_its_own_numbers() -> None:
    amd = FakeCards(maker=Maker.AMD, reading=Reading("6.10", (_card(5, maker=Maker.AMD, index=3),)))
    nvidia = FakeCards(reading=Reading("570", (_card(0),)))

    async def body(gpus: Gpus) -> None:
        assert gpus.environment(("GPU-5",)) == {"HIP_VISIBLE_DEVICES": "3"}
        assert gpus.driver == "570, 6.10"
        mixed = gpus.environment(("GPU-0", "GPU-5"))
        assert isinstance(mixed, Reason)
        assert mixed.code == "gpu_unhealthy"

    _with(nvidia, body, amd)


# --- waiting for cards to be free


def _using(*users: tuple[int, int | None], used: int) -> Reading:
    return Reading("570", (_card(0, used=used, users=users), _card(1)))


def test_a_card_is_free_when_the_process_and_its_memory_are_gone() -> None:
    source = FakeCards(reading=Reading("570", (_card(0), _card(1))))

    async def body(gpus: Gpus) -> None:
        source.reading = _using((101, 60 * GIB), used=60 * GIB)
        loop = asyncio.get_running_loop()
        begun = loop.time()
        left = await gpus.released(("GPU-0",), frozenset({101}), 3.0)
        assert left == "pid 101 (VLLM::EngineCor) still holds 61440 MiB of GPU 0 (GPU-0)"
        assert 3.0 <= loop.time() - begun < 3.5
        source.reading = _using(used=60 * GIB)
        assert await gpus.released(("GPU-0",), frozenset({101}), 3.0) == (
            "61440 MiB of GPU 0 (GPU-0) are in use, and no process that is visible holds them"
        )
        source.reading = _using(used=100 * MIB)
        begun = loop.time()
        assert await gpus.released(("GPU-0",), frozenset({101}), 3.0) == ""
        assert loop.time() - begun < 1.0, "it looks at once"

    _with(source, body)


def test_what_other_processes_hold_does_not_keep_a_card_from_being_free_of_these() -> None:
    source = FakeCards(reading=_using((900, 10 * GIB), (101, 20 * GIB), used=30 * GIB + 300 * MIB))

    async def body(gpus: Gpus) -> None:
        source.reading = _using((900, 10 * GIB), used=10 * GIB + 300 * MIB)
        assert await gpus.released(("GPU-0", "GPU-1"), frozenset({101}), 3.0) == ""
        source.reading = _using((900, None), used=30 * GIB)
        assert await gpus.released(("GPU-0",), frozenset({101}), 3.0) == "", "nobody can tell whose it is"

    _with(source, body)


def test_a_look_that_began_before_the_end_proves_nothing() -> None:
    source = FakeCards(reading=Reading("570", (_card(0), _card(1))))

    async def body(gpus: Gpus) -> None:
        source.takes = 2.0
        await asyncio.sleep(5.5)  # inside a look that saw the card empty
        source.reading = _using((101, 60 * GIB), used=60 * GIB)
        left = await gpus.released(("GPU-0",), frozenset({101}), 6.0)
        assert left.startswith("pid 101")

    _with(source, body)


def test_a_card_that_cannot_be_read_is_not_free_and_one_that_is_gone_is_not_waited_for() -> None:
    source = FakeCards(reading=Reading("570", (_card(0), _card(1))))

    async def body(gpus: Gpus) -> None:
        source.reading = Reading(cards=None, trouble="the driver does not answer")
        left = await gpus.released(("GPU-0",), frozenset({101}), 3.0)
        assert left == "whether GPU 0 (GPU-0) is free is not known: the driver does not answer"
        source.reading = Reading("570", (_card(0, ecc=1),), trouble="errors of cards cannot be heard")
        assert await gpus.released(("GPU-0",), frozenset({101}), 3.0) == "", "a sick card can be read and be free"
        source.reading = Reading("570", (_card(1),))
        assert await gpus.released(("GPU-0",), frozenset({101}), 3.0) == ""
        assert await gpus.released((), frozenset({101}), 3.0) == ""

    _with(source, body)


def test_a_driver_that_takes_long_makes_nobody_wait_longer_than_asked() -> None:
    source = FakeCards(reading=Reading("570", (_card(0),)))

    async def body(gpus: Gpus) -> None:
        source.takes = 100.0
        loop = asyncio.get_running_loop()
        begun = loop.time()
        assert await gpus.released(("GPU-0",), frozenset(), 4.0) == "the cards could not be read in time"
        assert loop.time() - begun == pytest.approx(4.0)

    _with(source, body)
