"""`llmgw apply`: hand a revision to the server, and look on until it is in force with everything healthy.

The server does the work, and goes on with it whatever becomes of this process: what ends here is the looking on. So a lost
connection is waited out, Ctrl-C stops nothing, and neither does a timeout. A saved plan is sent whole, and the server
checks it again under its lease before the first effect; it is asked here first only to say sooner, and more clearly, that
it is stale.
"""

import getpass
import json
import shlex
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import typer

from llmgw.base.ids import short
from llmgw.base.time import age
from llmgw.cli.apply_screen import Screen, screen
from llmgw.cli.client import ask
from llmgw.cli.outcomes import (
    INTERRUPTED,
    Failed,
    GuardRefused,
    NoServer,
    NotHealthy,
    ServerRefused,
    StalePlan,
    WrongUsage,
)
from llmgw.cli.planning import read_plan, tree_row, wanted_tree, why_stale

LOOK_AGAIN = 0.5
"""Seconds between two looks."""
OPEN = ("planning", "under_way")
CONFLICT = 409


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be applied: a directory or a saved plan, a revision, and how."""

    what: Path | None
    rev: str = ""
    allow_remove: tuple[str, ...] = ()
    wait_for_other: bool = False
    supersede: bool = False


class Asks(Protocol):
    """Asks the server. Raises Failed."""

    def __call__(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return its answer."""
        ...


@dataclass(frozen=True, slots=True)
class Patience:
    """How long is waited, and how time passes: `past` in seconds since the beginning."""

    limit: float
    past: Callable[[], float]
    pause: Callable[[float], None] = time.sleep

    def rest(self) -> None:
        """Wait until the next look, but no longer than to the limit."""
        self.pause(max(0.01, min(LOOK_AGAIN, self.limit - self.past())))

    @property
    def over(self) -> bool:
        """Whether the time is up."""
        return self.past() >= self.limit


def apply_it(wanted: Wanted, server: str, timeout: float | None, *, as_json: bool) -> None:
    """Apply and wait; with `timeout` None, do not wait. Raises Failed, of the kind that its exit code follows from."""
    asks: Asks = partial(ask, server)
    body = request_of(wanted, asks)
    begun = time.perf_counter()
    patience = Patience(timeout if timeout is not None else 0.0, lambda: time.perf_counter() - begun)
    row: dict[str, Any] | None = None
    with screen(quiet=as_json) as shown, _ended_as_by_ctrl_c():
        try:
            row = begin(asks, body, wanted, patience, shown)
            if timeout is not None:
                row = follow(asks, row, patience, shown)
        except KeyboardInterrupt:
            _interrupted(row)
            raise typer.Exit(INTERRUPTED) from None
    if as_json:
        print(json.dumps(row, indent=2))
    if timeout is None:
        if not as_json:
            print(
                f"The server has taken up revision {_short(row)} (apply {row['id']}); `llmgw status` shows how far it is."
            )
        return
    judge(row, timeout)
    if not as_json:
        ready = sum(one["ready"] for one in row["models"])
        print(f"Revision {_short(row)} is applied: nothing is left to do, and {ready} replica(s) serve.")


def request_of(wanted: Wanted, asks: Asks) -> dict[str, Any]:
    """Return what is sent. Raises Failed, StalePlan for a saved plan that does not hold any more."""
    body: dict[str, Any] = {"by": me(), "allow_remove": list(wanted.allow_remove)}
    body |= {"supersede": True} if wanted.supersede else {}
    if wanted.what is not None and wanted.what.is_file():
        if wanted.rev:
            raise WrongUsage("a saved plan has its revision in it; leave out --rev")
        saved = read_plan(wanted.what)
        stale = asks("POST", "/v1/plan/verify", {"plan": saved})["stale"]
        if stale:
            raise StalePlan(why_stale(wanted.what, stale))
        kept = {key: saved[key] for key in ("revision", "files", "subject", "author", "trailers") if key in saved}
        return {**body, "tree": kept, "plan": saved}
    if wanted.what is not None and not wanted.what.exists():
        raise Failed(f"there is no directory and no saved plan {wanted.what}; name another one")
    directory = wanted.what or Path()
    if not wanted.rev:
        return {**body, "tree": tree_row(wanted_tree(directory, ""))}
    try:
        return {**body, "tree": tree_row(wanted_tree(directory, wanted.rev))}
    except Failed as error:
        if not any(known in str(error) for known in ("has no commit", "is not in a git repository")):
            raise
        return {**body, "revision": wanted.rev}  # the server may know it by its name


def begin(asks: Asks, body: dict[str, Any], wanted: Wanted, patience: Patience, shown: Screen) -> dict[str, Any]:
    """Return the row of the apply once the server has taken it up. Raises Failed."""
    while True:
        try:
            return asks("POST", "/v1/apply", body)
        except GuardRefused as error:
            raise GuardRefused(_refused(error, wanted), error.guard) from error
        except ServerRefused as error:
            stale = error.data.get("stale")
            if stale:
                raise StalePlan(why_stale(wanted.what or Path("PLAN"), list(stale))) from error
            other = _other(asks) if error.status == CONFLICT else None
            if other is None:
                raise
            if not wanted.wait_for_other:
                raise Failed(f"{error}, or wait for its end with --wait-for-other") from error
            _await_end(asks, other, patience, shown)


