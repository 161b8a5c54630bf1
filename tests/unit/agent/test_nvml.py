"""The way from the agent to NVIDIA's driver: the real nvidia-ml-py in its own process, over a library of our own below it."""

import asyncio
import contextlib
import os
import random
import select
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from llmgw.agent import asked, procfs
from llmgw.agent.cards import GPU_IS_LOST, OFF_THE_BUS, Card, Reading, links, verdict
from llmgw.agent.driver import NvmlDriver, library_present
from tests.fakes.nvml import A100, H100, RTX_4090, SWITCHES, V100, Machine, build, bus, uuid

pytestmark = pytest.mark.skipif(
    shutil.which("gcc") is None and not os.environ.get("LLMGW_NO_SKIP"),
    reason="gcc is not installed; apt-get install gcc",
)

MIB = 1024 * 1024


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(scope="session")
def old_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml-old"), old=True)


@pytest.fixture
def machine(tmp_path: Path, library: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return _machine(tmp_path, library, monkeypatch)


def _machine(directory: Path, library: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine(directory, library)
    for name, value in machine.environment.items():
        monkeypatch.setenv(name, value)
    return machine


class Quick(random.Random):
    """No chance, and so no wait longer than a backoff's half."""

    def random(self) -> float:
        return 0.0


def _driver(**changes: object) -> NvmlDriver:
    return NvmlDriver(Quick(), present=lambda: True, **changes)  # type: ignore[arg-type]


@pytest_asyncio.fixture
async def driver() -> AsyncIterator[NvmlDriver]:
    driver = _driver()
    yield driver
    await driver.close()


async def _cards(driver: NvmlDriver) -> tuple[Card, ...]:
    reading = await driver.read(urgent=True)
    assert reading.trouble == ""
    assert reading.cards is not None
    return reading.cards


def _pid(driver: NvmlDriver) -> int:
    assert driver._child is not None
    return driver._child.pid


async def test_a_machine_with_a_driver_and_no_card(machine: Machine, driver: NvmlDriver) -> None:
    assert await driver.read(urgent=True) == Reading(driver="570.86.15", cards=())


async def test_an_h100_with_an_engine_on_it(machine: Machine, driver: NvmlDriver) -> None:
    machine.add(H100, "process 4711 62000", "process 4712 -1")
    machine.change(0, "used 62010")
    (card,) = await _cards(driver)
    assert (card.uuid, card.name, card.bus) == (uuid(0), "NVIDIA H100 80GB HBM3", bus(0).lower())
    assert (card.memory, card.used) == (81559 * MIB, 62010 * MIB), "reserved memory is not in use"
    assert card.users == ((4711, 62000 * MIB), (4712, None))
    assert (card.ecc, card.remap_pending, card.remap_failed, card.recovery, card.partitioned) == (
        0,
        False,
        False,
        0,
        False,
    )
    assert card.errors == ()
    assert verdict(card) == ""


async def test_eight_cards_on_switches_are_linked_with_each_other(machine: Machine, driver: NvmlDriver) -> None:
    machine.add(H100, *(f"link {switch}" for switch in SWITCHES), "link down", count=8)
    cards = await _cards(driver)
    assert [card.uuid for card in cards] == [uuid(number) for number in range(8)]
    peers = links(cards)
    assert peers[uuid(3)] == tuple(uuid(number) for number in range(8) if number != 3)


async def test_cards_bridged_in_pairs_are_linked_with_their_peer_only(machine: Machine, driver: NvmlDriver) -> None:
    machine.add(A100, count=4)
    for one, other in ((0, 1), (1, 0), (2, 3), (3, 2)):
        machine.change(one, f"link {bus(other)}")
    assert links(await _cards(driver)) == {
        uuid(0): (uuid(1),),
        uuid(1): (uuid(0),),
        uuid(2): (uuid(3),),
        uuid(3): (uuid(2),),
    }


async def test_a_desktop_card_is_well_though_it_supports_little(machine: Machine, driver: NvmlDriver) -> None:
    machine.add(RTX_4090)
    (card,) = await _cards(driver)
    assert (card.ecc, card.recovery, card.fabric, card.peers, card.errors) == (None, None, None, (), ())
    assert (card.memory, verdict(card)) == (24564 * MIB, "")


async def test_an_older_driver_lacks_calls_and_its_cards_are_well(
    tmp_path: Path, old_library: Path, monkeypatch: pytest.MonkeyPatch, driver: NvmlDriver
) -> None:
    machine = _machine(tmp_path, old_library, monkeypatch)
    machine.add(V100, "process 4711 30000")
    (card,) = await _cards(driver)
    assert card.used == 274 * MIB, "what is reserved cannot be told from what is used"
    assert card.users == ((4711, 30000 * MIB),)
    assert verdict(card) == ""
    machine.change(0, "retired 1")
    (card,) = await _cards(driver)
    assert "waits to be remapped" in verdict(card)


async def test_an_integrated_part_has_the_machines_memory(machine: Machine, driver: NvmlDriver) -> None:
    machine.add("card\n uuid {uuid}\n name NVIDIA GB10\n bus {bus}")
    (card,) = await _cards(driver)
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert card.memory == pytest.approx(total, rel=0.02)
    assert card.used is not None
    assert 0 < card.used < card.memory
    assert verdict(card) == ""


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("ecc 2", "uncorrected memory errors since the driver was loaded: 2"),
        ("failure 1", "replace the card"),
        ("pending 1", "waits to be remapped"),
        ("recovery 1", "asks for a reset"),
        ("recovery 2", "reboot"),
        ("recovery 77", "recovery action 77"),
        ("mig 1", "nvidia-smi -mig 0"),
        ("fabric 2", "nvidia-fabricmanager"),
        ("error nvmlDeviceGetMemoryInfo_v2 999", "Unknown Error"),
        ("error nvmlDeviceGetTotalEccErrors 999", "nvmlDeviceGetTotalEccErrors: Unknown Error"),
        ("error nvmlDeviceGetName 16", "needs a reset"),
    ],
)
async def test_a_sick_card_says_why(machine: Machine, driver: NvmlDriver, line: str, says: str) -> None:
    machine.add(H100, count=2)
    machine.change(1, line)
    if line.startswith("error nvmlDeviceGetMemoryInfo"):
        machine.cards[1].append("error nvmlDeviceGetMemoryInfo 999")
        machine.say()
    well, sick = await _cards(driver)
    assert verdict(well) == ""
    assert says in verdict(sick)


