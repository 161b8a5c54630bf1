"""Following the files themselves: real inotify, real git at work, real processes; each case that once fooled a watcher."""

import asyncio
import errno
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Generator
from pathlib import Path

import pytest

from llmgw.adapters import dir_source
from llmgw.adapters.dir_source import DirSource
from llmgw.adapters.dir_watch import DirWatch
from llmgw.base.time import Instant
from llmgw.catalog.source import SourceFailed, SourceTree
from tests.live.test_git_source import Repository

PATIENCE = 20.0


class WallClock:
    """Unix time; `skip` lets some pass."""

    def __init__(self) -> None:
        self.skipped = 0.0

    def now(self) -> Instant:
        return Instant(time.time() + self.skipped)


@pytest.fixture
def clock() -> WallClock:
    return WallClock()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    # below a directory whose name other watchers leave out
    made = tmp_path / ".venv/node_modules/cluster"
    made.mkdir(parents=True)
    (made / "a.yaml").write_text("a: 1\n")
    return made


@pytest.fixture
async def source(root: Path, clock: WallClock) -> AsyncIterator[DirSource]:
    source = DirSource(root, clock)
    await _settled(source)
    yield source
    source.close()


async def _settled(source: DirSource) -> SourceTree:
    for _ in range(3):
        found = await source.current()
    assert isinstance(found, SourceTree), found
    return found


async def _until(source: DirSource, files: dict[str, bytes]) -> None:
    """Look, as the server does, until these are the files."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        found = await source.current()
        if isinstance(found, SourceTree) and found.files == files:
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"{found} instead of {files}; {source.notices()}")


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Every reading of all files."""
    seen: list[Path] = []
    real = dir_source.read_directory

    def read(directory: Path) -> object:
        seen.append(directory)
        return real(directory)

    monkeypatch.setattr(dir_source, "read_directory", read)
    return seen


async def test_an_idle_look_reads_no_file(source: DirSource, scans: list[Path]) -> None:
    tree = await source.current()
    for _ in range(20):
        assert await source.current() is tree
    assert scans == []


async def test_a_change_is_seen_by_its_event_alone(source: DirSource, root: Path) -> None:
    (root / "a.yaml").write_text("a: 2\n")
    await _until(source, {"a.yaml": b"a: 2\n"})
    (root / "new").mkdir()
    (root / "new/deep/er").mkdir(parents=True)
    (root / "new/deep/er/b.yaml").write_text("b: 1\n")
    await _until(source, {"a.yaml": b"a: 2\n", "new/deep/er/b.yaml": b"b: 1\n"})


async def test_an_editor_that_renames_over_the_file_is_followed_twice(source: DirSource, root: Path) -> None:
    for number in (2, 3):
        (root / "a.yaml.swp").write_text(f"a: {number}\n")
        (root / "a.yaml.swp").rename(root / "a.yaml")
        await _until(source, {"a.yaml": f"a: {number}\n".encode()})


async def test_what_no_event_told_of_is_found_by_the_scan(root: Path, clock: WallClock, scans: list[Path]) -> None:
    def mute(_: Path) -> Generator[object, None, None]:
        while True:
            yield set()

    source = DirSource(root, clock, DirWatch(root, clock, mute))
    await _settled(source)
    (root / "a.yaml").write_text("a: 2\n")
    for _ in range(5):
        assert (await _settled(source)).files == {"a.yaml": b"a: 1\n"}
    clock.skipped += dir_source.SCAN + 1
    await _until(source, {"a.yaml": b"a: 2\n"})


async def test_a_root_that_is_replaced_is_followed(source: DirSource, root: Path) -> None:
    other = root.with_name("other")
    other.mkdir()
    (other / "a.yaml").write_text("a: 2\n")
    root.rename(root.with_name("old"))
    assert isinstance(await _gone(source), SourceFailed)
    other.rename(root)
    await _until(source, {"a.yaml": b"a: 2\n"})
    (root / "a.yaml").write_text("a: 3\n")
    await _until(source, {"a.yaml": b"a: 3\n"})
    shutil.rmtree(root)
    root.mkdir()
    (root / "a.yaml").write_text("a: 4\n")
    await _until(source, {"a.yaml": b"a: 4\n"})
    (root / "a.yaml").write_text("a: 5\n")
    await _until(source, {"a.yaml": b"a: 5\n"})


async def _exists(path: Path) -> None:
    async with asyncio.timeout(PATIENCE):
        while not path.exists():  # noqa: ASYNC110 - another process makes it
            await asyncio.sleep(0.02)


async def _gone(source: DirSource) -> object:
    for _ in range(3):
        found = await source.current()
    return found


