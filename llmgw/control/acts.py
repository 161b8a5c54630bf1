"""What operators asked for by command: kept in the store, read by every decision, dropped when it is over.

An act is written down before it holds, so that a cordon that was confirmed survives a restart. Until the store has been
read once, acts are not known, and `current` is None: a cordoned node must not be taken for a free one, so nothing is
decided meanwhile. A store that is away later changes nothing: what was asked for holds on.

A target has one act; a newer one replaces it. What is over is dropped by `tidy`, which the reconciler calls every round:
acts that expired, and those on nodes and replicas that are gone. A card that fell off the bus comes back after a reset,
so an act on a missing card is kept for `MISSING_CARD`. That one is over is said once the store has learned of it: said before,
it would be said again after a restart.
"""

import asyncio
import logging
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime

from pydantic import TypeAdapter, ValidationError

from llmgw.base.ids import ModelName, NodeName, ReplicaId
from llmgw.base.time import Clock, Instant, age
from llmgw.control.requests import line_from
from llmgw.fleet.view import Reporting, report_of
from llmgw.plan.replicas import existing
from llmgw.plan.snapshot import Act, Snapshot
from llmgw.ports.sinks import ActKeeper, Event, EventSink, StoreUnavailable
from llmgw.spec.common import Duration

log = logging.getLogger(__name__)

READ_AGAIN = 10.0
"""Seconds between two looks at the store, where another control plane may have written."""
TRY_AGAIN = 2.0
"""Seconds until the store is tried again: while acts are not known, nothing is decided."""
MISSING_CARD = 7 * 86400.0
"""Seconds for which an act on a card that no node has is kept."""

_DURATION: TypeAdapter[float] = TypeAdapter(Duration)


class CannotAct(Exception):
    """What was asked for cannot be done; the message says what to do. `status` is the HTTP status to answer with."""

    def __init__(self, text: str, status: int = 400) -> None:
        super().__init__(text)
        self.status = status


class Acts:
    """The acts of one control plane. Use from the event loop's thread; `run` keeps the store and this in step."""

    def __init__(self, keeper: ActKeeper, events: EventSink, clock: Clock) -> None:
        self._keeper = keeper
        self._events = events
        self._clock = clock
        self._acts: tuple[Act, ...] | None = None
        self._dirty = asyncio.Event()
        self._unsaid: list[tuple[Act, str]] = []
        self._turn = asyncio.Lock()

    @property
    def current(self) -> tuple[Act, ...] | None:
        """What was asked for and is not over; None while it is not known."""
        return self._acts

    async def load(self) -> None:
        """Read the store. Raises StoreUnavailable."""
        async with self._turn:
            if self._dirty.is_set():
                return
            there = await self._keeper.last_acts()
            if not self._dirty.is_set():  # else some were over meanwhile, and the store is to learn of it
                self._acts = there

    async def run(self) -> None:
        """Write what was dropped, and read what others wrote, for ever."""
        while True:
            try:
                await self.step()
            except StoreUnavailable as error:
                log.warning("acts and store are not in step", extra={"reason": str(error)})
                await asyncio.sleep(TRY_AGAIN)
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(READ_AGAIN):
                    await self._dirty.wait()

    async def step(self) -> None:
        """Write what was dropped, or read what others wrote. Raises StoreUnavailable."""
        await (self._write() if self._dirty.is_set() else self.load())

    async def add(self, acts: Iterable[Act]) -> None:
        """Keep these, each in place of the one before on its target. Raises StoreUnavailable: they may be kept all the same."""
        new = {act.target: act for act in acts}
        async with self._turn:
            await self._keep({**{act.target: act for act in await self._known()}, **new})
        for act in new.values():
            self._say(act, "asked", in_words(act, self._clock.now()))

    async def remove(self, target: str) -> Act | None:
        """Take back what was asked for of a target; return it, or None if there was nothing. Raises StoreUnavailable."""
        async with self._turn:
            acts = {act.target: act for act in await self._known()}
            found = acts.pop(target, None)
            if found is None:
                return None
            await self._keep(acts)
        self._say(found, "taken back", f"{found.kind} of {found.target} was taken back")
        return found

    def tidy(self, snapshot: Snapshot) -> None:
        """Drop what is over; the store learns of it later."""
        if not self._acts:
            return
        left = tuple(act for act in self._acts if not over(act, snapshot))
        if left != self._acts:
            for act in self._acts:
                if act not in left:
                    why = over(act, snapshot)
                    log.info("an act is over: %s of %s", act.kind, act.target, extra={"reason": why})
                    self._unsaid.append((act, why))
            self._acts = left
            self._dirty.set()

    async def _known(self) -> tuple[Act, ...]:
        return self._acts if self._acts is not None else await self._keeper.last_acts()

    async def _keep(self, acts: dict[str, Act]) -> None:
        wanted = tuple(acts[target] for target in sorted(acts))
        before = self._acts
        await self._keeper.keep_acts(wanted)
        if self._acts is before:
            self._acts = wanted
            self._dirty.clear()
            for act, why in self._unsaid:
                self._say(act, "over", f"{act.kind} of {act.target} is over: {why}")
            self._unsaid.clear()
            return
        dropped = set(before or ()) - set(self._acts or ())  # they were over while this was written
        self._acts = tuple(act for act in wanted if act not in dropped)

    async def _write(self) -> None:
        async with self._turn:
            await self._keep({act.target: act for act in self._acts or ()})

    def _say(self, act: Act, kind: str, text: str) -> None:
        by = f" by {act.by}" if act.by and kind == "asked" else ""
        self._events.record(Event(self._clock.now(), f"act_{kind}".replace(" ", "_"), act.target, text + by, ""))