async def test_a_lost_card_is_told_and_seen_again_after_it_returned(machine: Machine) -> None:
    driver = _driver(fresh_after=0.0)
    machine.add(H100, count=2)
    try:
        await _cards(driver)
        machine.change(1, "lost 1")
        _, lost = await _cards(driver)
        assert GPU_IS_LOST in {error.code for error in lost.errors}
        machine.change(1, "handle 15")  # after the driver is opened anew, not even its handle is given
        (only,) = await _cards(driver)
        assert only.uuid == uuid(0)
        machine.change(1, "handle 0")
        machine.change(1, "lost 0")
        assert [verdict(card) for card in await _cards(driver)] == ["", ""]
    finally:
        await driver.close()


async def test_a_lost_card_is_looked_for_again_only_after_a_while(machine: Machine, driver: NvmlDriver) -> None:
    machine.add(H100, count=2)
    await _cards(driver)
    machine.change(1, "lost 1")
    await _cards(driver)
    machine.change(1, "lost 0")
    assert [verdict(card) for card in await _cards(driver)] == ["", OFF_THE_BUS], (
        "the open driver does not see it return"
    )
    driver._fresh_after = 0.0
    assert [verdict(card) for card in await _cards(driver)] == ["", ""]


async def test_a_card_that_was_never_known_and_cannot_be_read_is_trouble(machine: Machine, driver: NvmlDriver) -> None:
    machine.add(H100, count=2)
    machine.change(0, "handle 15")
    reading = await driver.read(urgent=True)
    assert [card.uuid for card in reading.cards or ()] == [uuid(1)]
    assert reading.trouble == "1 card(s) cannot be read: nvmlDeviceGetHandleByIndex: GPU is lost"


