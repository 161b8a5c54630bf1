"""One engine log that grows for ever: kept within bounds while the engine writes straight into it, and read past what is gone.

The engine outlives the agent, so there is no pipe through which its output could be rotated. What lies between the first
part, which shows how it started, and the newest part is given back to the file system by a hole; offsets stay what they
were, and the engine, which appends, notices nothing. Where a file system has no holes the file is shortened, which may
lose lines written in that moment. All functions block on local files.
"""

import ctypes
import errno
import os
from pathlib import Path

FIRST = 1 << 20
NEWEST = 32 << 20
"""Bytes kept of one log: from its start, and of its end."""
SHORTENED = 1 << 20
"""Bytes kept of the end where there are no holes, or no room."""
SLACK = 4 << 20
"""Bytes that a log may grow over the limit before it is cut."""
BLOCK = 4096
GONE = b"\n[older lines are gone: this log is limited]\n"

_KEEP_SIZE_PUNCH_HOLE = 0x01 | 0x02
_libc = ctypes.CDLL(None, use_errno=True)


def trim(path: Path, newest: int = NEWEST) -> bool:
    """Cut a log that takes more than FIRST + newest + SLACK on the disk; return whether it was cut. Raises OSError."""
    found = path.stat()
    if found.st_blocks * 512 <= FIRST + newest + SLACK:
        return False
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        begin = FIRST + BLOCK  # after one block that says what happened
        end = (found.st_size - newest) // BLOCK * BLOCK
        if end <= begin:
            return False
        try:
            _punch(descriptor, begin, end - begin)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.ENOSYS):
                raise
            _shorten(descriptor, found.st_size)
            return True
        os.pwrite(descriptor, GONE, FIRST)
    finally:
        os.close(descriptor)
    return True


def read(path: Path, offset: int, limit: int) -> tuple[int, bytes, int]:
    """Return (start, data, size): up to `limit` bytes from `offset` on, or from the end of the hole that it lies in.

    A line whose rest is in a hole is left out. Nothing and size 0 if there is no such log.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return (0, b"", 0)
    try:
        size = os.fstat(descriptor).st_size
        start = min(offset, size)
        while start < size and limit > 0:
            begin = _seek(descriptor, start, os.SEEK_DATA, size)
            hole = _seek(descriptor, begin, os.SEEK_HOLE, size) if begin < size else size
            data = os.pread(descriptor, min(limit, hole - begin), begin)
            if begin > start:  # in the middle of a line
                cut = data.find(b"\n") + 1
                begin, data = begin + cut, data[cut:]
            if hole < size and begin + len(data) == hole and b"\n" not in data:
                start = hole
                continue
            return (begin, data, size)
        return (start, b"", size)
    finally:
        os.close(descriptor)


def tail(path: Path, lines: int) -> tuple[str, ...]:
    """Return the last lines, each cut at 400 characters; none if there is no such log."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - lines * 400))
            data = file.read()
    except OSError:
        return ()
    data = data[data.rfind(b"\0" * BLOCK) + BLOCK :] if b"\0" * BLOCK in data else data
    return tuple(line[:400] for line in data.decode(errors="replace").splitlines()[-lines:])


def _punch(descriptor: int, offset: int, length: int) -> None:
    call = getattr(_libc, "fallocate64", None) or _libc.fallocate
    if call(descriptor, _KEEP_SIZE_PUNCH_HOLE, ctypes.c_int64(offset), ctypes.c_int64(length)) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _shorten(descriptor: int, size: int) -> None:
    end = os.pread(descriptor, SHORTENED, size - SHORTENED)
    os.ftruncate(descriptor, FIRST)
    os.pwrite(descriptor, GONE + end, FIRST)


def _seek(descriptor: int, offset: int, whence: int, size: int) -> int:
    try:
        return os.lseek(descriptor, offset, whence)
    except OSError:
        return size if whence == os.SEEK_HOLE else offset
