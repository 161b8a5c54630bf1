"""`llmgw sim SCRIPT`: the fleet in a test tube, with the commands' own texts."""

import logging
import sys
from pathlib import Path
from typing import Any

from llmgw.cli import explaining, plan_text, states, tables
from llmgw.cli.outcomes import Failed, WrongUsage
from llmgw.sim import script as language
from llmgw.sim.language import ScriptError
from llmgw.sim.script import Texts, play


def _table(what: str, rows: list[dict[str, Any]]) -> str:
    return "\n".join(tables.text(rows, tables.Asked(what))) or f"no {what}"


TEXTS = Texts(states.text, plan_text.text, explaining.text, _table)
END = "---"
"""A line that ends the script; below it, a file may keep what it showed before."""


def play_script(script: Path, seed: int) -> None:
    """Play a script and print what it shows. Ends with 1 if anything was unsafe."""
    try:
        text = sys.stdin.read() if str(script) == "-" else script.read_text()
    except OSError as error:
        raise Failed(f"cannot read {script}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise Failed(f"cannot read {script}: it is not UTF-8") from error
    logging.disable(logging.CRITICAL)  # of the simulated control plane; what it says is in its events
    try:
        shown, unsafe = play(script_of(text), seed, TEXTS)
    except ScriptError as error:
        raise WrongUsage(f"{script}, {error}") from error
    finally:
        logging.disable(logging.NOTSET)
    print("\n".join(shown))
    if unsafe:
        raise Failed(f"this must never be, and is a fault of llmgw: {'; '.join(unsafe)}")


def explain_words() -> None:
    """Print what a script may say."""
    print((language.__doc__ or "").strip())


def script_of(text: str) -> str:
    """Return the part of a file that is the script."""
    lines = text.splitlines()
    return "\n".join(lines[: lines.index(END)] if END in lines else lines)
