"""Where in a file's text a value can be replaced, inserted or removed, so that every other character stays.

Works on nodes and their spans. What it does not foresee (keys written with `?`, a pair in brackets without braces) may come
out wrong; `edit` reads the result again and refuses what is not exactly the change, so a gap here costs an edit by hand and
never a damaged file. Rewriting the file from its values was rejected: it moves comments and changes quotes and indentation.

A comment belongs to the line it ends, and goes when the last value on that line goes. One with a line of its own stays,
unless it is inside what is removed.
"""

import re
from dataclasses import dataclass

from llmgw.catalog.edit_text import flow_text, pair_lines, pair_text
from llmgw.catalog.nodes import Alias, Mapping, Node, Scalar, Sequence, Span

Collection = Sequence | Mapping
Splice = tuple[int, int, str]
"""From, to (excluded), and what comes there instead."""

_LINE_END = re.compile(r"\r\n|\n|\r")
_HEADER_COMMENT = re.compile(r"[|>][0-9+-]*([ \t]+#[^\r\n]*)")


def spliced(text: str, splices: list[Splice]) -> str:
    """Return a text with pieces replaced. They do not overlap."""
    for start, end, new in sorted(splices, reverse=True):
        text = text[:start] + new + text[end:]
    return text


def skip(text: str, at: int) -> int:
    """Return where the next thing is: behind blanks, line ends and comments."""
    while at < len(text):
        if text[at] == "#":
            at = line_end(text, at)
        elif text[at].isspace():
            at += 1
        else:
            break
    return at


def line_end(text: str, at: int) -> int:
    """Return where the line of a place ends, before its line end."""
    match = _LINE_END.search(text, at)
    return match.start() if match else len(text)


def line_start(text: str, at: int) -> int:
    """Return where the line of a place starts."""
    return max(text.rfind("\n", 0, at), text.rfind("\r", 0, at)) + 1


def _newline(text: str, at: int) -> str:
    """Return the line end that the line of a place has; that of the first line if it is the last and has none."""
    match = _LINE_END.search(text, at) or _LINE_END.search(text)
    return match[0] if match else "\n"


def _starts_line(text: str, at: int) -> bool:
    return not text[line_start(text, at) : at].strip()


def _ends_line(text: str, at: int) -> bool:
    rest = text[at : line_end(text, at)].strip()
    return not rest or rest.startswith("#")


def inside(text: str, node: Node) -> int:
    """Return where a node itself starts, behind its anchor."""
    start = node.span[0]
    if isinstance(node, Alias) or text[start] != "&":
        return start
    while start < len(text) and not text[start].isspace():
        start += 1
    return skip(text, start)


def _regions(text: str, node: Collection) -> list[Span]:
    """Return where each entry starts and ends: the key, the dash, or in brackets the item."""
    if isinstance(node, Mapping):
        return [(key.span[0], value.span[1]) for key, value in node.pairs()]
    if node.flow:
        return [item.span for item in node.items]
    before = [inside(text, node), *(skip(text, item.span[1]) for item in node.items[:-1])]
    return [(start, item.span[1]) for start, item in zip(before, node.items, strict=True)]


# inserting


@dataclass(frozen=True, slots=True)
class Entry:
    """What to insert: a list's item if it has no keys, else a mapping's pair; several keys are one inside the other."""

    keys: tuple[str, ...]
    value: object
    quote: str = ""

    def line(self, *, flow: bool) -> str:
        """Return it in one line."""
        if self.keys:
            return pair_text(self.keys, self.value, flow=flow)
        return flow_text(self.value, flow=flow, quote=self.quote)


def insert(text: str, node: Collection, at: int, entry: Entry, step: str) -> str:
    """Return the text with an entry before the one at a position, or at the end. `step` is one level of indentation."""
    regions = _regions(text, node)
    if node.flow:
        return spliced(text, _into_brackets(text, node, regions, at, entry.line(flow=True)))
    first = regions[0][0]
    column = first - line_start(text, first)
    indent = " " * column
    where = _block_end(text, regions[at - 1][1], column) if at else first
    newline = _newline(text, where)
    if entry.keys:
        lines = pair_lines(entry.keys, entry.value, indent, step)
    else:
        lines = [f"-{_gap(text, first)}{entry.line(flow=False)}"]
    body = newline.join(lines)
    return spliced(text, [(where, where, newline + indent + body if at else body + newline + indent)])


def _gap(text: str, dash: int) -> str:
    """Return the blanks between a list's first dash and its item."""
    rest = text[dash + 1 : line_end(text, dash)]
    blanks = rest[: len(rest) - len(rest.lstrip(" "))]
    return blanks if blanks and len(blanks) < len(rest) and not rest.lstrip().startswith("#") else " "


def _block_end(text: str, end: int, column: int) -> int:
    """Return the end of the last line of an entry of a block: comments below it that are indented deeper are its own."""
    found = line_end(text, end)
    at = found
    while at < len(text):
        at += len(_newline(text, at))
        stop = line_end(text, at)
        line = text[at:stop]
        if line.strip() and not (line.lstrip(" ").startswith("#") and len(line) - len(line.lstrip(" ")) > column):
            break
        found = stop if line.strip() else found
        at = stop
    return found