async def test_errors_that_the_driver_reports_come_with_their_card(machine: Machine, driver: NvmlDriver) -> None:
    machine.add(H100, count=4)
    assert (await driver.read(urgent=True)).xids == ()
    machine.head += ["xid 3 79", "xid 1 13"]
    machine.say()
    assert (await driver.read(urgent=True)).xids == ((uuid(3), 79), (uuid(1), 13))
    assert (await driver.read(urgent=True)).xids == (), "each is told once"


async def test_events_that_cannot_be_heard_are_trouble_and_the_cards_are_well(
    machine: Machine, driver: NvmlDriver
) -> None:
    machine.add(H100)
    machine.head.append("error nvmlEventSetWait_v2 999")
    machine.say()
    reading = await driver.read(urgent=True)
    assert [verdict(card) for card in reading.cards or ()] == [""]
    assert reading.trouble == "errors of cards cannot be heard: nvmlEventSetWait_v2: Unknown Error"
    machine.head[-1] = "xid 0 48"
    machine.say()
    reading = await driver.read(urgent=True)
    assert (reading.trouble, reading.xids) == ("", ((uuid(0), 48),)), "they are heard again"


async def test_a_driver_that_cannot_be_opened_is_trouble_and_no_empty_machine(
    machine: Machine, driver: NvmlDriver
) -> None:
    machine.head.append("init 18")
    machine.say()
    reading = await driver.read(urgent=True)
    assert reading.cards is None
    assert "nvmlInitWithFlags: RM has detected an NVML/RM version mismatch" in reading.trouble


async def test_a_call_that_hangs_is_named_and_the_next_process_finds_the_cards_again(machine: Machine) -> None:
    driver = _driver()
    machine.add(H100)
    try:
        await _cards(driver)
        driver._limit = 1.0
        first = _pid(driver)
        machine.head.append("hang nvmlDeviceGetMemoryInfo_v2")
        machine.say()
        reading = await driver.read(urgent=True)
        assert reading == Reading(cards=None, trouble="the driver does not answer (nvmlDeviceGetMemoryInfo, 1 s)")
        assert procfs.stat_of(first) is None, "the process that hung was ended and collected"
        machine.head.pop()
        machine.say()
        assert (await driver.read(urgent=True)).cards is None, "the next process is started only after a while"
        assert driver._child is None
        driver._not_before, driver._limit = 0.0, 10.0
        (card,) = await _cards(driver)
        assert card.uuid == uuid(0)
        assert _pid(driver) != first
    finally:
        await driver.close()


async def test_a_process_that_ends_inside_the_driver_is_told(machine: Machine, driver: NvmlDriver) -> None:
    machine.add(H100)
    machine.head.append("die nvmlDeviceGetMigMode")
    machine.say()
    reading = await driver.read(urgent=True)
    assert reading == Reading(cards=None, trouble="the process that asks the driver ended (nvmlDeviceGetMigMode)")


class Undying(asked.Child):
    """A process that hangs in the kernel: no signal ends it."""

    started = 0
    freed = False

    def __init__(self, *arguments: object, **named: object) -> None:
        super().__init__(*arguments, **named)  # type: ignore[arg-type]
        Undying.started += 1

    async def gone(self, patience: float) -> bool:
        return await super().gone(patience) if Undying.freed else False


