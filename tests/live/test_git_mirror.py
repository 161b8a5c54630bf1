"""Following a repository elsewhere by a real mirror: what can happen to a branch, and what git can do wrong."""

import asyncio
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from llmgw.adapters import git_mirror
from llmgw.adapters.git_command import Git, GitFailed
from llmgw.adapters.git_mirror import LAST_GOOD, GitMirror
from llmgw.adapters.git_remote import Remote, environment_for
from llmgw.base.ids import Revision
from llmgw.base.time import Instant
from llmgw.catalog.source import Source, SourceFailed, SourceTree, Trouble
from llmgw.ports.trees import Passed
from llmgw.spec.cluster import SourceRules
from tests.live.test_git_source import Repository


class Clock:
    def __init__(self) -> None:
        self.time = 1_000_000_000.0

    def now(self) -> Instant:
        return Instant(self.time)


class Mirrored:
    """A repository, and a mirror of its branch."""

    def __init__(self, root: Path, **remote: object) -> None:
        self.root = root
        self.origin = Repository(root / "origin")
        self.clock = Clock()
        self.remote = Remote(f"file://{self.origin.root}", "main", allow_file=True, **remote)
        self.remote.check()
        self.mirror = self.made()

    def made(self) -> GitMirror:
        return GitMirror(self.remote, self.root / "state", self.clock, {}.get)

    async def look(self) -> Source:
        """Look when a fetch is due."""
        self.clock.time += git_mirror.EVERY
        return await self.mirror.current()

    async def tree(self) -> SourceTree:
        found = await self.look()
        assert isinstance(found, SourceTree), found
        return found

    async def trouble(self) -> tuple[Trouble, str]:
        found = await self.look()
        assert isinstance(found, SourceFailed), found
        return found.trouble, found.reason


@pytest.fixture
def mirrored(tmp_path: Path) -> Mirrored:
    return Mirrored(tmp_path)


async def test_commits_are_fetched_when_due_and_at_once_when_told(mirrored: Mirrored) -> None:
    first = mirrored.origin.commit("a.yaml", "a: 1\n", "The first")
    tree = await mirrored.tree()
    assert (tree.revision, tree.files, tree.subject) == (first, {"a.yaml": b"a: 1\n"}, "The first")
    second = mirrored.origin.commit("a.yaml", "a: 2\n")
    assert await mirrored.mirror.current() is tree
    mirrored.mirror.hint()
    assert await mirrored.mirror.current() is tree, "not more often than once in GAP"
    mirrored.clock.time += git_mirror.GAP
    found = await mirrored.mirror.current()
    assert isinstance(found, SourceTree)
    assert found.revision == second
    assert await mirrored.tree() is found


async def test_a_hint_during_a_fetch_asks_for_another_one(mirrored: Mirrored, monkeypatch: pytest.MonkeyPatch) -> None:
    mirrored.origin.commit("a.yaml", "a: 1\n")
    await mirrored.tree()
    real = mirrored.mirror._fetch_once
    late = ""

    async def pushed_meanwhile(git: Git) -> None:
        nonlocal late
        await real(git)
        if not late:
            late = mirrored.origin.commit("a.yaml", "a: 2\n")
            mirrored.mirror.hint()

    monkeypatch.setattr(mirrored.mirror, "_fetch_once", pushed_meanwhile)
    await mirrored.look()
    mirrored.clock.time += git_mirror.GAP
    found = await mirrored.mirror.current()
    assert isinstance(found, SourceTree)
    assert found.revision == late


async def test_a_directory_of_the_repository(tmp_path: Path) -> None:
    mirrored = Mirrored(tmp_path, path="deploy/cluster")
    mirrored.origin.commit("other/x.yaml", "x: 1\n")
    assert (await mirrored.trouble())[1].endswith("has no directory deploy/cluster; name another one with --path")
    mirrored.origin.commit("deploy/cluster/models/m.yaml", "m: 1\n")
    assert (await mirrored.tree()).files == {"models/m.yaml": b"m: 1\n"}


async def test_an_empty_repository_a_missing_branch_and_no_repository_are_told_apart(mirrored: Mirrored) -> None:
    trouble, reason = await mirrored.trouble()
    assert (trouble, "has no commit yet" in reason) == (Trouble.EMPTY, True)
    mirrored.origin.commit("a.yaml", "a: 1\n")
    mirrored.origin.git("branch", "-m", "trunk")
    trouble, reason = await mirrored.trouble()
    assert trouble is Trouble.BRANCH_MISSING
    assert "there are: trunk;" in reason
    mirrored.origin.git("branch", "-m", "main")
    tree = await mirrored.tree()
    mirrored.origin.root.rename(mirrored.root / "away")
    trouble, _ = await mirrored.trouble()
    assert trouble is Trouble.UNREACHABLE
    (mirrored.root / "away").rename(mirrored.origin.root)
    assert await mirrored.tree() == tree