async def test_a_link_that_leads_elsewhere_is_followed(tmp_path: Path, clock: WallClock) -> None:
    for number in (1, 2):
        (tmp_path / f"v{number}").mkdir()
        (tmp_path / f"v{number}/a.yaml").write_text(f"a: {number}\n")
    link = tmp_path / "current"
    link.symlink_to("v1")
    source = DirSource(link, clock)
    await _until(source, {"a.yaml": b"a: 1\n"})
    (tmp_path / "next").symlink_to("v2")
    (tmp_path / "next").rename(link)
    await _until(source, {"a.yaml": b"a: 2\n"})
    (tmp_path / "v2/a.yaml").write_text("a: 3\n")
    await _until(source, {"a.yaml": b"a: 3\n"})
    source.close()


async def test_a_name_that_is_no_text_ends_nothing(source: DirSource, root: Path, clock: WallClock) -> None:
    (Path(os.fsdecode(os.fsencode(root) + b"/\xff\xfe.yaml"))).write_text("x: 1\n")
    await _until(source, {"a.yaml": b"a: 1\n", "\\xff\\xfe.yaml": b"x: 1\n"})
    (root / "a.yaml").write_text("a: 2\n")
    await _until(source, {"a.yaml": b"a: 2\n", "\\xff\\xfe.yaml": b"x: 1\n"})
    clock.skipped += 60
    (root / "a.yaml").write_text("a: 3\n")
    await _until(source, {"a.yaml": b"a: 3\n", "\\xff\\xfe.yaml": b"x: 1\n"})


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (OSError("OS file watch limit reached. about [] ... MaxFilesWatch"), "fs.inotify.max_user_watches"),
        (OSError(errno.ENOSPC, "No space left on device"), "fs.inotify.max_user_watches"),
        (OSError("Too many open files (os error 24)"), "fs.inotify.max_user_instances"),
    ],
)
async def test_without_inotify_the_files_are_polled_and_that_is_said_once(
    root: Path, clock: WallClock, error: OSError, hint: str, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_: Path) -> Generator[object, None, None]:
        raise error
        yield

    source = DirSource(root, clock, DirWatch(root, clock, refuse))
    await _settled(source)
    assert hint in source.notices()[0]
    (root / "a.yaml").write_text("a: 2\n")
    await _until(source, {"a.yaml": b"a: 2\n"})
    clock.skipped += 60
    await _settled(source)
    assert sum("is polled" in record.getMessage() for record in caplog.records) == 1


def test_real_inotify_that_is_used_up(root: Path) -> None:
    script = """
import asyncio, pathlib, sys
from llmgw.adapters.dir_source import DirSource
from llmgw.runtime.clock import SystemClock
pathlib.Path("/proc/sys/user/max_inotify_instances").write_text("0")
async def main():
    source = DirSource(pathlib.Path(sys.argv[1]), SystemClock())
    for _ in range(3):
        tree = await source.current()
    print(sorted(tree.files), source.notices())
asyncio.run(main())
"""
    done = subprocess.run(
        ["unshare", "-Ur", sys.executable, "-c", script, str(root)], capture_output=True, text=True, check=False
    )
    assert "['a.yaml']" in done.stdout, done
    assert "fs.inotify.max_user_instances" in done.stdout


async def test_polling_can_be_forced(root: Path, clock: WallClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLMGW_FORCE_POLLING", "1")

    def never(_: Path) -> Generator[object, None, None]:
        raise AssertionError("armed")
        yield

    source = DirSource(root, clock, DirWatch(root, clock, never))
    await _settled(source)
    assert "LLMGW_FORCE_POLLING" in source.notices()[0]
    (root / "a.yaml").write_text("a: 2\n")
    await _until(source, {"a.yaml": b"a: 2\n"})


# git at work


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "repository")


async def test_a_merge_with_conflicts_is_held(repository: Repository, clock: WallClock) -> None:
    repository.commit("a.yaml", "a: 1\n")
    repository.git("checkout", "-q", "-b", "side")
    repository.commit("a.yaml", "a: 2\n")
    repository.git("checkout", "-q", "main")
    repository.commit("a.yaml", "a: 3\n")
    source = DirSource(repository.root, clock)
    before = await _settled(source)
    with pytest.raises(subprocess.CalledProcessError):
        repository.git("merge", "-q", "side")
    assert "<<<<" in (repository.root / "a.yaml").read_text()
    assert await _settled(source) is before
    clock.skipped += dir_source.SCAN + 1
    assert await _settled(source) is before
    assert any("MERGE_HEAD" in notice for notice in source.notices())
    (repository.root / "a.yaml").write_text("a: 23\n")
    repository.git("commit", "-q", "-am", "merged")
    await _until(source, {"a.yaml": b"a: 23\n"})
    assert source.notices() == ()
    source.close()


