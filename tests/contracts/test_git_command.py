"""What holds of every git command that is run: it ends in time, cleans up, prints so much at most, and knows no secrets."""

import time
from pathlib import Path

import pytest

from llmgw.adapters.git_command import GRACE, Git, GitFailed, git_environment


def _runs(directory: Path) -> str:
    return (directory / "pid").read_text().strip()


async def test_a_command_over_its_time_is_told_to_stop_so_that_it_cleans_up(tmp_path: Path) -> None:
    git = Git(tmp_path, git_environment())
    script = f"alias.slow=!trap 'echo cleaned > {tmp_path}/done; exit 1' TERM; sleep 60 & wait"
    with pytest.raises(GitFailed, match="did not end within"):
        await git.run("slow", limit=0.5, config=(script,))
    assert (tmp_path / "done").read_text() == "cleaned\n"


async def test_one_that_does_not_stop_is_killed_with_all_that_it_started(tmp_path: Path) -> None:
    git = Git(tmp_path, git_environment())
    script = f"alias.deaf=!trap '' TERM; sh -c 'echo $$ > {tmp_path}/pid; exec sleep 60' & wait"
    begun = time.perf_counter()
    with pytest.raises(GitFailed, match="did not end within"):
        await git.run("deaf", limit=0.5, config=(script,))
    assert GRACE <= time.perf_counter() - begun < 10.0
    assert not Path("/proc", _runs(tmp_path)).exists() or "Z" in Path("/proc", _runs(tmp_path), "stat").read_text()


async def test_what_prints_without_end_is_cut_off(tmp_path: Path) -> None:
    git = Git(tmp_path, git_environment())
    with pytest.raises(GitFailed, match="printed more than 1 MiB"):
        await git.run("flood", limit=20.0, config=("alias.flood=!yes",), most=1 << 20)


async def test_git_gets_no_secret_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLMGW_SECRET_DEPLOY", "hunter2")
    monkeypatch.setenv("LLMGW_KEPT", "kept")
    said = await Git(tmp_path, git_environment()).run("show-all", config=("alias.show-all=!env",))
    assert b"hunter2" not in said
    assert b"LLMGW_KEPT=kept" in said
