"""`llmgw validate` in real git hooks, plain ones and those of the real pre-commit: what the commit would hold counts."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pre_commit.clientlib import load_manifest

from tests.live.conftest import program

ROOT = Path(__file__).parents[2]
CLUSTER = "apiVersion: llmgw/v1\nkind: Cluster\nname: c\n"
MODEL = "apiVersion: llmgw/v1\nkind: Model\nname: {name}\nweights: {{path: /m.gguf}}\nprofiles:\n- engine: {engine}\n"
GOOD, BAD = MODEL.format(name="m", engine="llamacpp"), MODEL.format(name="m", engine="llamacp")
COMMAND = f"{sys.executable} -m llmgw validate"
WRONG = "models/m.yaml:6:11 unknown engine 'llamacp'"


class Repository:
    """A valid cluster directory in a repository, and what a person does there."""

    def __init__(self, top: Path) -> None:
        program("git")
        self.top = top
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("GIT_", "PRE_COMMIT"))},
            **{f"GIT_{who}_{what}": "t@localhost" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "PRE_COMMIT_HOME": str(top.parent / "pre-commit"),
        }
        top.mkdir(parents=True)
        self.git("init", "-q", "-b", "main")
        self.write("cluster.yaml", CLUSTER)
        self.write("models/m.yaml", GOOD)
        self.git("add", "-A")
        self.git("commit", "-q", "-m", "first")

    def write(self, path: str, text: str) -> None:
        (self.top / path).parent.mkdir(parents=True, exist_ok=True)
        (self.top / path).write_text(text)

    def run(self, *command: str, at: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=at or self.top, env={**self.environment, **environment},
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip

    def git(self, *arguments: str, at: Path | None = None) -> str:
        done = self.run("git", *arguments, at=at)
        assert done.returncode == 0, done
        return done.stdout.strip()

    def commit(self, *arguments: str, at: Path | None = None) -> str:
        """Commit; return what was complained of, empty if the commit was made."""
        before = self.git("rev-parse", "HEAD", at=at)
        done = self.run("git", "commit", "-q", "-m", "change", *arguments, at=at)
        assert (done.returncode == 0) is (self.git("rev-parse", "HEAD", at=at) != before), done
        assert "Traceback" not in done.stderr
        return "" if done.returncode == 0 else done.stdout + done.stderr

    def hook(self, command: str = COMMAND) -> None:
        hook = self.top / ".git/hooks/pre-commit"
        hook.write_text(f"#!/bin/sh\nexec {command}\n")
        hook.chmod(0o755)

    def validate(self, *arguments: str, at: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
        return self.run(sys.executable, "-m", "llmgw", "validate", *arguments, at=at, **environment)


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "repository")


# plain hooks


def test_a_partly_staged_file_is_taken_as_it_is_staged(repository: Repository) -> None:
    repository.hook()
    repository.write("models/m.yaml", BAD)
    repository.git("add", "-A")
    repository.write("models/m.yaml", GOOD)
    assert WRONG in repository.commit()
    repository.write("models/m.yaml", GOOD + "priority: 1\n")
    repository.git("add", "-A")
    repository.write("models/m.yaml", BAD)
    assert repository.commit() == ""
    assert repository.git("show", "HEAD:models/m.yaml").endswith("priority: 1")


def test_commit_all_and_commit_of_one_file_have_an_index_of_their_own(repository: Repository) -> None:
    repository.hook()
    repository.write("models/m.yaml", BAD)
    assert WRONG in repository.commit("-a")
    assert WRONG in repository.commit("models/m.yaml")
    repository.git("add", "-A")
    repository.write("cluster.yaml", CLUSTER + "sync: manual\n")
    repository.git("add", "cluster.yaml")
    assert repository.commit("cluster.yaml") == "", "what else is staged is not in this commit"
    assert repository.git("diff", "--cached", "--name-only") == "models/m.yaml"


def test_a_deleted_file(repository: Repository) -> None:
    repository.hook()
    repository.git("rm", "-q", "cluster.yaml")
    repository.write("cluster.yaml", CLUSTER)
    assert "no Cluster object" in repository.commit()
    repository.git("rm", "-rq", "--cached", "models", "--ignore-unmatch")
    assert "no YAML file of . is staged or committed" in repository.commit()


def test_a_file_that_is_only_intended(repository: Repository) -> None:
    repository.hook()
    repository.write("models/later.yaml", "not yet\n")
    repository.git("add", "--intent-to-add", "models/later.yaml")
    repository.write("cluster.yaml", CLUSTER + "sync: manual\n")
    repository.git("add", "cluster.yaml")
    assert repository.commit() == ""
    repository.write("models/empty.yaml", "")
    repository.git("add", "models/empty.yaml")
    assert "models/empty.yaml:1:1 the file is empty" in repository.commit()


def test_a_linked_worktree(repository: Repository, tmp_path: Path) -> None:
    repository.hook()
    linked = tmp_path / "linked"
    repository.git("worktree", "add", "-q", "-b", "side", str(linked))
    (linked / "models/m.yaml").write_text(BAD)
    repository.git("add", "-A", at=linked)
    (linked / "models/m.yaml").write_text(GOOD)
    assert WRONG in repository.commit(at=linked)
    repository.git("add", "-A", at=linked)
    (linked / "models/m.yaml").write_text(BAD)
    assert repository.commit("--allow-empty", at=linked) == ""


def test_from_a_directory_below_the_top(repository: Repository) -> None:
    repository.git("mv", "models", "cluster.yaml", _made(repository.top / "deploy"))
    repository.hook(f"{COMMAND} deploy")
    repository.write("other.yaml", "}")
    repository.git("add", "-A")
    assert repository.commit(at=repository.top / "deploy/models") == ""
    repository.hook(f"sh -c 'cd deploy && {COMMAND}'")
    repository.write("deploy/models/m.yaml", BAD)
    assert WRONG in repository.commit("-a", at=repository.top / "deploy")


def _made(directory: Path) -> str:
    directory.mkdir()
    return directory.name


def test_a_hook_that_checks_another_repository_does_not_take_this_index(repository: Repository, tmp_path: Path) -> None:
    other = Repository(tmp_path / "other")
    other.write("models/m.yaml", BAD)
    other.git("add", "-A")
    other.write("models/m.yaml", GOOD)
    repository.hook(f"{COMMAND} {other.top}")
    repository.write("cluster.yaml", "}")
    assert repository.commit("-a") == ""
    linked = tmp_path / "linked"
    repository.git("worktree", "add", "-q", "-b", "side", str(linked))
    assert repository.commit("--allow-empty", at=linked) == ""
    repository.hook(f"{COMMAND} --index {other.top}")
    assert WRONG in repository.commit("--allow-empty")
    assert other.git("status", "--short") == "MM models/m.yaml"


def test_a_hook_can_ask_for_the_files(repository: Repository) -> None:
    repository.hook(f"{COMMAND} --no-index")
    repository.write("models/m.yaml", BAD)
    assert WRONG in repository.commit("--allow-empty")


def test_links_and_submodules_are_refused(repository: Repository) -> None:
    (repository.top / "evil.yaml").symlink_to("/etc/passwd")
    repository.git("add", "-A")
    repository.git("update-index", "--add", "--cacheinfo", f"160000,{repository.git('rev-parse', 'HEAD')},sub.yaml")
    done = repository.validate("--index")
    assert done.returncode == 1
    assert "evil.yaml a symlink, which is not read" in done.stdout
    assert "sub.yaml a submodule, which is not read" in done.stdout


# by hand


def test_without_a_hook_the_files_count(repository: Repository, tmp_path: Path) -> None:
    repository.write("models/m.yaml", BAD)
    assert WRONG in repository.validate().stdout
    done = repository.validate("--index")
    assert (done.returncode, done.stderr) == (
        0,
        ".: valid: cluster c, 0 node(s), 1 model(s)\n".replace(":", " (as staged):", 1),
    )
    assert repository.validate("--index", str(repository.top), at=tmp_path).returncode == 0
    assert WRONG in repository.validate(PRE_COMMIT="1", GIT_INDEX_FILE=".git/index").stdout


def test_what_cannot_be_read_is_said_in_one_line(repository: Repository, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.mkdir()
    for arguments, said in (
        ((str(plain),), f"{plain} is not in a git repository; check its files with --no-index"),
        ((str(tmp_path / "nowhere"),), "there is no directory"),
    ):
        done = repository.validate("--index", *arguments)
        assert done.returncode == 1
        assert said in done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_a_conflict_is_no_commit(repository: Repository) -> None:
    repository.git("checkout", "-q", "-b", "side")
    repository.write("models/m.yaml", GOOD + "priority: 1\n")
    repository.commit("-a")
    repository.git("checkout", "-q", "main")
    repository.write("models/m.yaml", GOOD + "priority: 2\n")
    repository.commit("-a")
    assert repository.run("git", "merge", "-q", "side").returncode == 1
    done = repository.validate("--index")
    assert done.stderr == "llmgw: models/m.yaml has a merge conflict; settle it and `git add` it\n"


# pre-commit


def test_the_manifest_is_one() -> None:
    (hook,) = load_manifest(str(ROOT / ".pre-commit-hooks.yaml"))
    assert (hook["id"], hook["entry"], hook["language"]) == ("llmgw-validate", "llmgw validate", "python")
    assert (hook["pass_filenames"], hook["always_run"], hook["require_serial"]) == (False, True, True)
    assert hook["types_or"] == ["yaml"]


def _install(repository: Repository, at: Path | None = None) -> None:
    """Install pre-commit's hook with our own manifest, from a repository of hooks on this disk."""
    hooks = repository.top.parent / "hooks"
    if not hooks.exists():
        hooks.mkdir()
        manifest = (ROOT / ".pre-commit-hooks.yaml").read_text()
        manifest = manifest.replace(
            "language: python", "language: system"
        )  # else it would be built, with what it needs
        manifest = manifest.replace("entry: llmgw validate", f"entry: {COMMAND}")
        (hooks / ".pre-commit-hooks.yaml").write_text(manifest)
        repository.git("init", "-q", at=hooks)
        repository.git("add", "-A", at=hooks)
        repository.git("commit", "-q", "-m", "hooks", at=hooks)
    revision = repository.git("rev-parse", "HEAD", at=hooks)
    config = f"repos:\n- repo: {hooks}\n  rev: {revision}\n  hooks:\n  - id: llmgw-validate\n"
    repository.write(".pre-commit-config.yaml", config)
    repository.git("add", "-A")
    repository.git("commit", "-q", "-m", "checks")
    done = repository.run(sys.executable, "-m", "pre_commit", "install", at=at)
    assert done.returncode == 0, done


