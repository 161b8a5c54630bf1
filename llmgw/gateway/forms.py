"""A `multipart/form-data` body: where a field's value lies in it, so that one can be replaced and all other bytes stay.

The body is not taken apart: uploads are large, and an engine reads them itself. Parts are found by their boundary as RFC 2046
writes it, at the beginning of a line.
"""

import re

_BOUNDARY = re.compile(rb'boundary=(?:"([^"]{1,200})"|([^\s;,]{1,200}))', re.IGNORECASE)
_DISPOSITION = re.compile(rb"^content-disposition[ \t]*:([^\r\n]*)", re.IGNORECASE | re.MULTILINE)
_PARAMETER = rb"""[ \t]*;[ \t]*([A-Za-z0-9!#$&+.^_`|~*-]+)[ \t]*=[ \t]*("(?:[^"\\]|\\.)*"|[^\s;"]+)"""
_PARAMETERS = re.compile(rb"[ \t]*form-data((?:" + _PARAMETER + rb")*)[ \t]*;?[ \t]*", re.IGNORECASE)
_EACH = re.compile(_PARAMETER)
_FOLDED = re.compile(rb"\n[ \t]")
BACKSLASH = b"\\"
LONGEST_HEAD = 8 << 10
"""Bytes of a part's headers that are looked at."""


def boundary_of(content_type: bytes) -> bytes | None:
    """Return a form's boundary; None if this is no form."""
    if not content_type.lower().startswith(b"multipart/form-data"):
        return None
    found = _BOUNDARY.findall(content_type)
    return (found[0][0] or found[0][1]) if len(found) == 1 else None


def fields(body: bytes, boundary: bytes, names: tuple[bytes, ...]) -> dict[bytes, list[tuple[int, int]]] | None:
    """Return (start, end) of every value of each of these fields that is no file; None for a form that could be read otherwise.

    That is one with a part whose head does not end, is longer than `LONGEST_HEAD`, is folded, or names the part in two ways.
    """
    found: dict[bytes, list[tuple[int, int]]] = {name: [] for name in names}
    mark = b"--" + boundary
    at = 0 if body.startswith(mark) else body.find(b"\r\n" + mark) + 2
    if at < 2 and not body.startswith(mark):
        return found
    while not body.startswith(b"--", at + len(mark)):
        line = body.find(b"\r\n", at)
        following = body.find(b"\r\n" + mark, line) if line >= 0 else -1
        if following < 0:
            return None
        head_end = body.find(b"\r\n\r\n", line, min(following + 4, line + LONGEST_HEAD))
        if not 0 <= head_end <= following - 4:
            return None
        head = body[line:head_end]
        name = _name_in(head)
        if name is None:
            return None
        if name in found:
            found[name].append((head_end + 4, following))
        at = following + 2
    return found


def _name_in(head: bytes) -> bytes | None:
    """Return what a part's head calls its field; empty if it is a file, or has no name; None if that is not plain to see."""
    lines = _DISPOSITION.findall(head)
    said = _PARAMETERS.fullmatch(lines[0]) if len(lines) == 1 else None
    if said is None or _FOLDED.search(head):
        return None
    parameters = [(key.lower(), value) for key, value in _EACH.findall(said[1])]
    if any(key in (b"filename", b"filename*") for key, _ in parameters):
        return b""
    names = [value for key, value in parameters if key in (b"name", b"name*")]
    if not names:
        return b""
    plain = len(names) == 1 and BACKSLASH not in names[0] and all(key != b"name*" for key, _ in parameters)
    return names[0].strip(b'"') if plain else None


def with_field(body: bytes, boundary: bytes, name: bytes, value: bytes) -> bytes:
    """Return the body with another value of a field that it has once."""
    found = fields(body, boundary, (name,))
    if found is None or len(found[name]) != 1:
        return body
    start, end = found[name][0]
    return body[:start] + value + body[end:]
