"""`llmgw set` and `llmgw show` as commands: files, exit codes, git."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.live.conftest import program

CLUSTER = "apiVersion: llmgw/v1\r\nkind: Cluster\r\nname: c # 😀\r\n"
MODEL = """\
apiVersion: llmgw/v1
kind: Model
name: m
weights: {path: /m.gguf}
replicas: 1 # one
profiles:
  - name: cpu
    engine: llamacpp
"""


class Directory:
    """A cluster directory below the top of a repository."""

    def __init__(self, top: Path, **environment: str) -> None:
        program("git")
        self.top = top
        self.model = top / "c/models/m.yaml"
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("GIT_", "LLMGW_"))},
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
            **environment,
        }
        self.model.parent.mkdir(parents=True)
        (top / "c/cluster.yaml").write_bytes(CLUSTER.encode())
        self.model.write_text(MODEL)
        self.git("init", "-q", "-b", "main")
        self.git("config", "user.name", "Ada")
        self.git("config", "user.email", "ada@localhost")
        self.git("add", "-A")
        self.git("commit", "-q", "-m", "first")

    def git(self, *arguments: str) -> str:
        done = subprocess.run(
            ["git", *arguments], cwd=self.top, env=self.environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done
        return done.stdout.strip()

    def llmgw(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "llmgw", *arguments], cwd=self.top / "c", env={**self.environment, **environment},
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert "Traceback" not in done.stderr, done
        return done

    def refused(self, *arguments: str, code: int = 1, **environment: str) -> str:
        """Run what is to be refused in one line, with nothing written and nothing committed; return the line."""
        before = {path: path.read_bytes() for path in self.top.glob("c/**/*") if path.is_file()}
        head = self.git("rev-parse", "HEAD")
        done = self.llmgw(*arguments, **environment)
        assert done.returncode == code, done
        assert {path: path.read_bytes() for path in self.top.glob("c/**/*") if path.is_file()} == before
        assert self.git("rev-parse", "HEAD") == head
        (line,) = done.stderr.splitlines()
        return line


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    return Directory(tmp_path / "repository")


def test_set_writes_and_says_what_it_costs(directory: Directory) -> None:
    directory.model.chmod(0o640)
    done = directory.llmgw(
        "set", "model/m", "replicas=3", "profiles[name=cpu].args[+]=--foo", "--unset", "profiles[0].name"
    )
    assert done.returncode == 0, done
    assert done.stdout.splitlines()[:2] == ["models/m.yaml: changed", "    replicas: 1 -> 3 [live]"]
    assert "[restart]" in done.stdout
    assert directory.model.read_text() == MODEL.replace("replicas: 1", "replicas: 3").replace(
        "name: cpu\n    engine: llamacpp\n", "engine: llamacpp\n    args: [--foo]\n"
    )
    assert directory.model.stat().st_mode & 0o777 == 0o640
    assert [path.name for path in directory.model.parent.iterdir()] == ["m.yaml"]
    assert directory.git("log", "--format=%s") == "first"


def test_set_keeps_line_ends(directory: Directory) -> None:
    done = directory.llmgw("set", "cluster", "control.interval=10s")
    assert done.returncode == 0, done
    assert (directory.top / "c/cluster.yaml").read_bytes() == (CLUSTER + "control:\r\n  interval: 10s\r\n").encode()


def test_dry_run_shows_the_difference(directory: Directory) -> None:
    directory.model.write_text(MODEL + "protect: true")
    done = directory.llmgw("set", "model/m", "protect=false", "--dir", str(directory.top / "c"), "--dry-run")
    assert done.returncode == 0, done
    assert done.stdout.startswith("--- a/models/m.yaml\n+++ b/models/m.yaml\n@@ ")
    assert done.stdout.endswith(
        "-protect: true\n\\ No newline at end of file\n+protect: false\n\\ No newline at end of file\n"
    )
    assert directory.model.read_text() == MODEL + "protect: true"


def test_nothing_to_change(directory: Directory) -> None:
    done = directory.llmgw("set", "model/m", "replicas=1", "--commit")
    assert (done.returncode, done.stdout) == (0, "models/m.yaml: nothing to change\n")


def test_what_would_not_be_valid_is_not_written(directory: Directory) -> None:
    left = "with this change the directory would not be valid, models/m.yaml is left as it was"
    assert directory.refused("set", "model/m", "replicas=-1") == f"llmgw: {left}"
    assert directory.llmgw("set", "model/m", "profiles[0].engine=llamacp", "--dry-run").returncode == 1
    done = directory.llmgw("set", "model/m", "replicas=x")
    assert "models/m.yaml:5:11 'replicas' expects a whole number, found the text 'x'" in done.stdout
    (directory.top / "c/other.yaml").write_text("}")
    assert "is not valid apart from this change; mend it first" in directory.refused("set", "model/m", "replicas=2")


def test_what_is_not_known(directory: Directory) -> None:
    assert (
        directory.refused("set", "model/n", "replicas=2")
        == "llmgw: there is no model 'n' in this directory; there are m"
    )
    assert "did you mean 'replicas'?" in directory.refused("set", "model/m", "replcas=2")
    assert "write PATH=VALUE" in directory.refused("set", "model/m", code=64)
    assert "there is no directory" in directory.refused("set", "model/m", "replicas=2", "--dir", "nowhere")


# git


def test_commit_takes_that_file_alone(directory: Directory) -> None:
    (directory.top / "c/cluster.yaml").write_text(CLUSTER + "sync: manual\n")
    directory.git("add", "-A")
    done = directory.llmgw("set", "model/m", "replicas=2", "--commit")
    assert done.returncode == 0, done
    assert directory.git("log", "-1", "--format=%an <%ae> %s") == "Ada <ada@localhost> Set model/m: replicas=2"
    assert directory.git("show", "--format=", "--name-only", "HEAD") == "c/models/m.yaml"
    assert directory.git("diff", "--cached", "--name-only") == "c/cluster.yaml"
    done = directory.llmgw("set", "model/m", "replicas=3", "-m", "Three\n\nof them")
    assert directory.git("log", "-1", "--format=%B") == "Three\n\nof them"
    assert done.stdout.splitlines()[-1] == f"committed {directory.git('rev-parse', 'HEAD')[:10]}: Three"


def test_commit_looks_at_its_own_repository(directory: Directory, tmp_path: Path) -> None:
    other = Directory(tmp_path / "other")
    done = directory.llmgw(
        "set", "model/m", "replicas=2", "--commit", GIT_DIR=str(other.top / ".git"), GIT_INDEX_FILE="x"
    )
    assert done.returncode == 0, done
    assert directory.git("log", "--format=%s") == "Set model/m: replicas=2\nfirst"
    assert other.git("log", "--format=%s") == "first"


@pytest.mark.parametrize("staged", [True, False])
def test_commit_refuses_other_changes_of_the_file(directory: Directory, staged: bool) -> None:
    directory.model.write_text(MODEL + "priority: 1\n")
    if staged:
        directory.git("add", "-A")
    said = directory.refused("set", "model/m", "replicas=2", "--commit")
    assert said == (
        "llmgw: models/m.yaml has changes that are not committed; commit or undo them first, or leave out --commit"
    )


def test_commit_refuses_a_file_that_is_not_in_git(directory: Directory) -> None:
    new = directory.top / "c/n.yaml"
    new.write_text(MODEL.replace("name: m", "name: n"))
    assert "has changes that are not committed" in directory.refused("set", "model/n", "replicas=2", "--commit")
    (directory.top / ".gitignore").write_text("n.yaml\n")
    assert "perhaps it is ignored" in directory.refused("set", "model/n", "replicas=2", "--commit")


def test_commit_needs_an_author(directory: Directory) -> None:
    directory.git("config", "--unset", "user.email")
    said = directory.refused("set", "model/m", "replicas=2", "--commit")
    assert "git does not know who you are; run `git config user.name NAME`" in said
    done = directory.llmgw(
        "set", "model/m", "replicas=2", "--commit",
        GIT_AUTHOR_EMAIL="ci@localhost", GIT_COMMITTER_EMAIL="ci@localhost",
    )  # fmt: skip
    assert done.returncode == 0, done


def test_commit_outside_git(directory: Directory, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.mkdir()
    (plain / "cluster.yaml").write_bytes(CLUSTER.encode())
    done = directory.llmgw("set", "cluster", "sync=auto", "--commit", "--dir", str(plain))
    assert (done.returncode, done.stderr) == (
        1,
        f"llmgw: {plain} is not in a git repository; run `git init` there, or leave out --commit\n",
    )
    assert (plain / "cluster.yaml").read_bytes() == CLUSTER.encode()


def test_a_hook_that_refuses_leaves_the_file_as_it_was(directory: Directory) -> None:
    hook = directory.top / ".git/hooks/pre-commit"
    hook.write_text("#!/bin/sh\necho not on a Friday >&2\nexit 1\n")
    hook.chmod(0o755)
    said = directory.refused("set", "model/m", "replicas=2", "--commit")
    assert said == "llmgw: git did not commit, the file is as it was: not on a Friday"
    assert directory.git("status", "--short") == ""


# show


def test_show(directory: Directory) -> None:
    done = directory.llmgw("show", "model/m", "--impact")
    assert done.returncode == 0, done
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert "replicas: 1 # models/m.yaml:5, live" in lines
    assert "priority: 0 # default, none" in lines
    assert "policy: least-load # default, route" in lines


def test_show_as_json(directory: Directory) -> None:
    shown = json.loads(directory.llmgw("show", "model/m", "--json").stdout)
    assert (shown["kind"], shown["name"], shown["path"]) == ("Model", "m", "models/m.yaml")
    assert shown["object"]["profiles"][0]["engine"] == "llamacpp"
    fields = {field["path"]: field for field in shown["fields"]}
    assert fields["replicas"] == {
        "path": "replicas", "value": 1, "origin": {"file": "models/m.yaml", "line": 5}, "impact": "live",
    }  # fmt: skip
    assert fields["priority"]["origin"] is None


def test_show_needs_only_this_object_to_be_valid(directory: Directory) -> None:
    (directory.top / "c/other.yaml").write_text("}")
    assert directory.llmgw("show", "model/m").returncode == 0
    directory.model.write_text(MODEL.replace("replicas: 1", "replicas: -1"))
    done = directory.llmgw("show", "model/m")
    assert (done.returncode, done.stderr) == (1, "llmgw: model/m is not valid; mend models/m.yaml\n")
    assert "models/m.yaml:5:11 'replicas' must be at least 0, found -1" in done.stdout