def test_pre_commit_with_edits_that_are_not_staged(repository: Repository) -> None:
    _install(repository)
    repository.write("models/m.yaml", BAD)
    repository.git("add", "-A")
    repository.write("models/m.yaml", GOOD)
    said = repository.commit()
    assert WRONG in said
    assert re.search(r"llmgw validate\.+Failed", said)
    assert (repository.top / "models/m.yaml").read_text() == GOOD, "pre-commit has put the edit back"
    repository.git("add", "-A")
    repository.write("models/m.yaml", BAD)
    assert repository.commit("--allow-empty") == ""


def test_pre_commit_with_a_deleted_file(repository: Repository) -> None:
    _install(repository)
    repository.git("rm", "-q", "cluster.yaml")
    assert "no Cluster object" in repository.commit()


def test_pre_commit_in_a_linked_worktree(repository: Repository, tmp_path: Path) -> None:
    _install(repository)
    linked = tmp_path / "linked"
    repository.git("worktree", "add", "-q", "-b", "side", str(linked))
    (linked / "models/m.yaml").write_text(BAD)
    assert WRONG in repository.commit("-a", at=linked)
    repository.git("add", "-A", at=linked)
    (linked / "models/m.yaml").write_text(GOOD)
    assert WRONG in repository.commit(at=linked)
    assert repository.commit("-a", "--allow-empty", at=linked) == ""
    shutil.rmtree(linked)
