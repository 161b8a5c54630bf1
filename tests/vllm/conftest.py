"""Real vLLM on a CPU. `make test-vllm` says in LLMGW_VLLM where it is; without, nothing is collected, which pytest fails."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.vllm.rig import VLLM, Rig

collect_ignore_glob = [] if VLLM else ["test_*.py"]


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with a model of random weights (`m`) and an adapter of it (`lora`)."""
    place = tmp_path_factory.mktemp("made")
    python = Path(VLLM).with_name("python")
    subprocess.run([python, Path(__file__).with_name("make_model.py"), place], check=True, capture_output=True)
    return place


@pytest.fixture(scope="module")
def rig(made: Path) -> Iterator[Rig]:
    """Give a lab whose engines are real, for all tests of a module: a start takes half a minute."""
    rig = Rig()
    try:
        for path in made.iterdir():
            shutil.copytree(path, rig.lab.weights / path.name)
        yield rig
    finally:
        rig.close()
    assert not rig.shared_memory(), "memory of this machine that an engine shared and did not free"
