"""`llmgw init`: what it writes is valid, is checked by the real pre-commit, and nothing that was there is touched."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pre_commit.clientlib import load_config
from ruamel.yaml import YAML

from llmgw.spec.schema import schema_files
from tests.live.conftest import program

FILES = {
    "cluster.yaml", "nodes/local.yaml", "models/smollm2.yaml", ".pre-commit-config.yaml", ".github/workflows/llmgw.yml",
    "README.md", *(f"schemas/{name}" for name in schema_files()),
}  # fmt: skip


def run(*command: str, at: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    program("git")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("GIT_", "LLMGW_", "PRE_COMMIT"))}
    identity = {f"GIT_{who}_{what}": "t@localhost" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    done = subprocess.run(
        command,
        cwd=at,
        env={**kept, **identity, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "Traceback" not in done.stderr
    return done


def llmgw(*arguments: str, at: Path) -> subprocess.CompletedProcess[str]:
    return run(sys.executable, "-m", "llmgw", *arguments, at=at)


def tree(directory: Path) -> set[str]:
    files = (path for path in directory.rglob("*") if not path.is_dir() or path.is_symlink())
    return {name for path in files if not (name := path.relative_to(directory).as_posix()).startswith(".git/")}


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    done = llmgw("init", "deep/cluster", at=tmp_path)
    assert done.returncode == 0, done
    return tmp_path / "deep/cluster"


def test_it_says_what_it_wrote_and_what_is_next(tmp_path: Path) -> None:
    done = llmgw("init", "my cluster", at=tmp_path)
    assert done.returncode == 0, done
    lines = done.stdout.splitlines()
    assert {line.removeprefix("wrote  my cluster/") for line in lines if line.startswith("wrote")} == FILES
    assert "made   my cluster a git repository" in lines
    first, second, third = (line.strip() for line in lines[-3:])
    assert first == "git -C 'my cluster' add -A && git -C 'my cluster' commit -m 'A first cluster'"
    assert second.startswith("llmgw agent --weights-dir ")
    assert third == "llmgw server 'my cluster'"
    assert run("sh", "-c", first, at=tmp_path).returncode == 0


def test_it_is_valid_without_a_warning(cluster: Path) -> None:
    assert tree(cluster) == FILES
    done = llmgw("validate", at=cluster)
    assert (done.returncode, done.stdout) == (0, "")
    done = llmgw("validate", "--format", "github", at=cluster)
    assert (done.returncode, done.stdout.strip()) == (0, "")
    assert llmgw("schema", "--check", "--dir", "schemas", at=cluster).returncode == 0


@pytest.mark.parametrize("path", ["cluster.yaml", "nodes/local.yaml", "models/smollm2.yaml"])
def test_editors_find_the_schemas(cluster: Path, path: str) -> None:
    match = re.match(r"# yaml-language-server: \$schema=(\S+)\n", (cluster / path).read_text())
    assert match
    assert (cluster / path).parent.joinpath(match[1]).resolve().is_relative_to(cluster / "schemas")
    assert (cluster / path).parent.joinpath(match[1]).is_file()


def test_pre_commit_checks_it(cluster: Path, tmp_path: Path) -> None:
    (hook,) = load_config(str(cluster / ".pre-commit-config.yaml"))["repos"][0]["hooks"]
    assert (hook["entry"], hook["pass_filenames"], hook["always_run"]) == ("llmgw validate", False, True)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/llmgw").write_text(f'#!/bin/sh\nexec {sys.executable} -m llmgw "$@"\n')
    (tmp_path / "bin/llmgw").chmod(0o755)
    places = {"PRE_COMMIT_HOME": str(tmp_path / "home"), "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    command = [sys.executable, "-m", "pre_commit", "run", "-a"]
    run("git", "add", "-A", at=cluster)
    done = run(*command, at=cluster, **places)
    assert (done.returncode, "Passed" in done.stdout) == (0, True), done
    (cluster / "cluster.yaml").unlink()
    done = run(*command, at=cluster, **places)
    assert (done.returncode, "no Cluster object" in done.stdout) == (1, True), done


def test_the_workflow_can_be_read(cluster: Path) -> None:
    workflow: dict[str, Any] = YAML(typ="safe", pure=True).load((cluster / ".github/workflows/llmgw.yml").read_text())
    steps = workflow["jobs"]["validate"]["steps"]
    assert steps[-1] == {"run": "llmgw validate --format github"}
    assert workflow["on"] == ["push", "pull_request"]
    assert workflow["permissions"] == {"contents": "read"}


def test_what_is_there_is_kept(tmp_path: Path) -> None:
    program("git")
    directory = tmp_path / "new"
    directory.mkdir()
    run("git", "init", "-q", at=directory)
    (directory / "README.md").write_text("mine\n")
    (directory / ".pre-commit-config.yaml").symlink_to("nowhere")
    (directory / "notes.txt").write_text("mine, too\n")
    done = llmgw("init", ".", at=directory)
    assert done.returncode == 0, done
    assert {line.split()[1] for line in done.stdout.splitlines() if line.startswith("kept")} == {
        "README.md",
        ".pre-commit-config.yaml",
    }
    assert tree(directory) == {*FILES, "notes.txt"}
    assert (directory / "README.md").read_text() == "mine\n"
    assert not (directory / "nowhere").exists()


def test_objects_are_in_the_way(cluster: Path) -> None:
    (cluster / "nodes/local.yaml").unlink()
    (cluster / "docker-compose.yml").write_text("services: {}\n")
    before = {path: (cluster / path).read_bytes() for path in tree(cluster)}
    done = llmgw("init", ".", at=cluster)
    assert done.returncode == 1
    assert done.stderr == (
        "llmgw: . is in use, in the way: cluster.yaml, docker-compose.yml, models/smollm2.yaml; nothing is written, "
        "choose an empty directory\n"
    )
    assert {path: (cluster / path).read_bytes() for path in tree(cluster)} == before


def test_a_file_is_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = llmgw("init", "file", at=tmp_path)
    assert (done.returncode, done.stderr) == (1, "llmgw: file is not a directory; choose another name\n")
    (tmp_path / "in").mkdir()
    (tmp_path / "in/nodes").write_text("")
    done = llmgw("init", "in", at=tmp_path)
    assert (done.returncode, "in the way: nodes;" in done.stderr) == (1, True)
    done = llmgw("init", "file/below", at=tmp_path)
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1), done


def test_inside_a_repository_no_other_one_is_made(tmp_path: Path) -> None:
    run("git", "init", "-q", at=tmp_path)
    done = llmgw("init", "deploy", at=tmp_path)
    assert done.returncode == 0
    assert not (tmp_path / "deploy/.git").exists()
    assert f"kept   the git repository {tmp_path}" in done.stdout
