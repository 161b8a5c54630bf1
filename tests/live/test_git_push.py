"""`git push` as the whole deployment: a bare repository with the hook, real pushes, a real server that follows it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.live.lab import Lab, fake_yaml
from tests.live.test_hooks import BAD, CLUSTER, GOOD, Repository

WRONG = "models/m.yaml:6:11 unknown engine 'llamacp'"


@pytest.fixture
def developer(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "developer")


def _llmgw(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "llmgw", *arguments], capture_output=True, text=True, check=False)


@pytest.fixture
def bare(tmp_path: Path, developer: Repository) -> Path:
    place = tmp_path / "with space/cluster.git"
    done = _llmgw("init", "--bare", str(place))
    assert done.returncode == 0, done
    assert f"llmgw server --cluster '{place}'" in done.stdout
    assert f"@{os.uname().nodename}" in done.stdout
    developer.git("remote", "add", "llmgw", str(place))
    return place


def _push(developer: Repository, *arguments: str) -> tuple[int, str]:
    done = developer.run("git", "push", "llmgw", *arguments)
    return done.returncode, done.stderr


def test_a_good_push_lands_quietly_and_a_bad_one_is_refused_with_its_problems(
    developer: Repository, bare: Path
) -> None:
    code, said = _push(developer, "HEAD:main")
    assert (code, "remote:" in said) == (0, False)
    good = developer.git("rev-parse", "HEAD")
    developer.write("models/m.yaml", BAD)
    developer.git("commit", "-q", "-am", "bad")
    code, said = _push(developer, "HEAD:main")
    assert code == 1
    assert WRONG in said
    assert "the push is refused, nothing changed" in said
    assert developer.git(f"--git-dir={bare}", "rev-parse", "main") == good
    code, said = _push(developer, "HEAD:refs/heads/draft")
    assert code == 0, "other branches are nobody's business"
    developer.write("models/m.yaml", GOOD)
    developer.git("commit", "-q", "-am", "mended")
    assert _push(developer, "HEAD:main")[0] == 0, "only the tip counts"


def test_the_followed_branch_is_not_deleted(developer: Repository, bare: Path) -> None:
    _push(developer, "HEAD:main", "HEAD:other")
    developer.git(f"--git-dir={bare}", "config", "receive.denyDeleteCurrent", "false")
    code, said = _push(developer, ":main")
    assert code == 1
    assert "may not be deleted" in said
    assert _push(developer, ":other")[0] == 0


def test_an_empty_tree_and_a_missing_directory_are_refused(developer: Repository, bare: Path, tmp_path: Path) -> None:
    developer.git("rm", "-rq", ".")
    developer.git("commit", "-q", "-m", "nothing")
    code, said = _push(developer, "HEAD:main")
    assert code == 1
    assert "no YAML file" in said
    other = tmp_path / "other.git"
    assert _llmgw("init", "--bare", str(other), "--path", "deploy/cluster", "--branch", "live").returncode == 0
    developer.git("remote", "set-url", "llmgw", str(other))
    code, said = _push(developer, "HEAD:live")
    assert code == 1
    assert "no directory deploy/cluster" in said
    developer.write("deploy/cluster/cluster.yaml", CLUSTER)
    developer.git("add", "-A")
    developer.git("commit", "-q", "-m", "there")
    assert _push(developer, "HEAD:live")[0] == 0


def test_a_hook_that_cannot_run_refuses(developer: Repository, bare: Path) -> None:
    hook = bare / "hooks/pre-receive"
    hook.write_text(hook.read_text().replace(sys.executable, "/nowhere/python"))
    assert _push(developer, "HEAD:main")[0] == 1


def test_what_is_there_is_not_taken_away(tmp_path: Path, bare: Path) -> None:
    assert _llmgw("init", "--bare", str(bare)).returncode == 0, "again"
    (bare / "hooks/pre-receive").write_text("#!/bin/sh\nmine\n")
    done = _llmgw("init", "--bare", str(bare))
    assert done.returncode == 1
    assert "is not ours" in done.stderr
    assert (bare / "hooks/pre-receive").read_text() == "#!/bin/sh\nmine\n"
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").touch()
    assert _llmgw("init", "--bare", str(tmp_path / "full")).returncode == 1


def test_a_push_is_served_and_a_refused_one_changes_nothing(lab: Lab) -> None:
    bare = lab.root / "cluster.git"
    assert lab.llmgw("init", "--bare", str(bare)).returncode == 0
    lab.write("models/m.yaml", fake_yaml("m"))
    lab.commit()
    lab.git("push", "-q", str(bare), "HEAD:main")
    lab.start_agent()
    source, lab.cluster = lab.cluster, bare
    lab.start_server()
    lab.until(lambda: lab.ready("m"), "the pushed model")
    lab.cluster = source
    lab.write("models/n.yaml", fake_yaml("n"))
    head = lab.commit()
    lab.git("push", "-q", str(bare), "HEAD:main")
    lab.until(lambda: lab.ready("n"), "the second push")
    lab.write("models/n.yaml", "nonsense")
    lab.commit()
    with pytest.raises(subprocess.CalledProcessError):
        lab.git("push", "-q", str(bare), "HEAD:main")
    shown = lab.status()["source"]
    assert (shown["in_force"], shown["state"]) == (head, "valid")