async def test_a_deleted_branch_leaves_nothing_that_looks_current(mirrored: Mirrored) -> None:
    mirrored.origin.commit("a.yaml", "a: 1\n")
    await mirrored.tree()
    mirrored.origin.git("checkout", "-q", "-b", "other")
    mirrored.origin.git("branch", "-D", "main")
    for _ in range(2):
        assert (await mirrored.trouble())[0] is Trouble.BRANCH_MISSING


async def test_a_branch_that_becomes_a_directory_of_branches_and_back(tmp_path: Path) -> None:
    mirrored = Mirrored(tmp_path)
    mirrored.remote = Remote(mirrored.remote.url, "main/next", allow_file=True)
    mirrored.origin.commit("a.yaml", "a: 1\n")
    plain = mirrored.mirror
    await mirrored.tree()
    mirrored.origin.git("checkout", "-q", "--detach")
    mirrored.origin.git("branch", "-D", "main")
    mirrored.origin.git("branch", "main/next")
    assert (await mirrored.trouble())[0] is Trouble.BRANCH_MISSING
    mirrored.mirror = mirrored.made()
    await mirrored.tree()
    mirrored.origin.git("branch", "-D", "main/next")
    mirrored.origin.git("branch", "main")
    mirrored.mirror = plain
    await mirrored.tree()


async def test_a_rewritten_history_is_accepted_or_held_and_the_last_good_survives_collection(
    mirrored: Mirrored,
) -> None:
    base = mirrored.origin.commit("a.yaml", "a: 1\n")
    good = Revision(mirrored.origin.commit("a.yaml", "a: 2\n"))
    await mirrored.tree()
    await mirrored.mirror.pin(good)
    mirrored.origin.git("reset", "-q", "--hard", base)
    other = Revision(mirrored.origin.commit("a.yaml", "a: 3\n"))
    assert (await mirrored.tree()).revision == other
    accept, hold = (SourceRules.model_validate({"rewrite": word}) for word in ("accept", "hold"))
    assert await mirrored.mirror.vet(other, good, accept) == Passed(rewritten=True)
    held = await mirrored.mirror.vet(other, good, hold)
    assert isinstance(held, SourceFailed)
    assert held.trouble is Trouble.REWRITTEN
    assert f"llmgw accept {other[:10]}" in held.reason
    mirrored.origin.git("reset", "-q", "--hard", good)
    mirrored.origin.commit("a.yaml", "a: 4\n")
    merged = await mirrored.tree()
    assert await mirrored.mirror.vet(merged.revision, good, hold) == Passed()
    mirrored.origin.git("reset", "-q", "--hard", other)
    await mirrored.tree()
    bare = mirrored.root / "state/mirror.git"
    environment, _ = environment_for(mirrored.remote, mirrored.root / "state", {}.get)
    git = Git(bare, environment, bare=True)
    await git.run("gc", "--quiet", "--prune=now")
    assert (await git.run("rev-parse", LAST_GOOD)).decode().strip() == good
    assert await git.run("show", f"{good}:a.yaml") == b"a: 2\n"


async def test_a_shallow_repository_is_followed_and_no_rewrite_is_seen_in_it(tmp_path: Path) -> None:
    mirrored = Mirrored(tmp_path)
    first = Revision(mirrored.origin.commit("a.yaml", "a: 1\n"))
    mirrored.origin.commit("a.yaml", "a: 2\n")
    shallow = tmp_path / "shallow"
    mirrored.origin.git("clone", "-q", "--depth=1", f"file://{mirrored.origin.root}", str(shallow))
    mirrored.remote = Remote(f"file://{shallow}", "main", allow_file=True)
    mirrored.mirror = mirrored.made()
    tree = await mirrored.tree()
    assert tree.files == {"a.yaml": b"a: 2\n"}
    hold = SourceRules.model_validate({"rewrite": "hold"})
    assert await mirrored.mirror.vet(tree.revision, first, hold) == Passed()
    assert "shallow" in mirrored.mirror.notices()[0]


async def test_a_lock_of_a_crashed_fetch_is_removed_and_that_of_a_running_one_is_not(mirrored: Mirrored) -> None:
    mirrored.origin.commit("a.yaml", "a: 1\n")
    await mirrored.tree()
    lock = mirrored.root / "state/mirror.git/refs/llmgw/fetched.lock"
    lock.touch()
    running = subprocess.Popen(  # noqa: ASYNC220
        ["git", f"--git-dir={mirrored.root / 'state/mirror.git'}", "cat-file", "--batch"], stdin=subprocess.PIPE
    )
    second = mirrored.origin.commit("a.yaml", "a: 2\n")
    assert ".lock" in (await mirrored.trouble())[1]
    assert lock.exists()
    assert running.stdin is not None
    running.stdin.close()
    running.wait()
    assert (await mirrored.tree()).revision == second
    assert not lock.exists()


