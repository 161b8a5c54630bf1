"""Showing a text again and again on a terminal, without flicker: each frame is written over the one before in one write."""

import shutil
import sys
import time
from collections.abc import Callable

from llmgw.cli.outcomes import Failed

_HOME, _REST_OF_LINE, _REST_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"
_BEGIN, _END = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
"""The other screen without a cursor, and back: what was on the terminal before is there again afterwards."""


def watch(said: Callable[[], str], every: float) -> None:
    """Show what is said every so many seconds, until Ctrl-C. A server that does not answer is shown, and asked again."""
    fancy = sys.stdout.isatty()
    if fancy:
        sys.stdout.write(_BEGIN)
    try:
        while True:
            try:
                shown = said()
            except Failed as error:
                shown = f"! {error}"
            size = shutil.get_terminal_size()
            sys.stdout.write(frame(shown, size.columns, size.lines) if fancy else f"{shown}\n")
            sys.stdout.flush()
            time.sleep(every)
    except KeyboardInterrupt:
        pass
    finally:
        if fancy:
            sys.stdout.write(_END)
            sys.stdout.flush()


def frame(shown: str, columns: int, lines: int) -> str:
    """Return what draws a text over another one: cut to the screen, every line cleared to its end, and what is below."""
    rows = shown.splitlines()
    cut = [*rows[: lines - 1], f"… {len(rows) - lines + 1} more lines"] if len(rows) > lines else rows
    return _HOME + "\n".join(row[:columns] + _REST_OF_LINE for row in cut) + _REST_OF_SCREEN