def over(act: Act, snapshot: Snapshot) -> str:
    """Return why an act holds no longer; empty if it does."""
    if not act.holds(snapshot.now):
        return "it has expired"
    kind, _, name = act.target.partition("/")
    if kind == "node":
        return "" if name in snapshot.nodes or name in snapshot.catalog.nodes else "the node is gone"
    if any(report_of(view) is None for view in snapshot.nodes.values()):
        return ""  # a node that has not spoken yet may have it
    if kind == "replica":
        return "" if any(one.id == name for one in existing(snapshot)) else "the replica is gone"
    reports = (report_of(view) for view in snapshot.nodes.values())
    known = any(gpu.uuid == name for report in reports if report is not None for gpu in report.gpus)
    if known or snapshot.now - act.at < MISSING_CARD:
        return ""
    return f"no node has had the card for {age(MISSING_CARD)}"


def check_forgettable(snapshot: Snapshot, name: NodeName) -> None:
    """Raise CannotAct unless a node left the catalog and does not answer: only then is forgetting it a person's choice."""
    gone = sorted(set(snapshot.nodes) - set(snapshot.catalog.nodes))
    if name in snapshot.catalog.nodes:
        raise CannotAct(f"node/{name} is in the cluster directory; remove its file there first", 409)
    if name not in snapshot.nodes:
        raise CannotAct(f"no node {name!r} is leaving; these are: {', '.join(gone) or 'none'}", 404)
    if isinstance(snapshot.nodes[name], Reporting):
        raise CannotAct(f"node/{name} answers: it is forgotten by itself once what it runs has ended", 409)


def in_words(act: Act, now: Instant) -> str:
    """Say what was asked for: `drain of node/a (new memory), for another 2h`."""
    until = f", for another {age(act.until - now)}" if act.until is not None else ""
    return f"{act.kind} of {act.target} ({act.reason}){until}"


def until_of(text: str, now: Instant) -> Instant:
    """Return the instant that `2h` or `2026-12-24T18:00Z` names. Raises CannotAct."""
    try:
        found = Instant(now + _DURATION.validate_python(text))
    except ValidationError:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            moment = None
        if moment is None or moment.tzinfo is None:
            raise CannotAct(f"--until {text!r} is not understood; write 2h, or 2026-12-24T18:00Z") from None
        found = Instant(moment.timestamp())
    if found <= now:
        raise CannotAct(f"--until {text} is over already; name a later time, or leave it out")
    return found


def wanted_acts(snapshot: Snapshot, asked: dict[str, object], now: Instant) -> list[Act]:
    """Return the acts that a request of the admin API asks for. Raises CannotAct."""
    kind, target, reason, until, by = (line_from(asked, key) for key in ("kind", "target", "reason", "until", "by"))
    end = until_of(until, now) if until else None
    match kind:
        case "restart":
            return [
                Act("restart", found, reason or "no reason given", now, end, by)
                for found in _to_restart(snapshot, target)
            ]
        case "cordon" | "drain":
            if not reason:
                raise CannotAct(f"say why, for whoever reads it later: llmgw {kind} {target} --reason TEXT")
            _known_target(snapshot, target)
            if kind == "cordon" and target.startswith("replica/"):
                raise CannotAct(f"a replica has no room to close; `llmgw drain {target}` has another take its place")
            return [Act("cordon" if kind == "cordon" else "drain", target, reason, now, end, by)]
        case _:
            raise CannotAct(f"there is no act {kind!r}; there are cordon, drain and restart")


def _known_target(snapshot: Snapshot, target: str) -> None:
    kind, _, name = target.partition("/")
    match kind:
        case "node":
            known: list[str] = sorted({*snapshot.nodes, *snapshot.catalog.nodes})
        case "gpu":
            reports = (report_of(view) for view in snapshot.nodes.values())
            known = [gpu.uuid for report in reports if report is not None for gpu in report.gpus]
        case "replica":
            known = [one.id for one in existing(snapshot)]
        case _:
            raise CannotAct(f"{target!r} is no target; write node/NAME, gpu/UUID or replica/ID")
    if name not in known:
        _unknown(kind, name, list(known))


def _to_restart(snapshot: Snapshot, target: str) -> list[str]:
    kind, _, name = target.partition("/")
    running = [one for one in existing(snapshot) if not one.draining and not one.leaving]
    match kind:
        case "replica":
            if ReplicaId(name) not in [one.id for one in running]:
                _unknown(kind, name, [one.id for one in running])
            return [target]
        case "model":
            if ModelName(name) not in snapshot.catalog.models:
                _unknown(kind, name, list(snapshot.catalog.models))
            found = [f"replica/{one.id}" for one in running if one.model == name]
            if not found:
                raise CannotAct(f"model/{name} has no replica to restart; `llmgw explain model/{name}` says why", 409)
            return found
        case _:
            raise CannotAct(f"{target!r} cannot be restarted; write model/NAME or replica/ID")


def _unknown(kind: str, name: str, known: list[str]) -> None:
    shown = ", ".join(known[:8]) + (f" and {len(known) - 8} more" if len(known) > 8 else "")
    raise CannotAct(f"there is no {kind} {name!r}; there are: {shown or 'none'}", 404)


def why_not_taken_back(snapshot: Snapshot | None, target: str) -> str:
    """Say why there is nothing to take back of a target, and what to do instead."""
    kind, _, name = target.partition("/")
    node = snapshot.catalog.nodes.get(NodeName(name)) if snapshot is not None and kind == "node" else None
    if node is not None and node.cordoned is not None:
        return f"{target} is cordoned by its file ({node.cordoned.reason}); remove `cordoned:` there and commit"
    return f"nothing was asked for of {target!r}; `llmgw status` shows what is"