async def test_a_fetch_that_hangs_is_ended_with_all_its_processes(
    mirrored: Mirrored, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mirrored.origin.commit("a.yaml", "a: 1\n")
    pid = tmp_path / "pid"
    fake = tmp_path / "bin/git"
    fake.parent.mkdir()
    fake.write_text(f"#!/bin/sh\ncase \"$*\" in *fetch*) sh -c 'echo $$ >{pid}; exec sleep 100' & wait;; esac\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(git_mirror, "FETCH_LIMIT", 0.5)
    trouble, reason = await mirrored.trouble()
    assert trouble is Trouble.UNREACHABLE
    assert "did not end within" in reason
    async with asyncio.timeout(5):
        while Path(f"/proc/{pid.read_text().strip()}").exists():  # noqa: ASYNC110 - another process ends
            await asyncio.sleep(0.01)


async def test_nobodys_configuration_is_read_and_no_hook_runs(
    mirrored: Mirrored, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mirrored.origin.commit("a.yaml", "a: 1\n")
    (tmp_path / "home").mkdir()
    (tmp_path / "home/.gitconfig").write_text(f'[url "file:///nowhere/"]\n\tinsteadOf = file://{tmp_path}/\n')
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "home/.gitconfig"))
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    await mirrored.tree()


async def test_a_restart_needs_no_network_for_what_it_has(mirrored: Mirrored) -> None:
    good = Revision(mirrored.origin.commit("a.yaml", "a: 1\n"))
    await mirrored.tree()
    await mirrored.mirror.pin(good)
    shutil.rmtree(mirrored.origin.root)
    mirrored.mirror = mirrored.made()
    assert (await mirrored.trouble())[0] is Trouble.UNREACHABLE
    assert await mirrored.mirror.vet(good, None, SourceRules()) == Passed()


async def test_protocols_that_run_programs_are_not_spoken(tmp_path: Path) -> None:
    environment, _ = environment_for(Remote("https://h/x", "main"), tmp_path, {}.get)
    git = Git(tmp_path, environment)
    for url in (
        f"ext::sh -c touch% {tmp_path}/ran",
        f"file://{tmp_path}",
        str(tmp_path),
        "http://127.0.0.1:1/x",
        "git://127.0.0.1:1/x",
    ):
        with pytest.raises(GitFailed, match="not allowed"):
            await git.run("ls-remote", "--", url)
    assert not (tmp_path / "ran").exists()


async def test_git_gets_user_and_password_for_the_one_host_and_no_other(tmp_path: Path) -> None:
    remote = Remote("https://forge.example:8443/team/cluster.git", "main", secret="TOKEN", user="robot")
    environment, secrets = environment_for(remote, tmp_path / "state", {"TOKEN": "s3cr3t token%"}.get)
    assert secrets == ("s3cr3t token%",)
    git = Git(tmp_path, environment, secrets=secrets)
    wanted = b"protocol=https\nhost=forge.example:8443\n\n"
    told = await git.run("credential", "fill", stdin=wanted, config=("credential.helper=",))
    assert b"username=robot\npassword=s3cr3t token%\n" in told
    with pytest.raises(GitFailed) as failed:
        await git.run(
            "credential", "fill", stdin=b"protocol=https\nhost=evil.example\n\n", config=("credential.helper=",)
        )
    assert "s3cr3t" not in str(failed.value)
    assert (tmp_path / "state/askpass").stat().st_mode & 0o777 == 0o700
    assert "s3cr3t" not in (tmp_path / "state/askpass").read_text()
    assert "s3cr3t" not in repr(git).replace(repr(environment), "")


async def test_a_secret_that_is_not_there_is_named(tmp_path: Path) -> None:
    mirror = GitMirror(Remote("https://h.example/x", "main", secret="TOKEN"), tmp_path, Clock(), {}.get)
    found = await mirror.current()
    assert isinstance(found, SourceFailed)
    assert "LLMGW_SECRET_TOKEN" in found.reason


async def test_objects_that_an_ended_git_left_half_written_are_removed_before_a_fetch(mirrored: Mirrored) -> None:
    mirrored.origin.commit("a.yaml", "a: 1\n")
    await mirrored.tree()
    objects = mirrored.root / "state/mirror.git/objects"
    (objects / "ab").mkdir(exist_ok=True)
    left = [objects / "pack/tmp_pack_Xy12", objects / "ab/tmp_obj_Zz", objects / "tmp_objdir-incoming-q"]
    left[0].write_bytes(b"x")
    left[1].write_bytes(b"x")
    (left[2] / "pack").mkdir(parents=True)
    second = mirrored.origin.commit("a.yaml", "a: 2\n")
    assert (await mirrored.tree()).revision == second
    assert [path.name for path in left if path.exists()] == []
