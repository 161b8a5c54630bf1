"""Reads a cluster directory's files as they lie on the disk: for the commands, and for `llmgw server --worktree`.

The revision is a digest of the contents. A tree that is being written (a checkout, an editor) is taken only when two looks
in a row found the same.
"""

import asyncio
import hashlib
import os
from pathlib import Path

from llmgw.base.ids import Revision
from llmgw.catalog.source import Source, SourceFailed, SourceTree

SUFFIXES = (".yaml", ".yml")


def read_directory(directory: Path) -> Source:
    """Return the directory's YAML files as they are now, or why they cannot be read."""
    if not directory.is_dir():
        return SourceFailed(f"there is no directory {directory}; create it, or name another one")
    files: dict[str, bytes] = {}
    refused: dict[str, str] = {}
    try:
        for root, directories, names in os.walk(directory, onerror=_raise):
            directories[:] = sorted(name for name in directories if not name.startswith("."))
            for name in sorted(names):
                path = Path(root) / name
                shown = path.relative_to(directory).as_posix().encode("utf-8", "backslashreplace").decode()
                if not name.lower().endswith(SUFFIXES):
                    continue
                if path.is_symlink():
                    refused[shown] = "symlink"
                elif path.is_file():
                    files[shown] = path.read_bytes()
    except OSError as error:
        return SourceFailed(f"cannot read {error.filename}: {error.strerror}")
    return SourceTree(Revision(f"worktree-{_digest(files, refused)}"), files, refused)


def _raise(error: OSError) -> None:
    """Fail: a directory that cannot be listed is not an empty one."""
    raise error


def _digest(files: dict[str, bytes], refused: dict[str, str]) -> str:
    digest = hashlib.sha256()
    for path in sorted(files):
        digest.update(f"{path}\0{len(files[path])}\0".encode())
        digest.update(files[path])
    for path, what in sorted(refused.items()):
        digest.update(f"{path}\0{what}\0".encode())
    return digest.hexdigest()[:16]


class DirSource:
    """A `TreeSource` over the files of one directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._current: Source | None = None
        self._candidate: Source | None = None

    def describe(self) -> str:
        """Say which place this is."""
        return f"{self._directory} (its files)"

    async def current(self) -> Source:
        """Return the newest tree that two looks in a row agreed on, or why there is none."""
        found = await asyncio.to_thread(read_directory, self._directory)
        if self._current is None or (found == self._candidate and found != self._current):
            self._current = found
        self._candidate = found
        return self._current
