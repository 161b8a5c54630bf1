"""How an apply is shown while it goes on: a live table on a terminal, one line for every change elsewhere."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from llmgw.base.ids import short
from llmgw.base.time import age

MOST = 10
"""Lines of what is left to do, on a terminal."""


class Screen(Protocol):
    """Shows it."""

    def show(self, row: dict[str, Any]) -> None:
        """Show how far an apply is."""
        ...

    def say(self, line: str) -> None:
        """Show something else that happened."""
        ...


@contextmanager
def screen(*, quiet: bool) -> Iterator[Screen]:
    """Return what fits standard output; nothing is shown if `quiet`."""
    if quiet:
        yield Nothing()
    elif sys.stdout.isatty():
        with _live() as live:
            yield live
    else:
        yield Lines()


class Nothing:
    """Shows nothing."""

    def show(self, row: dict[str, Any]) -> None:
        """Show nothing."""

    def say(self, line: str) -> None:
        """Show nothing."""


class Lines:
    """One line for every change."""

    def __init__(self) -> None:
        self._before = ""

    def show(self, row: dict[str, Any]) -> None:
        """Print the line if it is new."""
        self.say(line_of(row))

    def say(self, line: str) -> None:
        """Print a line if it is new."""
        if line != self._before:
            print(line, flush=True)
        self._before = line


def line_of(row: dict[str, Any]) -> str:
    """Return how far an apply is, in one line without anything that changes by itself."""
    head = f"{short(row['revision'])} {row['phase'].replace('_', ' ')}"
    if not row["models"]:
        return head
    ready, wanted = sum(one["ready"] for one in row["models"]), sum(one["wanted"] for one in row["models"])
    said = f"{head}: {ready} of {wanted} replicas serve"
    left = row["todo"]
    if not left:
        return said
    first = f"{left[0]['subject']} {left[0]['what']}" + (f" ({left[0]['waits_for']})" if left[0]["waits_for"] else "")
    return f"{said}; left: {first}" + (f" and {len(left) - 1} more" if len(left) > 1 else "")


@contextmanager
def _live() -> Iterator[Screen]:
    from rich.console import Console, Group, RenderableType
    from rich.live import Live
    from rich.text import Text

    def drawn(row: dict[str, Any]) -> RenderableType:
        lines = [Text(f"{short(row['revision'])} {row['subject']}".rstrip(), style="bold")]
        lines += [
            Text(f"  model/{one['model']}: {one['ready']} of {one['wanted']} serve", style="yellow")
            for one in row["models"]
            if one["ready"] != one["wanted"]
        ]
        well = sum(one["ready"] == one["wanted"] for one in row["models"])
        lines.append(Text(f"  {well} of {len(row['models'])} models have all their replicas", style="green"))
        for one in row["todo"][:MOST]:
            waits = f", waits for {one['waits_for']}" if one["waits_for"] else ""
            lines.append(
                Text(f"  {one['subject']}: {one['what']}{waits}", style="dim", no_wrap=True, overflow="ellipsis")
            )
        rest = len(row["todo"]) - MOST
        lines += [Text(f"  and {rest} more", style="dim")] if rest > 0 else []
        lines.append(Text(f"  {row['phase'].replace('_', ' ')}, for {age(row['age'])}; Ctrl-C ends only this display"))
        return Group(*lines)

    class _Live:
        def show(self, row: dict[str, Any]) -> None:
            live.update(drawn(row), refresh=True)

        def say(self, line: str) -> None:
            live.update(Text(line), refresh=True)

    with Live(console=Console(), auto_refresh=False) as live:
        yield _Live()
