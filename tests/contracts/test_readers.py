"""All readers tell the same of the same files: those of commits, of the index, of a push, and of a disk."""

import asyncio
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from llmgw.adapters.dir_source import read_directory
from llmgw.adapters.git_command import git_environment
from llmgw.adapters.git_index import read_index
from llmgw.adapters.git_pushed import BareRepository
from llmgw.adapters.git_source import GitSource
from llmgw.catalog.source import MAX_BYTES, MAX_TREE, Source, SourceFailed, SourceTree
from llmgw.runtime.clock import SystemClock

Reader = Callable[[Path], Source]


def _git(root: Path, *arguments: str) -> str:
    who = ("-c", "user.name=t", "-c", "user.email=t@localhost", "-c", "protocol.file.allow=always")
    done = subprocess.run(
        ["git", "-C", str(root), *who, *arguments], env=git_environment(), check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def _commit(root: Path) -> Source:
    _git(root, "commit", "-q", "-m", "all")
    return asyncio.run(GitSource(root / "c", SystemClock()).current())


def _push(root: Path) -> Source:
    _git(root, "commit", "-q", "-m", "all")
    return BareRepository(root / ".git", os.environ).tree(_git(root, "rev-parse", "HEAD"), "c")


READERS: dict[str, Reader] = {
    "commit": _commit,
    "index": lambda root: read_index(root / "c", os.environ),
    "push": _push,
    "disk": lambda root: read_directory(root / "c"),
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a repository with the cluster directory `c` in it."""
    root = tmp_path / "r"
    (root / "c/models").mkdir(parents=True)
    _git(root, "init", "-q")
    (root / "c/cluster.yaml").write_text("a: 1\n")
    (root / "c/models/m.yaml").write_text("b: 1\n")
    return root


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS.keys())
def test_links_and_nested_repositories_are_refused_by_all(root: Path, reader: Reader) -> None:
    here = root / "c"
    for name, target in {
        "linked": "models", "linked.d": "models/", "away": "../elsewhere", "evil.yaml": "/etc/passwd",
        "README.md": "../README.md", "LICENSE": "NOTICE", ".hidden": "models", "models/up": "..",
    }.items():  # fmt: skip
        (here / name).symlink_to(target)
    (here / "NOTICE").write_text("n\n")
    nested = here / "nested"
    nested.mkdir()
    _git(nested, "init", "-q")
    (nested / "n.yaml").write_text("c: 1\n")
    _git(nested, "add", "-A")
    _git(nested, "commit", "-q", "-m", "nested")
    _git(root, "add", "-A")
    found = reader(root)
    assert isinstance(found, SourceTree), found
    assert dict(found.files) == {"cluster.yaml": b"a: 1\n", "models/m.yaml": b"b: 1\n"}
    assert found.refused == {
        "linked": "symlink to a directory",
        "linked.d": "symlink to a directory",
        "models/up": "symlink to a directory",
        "away": "symlink",
        "evil.yaml": "symlink",
        "README.md": "symlink",
        "LICENSE": "symlink to a file",
        "nested": "submodule",
    }


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS.keys())
def test_what_is_too_large_is_named_and_never_read(root: Path, reader: Reader) -> None:
    data = b"x" * MAX_BYTES
    names = [f"c/f{number:03}.yaml" for number in range(MAX_TREE // MAX_BYTES + 1)]
    for name in names:
        (root / name).write_bytes(data)
    (root / "c/a.yaml").write_bytes(data + b"x")
    (root / "c/weights.bin").write_bytes(data + b"x")
    _git(root, "add", "-A")
    found = reader(root)
    assert isinstance(found, SourceTree), found
    assert found.refused["a.yaml"] == "file of more than 256 KiB"
    beyond = [path for path, what in found.refused.items() if what.startswith("file beyond the first 32 MiB")]
    assert beyond == ["f127.yaml", "f128.yaml", "models/m.yaml"]
    assert "weights.bin" not in found.refused
    assert sum(map(len, found.files.values())) <= MAX_TREE
    if reader is not READERS["disk"]:
        assert found.files["f000.yaml"] is found.files["f001.yaml"], "one blob is read once, however many names it has"


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS.keys())
def test_two_names_that_are_one_as_text_are_refused(root: Path, reader: Reader) -> None:
    Path(os.fsdecode(os.fsencode(root) + b"/c/\xff.yaml")).write_text("x: 1\n")
    (root / "c/\\xff.yaml").write_text("y: 1\n")
    _git(root, "add", "-A")
    found = reader(root)
    assert isinstance(found, SourceTree), found
    assert found.refused == {"\\xff.yaml": "name that two files share once it is text"}
    assert sorted(found.files) == ["cluster.yaml", "models/m.yaml"]


def test_a_pipe_is_named_and_not_waited_for(root: Path) -> None:
    os.mkfifo(root / "c/pipe.yaml")
    found = read_directory(root / "c")
    assert isinstance(found, SourceTree), found
    assert found.refused == {"pipe.yaml": "special file"}


@pytest.mark.parametrize("name", ["commit", "push"])
def test_a_tree_that_unfolds_without_end_is_a_failure_in_time(root: Path, name: str) -> None:
    _git(root, "add", "-A")
    _git(root, "commit", "-q", "-m", "first")
    tree = _git(root, "rev-parse", "HEAD:c")
    for _ in range(12):
        rows = "".join(f"040000 tree {tree}\td{number}\n" for number in range(10))
        made = subprocess.run(
            ["git", "-C", str(root), "mktree"],
            input=rows,
            env=git_environment(),
            check=True,
            capture_output=True,
            text=True,
        )
        tree = made.stdout.strip()
    top = subprocess.run(
        ["git", "-C", str(root), "mktree"], input=f"040000 tree {tree}\tc\n", env=git_environment(), check=True,
        capture_output=True, text=True,
    ).stdout.strip()  # fmt: skip
    bomb = _git(root, "commit-tree", top, "-m", "bomb")
    if name == "push":
        found = BareRepository(root / ".git", os.environ).tree(bomb, "c")
    else:
        found = asyncio.run(GitSource(root / "c", SystemClock(), revision=bomb).current())
    assert isinstance(found, SourceFailed)
    assert "printed more than 16 MiB" in found.reason
