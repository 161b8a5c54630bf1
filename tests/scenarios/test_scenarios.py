"""Scripts with their output, so that a change of behaviour is seen as a diff by whoever reviews it.

Each `*.txt` is a script, a line `---`, and what it shows. `LLMGW_UPDATE=1` writes what it shows now. While a script runs,
the world is watched as in the simulation: a scenario that shows something unsafe fails, whatever its file says.
"""

import logging
import os
from pathlib import Path

import pytest

from tests.scenarios.script import Script
from tests.sim.loop import simulate
from tests.sim.world import World

HERE = Path(__file__).parent
SCENARIOS = sorted(path.name for path in HERE.glob("*.txt"))
SEED = 1


@pytest.fixture(autouse=True)
def _quiet():
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def play(script: str) -> str:
    """Run a script and return what it shows."""

    async def main() -> str:
        world = World.begin(SEED, jitter=False)
        shown = await Script(world).run(script.splitlines())
        world.assert_safe()
        await world.end()
        return "\n".join(shown) + "\n"

    return simulate(main, SEED)


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_shows_what_it_showed_before(name: str) -> None:
    path = HERE / name
    script, _, expected = path.read_text().partition("---\n")
    shown = play(script)
    if os.environ.get("LLMGW_UPDATE") == "1":
        path.write_text(f"{script}---\n{shown}")
        return
    assert shown == expected


def test_there_are_scenarios() -> None:
    assert len(SCENARIOS) >= 6
