"""`llmgw logs`: an engine's output, also of attempts that failed and of replicas that are gone; with `-f` as it comes.

Following goes on with the next attempt when one ends, and over a lost connection; it ends by itself when nothing can
follow: the replica is gone, was given up, or the attempt that was asked for has ended.
"""

import json
import sys
import time
from typing import Any
from urllib.parse import urlencode

from llmgw.cli.client import ask
from llmgw.cli.outcomes import Failed

WAIT = 20
"""Seconds that one question waits for more."""
PAUSE = 1.0
PATIENCE = 60.0
"""Seconds between two looks when there is nothing to wait at, and for a server or node that does not answer."""


def show_logs(replica: str, attempt: int, lines: int, server: str, *, follow: bool, as_json: bool) -> None:
    """Print the end of an engine's log; with `follow`, also what is added. Raises Failed."""
    shown = _ask(server, replica=replica, attempt=attempt, lines=lines)
    _print(shown, as_json=as_json, follow=follow)
    if follow:
        _follow(replica, attempt, shown, server, as_json=as_json)


def _follow(replica: str, wanted: int, shown: dict[str, Any], server: str, *, as_json: bool) -> None:
    while not _finished(shown, wanted):
        attempt, offset = shown["attempt"], shown["next"]
        newer = [one for one in shown["attempts"] if one > attempt]
        if shown["ended"] and newer and not shown["lines"]:
            attempt, offset = newer[0], 0
            _say(f"attempt {attempt}")
        elif shown["ended"]:
            time.sleep(PAUSE)  # it is in backoff, and nothing can be waited at before the next attempt
        before = shown
        shown = _patiently(server, replica=replica, attempt=attempt, offset=offset, wait=WAIT)
        if shown["start"] > offset and before["attempt"] == attempt:
            _say(f"{shown['start'] - offset} bytes were dropped by the size limit of logs")
        _print(shown, as_json=as_json, follow=True)


def _finished(shown: dict[str, Any], wanted: int) -> bool:
    if not shown["ended"] or shown["lines"]:
        return False  # what was written last is asked for once more
    newer = any(one > shown["attempt"] for one in shown["attempts"])
    if wanted:
        _say(f"attempt {wanted} has ended")
        return True
    if newer or shown["phase"] not in ("failed", "gone"):
        return False
    _say("the replica is gone" if shown["phase"] == "gone" else "the replica was given up until its spec changes")
    return True


def _patiently(server: str, **query: Any) -> dict[str, Any]:
    """Ask until there is an answer, for as long as a restart of the server or a lost connection may take."""
    waited = 0.0
    while True:
        try:
            return _ask(server, **query)
        except Failed as error:
            if waited >= PATIENCE:
                raise
            if waited == 0.0:
                _say(f"{error}; waiting")
            time.sleep(PAUSE)
            waited += PAUSE


def _ask(server: str, **query: Any) -> dict[str, Any]:
    return ask(server, "GET", f"/v1/logs?{urlencode(query)}")


def _print(shown: dict[str, Any], *, as_json: bool, follow: bool) -> None:
    if as_json:
        print(json.dumps(shown, indent=None if follow else 2), flush=True)
    elif shown["lines"]:
        print("\n".join(shown["lines"]), flush=True)


def _say(text: str) -> None:
    print(f"llmgw: {text}", file=sys.stderr, flush=True)
