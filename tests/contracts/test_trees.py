"""The contract of `TreeSource`, on git, on a directory, and on the fake."""

import os
import subprocess
from abc import ABC, abstractmethod
from pathlib import Path

import pytest

from llmgw.adapters.dir_source import DirSource
from llmgw.adapters.git_command import git_environment
from llmgw.adapters.git_source import GitSource
from llmgw.base.ids import Revision
from llmgw.catalog.source import Source, SourceFailed, SourceTree
from llmgw.ports.trees import TreeSource
from llmgw.runtime.clock import SystemClock
from llmgw.sim.source import FakeSource


class Place(ABC):
    """A place, and what happens to it."""

    source: TreeSource

    @abstractmethod
    def put(self, files: dict[str, bytes]) -> None:
        """Make these all the files of the newest revision."""

    @abstractmethod
    def vanish(self) -> None:
        """Make the place unreadable."""

    async def look(self) -> Source:
        """Look often enough that a settled place is taken."""
        await self.source.current()
        return await self.source.current()


class _Fake(Place):
    def __init__(self, _: Path) -> None:
        self._number = 0
        self.source: FakeSource = FakeSource()

    def put(self, files: dict[str, bytes]) -> None:
        self._number += 1
        self.source.push(SourceTree(Revision(str(self._number)), files))

    def vanish(self) -> None:
        self.source.fail("it is gone")


class _Directory(Place):
    def __init__(self, root: Path) -> None:
        self._root = root / "place"
        self._root.mkdir()
        self.source = DirSource(self._root, SystemClock())

    async def look(self) -> Source:
        self.source.hint()  # the kernel's word of a change may come later than the test looks
        return await super().look()

    def put(self, files: dict[str, bytes]) -> None:
        for old in self._root.rglob("*.yaml"):
            old.unlink()
        for path, data in files.items():
            (self._root / path).parent.mkdir(parents=True, exist_ok=True)
            (self._root / path).write_bytes(data)

    def vanish(self) -> None:
        self._root.rename(self._root.with_name("away"))


class _Git(_Directory):
    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._git("init", "-q")
        self.source = GitSource(self._root, SystemClock())

    def put(self, files: dict[str, bytes]) -> None:
        super().put(files)
        self._git("add", "-A")
        self._git("-c", "user.name=t", "-c", "user.email=t@localhost", "commit", "-q", "--allow-empty", "-m", "put")

    def _git(self, *arguments: str) -> None:
        subprocess.run(["git", "-C", str(self._root), *arguments], env=git_environment(), check=True)


@pytest.fixture(params=[_Fake, _Directory, _Git], ids=["fake", "directory", "git"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    made: Place = request.param(tmp_path)
    return made


async def test_the_whole_tree_is_given_and_again_the_same_object(place: Place) -> None:
    place.put({"a.yaml": b"a: 1\n", "d/b.yaml": b"b: 1\n"})
    tree = await place.look()
    assert isinstance(tree, SourceTree)
    assert dict(tree.files) == {"a.yaml": b"a: 1\n", "d/b.yaml": b"b: 1\n"}
    assert await place.look() is tree


async def test_a_change_is_another_revision_with_all_files(place: Place) -> None:
    place.put({"a.yaml": b"a: 1\n", "b.yaml": b"b: 1\n"})
    first = await place.look()
    place.put({"a.yaml": b"a: 22\n"})
    second = await place.look()
    assert isinstance(first, SourceTree)
    assert isinstance(second, SourceTree)
    assert second.revision != first.revision
    assert dict(second.files) == {"a.yaml": b"a: 22\n"}


async def test_a_place_that_cannot_be_read_is_not_an_empty_tree(place: Place) -> None:
    place.put({"a.yaml": b"a: 1\n"})
    await place.look()
    place.vanish()
    gone = await place.look()
    assert isinstance(gone, SourceFailed)
    assert gone.reason
    assert await place.look() is gone or await place.look() == gone


async def test_it_says_which_place_it_is(place: Place) -> None:
    assert place.source.describe()


async def test_a_directory_that_cannot_be_listed_is_not_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "cluster"
    (root / "models").mkdir(parents=True)
    (root / "models/m.yaml").write_bytes(b"a: 1\n")
    real = os.scandir

    def refuse(path: str) -> object:
        if str(path).endswith("models"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", refuse)  # root may list everything, so the kernel cannot play this part here
    found = await DirSource(root, SystemClock()).current()
    assert isinstance(found, SourceFailed)
    assert "Permission denied" in found.reason