async def test_a_rebase_is_held(repository: Repository, clock: WallClock) -> None:
    repository.commit("a.yaml", "a: 1\n")
    repository.git("checkout", "-q", "-b", "side")
    repository.commit("a.yaml", "a: 2\n")
    repository.git("checkout", "-q", "main")
    repository.commit("a.yaml", "a: 3\n")
    source = DirSource(repository.root, clock)
    before = await _settled(source)
    with pytest.raises(subprocess.CalledProcessError):
        repository.git("rebase", "side")
    assert await _settled(source) is before
    repository.git("rebase", "--abort")
    await _until(source, {"a.yaml": b"a: 3\n"})
    source.close()


async def test_what_pre_commit_takes_away_for_its_hooks_stays_in_force(
    repository: Repository, clock: WallClock
) -> None:
    repository.commit("a.yaml", "a: 1\n")
    hook = repository.root / ".git/hooks/pre-commit"
    release = repository.root.parent / "release"
    # what pre-commit does: save what is not staged, take it out, run the hooks, put it back
    hook.write_text(
        f"#!/bin/sh\ngit diff > ../patch\ngit checkout -q -- .\ntouch ../taken\nwhile [ ! -e {release} ]; do sleep 0.05; done\n"
        "git apply ../patch\n"
    )
    hook.chmod(0o755)
    (repository.root / "b.yaml").write_text("b: 1\n")
    repository.git("add", "b.yaml")
    (repository.root / "a.yaml").write_text("a: edited\n")
    source = DirSource(repository.root, clock)
    before = await _settled(source)
    assert before.files["a.yaml"] == b"a: edited\n"
    thread = threading.Thread(target=repository.git, args=("commit", "-q", "-m", "b"))
    thread.start()
    await _exists(repository.root.parent / "taken")
    try:
        assert (repository.root / "a.yaml").read_text() == "a: 1\n"
        for _ in range(5):
            assert await source.current() is before
            await asyncio.sleep(0.05)
    finally:
        release.touch()
        thread.join()
    assert (await _settled(source)).files == before.files
    source.close()


async def test_a_left_over_index_lock_holds_nothing_up_and_is_named(repository: Repository, clock: WallClock) -> None:
    repository.commit("a.yaml", "a: 1\n")
    source = DirSource(repository.root, clock)
    before = await _settled(source)
    (repository.root / ".git/index.lock").touch()
    (repository.root / "a.yaml").write_text("a: 2\n")
    assert await _settled(source) is before
    clock.skipped += 60
    await _until(source, {"a.yaml": b"a: 2\n"})
    assert "index.lock was left over" in source.notices()[0]
    source.close()


async def test_a_checkout_of_3000_files_is_seen_before_and_after_and_never_between(
    repository: Repository, clock: WallClock
) -> None:
    for directory in range(30):
        (repository.root / f"d{directory}").mkdir()
    trees = []
    for word in ("old", "new"):
        for number in range(3000):
            (repository.root / f"d{number % 30}/{number}.yaml").write_text(f"v: {word}\n")
        repository.git("add", "-A")
        repository.git("commit", "-q", "-m", word)
        trees.append(repository.git("rev-parse", "HEAD"))
    source = DirSource(repository.root, clock)
    await _settled(source)
    thread = threading.Thread(target=repository.git, args=("checkout", "-q", trees[0]))
    thread.start()
    seen: set[frozenset[bytes]] = set()
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        found = await source.current()
        assert isinstance(found, SourceTree)
        assert len(found.files) == 3000
        seen.add(frozenset(found.files.values()))
        if frozenset({b"v: old\n"}) in seen:
            break
        await asyncio.sleep(0.01)
    thread.join()
    assert seen == {frozenset({b"v: new\n"}), frozenset({b"v: old\n"})}
    source.close()


async def test_a_linked_worktree_knows_its_own_lock(repository: Repository, tmp_path: Path, clock: WallClock) -> None:
    head = repository.commit("a.yaml", "a: 1\n")
    linked = tmp_path / "linked"
    repository.git("worktree", "add", "-q", "-b", "side", str(linked))
    source = DirSource(linked, clock)
    before = await _settled(source)
    (repository.root / ".git/worktrees/linked/MERGE_HEAD").write_text(f"{head}\n")
    (linked / "a.yaml").write_text("a: 2\n")
    assert await _settled(source) is before
    (repository.root / ".git/worktrees/linked/MERGE_HEAD").unlink()
    await _until(source, {"a.yaml": b"a: 2\n"})
    source.close()
