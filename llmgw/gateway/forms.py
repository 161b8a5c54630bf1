"""A `multipart/form-data` body: where a field's value lies in it, so that one can be replaced and all other bytes stay.

The body is not taken apart: uploads are large, and an engine reads them itself. Parts are found by their boundary as RFC 2046
writes it, at the beginning of a line.
"""

import re

_BOUNDARY = re.compile(rb'boundary=(?:"([^"]{1,200})"|([^\s;,]{1,200}))', re.IGNORECASE)
_NAME = re.compile(rb'content-disposition:[^\r\n]*;\s*name=(?:"([^"]*)"|([^\s;"]+))', re.IGNORECASE)
_FILE = re.compile(rb"content-disposition:[^\r\n]*;\s*filename\*?=", re.IGNORECASE)
LONGEST_HEAD = 8 << 10
"""Bytes of a part's headers that are looked at."""


def boundary_of(content_type: bytes) -> bytes | None:
    """Return a form's boundary; None if this is no form."""
    if not content_type.lower().startswith(b"multipart/form-data"):
        return None
    match = _BOUNDARY.search(content_type)
    return (match[1] or match[2]) if match else None


def field(body: bytes, boundary: bytes, name: bytes) -> tuple[int, int] | None:
    """Return (start, end) of the first value of a field that is no file; None if there is none."""
    mark = b"--" + boundary
    at = 0 if body.startswith(mark) else body.find(b"\r\n" + mark) + 2
    if at < 2 and not body.startswith(mark):
        return None
    while True:
        line = body.find(b"\r\n", at)
        if line < 0 or body.startswith(b"--", at + len(mark)):
            return None
        following = body.find(b"\r\n" + mark, line)
        if following < 0:
            return None
        head_end = body.find(b"\r\n\r\n", line, min(following + 4, line + LONGEST_HEAD))
        if 0 <= head_end <= following - 4:
            head = body[line:head_end]
            match = _NAME.search(head)
            if match and (match[1] if match[1] is not None else match[2]) == name and not _FILE.search(head):
                return head_end + 4, following
        at = following + 2


def with_field(body: bytes, boundary: bytes, name: bytes, value: bytes) -> bytes:
    """Return the body with another value of a field that it has."""
    place = field(body, boundary, name)
    if place is None:
        return body
    return body[: place[0]] + value + body[place[1] :]