def allowing(what: Path | None, guard: Iterable[dict[str, Any]]) -> str:
    """Return the command that applies a directory or a saved plan all the same."""
    objects = sorted({name for one in guard for name in one["objects"]})
    return " ".join(
        ["llmgw apply", *([shlex.quote(str(what))] if what else []), *(f"--allow-remove {one}" for one in objects)]
    )


def _refused(error: GuardRefused, wanted: Wanted) -> str:
    """Say what a guard refuses. The server names `--rev`, and cannot know of the file or the directory that was given."""
    if wanted.rev or not error.guard:
        return str(error)
    told = "; ".join(one["text"] for one in error.guard)
    return f"{wanted.what or 'this directory'} is refused: {told}. If that is meant, run `{allowing(wanted.what, error.guard)}`"


def follow(asks: Asks, row: dict[str, Any], patience: Patience, shown: Screen) -> dict[str, Any]:
    """Show how far an apply is until it has ended or the time is up; return its last row."""
    while row["phase"] in OPEN:
        shown.show(row)
        if patience.over:
            return row
        patience.rest()
        row = _row(asks, row, shown)
    shown.show(row)
    return row


def judge(row: dict[str, Any], timeout: float) -> None:
    """Raise what the end of an apply means, if it is not applied."""
    revision = _short(row)
    match row["phase"]:
        case "applied":
            return
        case "failed":
            said = "".join(f"\n{line}" for one in row["evidence"] for line in evidence_lines(one))
            raise NotHealthy(
                f"revision {revision} failed: {row['note'] or 'it cannot get healthy by itself'}; push a fix, or go back "
                f"with `llmgw rollback`{said}"
            )
        case "planning" | "under_way":
            left = "; ".join(todo_line(one) for one in row["todo"][:3]) or "its plan is not made yet"
            more = f" and {len(row['todo']) - 3} more" if len(row["todo"]) > 3 else ""
            raise NotHealthy(
                f"revision {revision} is not healthy after {age(timeout)}: {left}{more}; the server goes on with it, "
                "`llmgw status` shows how far it is"
            )
        case phase:
            note = f" {row['note']}" if row["note"] else ""
            raise Failed(
                f"revision {revision} was {phase.replace('_', ' ')}{note} before it was applied (`llmgw history`)"
            )


def evidence_lines(one: dict[str, Any]) -> list[str]:
    """Return what is known of a replica that failed."""
    where = f" on {one['node']}" if one["node"] else ""
    lines = [f"  model/{one['model']}: {one['replica'] or 'its replicas'}{where}: {one['reason']}"]
    lines += [f"    | {line}" for line in one["log"][-20:]]
    if one["replica"]:
        lines.append(f"    `llmgw logs {one['replica']}` shows more")
    return lines


def todo_line(one: dict[str, Any]) -> str:
    """Return one thing that is not done yet."""
    waits = f", waits for {one['waits_for']}" if one["waits_for"] else ""
    return f"{one['subject']}: {one['what']}{waits}"


def me() -> str:
    """Say who asks, for the history: user@host."""
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (OSError, KeyError):
        return f"somebody@{socket.gethostname()}"


def _row(asks: Asks, before: dict[str, Any], shown: Screen) -> dict[str, Any]:
    """Return the newest row; the one before while the server does not answer, which may only be restarting."""
    try:
        return asks("GET", f"/v1/apply/{before['id']}")
    except NoServer:
        shown.say("the server does not answer now; asking again")
        return before
    except ServerRefused as error:
        if error.status < 500:
            raise
        shown.say(f"the server cannot say now: {error}; asking again")
        return before


def _other(asks: Asks) -> dict[str, Any] | None:
    """Return the apply that is under way, if one is."""
    try:
        rows = asks("GET", "/v1/history?limit=10")["revisions"]
    except (ServerRefused, GuardRefused):
        return None
    return next((one for one in rows if one["outcome"] == "under_way" and one["how"] == "apply"), None)


def _await_end(asks: Asks, other: dict[str, Any], patience: Patience, shown: Screen) -> None:
    """Wait until another apply has ended. Raises NotHealthy when the time is up."""
    shown.say(f"waiting for apply {other['id']} of revision {_short(other)} by {other['by']}")
    row = {**other, "phase": "under_way"}
    while row["phase"] in OPEN:
        if patience.over:
            raise NotHealthy(
                f"apply {other['id']} of revision {_short(other)} by {other['by']} did not end in {age(patience.limit)}; "
                "nothing of this one was done"
            )
        patience.rest()
        row = _row(asks, row, shown)


@contextmanager
def _ended_as_by_ctrl_c() -> Iterator[None]:
    """Have SIGTERM, as of a CI that gives up, and SIGHUP, of a terminal that closed, end the looking on as Ctrl-C does."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    taken = [number for number, handler in before.items() if handler is not signal.SIG_IGN]  # nohup stays nohup
    for number in taken:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, before[number])


def _interrupted(row: dict[str, Any] | None) -> None:
    if row is None:
        text = "stopped; `llmgw history` shows whether the server had taken it up already"
    else:
        text = (
            f"no longer looking on; the server goes on with revision {_short(row)} (apply {row['id']}): "
            "`llmgw status` shows how far it is, `llmgw rollback` goes back"
        )
    with suppress(OSError):  # of a terminal that is gone
        print(f"\nllmgw: {text}", file=sys.stderr)


def _short(row: dict[str, Any]) -> str:
    return short(row["revision"])
