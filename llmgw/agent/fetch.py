"""Gets one file: `python -m llmgw.agent.fetch --url URL --sha256 HEX --target PATH`, a program of its own.

A program, because hashing and writing a hundred gigabytes would hold up the agent's loop, and because what hangs in a disk
or a name lookup can then be killed. It says what it does in lines of JSON on its standard output: `{"done": N, "total": N}`
now and then (also while it waits or reads what is there already), and last `{"fetched": true}` or
`{"error": CODE, "text": SENTENCE}`.

The file is written as `NAME.partial`, hashed on the way, flushed to the disk and renamed, so that a file with the final name
is whole and right. What has come before a break is kept, and gone on from where the server can (Range). One fetch a target
at a time: a lock on `NAME.lock`, held by the kernel for as long as its owner lives, so that none is ever stale; rejected: a
file with a pid in it, which a crash leaves behind and another process may get. Whoever waits for the lock finds the file.
"""

import argparse
import errno
import fcntl
import hashlib
import http.client
import json
import os
import shutil
import ssl
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial as bound
from pathlib import Path
from typing import IO, Any

from llmgw import __version__
from llmgw.agent.lineage import end_with_parent

SILENCE = 30.0
"""Seconds without a byte after which the connection counts as dead."""
CHUNK = 1 << 20
SAY_EVERY = 0.5
"""Seconds between two lines of progress, at least."""
RESERVE = 256 << 20
"""Bytes that are left free on the disk: a full one also stops the agent, which must write its orders."""
WAIT_FOR_LOCK = 0.5


class NotFetched(Exception):
    """The file cannot be had now."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


class Progress:
    """Says how far it is, not too often."""

    def __init__(self, out: IO[str]) -> None:
        self._out = out
        self._said = -SAY_EVERY
        self.before = 0
        """Bytes of other files, which were there before the one that it hears of."""
        self.of_all: int | None = None
        """Bytes of all files, where there are several."""

    def at(self, done: int, total: int | None) -> None:
        """So many bytes of a file are there, and so many there will be."""
        now = time.perf_counter()
        if now - self._said >= SAY_EVERY:
            self._said = now
            self.say({"done": self.before + done, "total": self.of_all if self.of_all is not None else total})

    def say(self, line: dict[str, Any]) -> None:
        """Say a line at once."""
        self._out.write(json.dumps(line) + "\n")
        self._out.flush()


@dataclass(frozen=True)
class Digest:
    """What the bytes of a file must come to."""

    name: str
    """The digest's own name, for people."""
    hexdigest: str
    new: Callable[[], "hashlib._Hash"]
    """Returns the digest of nothing yet."""


def sha256_of(hexdigest: str) -> Digest:
    """Return a digest by SHA-256."""
    return Digest("sha256", hexdigest.lower(), hashlib.sha256)


def fetch(url: str, sha256: str, target: Path, progress: Progress) -> None:
    """Have the file at `target`, whole and verified. Raises NotFetched."""
    with alone(target, progress) as partial:
        if target.exists():
            return
        download(url, sha256_of(sha256), partial, progress)
        partial.rename(target)
        flush_directory(target.parent)


@contextmanager
def alone(target: Path, progress: Progress) -> Iterator[Path]:
    """Hold the target's lock, and give where it is prepared; wait for whoever holds it, telling how far that one is.

    What the disk refuses meanwhile is raised as NotFetched.
    """
    partial = target.with_name(target.name + ".partial")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _locked(target, partial, progress):
            yield partial
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            _remove(partial)  # what fills the disk would be in the way of everything else
            raise NotFetched("disk_full", f"the disk of {target.parent} is full") from error
        raise NotFetched("disk_unwritable", f"cannot write {error.filename or target}: {error.strerror}") from error


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def size_of(path: Path) -> int:
    """Return the bytes of a file, or of all files of a directory; 0 of what is not there."""
    if path.is_dir():
        return sum(each.stat().st_size for each in path.rglob("*") if each.is_file())
    return path.stat().st_size if path.exists() else 0


@contextmanager
def _locked(target: Path, partial: Path, progress: Progress) -> Iterator[None]:
    path = target.with_name(target.name + ".lock")
    while True:
        with path.open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                with suppress(FileNotFoundError):  # it may be done while we look
                    progress.at(size_of(partial), None)
                time.sleep(WAIT_FOR_LOCK)
                continue
            if not path.exists() or path.stat().st_ino != os.fstat(lock.fileno()).st_ino:
                continue  # its last owner removed it between our open and our lock
            try:
                yield
            finally:
                path.unlink(missing_ok=True)
            return


