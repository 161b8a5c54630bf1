"""Following a real git repository: commits only, in every state a repository can be in."""

import asyncio
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from llmgw.adapters.git_command import git_environment
from llmgw.adapters.git_source import GitSource
from llmgw.base.ids import Revision
from llmgw.catalog.source import SourceFailed, SourceTree, Trouble
from llmgw.ports.trees import Passed
from llmgw.runtime.clock import SystemClock
from llmgw.spec.cluster import SourceRules
from tests.live.conftest import program


class Repository:
    """A repository and what one does with it."""

    def __init__(self, root: Path) -> None:
        program("git")
        self.root = root
        root.mkdir(exist_ok=True)
        self.git("init", "-q", "-b", "main")

    def git(self, *arguments: str, at: Path | None = None) -> str:
        done = subprocess.run(
            ["git", "-C", str(at or self.root), "-c", "user.name=t", "-c", "user.email=t@localhost", *arguments],
            env=git_environment(), check=True, capture_output=True, text=True,
        )  # fmt: skip
        return done.stdout.strip()

    def commit(self, path: str, text: str, message: str = "change") -> str:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        self.git("add", "-A")
        self.git("commit", "-q", "-m", message)
        return self.git("rev-parse", "HEAD")


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "repository")


def _source(directory: Path) -> GitSource:
    return GitSource(directory, SystemClock())


async def _tree(source: GitSource) -> SourceTree:
    found = await source.current()
    assert isinstance(found, SourceTree), found
    return found


async def test_only_what_is_committed_is_seen(repository: Repository) -> None:
    first = repository.commit("a.yaml", "a: 1\n", "The first\n\nand more")
    source = _source(repository.root)
    tree = await _tree(source)
    assert (tree.revision, tree.files, tree.subject, tree.author) == (first, {"a.yaml": b"a: 1\n"}, "The first", "t")
    (repository.root / "a.yaml").write_text("half writ")
    (repository.root / "b.yaml").write_text("b: 1\n")
    repository.git("add", "-A")
    assert await source.current() is tree
    second = repository.commit("b.yaml", "b: 2\n")
    tree = await _tree(source)
    assert (tree.revision, sorted(tree.files)) == (second, ["a.yaml", "b.yaml"])


