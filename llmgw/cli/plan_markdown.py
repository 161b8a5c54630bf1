"""A plan as Markdown that fits a pull request's comment: a summary that is always seen, objects folded below it.

Forges cut a comment at 65,536 characters or refuse it, so it ends before 60,000 with a line that says what was left out.
Values come from files that anybody may have written: they stand in fences that are longer than any of theirs, and outside of
them HTML and what calls people are defused.
"""

import html
import re
from typing import Any

from llmgw.base.ids import short
from llmgw.cli.plan_text import Block, blocks, drift_lines, held_lines, summary, text, warnings

LONGEST = 60_000
"""Characters."""
MARK = "<!-- llmgw plan -->"
"""First line of every comment, by which the next run finds it."""
_ROOM = 400
"""Characters kept for the end."""


def markdown(shown: dict[str, Any]) -> str:
    """Return the comment, which ends with a newline."""
    head = f"{MARK}\n### llmgw: {_inline(summary(shown))}\n"
    if not shown["valid"]:
        return _fit(head, [_fenced(_cut(text(shown).split("\n"), LONGEST - 3 * _ROOM))])
    about = f"\nRevision `{_code(short(shown['revision']))}`"
    about += f" against `{_code(short(shown['based_on']))}`, which is in force.\n" if shown["based_on"] else ".\n"
    parts = [
        about,
        _listed("Changed outside", drift_lines(shown)),
        _listed("Before it is applied", warnings(shown)),
        *map(_folded, blocks(shown)),
        _details("Held back", held_lines(shown)),
    ]
    return _fit(head, [part for part in parts if part])


def _fit(head: str, parts: list[str]) -> str:
    """Put together as many parts as there is room for; one that is too long by itself is cut inside its fence."""
    said = head
    for n, part in enumerate(parts):
        room = LONGEST - _ROOM - len(said)
        if len(part) <= room:
            said += part
            continue
        left = len(parts) - n
        what = "1 more part" if left == 1 else f"{left} more parts"
        return f"{said}\n_Truncated: {what} of this plan did not fit; `llmgw plan` shows all of it._\n"
    return said


def _folded(block: Block) -> str:
    title = f"{block.sign} {block.title}"
    count = len(block.lines)
    if not count:
        return f"\n`{_code(title)}`\n"
    return _details(title, list(block.lines), code=True)


def _details(title: str, lines: list[str], *, code: bool = False) -> str:
    if not lines:
        return ""
    shown = html.escape(title)
    title_html = f"<code>{shown}</code>" if code else shown
    return f"\n<details><summary>{title_html}</summary>\n{_fenced(_cut(lines))}</details>\n"


def _cut(lines: list[str], longest: int = LONGEST // 3) -> str:
    """Return lines up to a third of a comment, so that one object cannot take the place of all others."""
    kept: list[str] = []
    size = 0
    for n, line in enumerate(lines):
        short = line if len(line) <= 2000 else f"{line[:2000]} …"
        if size + len(short) > longest:
            return "\n".join([*kept, f"… truncated: {len(lines) - n} more lines; `llmgw plan` shows them"])
        kept.append(short)
        size += len(short) + 1
    return "\n".join(kept)


def _fenced(lines: str) -> str:
    longest = max((len(run) for run in re.findall(r"`+", lines)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"\n{fence}diff\n{_diff(lines)}\n{fence}\n"


def _diff(lines: str) -> str:
    """Return lines with their sign first, as forges colour them."""
    return "\n".join(re.sub(r"^( +)([+-] )", r"\2\1", line) for line in lines.split("\n"))


def _listed(title: str, lines: list[str], most: int = 20) -> str:
    if not lines:
        return ""
    rest = len(lines) - most
    shown = [f"- {_inline(line[:1000])}" for line in lines[:most]]
    more = [f"- … truncated: {rest} more"] if rest > 0 else []
    return "\n**" + title + "**\n\n" + "\n".join([*shown, *more]) + "\n"


def _inline(said: str) -> str:
    """Return text that means nothing to Markdown, HTML, or a forge that calls whom an @ names."""
    escaped = re.sub(r"([\\`*_\[\]|#~])", r"\\\1", html.escape(said, quote=False))
    return escaped.replace("@", "@\u200b")


def _code(said: str) -> str:
    return said.replace("`", "'").replace("\n", " ")
