"""Scripts with their output, so that a change of behaviour is seen as a diff by whoever reviews it.

Each `*.txt` is a script, a line `---`, and what it shows. `LLMGW_UPDATE=1` writes what it shows now. While a script runs,
the world is watched as in the simulation: a scenario that shows something unsafe fails, whatever its file says.
"""

import logging
import os
from pathlib import Path

import pytest

from llmgw.cli.sim import TEXTS, play_script, script_of
from llmgw.sim.language import ScriptError
from llmgw.sim.script import play

HERE = Path(__file__).parent
SCENARIOS = sorted(path.name for path in HERE.glob("*.txt"))
SEED = 1


@pytest.fixture(autouse=True)
def _quiet():
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_shows_what_it_showed_before(name: str) -> None:
    path = HERE / name
    script, _, expected = path.read_text().partition("---\n")
    lines, unsafe = play(script_of(script), SEED, TEXTS)
    shown = "\n".join(lines) + "\n"
    assert unsafe == []
    if os.environ.get("LLMGW_UPDATE") == "1":
        path.write_text(f"{script}---\n{shown}")
        return
    assert shown == expected


def test_there_are_scenarios() -> None:
    assert len(SCENARIOS) >= 30


def test_the_command_plays_a_file_that_keeps_its_output(capsys: pytest.CaptureFixture[str]) -> None:
    path = HERE / "first_model.txt"
    play_script(path, SEED)
    assert capsys.readouterr().out == path.read_text().partition("---\n")[2]


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("node a\nnode b gpu 4", "line 2: a node has no 'gpu'; `llmgw sim --words` lists what it has"),
        ("step soon", "line 1: 'soon' is no duration; write 5s, 2m or 1h"),
        ("model m replicas", "line 1: 'replicas' has no value after it"),
        ("crash m-1-0", "line 1: there is no m-1-0 now"),
        ("show status", "line 1: there is nothing to show before `control start` and a valid commit"),
        ("dance", "line 1: 'dance' is not understood; `llmgw sim --words` lists the commands"),
    ],
)
def test_a_slip_in_a_script_is_told_with_its_line(script: str, said: str) -> None:
    with pytest.raises(ScriptError) as refused:
        play(script, SEED, TEXTS)
    assert str(refused.value) == said
