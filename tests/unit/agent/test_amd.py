"""AMD's cards by the JSON of amd-smi, as its versions print it; the program is a script that prints what a test put there."""

import json
from pathlib import Path
from typing import Any

import pytest

from llmgw.agent.amd import AmdSmi, cards_of
from llmgw.agent.cards import Maker, Reading, verdict

MIB = 1024 * 1024

LISTED = {
    "gpu": 0,
    "bdf": "0000:05:00.0",
    "uuid": "29ff74a1-0000-1000-80b1-f12045e0c7d4",
    "kfd_id": 25826,
    "node_id": 2,
    "partition_id": 0,
    "render": "renderD128",
    "card": "card0",
    "hsa_id": 2,
    "hip_id": 3,
    "hip_uuid": "GPU-b1f12045e0c7d4",
}
STATIC = {
    "gpu": 0,
    "asic": {"market_name": "AMD Instinct MI300X", "target_graphics_version": "gfx942"},
    "bus": {"bdf": "0000:05:00.0"},
    "driver": {"name": "amdgpu", "version": "6.10.5"},
    "partition": {"compute_partition": "SPX", "memory_partition": "NPS1", "partition_id": 0},
    "numa": {"node": 1, "affinity": 1},
    "vram": {"type": "HBM3", "size": {"value": 196592, "unit": "MB"}},
}
METRIC = {
    "gpu": 0,
    "ecc": {"total_correctable_count": 4, "total_uncorrectable_count": 0, "total_deferred_count": 0},
    "mem_usage": {"total_vram": {"value": 196592, "unit": "MB"}, "used_vram": {"value": 283, "unit": "MB"}},
}
IDLE = {"gpu": 0, "process_list": [{"process_info": "No running processes detected"}]}
BUSY = {
    "gpu": 0,
    "process_list": [
        {
            "process_info": {
                "name": "python3",
                "pid": 4711,
                "memory_usage": {
                    "gtt_mem": {"value": 2097152, "unit": "B"},
                    "cpu_mem": {"value": 0, "unit": "B"},
                    "vram_mem": {"value": 150 * 1024 * MIB, "unit": "B"},
                },
                "mem_usage": {"value": 150 * 1024 * MIB, "unit": "B"},
            }
        },
        {"process_info": {"name": "other", "pid": 4712, "mem_usage": {"value": 0, "unit": "B"}}},
        {"process_info": {"name": "third", "pid": 4713, "mem_usage": "N/A"}},
    ],
}


def _card(listed: Any = LISTED, static: Any = STATIC, metric: Any = METRIC, process: Any = IDLE) -> Any:
    (card,) = cards_of([listed], [static], [metric], [process]).cards or ()
    return card


def test_an_mi300x() -> None:
    card = _card(process=BUSY)
    assert (card.maker, card.uuid, card.bus) == (Maker.AMD, "29ff74a1-0000-1000-80b1-f12045e0c7d4", "0000:05:00.0")
    assert (card.name, card.index, card.numa) == ("AMD Instinct MI300X", 3, 1)
    assert (card.memory, card.used) == (196592 * MIB, 283 * MIB)
    assert card.users == ((4711, 150 * 1024 * MIB), (4713, None)), "one without memory of this card does not use it"
    assert verdict(card) == ""


def test_what_is_not_available_is_not_known() -> None:
    static = {"gpu": 0, "asic": {"market_name": "AMD Radeon RX 7900 XTX"}, "numa": {"node": "N/A"}, "partition": "N/A"}
    metric = {**METRIC, "ecc": {"total_uncorrectable_count": "N/A"}}
    listed = {"gpu": 0, "bdf": "0000:03:00.0", "uuid": "u"}
    card = _card(listed, static, metric)
    assert (card.index, card.numa, card.ecc, card.users) == (None, None, None, ())
    assert verdict(card) == ""


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"metric": {**METRIC, "ecc": {"total_uncorrectable_count": 2}}}, "uncorrected memory errors"),
        ({"static": {**STATIC, "partition": {"compute_partition": "CPX"}}}, "amd-smi set --compute-partition SPX"),
        ({"metric": {"gpu": 1}}, "amd-smi metric does not speak of it"),
    ],
)
def test_a_sick_card_says_why(changed: dict[str, Any], says: str) -> None:
    assert says in verdict(_card(**changed))


class Smi:
    """A program of amd-smi's name; each command prints the file of its name, and its calls are counted."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.path = directory / "amd-smi"
        self.path.write_text(
            f'#!/bin/sh\necho "$*" >> {directory}/calls\n[ -e {directory}/hang ] && exec sleep 3600\n'
            f'[ "$1 $2" = "list -e" ] && [ -e {directory}/old ] && exit 2\n'
            f"echo 'a warning' >&2\ncat {directory}/$1\n"
        )
        self.path.chmod(0o755)
        self.say("list", [LISTED])
        self.say("static", {"gpu_data": [STATIC]})
        self.say("metric", {"gpu_data": [METRIC]})
        self.say("process", [IDLE])

    def say(self, command: str, answer: Any) -> None:
        (self._directory / command).write_text(answer if isinstance(answer, str) else json.dumps(answer))

    def touch(self, name: str) -> None:
        (self._directory / name).touch()

    def calls(self) -> list[str]:
        path = self._directory / "calls"
        found = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return found


@pytest.fixture
def smi(tmp_path: Path) -> Smi:
    return Smi(tmp_path)


async def test_it_is_asked_seldom_and_at_once_when_somebody_waits(smi: Smi) -> None:
    amd = AmdSmi(lambda: str(smi.path))
    first = await amd.read(urgent=False)
    assert (first.driver, first.trouble) == ("6.10.5", "")
    assert smi.calls() == ["list -e --json", "static --json", "metric --json", "process --json"]
    assert await amd.read(urgent=False) is first
    assert smi.calls() == []
    smi.say("process", [BUSY])
    now = await amd.read(urgent=True)
    assert now.cards is not None
    assert len(now.cards[0].users) == 2
    assert smi.calls() == ["metric --json", "process --json"]


async def test_older_versions_print_plain_lists_and_cannot_enumerate(smi: Smi) -> None:
    smi.touch("old")
    smi.say("list", [{"gpu": 0, "bdf": "0000:05:00.0", "uuid": "u"}])
    smi.say("static", [STATIC])
    smi.say("metric", [METRIC])
    reading = await AmdSmi(lambda: str(smi.path)).read(urgent=True)
    assert reading.cards is not None
    assert [(card.uuid, card.index, card.memory) for card in reading.cards] == [("u", None, 196592 * MIB)]


async def test_what_is_no_json_is_trouble_and_no_empty_machine(smi: Smi) -> None:
    smi.say("metric", "ERROR: driver not initialized\nmore")
    reading = await AmdSmi(lambda: str(smi.path)).read(urgent=True)
    assert reading == Reading(cards=None, trouble="`amd-smi metric --json` gave no JSON: ERROR: driver not initialized")


async def test_a_program_that_hangs_is_ended_and_named(smi: Smi) -> None:
    amd = AmdSmi(lambda: str(smi.path), limit=0.5)
    smi.touch("hang")
    reading = await amd.read(urgent=True)
    assert reading.cards is None
    assert reading.trouble == "the driver does not answer (`amd-smi list -e`, 0.5 s)"
    assert len(smi.calls()) == 1, "it is not asked a second time"


async def test_without_the_program_there_are_no_cards() -> None:
    amd = AmdSmi(lambda: None)
    assert not amd.there
    assert await amd.read(urgent=True) == Reading()
