"""`llmgw cordon`, `drain`, `uncordon` and `restart`: what operators ask for by command, and the wait until it is done."""

import json
import os
import pwd
import sys
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

import typer

from llmgw.base.time import age
from llmgw.cli.client import ask
from llmgw.cli.outcomes import WrongUsage
from llmgw.cli.overview import act_line

NOT_DONE = 5
LOOK_AGAIN = 1.0
"""Seconds between two looks at how far a drain has come."""


def act(kind: str, target: str, reason: str, until: str, server: str, *, as_json: bool) -> None:
    """Ask for an act, and say what is in force then."""
    if kind != "restart" and not reason:
        raise WrongUsage(f"say why, for whoever reads it later: llmgw {kind} {target} --reason TEXT")
    body = {"kind": kind, "target": target, "reason": reason, "until": until, "by": me()}
    _print(ask(server, "POST", "/v1/acts", body), as_json=as_json)


def seconds_of(text: str) -> float:
    """Return the seconds of `10m`. Raises WrongUsage."""
    from pydantic import TypeAdapter, ValidationError

    from llmgw.spec.common import Duration

    try:
        return float(TypeAdapter(Duration).validate_python(text))
    except ValidationError:
        raise WrongUsage(f"--timeout {text!r} is not understood; write 30s, 10m or 2h") from None


def take_back(target: str, server: str, *, as_json: bool) -> None:
    """Take back a cordon or a drain."""
    shown = ask(server, "DELETE", f"/v1/acts?{urlencode({'target': target})}")
    if as_json:
        print(json.dumps(shown, indent=2))
    else:
        print("\n".join(f"taken back: {act_line(one)}" for one in shown["acts"]))


def forget_target(target: str, reason: str, server: str, *, as_json: bool) -> None:
    """Give up a node or a router, and say what the node may still run."""
    kind, _, name = target.partition("/")
    if kind not in ("node", "router") or not name:
        raise WrongUsage(f"{target!r} is no node or router; write node/NAME or router/NAME")
    if not reason:
        raise WrongUsage(f"say why, for whoever reads it later: llmgw forget {target} --reason TEXT")
    if kind == "router":
        gone = ask(server, "POST", "/v1/routers/forget", {"router": name, "reason": reason, "by": me()})
        print(json.dumps(gone, indent=2) if as_json else f"{target} is forgotten ({reason})")
        return
    shown = ask(server, "POST", "/v1/forget", {"node": name, "reason": reason, "by": me()})
    if as_json:
        print(json.dumps(shown, indent=2))
        return
    print(f"node/{name} is forgotten ({reason})")
    if shown["replicas"]:
        ran = ", ".join(shown["replicas"])
        print(f"should it run again, so may these engines, unused: {ran}; write its file again to have them ended")


def wait_drained(target: str, timeout: float, server: str) -> None:
    """Show how far a drain has come until it is done; ends with exit code 5 if it is not in time."""
    begun = time.perf_counter()
    say = _progress()
    total = 0
    while True:
        left = still_there(target, ask(server, "GET", "/v1/status"))
        total = max(total, len(left))
        if not left:
            say(f"{target} is drained, {total} replica(s) left it", True)
            return
        past = time.perf_counter() - begun
        line = f"{total - len(left)} of {total} replicas have left {target}; still there: {'; '.join(left[:3])}"
        more = f" and {len(left) - 3} more" if len(left) > 3 else ""
        if past >= timeout:
            say(f"{line}{more}", True)
            print(
                f"llmgw: not done in {age(timeout)}; the drain goes on, `llmgw status` shows what it waits for",
                file=sys.stderr,
            )
            raise typer.Exit(NOT_DONE)
        say(f"{line}{more}", False)
        time.sleep(min(LOOK_AGAIN, max(0.05, timeout - past)))


def still_there(target: str, status: dict[str, Any]) -> list[str]:
    """Return the replicas that are still on a target, and what each does."""
    kind, _, name = target.partition("/")
    match kind:
        case "node":
            found = [one for one in status["replicas"] if name in one["nodes"]]
        case "gpu":
            found = [one for one in status["replicas"] if name in one["gpus"]]
        case _:
            found = [one for one in status["replicas"] if one["replica"] == name]
    held = {one["subject"]: one["waits_for"] for one in status["held"]}
    return [_doing(one, held.get(f"replica/{one['replica']}")) for one in found]


def _doing(one: dict[str, Any], waits_for: str | None) -> str:
    return f"{one['replica']} ({one['phase']}{f', waits for {waits_for}' if waits_for else ''})"


def _progress() -> Callable[[str, bool], None]:
    """Return what shows one line after another: in place on a terminal, else only what is new."""
    before = ""

    def say(line: str, last: bool) -> None:
        nonlocal before
        if sys.stdout.isatty():
            sys.stdout.write(f"\r{line}\x1b[K" + ("\n" if last else ""))
            sys.stdout.flush()
        elif line != before:
            print(line, flush=True)
        before = line

    return say


def _print(shown: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(shown, indent=2))
    else:
        print("\n".join(act_line(one) for one in shown["acts"]))
        if shown.get("suspended"):
            print(f"suspended by {shown['suspended']}: nothing moves until `llmgw resume`")


def me() -> str:
    """Return who asks: the name of this user."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