def download(url: str, expected: Digest, partial: Path, progress: Progress, token: str = "") -> None:
    """Have a file's bytes at `partial`, verified, going on from what is there. Raises NotFetched, OSError.

    `token` is shown to the host of the URL, and to none that it redirects to.
    """
    digest = expected.new()
    have = _hash_what_is_there(partial, digest, progress)
    try:
        answer = _open(url, have, token)
    except urllib.error.HTTPError as error:
        with error:
            if error.code == 416 and have:  # there is no more: it is whole, or it is another file
                _check(digest, expected, partial, url)
                return
            text = f"{url} answers {error.code} {error.reason}"
        raise NotFetched(f"http_{error.code}", text) from error
    except (OSError, http.client.HTTPException) as error:
        raise NotFetched("unreachable", f"cannot reach {url}: {_why(error)}") from error
    with answer:
        if have and not _goes_on_at(answer, have):
            digest, have = expected.new(), 0
        length = answer.headers.get("Content-Length", "")
        total = have + int(length) if length.isdigit() else None
        require_room(partial.parent, (total or 0) - have)
        with partial.open("ab" if have else "wb") as file:
            done = _copy(answer, file, digest, have, total, progress)
            file.flush()
            os.fsync(file.fileno())
    if total is not None and done < total:
        raise NotFetched("truncated", f"{url} ended after {done} of {total} bytes")
    _check(digest, expected, partial, url)


def _hash_what_is_there(partial: Path, digest: "hashlib._Hash", progress: Progress) -> int:
    if not partial.exists():
        return 0
    have = 0
    with partial.open("rb") as file:
        while piece := file.read(CHUNK):
            digest.update(piece)
            have += len(piece)
            progress.at(have, None)
    return have


def _open(url: str, have: int, token: str) -> http.client.HTTPResponse:
    # by hand: the usual opener would also follow a redirect to a file of this node or to FTP
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(context=ssl.create_default_context()),
        urllib.request.HTTPRedirectHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
    ):
        opener.add_handler(handler)
    headers = {"User-Agent": f"llmgw/{__version__}", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    request = urllib.request.Request(url, headers=headers)  # noqa: S310 - HTTP only, above
    if token:
        request.add_unredirected_header("Authorization", f"Bearer {token}")
    answer = opener.open(request, timeout=SILENCE)
    if not isinstance(answer, http.client.HTTPResponse):
        raise NotFetched("unreachable", f"{url} does not lead to a web server")
    return answer


def _goes_on_at(answer: http.client.HTTPResponse, have: int) -> bool:
    """Whether the answer is the rest, from the byte asked for."""
    return answer.status == 206 and answer.headers.get("Content-Range", "").startswith(f"bytes {have}-")


def _copy(
    answer: http.client.HTTPResponse,
    file: IO[bytes],
    digest: "hashlib._Hash",
    done: int,
    total: int | None,
    progress: Progress,
) -> int:
    while True:
        try:
            piece = answer.read1(CHUNK)
        except (OSError, http.client.HTTPException) as error:
            file.flush()
            raise NotFetched("unreachable", f"the connection broke after {done} bytes: {_why(error)}") from error
        if not piece:
            return done
        digest.update(piece)
        file.write(piece)
        done += len(piece)
        progress.at(done, total)


def _check(digest: "hashlib._Hash", expected: Digest, partial: Path, url: str) -> None:
    if digest.hexdigest() != expected.hexdigest:
        partial.unlink(missing_ok=True)
        text = f"{url} has {expected.name} {digest.hexdigest()[:16]}…, not {expected.hexdigest[:16]}…; what came was dropped"
        raise NotFetched("checksum_mismatch", text)


def require_room(directory: Path, needed: int) -> None:
    """Raise NotFetched unless so many bytes more have room on the disk, and something is left."""
    free = shutil.disk_usage(directory).free
    if needed > free - RESERVE:
        missing = (needed - free + RESERVE) / (1 << 20)
        raise NotFetched("disk_full", f"{directory} needs {missing:.0f} MiB more of free space for what is fetched")


def _why(error: BaseException) -> str:
    inner = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(inner, TimeoutError):
        return f"nothing came for {SILENCE:.0f} s"
    return str(inner) or type(inner).__name__


def flush_directory(directory: Path) -> None:
    """Have the disk keep the names in a directory."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def main() -> None:
    """Fetch, and say how it went. Exit status 0 if the file is there."""
    parser = argparse.ArgumentParser(prog="llmgw.agent.fetch", allow_abbrev=False)
    parser.add_argument("--url", required=True)
    parser.add_argument("--sha256", required=True)
    parser.add_argument("--target", required=True, type=Path)
    options = parser.parse_args()
    run(bound(fetch, options.url, options.sha256, options.target))


def run(job: Callable[[Progress], None]) -> None:
    """Do a fetch as a program that ends with its parent; say how it went. Exits with 1 for one that did not come about."""
    end_with_parent()
    progress = Progress(sys.stdout)
    try:
        job(progress)
    except NotFetched as error:
        progress.say({"error": error.code, "text": error.text})
        sys.exit(1)
    progress.say({"fetched": True})


if __name__ == "__main__":
    main()
