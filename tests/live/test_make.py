"""What make says before anything is installed: a Python that is too old, and the list of what can be made."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

OLD = """\
#!{python}
import sys
sys.version_info = (3, 9, 2, "final", 0)
exec(sys.argv[2])
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    if shutil.which("make") is None:
        if os.environ.get("LLMGW_NO_SKIP"):
            pytest.fail("make is not installed")
        pytest.skip("make is not installed; apt-get install make")
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def _make(checkout: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["make", *arguments], cwd=checkout, capture_output=True, text=True, check=False)


def test_a_python_that_is_too_old_is_named_with_what_to_do(checkout: Path) -> None:
    old = checkout / "python3.9"
    old.write_text(OLD.format(python=sys.executable))
    old.chmod(0o755)
    done = _make(checkout, "demo", f"PYTHON={old}")
    assert done.returncode != 0
    assert "llmgw needs Python 3.11, 3.12 or 3.13" in done.stderr
    assert "is 3.9" in done.stderr
    assert "make PYTHON=python3.12" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (checkout / ".venv").exists()


def test_make_alone_says_what_can_be_made(checkout: Path) -> None:
    done = _make(checkout)
    assert done.returncode == 0
    for target in ("demo", "test", "bench", "sim"):
        assert f"\n{target}" in f"\n{done.stdout}"