async def test_an_idle_look_runs_no_git(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    repository.commit("a.yaml", "a: 1\n")
    source = _source(repository.root)
    await _tree(source)
    await source.current()
    ran: list[tuple[object, ...]] = []

    async def count(*arguments: object, **_: object) -> None:
        ran.append(arguments)
        raise AssertionError(arguments)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", count)
    for _ in range(5):
        await source.current()
    assert ran == []


async def test_a_directory_inside_the_repository(repository: Repository) -> None:
    repository.commit("other/x.yaml", "x: 1\n")
    repository.commit("deploy/cluster/models/m.yaml", "m: 1\n")
    tree = await _tree(_source(repository.root / "deploy/cluster"))
    assert tree.files == {"models/m.yaml": b"m: 1\n"}


async def test_detached_packed_and_moved_heads(repository: Repository) -> None:
    first = repository.commit("a.yaml", "a: 1\n")
    second = repository.commit("a.yaml", "a: 2\n")
    source = _source(repository.root)
    assert (await _tree(source)).revision == second
    repository.git("checkout", "-q", first)
    assert (await _tree(source)).revision == first
    repository.git("checkout", "-q", "main")
    repository.git("pack-refs", "--all")
    assert (await _tree(source)).revision == second
    repository.git("reset", "-q", "--hard", first)
    assert (await _tree(source)).revision == first
    repository.git("checkout", "-q", "-b", "next")
    third = repository.commit("a.yaml", "a: 3\n")
    assert (await _tree(source)).revision == third


async def test_a_linked_worktree(repository: Repository, tmp_path: Path) -> None:
    repository.commit("a.yaml", "a: 1\n")
    linked = tmp_path / "linked"
    repository.git("worktree", "add", "-q", "-b", "side", str(linked))
    source = _source(linked)
    await _tree(source)
    (linked / "a.yaml").write_text("a: 2\n")
    repository.git("commit", "-q", "-am", "side", at=linked)
    tree = await _tree(source)
    assert tree.files == {"a.yaml": b"a: 2\n"}


async def test_a_lock_left_over_and_a_merge_in_progress_do_not_matter(repository: Repository) -> None:
    head = repository.commit("a.yaml", "a: 1\n")
    (repository.root / ".git/index.lock").write_text("")
    (repository.root / ".git/MERGE_HEAD").write_text(f"{head}\n")
    (repository.root / "a.yaml").write_text("<<<<<<< HEAD\n")
    assert (await _tree(_source(repository.root))).files == {"a.yaml": b"a: 1\n"}


async def test_a_hooks_environment_points_nowhere_else(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository.commit("a.yaml", "a: 1\n")
    other = Repository(tmp_path / "other")
    other.commit("b.yaml", "b: 1\n")
    monkeypatch.setenv("GIT_DIR", str(other.root / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", "nowhere")
    assert (await _tree(_source(repository.root))).files == {"a.yaml": b"a: 1\n"}


async def test_links_and_submodules_are_named_and_not_followed(repository: Repository, tmp_path: Path) -> None:
    head = repository.commit("a.yaml", "a: 1\n")
    (repository.root / "evil.yaml").symlink_to("/etc/passwd")
    repository.git("add", "-A")
    repository.git("update-index", "--add", "--cacheinfo", f"160000,{head},sub.yaml")
    repository.git("commit", "-q", "-m", "links")
    tree = await _tree(_source(repository.root))
    assert tree.refused == {"evil.yaml": "symlink", "sub.yaml": "submodule"}
    assert sorted(tree.files) == ["a.yaml"]


async def test_names_that_are_no_text_survive(repository: Repository) -> None:
    (Path(os.fsdecode(os.fsencode(repository.root) + b"/\xff.yaml"))).write_text("x: 1\n")
    repository.commit("new\nline.yaml", "y: 1\n")
    tree = await _tree(_source(repository.root))
    assert sorted(tree.files) == ["\\xff.yaml", "new\nline.yaml"]


async def test_what_cannot_be_read_is_told_apart(repository: Repository, tmp_path: Path) -> None:
    unborn = await _source(repository.root).current()
    assert isinstance(unborn, SourceFailed)
    assert "has no commit yet" in unborn.reason
    plain = tmp_path / "plain"
    plain.mkdir()
    outside = await _source(plain).current()
    assert isinstance(outside, SourceFailed)
    assert "is not in a git repository" in outside.reason
    nowhere = await _source(tmp_path / "nowhere").current()
    assert isinstance(nowhere, SourceFailed)
    assert "there is no directory" in nowhere.reason


async def test_a_repository_that_vanishes_and_returns(repository: Repository, tmp_path: Path) -> None:
    repository.commit("a.yaml", "a: 1\n")
    source = _source(repository.root)
    tree = await _tree(source)
    aside = tmp_path / "aside"
    shutil.move(repository.root, aside)
    gone = await source.current()
    assert isinstance(gone, SourceFailed)
    shutil.move(aside, repository.root)
    assert (await _tree(source)).revision == tree.revision


async def test_a_bare_repository_and_a_directory_in_it(repository: Repository, tmp_path: Path) -> None:
    first = repository.commit("deploy/a.yaml", "a: 1\n")
    bare = tmp_path / "bare.git"
    repository.git("clone", "-q", "--bare", str(repository.root), str(bare))
    source = GitSource(bare, SystemClock(), "deploy/")
    assert (await _tree(source)).files == {"a.yaml": b"a: 1\n"}
    second = repository.commit("deploy/a.yaml", "a: 2\n")
    repository.git("push", "-q", str(bare), "main")
    assert (await _tree(source)).revision == second != first
    absent = await GitSource(bare, SystemClock(), "nowhere").current()
    assert isinstance(absent, SourceFailed)
    assert "has no directory nowhere" in absent.reason


async def test_an_unborn_branch_is_empty_or_missing(repository: Repository) -> None:
    empty = await _source(repository.root).current()
    assert isinstance(empty, SourceFailed)
    assert empty.trouble is Trouble.EMPTY
    repository.commit("a.yaml", "a: 1\n")
    source = _source(repository.root)
    tree = await _tree(source)
    repository.git("checkout", "-q", "--orphan", "other")
    missing = await source.current()
    assert isinstance(missing, SourceFailed)
    assert missing.trouble is Trouble.BRANCH_MISSING
    assert "there are: main" in missing.reason
    repository.git("checkout", "-q", "main")
    assert (await _tree(source)).revision == tree.revision


async def test_a_repository_of_another_user_says_the_exact_command(repository: Repository) -> None:
    repository.commit("a.yaml", "a: 1\n")
    for path in (repository.root, repository.root / ".git"):
        os.chown(path, 65534, 65534)
    source = _source(repository.root)
    found = await source.current()
    assert isinstance(found, SourceFailed)
    assert f"git config --global --add safe.directory {repository.root}" in found.reason
    for path in (repository.root, repository.root / ".git"):
        os.chown(path, 0, 0)
    source.hint()
    await _tree(source)


async def test_a_force_push_is_accepted_or_held_by_the_rules(repository: Repository) -> None:
    base = repository.commit("a.yaml", "a: 1\n")
    good = Revision(repository.commit("a.yaml", "a: 2\n"))
    repository.git("reset", "-q", "--hard", base)
    other = Revision(repository.commit("a.yaml", "a: 3\n"))
    source = _source(repository.root)
    hold = SourceRules.model_validate({"rewrite": "hold"})
    assert await source.vet(other, good, SourceRules()) == Passed(rewritten=True)
    held = await source.vet(other, good, hold)
    assert isinstance(held, SourceFailed)
    assert held.trouble is Trouble.REWRITTEN
    assert await source.vet(good, Revision(base), hold) == Passed()
    assert await source.vet(other, Revision("worktree-0123"), hold) == Passed()
    gone = Revision("1" * 40)
    assert isinstance(await source.vet(other, gone, hold), SourceFailed), "what is not there is contained nowhere"
    shallow = repository.root.parent / "shallow"
    repository.git("clone", "-q", "--depth=1", f"file://{repository.root}", str(shallow))
    assert await _source(shallow).vet(other, Revision(base), hold) == Passed(), "a shallow one cannot tell"
