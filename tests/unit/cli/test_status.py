"""The status that people see: pinned for five fleets, on one screen for each, and never at odds with its own tables.

`LLMGW_UPDATE=1` writes the screens anew.
"""

import os
from pathlib import Path
from typing import Any

import pytest

from llmgw.cli.outcomes import Failed
from llmgw.cli.overview import bar
from llmgw.cli.screen import frame, watch
from llmgw.cli.states import text
from llmgw.control.overview import KINDS, gpu_rows, overview
from tests.builders import node
from tests.unit.cli import fleets
from tests.unit.cli.fleets import FLEETS, cards, fleet, on_cards

SCREENS = Path(__file__).parent / "screens"
LINES, COLUMNS = 60, 140


@pytest.fixture(scope="module")
def shown() -> dict[str, dict[str, Any]]:
    return {name: make() for name, make in FLEETS.items()}


@pytest.mark.parametrize("name", FLEETS)
def test_the_status_of_a_fleet_reads_as_it_did(name: str, shown: dict[str, dict[str, Any]]) -> None:
    path = SCREENS / f"{name}.txt"
    now = text(shown[name]) + "\n"
    if os.environ.get("LLMGW_UPDATE") == "1":
        path.write_text(now)
    assert path.read_text() == now


@pytest.mark.parametrize("name", FLEETS)
def test_it_fits_one_screen(name: str, shown: dict[str, dict[str, Any]]) -> None:
    lines = text(shown[name]).splitlines()
    assert len(lines) <= LINES
    assert max(map(len, lines)) <= COLUMNS


@pytest.mark.parametrize("name", FLEETS)
def test_sums_and_tables_agree(name: str, shown: dict[str, dict[str, Any]]) -> None:
    status = shown[name]
    sums = status["overview"]
    assert sum(sums["nodes"].values()) == len(status["nodes"])
    assert sum(sums["models"].values()) == len(status["models"])
    assert sum(sums["replicas"].values()) == len(status["replicas"])
    assert sums["models"].get("ready", 0) == sum(one["ready"] >= one["wanted"] > 0 for one in status["models"])
    for one in sums["gpu_classes"]:
        assert sum(one[kind] for kind in KINDS) == one["total"]


def test_bars_and_the_table_of_cards_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(fleets, "shown", lambda desk, last, **_: seen.append((desk.snapshot(), last)))
    for make in FLEETS.values():
        make()
    for snapshot, last in seen:
        rows = gpu_rows(snapshot)
        for one in overview(snapshot, last)["gpu_classes"]:
            of_class = [row["state"] for row in rows if row["class"] == one["class"]]
            assert {kind: of_class.count(kind) for kind in KINDS} == {kind: one[kind] for kind in KINDS}


def test_what_nobody_knows_is_a_dash_and_null() -> None:
    desk = fleet({"a": cards("a", 4)}, node("a"), on_cards("m", 1, 2))
    last = desk.settle()
    holding = overview(desk.snapshot(), last)["holding_cards"]["replicas"]
    assert [(one["replica"], one["idle_for"]) for one in holding] == [("m-1-0", None)]
    line = next(line for line in text(fleets.shown(desk, last)).splitlines() if line.startswith("m-1-0"))
    assert line.split() == ["m-1-0", "a", "2", "-"]


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({"used": 4, "free": 4}, "#####....."),
        ({"free": 8}, ".........."),
        ({"used": 999, "unhealthy": 1}, "#########x"),
        ({"used": 1, "foreign": 1, "reserved": 1, "closed": 1, "unhealthy": 1, "free": 1000}, "#frcx....."),
    ],
)
def test_a_bar_is_as_wide_as_all_others_and_shows_even_one(counts: dict[str, int], expected: str) -> None:
    every = {kind: counts.get(kind, 0) for kind in KINDS}
    assert bar(every, sum(counts.values()), 10) == expected


def test_watching_ends_with_ctrl_c_and_shows_a_server_that_does_not_answer(capsys: pytest.CaptureFixture[str]) -> None:
    answers: list[Any] = ["one", Failed("no llmgw server answers"), "two", KeyboardInterrupt()]

    def said() -> str:
        answer = answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return str(answer)

    watch(said, 0.0)
    assert capsys.readouterr().out == "one\n! no llmgw server answers\ntwo\n"


def test_a_frame_is_cut_to_the_screen_and_leaves_nothing_of_the_one_before() -> None:
    assert frame("ab\ncd", 1, 5) == "\x1b[Ha\x1b[K\nc\x1b[K\x1b[J"
    assert frame("a\nb\nc", 20, 2) == "\x1b[Ha\x1b[K\n… 2 more lines\x1b[K\x1b[J"
