"""Keeps what was read of a cluster directory's files, one small file for each directory, in the user's cache directory.

It may be deleted at any time, and anything wrong with it reads as empty: at worst the next run takes as long as the first.
Written anew at the end of a run that read something new, with only what that run used.
"""

import contextlib
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import orjson

from llmgw.catalog.memory import NoMemory


class DocumentCache:
    """A `Memory` in one JSON file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, object] = {}
        self._used: dict[str, object] = {}
        self._grew = False
        with contextlib.suppress(OSError, ValueError):
            loaded = orjson.loads(path.read_bytes())
            self._known = loaded if isinstance(loaded, dict) else {}

    def get(self, digest: str) -> object:
        """Return an entry, or None."""
        entry = self._known.get(digest)
        if entry is not None:
            self._used[digest] = entry
        return entry

    def put(self, digest: str, entry: object) -> None:
        """Keep an entry."""
        self._used[digest] = entry
        self._grew = True

    def write(self) -> None:
        """Write what was used, if something new is among it. A cache that cannot be written is none."""
        if not self._grew:
            return
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            temporary = self._path.with_suffix(f".{os.getpid()}.tmp")
            temporary.write_bytes(orjson.dumps(self._used))
            temporary.rename(self._path)


@contextlib.contextmanager
def documents_of(directory: Path) -> Iterator[DocumentCache | NoMemory]:
    """Give the cache of a directory, and write it at the end. `LLMGW_CACHE_DIR=` (empty) turns it off."""
    place = os.environ.get("LLMGW_CACHE_DIR")
    if place == "":
        yield NoMemory()
        return
    root = Path(place) if place else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "llmgw"
    name = hashlib.sha256(os.fsencode(directory.resolve())).hexdigest()[:16]
    kept = DocumentCache(root / f"documents-{name}.json")
    yield kept
    kept.write()