async def test_a_process_that_cannot_be_ended_is_never_joined_by_a_second(machine: Machine) -> None:
    Undying.started, Undying.freed = 0, False
    driver = _driver(limit=3.0, child=Undying)
    machine.add(H100)
    machine.head.append("hang nvmlDeviceGetCount_v2")
    machine.say()
    try:
        trouble = (await driver.read(urgent=True)).trouble
        assert "nvmlDeviceGetCount, 3 s" in trouble
        assert "hangs in the kernel and cannot be ended" in trouble
        for _ in range(5):
            driver._not_before = 0.0
            assert await driver.read(urgent=True) == Reading(cards=None, trouble=trouble)
        assert Undying.started == 1
        Undying.freed = True
        assert driver._stuck is not None
        assert await driver._stuck.gone(10.0)
        machine.head.pop()
        machine.say()
        driver._not_before = 0.0
        assert len(await _cards(driver)) == 1
        assert Undying.started == 2
    finally:
        Undying.freed = True
        await driver.close()


async def test_without_the_library_no_process_is_started(machine: Machine) -> None:
    driver = NvmlDriver(Quick(), present=lambda: False, program=("/nonexistent",))
    assert await driver.read(urgent=True) == Reading()
    assert not driver.there
    await driver.close()


def test_the_library_is_found_by_loading_it(machine: Machine) -> None:
    probe = "from llmgw.agent.driver import library_present; print(library_present())"
    for path, found in ((str(machine.library.parent), "True"), ("/nonexistent", str(library_present()))):
        environment = {**os.environ, "LD_LIBRARY_PATH": path}
        done = subprocess.run(
            [sys.executable, "-c", probe], env=environment, capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == found


def _program(machine: Machine) -> tuple[list[str], dict[str, str]]:
    return [sys.executable, "-m", "llmgw.agent.nvml"], {**os.environ, **machine.environment}


def test_it_ends_at_the_end_of_its_input_and_with_its_parent_even_where_it_hangs(machine: Machine) -> None:
    argv, environment = _program(machine)
    machine.head.append("hang nvmlDeviceGetCount_v2")
    machine.say()
    done = subprocess.run(argv, env=environment, input=b"", timeout=20, check=False)
    assert done.returncode == 0
    # a parent that starts it, has it hang, says its pid and is killed
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import subprocess, sys, time\n"
            f"child = subprocess.Popen({argv!r}, stdin=subprocess.PIPE)\n"
            'child.stdin.write(b\'{"id": 1, "fresh": false}\\n\'); child.stdin.flush()\n'
            "while 'nvidia-ml' not in open(f'/proc/{child.pid}/maps').read():\n"
            "    time.sleep(0.02)\n"
            "print(child.pid, flush=True); time.sleep(3600)",
        ],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    with contextlib.suppress(ProcessLookupError):
        pidfd = os.pidfd_open(pid)
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        outlived = not poll.poll(10_000)
        os.close(pidfd)
        assert not outlived


async def test_what_the_process_costs(machine: Machine, driver: NvmlDriver, capsys: pytest.CaptureFixture[str]) -> None:
    machine.add(H100, *(f"link {switch}" for switch in SWITCHES * 4), count=8)
    loop = asyncio.get_running_loop()
    begun = loop.time()
    await _cards(driver)
    start = loop.time() - begun
    pid = _pid(driver)

    def spent() -> float:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    before = spent()
    for _ in range(60):
        await _cards(driver)
    each = (spent() - before) / 60
    resident = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if "VmRSS" in line)
    kib = int(resident.split()[1])
    with capsys.disabled():
        print(
            f"\n[nvml] start {start * 1000:.0f} ms, {kib / 1024:.1f} MiB, {each / 5:.3%} of a core at one look in 5 s",
            end=" ",
        )
    assert kib < 3 * _bare_interpreter(), "it imports what it does not need"


def _bare_interpreter() -> int:
    """Return the KiB that an interpreter takes which has imported nothing."""
    probe = [sys.executable, "-c", "print(open('/proc/self/status').read())"]
    done = subprocess.run(probe, capture_output=True, text=True, check=True)
    return next(int(line.split()[1]) for line in done.stdout.splitlines() if "VmRSS" in line)
