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
from collections.abc import Iterator
from contextlib import contextmanager
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


class _Progress:
    """Says how far it is, not too often."""

    def __init__(self, out: IO[str]) -> None:
        self._out = out
        self._said = -SAY_EVERY

    def at(self, done: int, total: int | None) -> None:
        now = time.perf_counter()
        if now - self._said >= SAY_EVERY:
            self._said = now
            self.say({"done": done, "total": total})

    def say(self, line: dict[str, Any]) -> None:
        self._out.write(json.dumps(line) + "\n")
        self._out.flush()


def fetch(url: str, sha256: str, target: Path, progress: _Progress) -> None:
    """Have the file at `target`, whole and verified. Raises NotFetched."""
    partial = target.with_name(target.name + ".partial")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _alone(target, progress):
            if target.exists():
                return
            _download(url, sha256, partial, progress)
            partial.rename(target)
            _flush_directory(target.parent)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            partial.unlink(missing_ok=True)  # what fills the disk would be in the way of everything else
            raise NotFetched("disk_full", f"the disk of {target.parent} is full") from error
        raise NotFetched("disk_unwritable", f"cannot write {error.filename or target}: {error.strerror}") from error


@contextmanager
def _alone(target: Path, progress: _Progress) -> Iterator[None]:
    """Hold the target's lock; wait for whoever holds it, telling how far that one is."""
    path = target.with_name(target.name + ".lock")
    partial = target.with_name(target.name + ".partial")
    while True:
        with path.open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                progress.at(partial.stat().st_size if partial.exists() else 0, None)
                time.sleep(WAIT_FOR_LOCK)
                continue
            if not path.exists() or path.stat().st_ino != os.fstat(lock.fileno()).st_ino:
                continue  # its last owner removed it between our open and our lock
            try:
                yield
            finally:
                path.unlink(missing_ok=True)
            return


def _download(url: str, sha256: str, partial: Path, progress: _Progress) -> None:
    digest = hashlib.sha256()
    have = _hash_what_is_there(partial, digest, progress)
    try:
        answer = _open(url, have)
    except urllib.error.HTTPError as error:
        with error:
            if error.code == 416 and have:  # there is no more: it is whole, or it is another file
                _check(digest, sha256, partial, url)
                return
            text = f"{url} answers {error.code} {error.reason}"
        raise NotFetched(f"http_{error.code}", text) from error
    except (OSError, http.client.HTTPException) as error:
        raise NotFetched("unreachable", f"cannot reach {url}: {_why(error)}") from error
    with answer:
        if have and not _goes_on_at(answer, have):
            digest, have = hashlib.sha256(), 0
        length = answer.headers.get("Content-Length", "")
        total = have + int(length) if length.isdigit() else None
        _require_room(partial.parent, (total or 0) - have)
        with partial.open("ab" if have else "wb") as file:
            done = _copy(answer, file, digest, have, total, progress)
            file.flush()
            os.fsync(file.fileno())
    if total is not None and done < total:
        raise NotFetched("truncated", f"{url} ended after {done} of {total} bytes")
    _check(digest, sha256, partial, url)


def _hash_what_is_there(partial: Path, digest: "hashlib._Hash", progress: _Progress) -> int:
    if not partial.exists():
        return 0
    have = 0
    with partial.open("rb") as file:
        while piece := file.read(CHUNK):
            digest.update(piece)
            have += len(piece)
            progress.at(have, None)
    return have


def _open(url: str, have: int) -> http.client.HTTPResponse:
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
    answer = opener.open(urllib.request.Request(url, headers=headers), timeout=SILENCE)  # noqa: S310 - HTTP only, above
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
    progress: _Progress,
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


def _check(digest: "hashlib._Hash", sha256: str, partial: Path, url: str) -> None:
    if digest.hexdigest() != sha256.lower():
        partial.unlink(missing_ok=True)
        text = f"{url} has sha256 {digest.hexdigest()[:16]}…, not {sha256[:16]}…; what came was dropped"
        raise NotFetched("checksum_mismatch", text)


def _require_room(directory: Path, needed: int) -> None:
    free = shutil.disk_usage(directory).free
    if needed > free - RESERVE:
        missing = (needed - free + RESERVE) / (1 << 20)
        raise NotFetched("disk_full", f"{directory} needs {missing:.0f} MiB more of free space for this file")


def _why(error: BaseException) -> str:
    inner = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(inner, TimeoutError):
        return f"nothing came for {SILENCE:.0f} s"
    return str(inner) or type(inner).__name__


def _flush_directory(directory: Path) -> None:
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
    end_with_parent()
    progress = _Progress(sys.stdout)
    try:
        fetch(options.url, options.sha256, options.target, progress)
    except NotFetched as error:
        progress.say({"error": error.code, "text": error.text})
        sys.exit(1)
    progress.say({"fetched": True})


if __name__ == "__main__":
    main()