def _into_brackets(text: str, node: Collection, regions: list[Span], at: int, piece: str) -> list[Splice]:
    if not regions:
        opened, closed = inside(text, node) + 1, node.span[1] - 1
        return [(opened, opened if text[opened:closed].strip() else closed, piece)]
    if at == 0:
        first = regions[0][0]
        lined = _starts_line(text, first)
        gap = _newline(text, first) + text[line_start(text, first) : first] if lined else " "
        return [(first, first, f"{piece},{gap}")]
    start, end = regions[at - 1]
    if not _starts_line(text, start):
        return [(end, end, f", {piece}")]
    comma = skip(text, end)
    followed = text[comma : comma + 1] == ","
    gap = _newline(text, end) + text[line_start(text, start) : start]
    tail = comma + 1 if followed else end
    if not _ends_line(text, tail):
        return [(end, end, f", {piece}" if followed else f",{gap}{piece}")]
    stop = line_end(text, tail)
    added = (stop, stop, gap + piece + ("," if followed else ""))
    if followed:
        return [added]
    return [(end, stop, f",{text[end:stop]}{added[2]}")]


# removing


def remove(text: str, node: Collection, at: int) -> str:
    """Return the text without an entry. A collection that this empties becomes `[]` or `{}`, and is to be replaced instead."""
    regions = _regions(text, node)
    assert len(regions) > 1, "the last one goes with its collection"
    start, end = regions[at]
    if node.flow:
        return spliced(text, [_out_of_brackets(text, regions, at)])
    if _starts_line(text, start):
        return spliced(text, [_lines(text, start, end)])
    stop = line_end(text, end)
    if at + 1 < len(regions) and not text[stop : regions[at + 1][0]].strip():
        return spliced(text, [(start, regions[at + 1][0], "")])
    return spliced(text, [(len(text[:start].rstrip(" ")), stop, "")])


def _lines(text: str, start: int, end: int) -> Splice:
    stop = line_end(text, end)
    return line_start(text, start), stop + (len(_newline(text, stop)) if stop < len(text) else 0), ""


def _out_of_brackets(text: str, regions: list[Span], at: int) -> Splice:
    start, end = regions[at]
    comma = skip(text, end)
    tail = comma + 1 if text[comma : comma + 1] == "," else end
    if _starts_line(text, start) and _ends_line(text, tail):
        return _lines(text, start, tail)
    if at + 1 < len(regions):
        return start, regions[at + 1][0], ""
    before = regions[at - 1][1]
    # With a comment in between, the comma before it stays, and then any behind goes.
    return (start, tail, "") if "#" in text[before:start] else (before, end, "")


# replacing


def replace(text: str, parent: Collection, at: int, value: object) -> str:
    """Return the text with the value of an entry replaced."""
    if isinstance(parent, Mapping):
        key, node = parent.children[2 * at], parent.children[2 * at + 1]
        behind = skip(text, key.span[1]) + 1
    else:
        key, node = None, parent.items[at]
        behind = _regions(text, parent)[at][0] + 1
    own = inside(text, node)
    if isinstance(node, Sequence | Mapping) and not node.flow:
        new = flow_text(value, flow=False)
        anchored = node.span[0] < own
        head = node.span[0] + len(text[node.span[0] : own].split(maxsplit=1)[0]) if anchored else behind
        if line_end(text, head) < own:
            last = line_end(text, node.span[1])
            return spliced(text, [(head, head, f" {new}"), (line_end(text, head), last, "")])
        return spliced(text, [(own, node.span[1], new)])
    new = flow_text(value, flow=parent.flow, quote=_quotes(text, node))
    if key is not None and text[own - 1] == ":":
        new = f" {new}"
    header = _HEADER_COMMENT.match(text, own) if isinstance(node, Scalar) and not node.plain else None
    return spliced(text, [(own, node.span[1], new + (header[1] if header else ""))])


def _quotes(text: str, node: Node) -> str:
    if not isinstance(node, Scalar) or node.plain:
        return ""
    mark = text[inside(text, node)]
    return mark if mark in "'\"" else ""


def common_quotes(text: str, node: Sequence) -> str:
    """Return the quotes that all items of a list have, so that a new one can have them too; empty if they differ."""
    found = {_quotes(text, item) for item in node.items}
    return found.pop() if len(found) == 1 else ""


def indentation(node: Node) -> str:
    """Return one level of a file's indentation: that of the first mapping inside another one; two blanks if there is none."""
    waiting = [node]
    while waiting:
        match waiting.pop(0):
            case Mapping(flow=False) as outer:
                for key, value in outer.pairs():
                    if isinstance(value, Mapping) and not value.flow and value.children:
                        width = value.children[0].place.column - key.place.column
                        if width > 0:
                            return " " * width
                    waiting.append(value)
            case Sequence(items=items):
                waiting += items
            case _:
                pass
    return "  "
