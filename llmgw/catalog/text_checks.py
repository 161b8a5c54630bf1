"""What is checked of a file's bytes and text before any YAML is read.

A YAML parser answers these mistakes with a puzzle ("mapping values are not allowed here" for a conflict marker), with a
byte offset, or by accepting them (UTF-16; a git-LFS pointer is valid YAML text). So they are looked for first, and a
file that has one is not parsed at all: what the parser would add is noise.
"""

import re

from llmgw.catalog.document import Place, SourceText, shortened
from llmgw.catalog.problems import Problem
from llmgw.catalog.source import MAX_BYTES

_BOM = "\ufeff"
_LFS = "version https://git-lfs.github.com/spec/"
_CONFLICT = ("<<<<<<< ", ">>>>>>> ", "||||||| ")
_BAD_CHARACTER = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f"  # control characters, NEL among them
    "\u2028\u2029"  # line ends to some programs and not to others: positions would differ
    "\u202a-\u202e\u2066-\u2069"  # make a line read otherwise than it is
    "\ufeff\ufffe\uffff]"
)


def decode(path: str, data: bytes) -> SourceText | Problem:
    """Return the text of a file, or the first thing about it that makes reading it as YAML pointless."""
    if len(data) > MAX_BYTES:
        size = -(-len(data) // 1024)
        return _about(
            path, "file-too-large", f"{size} KiB, the limit is {MAX_BYTES // 1024} KiB; is this an object's file?"
        )
    if data.startswith((b"\xff\xfe", b"\xfe\xff")) or (b"\x00" in data[:4] and data.strip(b"\x00")):
        return _about(path, "not-utf8", "the file is UTF-16 or UTF-32; save it as UTF-8")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        return _undecodable(path, data, error.start)
    source = SourceText(path, text.removeprefix(_BOM))
    return _unfit(source) or source


def place_at(source: SourceText, index: int) -> Place:
    """Return the place of one character by its index in the text."""
    before = SourceText(source.path, source.text[:index])
    column = len(before.lines[-1]) + 1
    return Place(len(before.lines), column, column + 1)


def _about(path: str, code: str, message: str) -> Problem:
    return Problem(path, 1, 1, message, code)


def _undecodable(path: str, data: bytes, start: int) -> Problem:
    source = SourceText(path, data.decode("utf-8", errors="replace").removeprefix(_BOM))
    before = SourceText(path, data[:start].decode("utf-8").removeprefix(_BOM))
    column = len(before.lines[-1]) + 1
    message = f"byte 0x{data[start]:02x} is not UTF-8, perhaps the file is Latin-1; save it as UTF-8"
    return source.problem(Place(len(before.lines), column, column + 1), "not-utf8", message)


def _unfit(source: SourceText) -> Problem | None:
    if not source.text.strip():
        return _about(source.path, "empty-file", EMPTY)
    if source.text.startswith(_LFS):
        message = "a git-LFS pointer, not the file itself; run `git lfs pull`, or keep this file out of LFS"
        return source.problem(Place(1, 1, len(source.lines[0]) + 1), "lfs-pointer", message)
    bad = _BAD_CHARACTER.search(source.text)
    if bad is not None:
        return source.problem(place_at(source, bad.start()), "bad-character", _name(bad[0]))
    return _conflict(source) or _directive(source)


EMPTY = "the file is empty; delete the file to remove the object"


def _name(character: str) -> str:
    code = f"U+{ord(character):04X}"
    if character == _BOM:
        return f"a byte order mark ({code}) in the middle of the file; remove it"
    if character in "\x85\u2028\u2029":
        return f"an invisible line end ({code}); write an ordinary one"
    if character == "\x00":
        return "a NUL character (U+0000); remove it"
    if ord(character) < 0xA0:
        return f"a control character ({code}); remove it"
    return f"an invisible character ({code}); remove it"


def _conflict(source: SourceText) -> Problem | None:
    for number, line in enumerate(source.lines, 1):
        if line.startswith(_CONFLICT) or line == "=======":
            message = f"a merge-conflict marker; settle the conflict and remove the `{line[:7]}` lines"
            return source.problem(Place(number, 1, len(line) + 1), "merge-conflict", message)
    return None


def _directive(source: SourceText) -> Problem | None:
    for number, line in enumerate(source.lines, 1):
        if line.startswith("%"):
            message = f"a `{shortened(line.split()[0])}` directive; remove the line, files are always read as YAML 1.2"
            return source.problem(Place(number, 1, len(line) + 1), "directive", message)
        if line.strip() and not line.lstrip().startswith("#"):
            break
    return None
