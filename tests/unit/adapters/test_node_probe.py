"""The script that looks at a node, run here by the machine's own `sh`, and the reading of what it prints."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from llmgw.adapters.node_probe import read, script


def _run(home: Path, *, path: str = "/usr/bin:/bin") -> str:
    done = subprocess.run(
        ["sh", "-s"],
        input=script("~/.local/share/llmgw", "~/.config/systemd/user/llmgw-agent.service", "user"),
        env={"HOME": str(home), "PATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout


def test_it_tells_a_bare_home_and_changes_nothing(tmp_path: Path) -> None:
    found = read(_run(tmp_path), "user")
    assert (found.home, found.uid, found.current, found.whole, found.others) == (
        str(tmp_path),
        os.geteuid(),
        "",
        (),
        (),
    )
    assert found.free > 0
    assert found.unit_digest == ""
    assert list(tmp_path.iterdir()) == []


def test_it_tells_releases_that_are_whole_from_those_that_are_not(tmp_path: Path) -> None:
    prefix = tmp_path / ".local/share/llmgw"
    for name, python, mark in (("1-a", sys.executable, True), ("2-b", sys.executable, False), ("3-c", "/gone", True)):
        (prefix / "venvs" / name / "bin").mkdir(parents=True)
        # a link into an environment would be another one's Python, which does not find that one's packages
        (prefix / "venvs" / name / "bin/python").write_text(f'#!/bin/sh\nexec {python} "$@"\n')
        (prefix / "venvs" / name / "bin/python").chmod(0o755)
        if mark:
            (prefix / "venvs" / name / "whole").touch()
    (prefix / "current").symlink_to("venvs/1-a")
    (prefix / "applied").write_text("1-a 0123\n")
    unit = tmp_path / ".config/systemd/user/llmgw-agent.service"
    unit.parent.mkdir(parents=True)
    unit.write_text("x")
    found = read(_run(tmp_path), "user")
    assert (found.whole, found.others, found.current) == (("1-a",), ("2-b", "3-c"), "1-a")
    assert found.applied == "1-a 0123"
    assert found.unit_digest == "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"


def test_no_python_and_a_python_that_does_not_run_are_said(tmp_path: Path) -> None:
    broken = tmp_path / "bin"
    broken.mkdir()
    for name in ("python3", "python3.11", "python3.12", "python3.13"):
        (broken / name).write_text("#!/bin/sh\nexit 1\n")
        (broken / name).chmod(0o755)
    found = read(_run(tmp_path, path=f"{broken}:/usr/bin:/bin"), "user")
    assert found.python == ""
    assert found.python_trouble == f"{broken}/python3 does not run"


@pytest.mark.parametrize(
    ("states", "manager", "runs"),
    [
        ("state running\nuser-state running\nlingers yes", "user", True),
        ("state running\nuser-state ", "user", True),
        ("state running\nuser-state \nlingers yes", "user", False),
        ("state degraded", "system", True),
        ("state offline\nuser-state ", "user", False),
        ("state offline", "system", False),
    ],
)
def test_systemd_counts_where_it_runs_and_not_where_it_is_installed(states: str, manager: str, runs: bool) -> None:
    found = read(f"home /h\nuid 1\nfree 1\nsystemd 252\n{states}\n", manager)  # type: ignore[arg-type]
    assert (found.systemd == 252) is runs


def test_something_else_than_facts_is_no_answer() -> None:
    with pytest.raises(ValueError, match="no facts"):
        read("This account is currently not available.\n", "user")
