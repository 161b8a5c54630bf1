"""The agent's brain: `handle(event, now) -> [Instruction]`, pure. A runner does the instructions; results come back as events.

A node keeps itself at its last order: a crashed engine is started again with backoff while nobody is connected. What the
order leaves out is stopped. Two rules keep attempts apart: each start has its number, and an event of another attempt
than the current one is ignored; and nothing of a shard is started before everything of its last attempt is verified gone.

A start that cannot happen (no weights, no program, port taken) is `waiting`, not a failed attempt: it is looked at again
every few seconds, so that a mount that comes late heals itself and no crash loop hides the reason.
"""

from dataclasses import dataclass, field
from typing import assert_never

from llmgw.agent.events import (
    Event,
    Exited,
    Found,
    Gone,
    Instruction,
    LeftOver,
    NotStarted,
    OrderStored,
    Probe,
    Probed,
    Reap,
    Say,
    Start,
    Started,
    Stop,
    Tick,
)
from llmgw.base.ids import BootId, Epoch, Generation, NodeName, ShardId
from llmgw.base.time import EARLIEST, Instant, later
from llmgw.engines.shard import ShardSpec
from llmgw.fleet.order import NodeOrder, ShardOrder
from llmgw.fleet.report import Ended, Facts, Phase, Reason, Report, ShardReport

WAIT_BETWEEN_LOOKS = 2.0
"""Seconds between two looks for what a waiting shard needs."""
PROBE_STARTING = 0.25
PROBE_READY = 5.0
"""Seconds between probes, before and after readiness."""
PROBES_TO_DEGRADED = 3
"""Failed probes in a row of a ready engine until it is called degraded."""


@dataclass(slots=True)
class _Shard:
    """What is known of one shard here. `running` is the spec of the attempt whose process exists, if one does."""

    spec: ShardSpec
    order: ShardOrder | None
    phase: Phase
    since: Instant
    attempt: int = 0
    failures: int = 0
    pid: int | None = None
    running: ShardSpec | None = None
    busy: bool = False
    """A start or a probe is under way."""
    due: Instant = EARLIEST
    reason: Reason | None = None
    failed_probes: int = 0
    degraded: str | None = None
    failing: bool = False
    """While stopping: the attempt counts as failed."""
    end: tuple[int, Instant, str, str, tuple[str, ...]] | None = None

    def enter(self, phase: Phase, now: Instant, reason: Reason | None = None) -> None:
        self.phase = phase
        self.since = now
        self.reason = reason


@dataclass(slots=True)
class AgentState:
    """All that an agent knows. Use from one thread; every change goes through `handle`."""

    boot: BootId
    order: NodeOrder | None = None
    floor: tuple[int, int] = (0, 0)
    """Rank of the newest order ever obeyed here, which is known even if the order itself was lost."""
    refused: int = 0
    sequence: int = 0
    _shards: dict[ShardId, _Shard] = field(default_factory=dict)

    def accepts(self, order: NodeOrder) -> bool:
        """Whether an order is not older than the one in force. Counts the refused."""
        if order.rank >= max(self.floor, self.order.rank if self.order else (0, 0)):
            return True
        self.refused += 1
        return False

    def handle(self, event: Event, now: Instant) -> list[Instruction]:
        """Take one event and return what is to be done, in order."""
        before = self._visible()
        out: list[Instruction] = []
        match event:
            case OrderStored():
                self._obey(event.order, now)
            case Found():
                self._found(event, now)
            case LeftOver():
                self._left_over(event, now)
            case Started():
                self._started(event, now)
            case NotStarted():
                self._not_started(event, now)
            case Exited():
                self._exited(event, now, out)
            case Gone():
                self._gone(event, now, out)
            case Probed():
                self._probed(event, now)
            case Tick():
                pass
            case _:
                assert_never(event)
        for shard in [self._shards[key] for key in sorted(self._shards)]:
            self._advance(shard, now, out)
        if self._visible() != before:
            out.append(Say())
        return out

    def next_due(self, now: Instant) -> float:
        """Return the seconds until the next `Tick` is of use, at most 1."""
        timed = (Phase.WAITING, Phase.BACKOFF, Phase.STARTING, Phase.READY)
        waits = [one.due - now for one in self._shards.values() if not one.busy and one.phase in timed]
        return max(0.02, min([1.0, *waits]))

    def running(self) -> list[tuple[ShardSpec, int, int]]:
        """Return (spec, attempt, pid) of every attempt whose process exists."""
        return [
            (shard.running, shard.attempt, shard.pid)
            for shard in self._shards.values()
            if shard.running is not None and shard.pid is not None
        ]

    @property
    def holds_anything(self) -> bool:
        """Whether any shard is known here, running or not."""
        return bool(self._shards)

    def is_stopping(self, shard: ShardId) -> bool:
        """Whether a shard is being ended by us."""
        known = self._shards.get(shard)
        return known is None or known.phase is Phase.STOPPING

    def attempt_of(self, shard: ShardId) -> int:
        """Return the number of the newest attempt; 0 if there was none or the shard is not known."""
        known = self._shards.get(shard)
        return known.attempt if known else 0

    def report(self, node: NodeName, facts: Facts, now: Instant) -> Report:
        """Return a report of everything, and count it."""
        self.sequence += 1
        return Report(
            node=node,
            boot=self.boot,
            sequence=self.sequence,
            epoch=self.order.epoch if self.order else Epoch(0),
            generation=self.order.generation if self.order else Generation(0),
            refused=self.refused,
            facts=facts,
            shards=tuple(_report(self._shards[key], now) for key in sorted(self._shards)),
        )

    def _visible(self) -> object:
        return (
            self.order.rank if self.order else None,
            self.refused,
            [
                (key, shard.phase, shard.attempt, shard.pid, shard.reason, shard.degraded, shard.order, shard.end)
                for key, shard in sorted(self._shards.items())
            ],
        )

    def _obey(self, order: NodeOrder, now: Instant) -> None:
        self.order = order
        wanted = {one.spec.shard: one for one in order.shards}
        for key, shard in self._shards.items():
            shard.order = wanted.get(key)
        for key, one in wanted.items():
            known = self._shards.get(key)
            if known is None:
                self._shards[key] = _Shard(one.spec, one, Phase.WAITING, now, due=now)
                continue
            if one.spec != known.spec and known.phase in (Phase.BACKOFF, Phase.FAILED, Phase.WAITING):
                known.failures = 0
                known.enter(Phase.WAITING, now)
                known.due = now
            elif one.spec != known.spec and known.phase is Phase.STOPPING:
                known.failing, known.failures = False, 0  # what ends there is not what is wanted any more
            known.spec = one.spec

    def _found(self, event: Found, now: Instant) -> None:
        order = self.order.shard(event.spec.shard) if self.order else None
        self._shards[event.spec.shard] = _Shard(
            spec=order.spec if order else event.spec,
            order=order,
            phase=Phase.READY if event.ready else Phase.STARTING,
            since=now,
            attempt=event.attempt,
            pid=event.pid,
            running=event.spec,
            due=now,
        )

    def _left_over(self, event: LeftOver, now: Instant) -> None:
        order = self.order.shard(event.spec.shard) if self.order else None
        if order is None:
            return
        shard = _Shard(order.spec, order, Phase.WAITING, now, attempt=event.attempt, due=now)
        shard.end = (event.attempt, now, "ended_unseen", "it ended while the agent was not running", ())
        self._shards[event.spec.shard] = shard

    def _started(self, event: Started, now: Instant) -> None:
        shard = self._shards[event.spec.shard]
        shard.busy = False
        shard.attempt = event.attempt
        shard.pid = event.pid
        shard.running = event.spec
        shard.failed_probes = 0
        shard.degraded = None
        shard.enter(Phase.STARTING, now)
        shard.due = later(now, PROBE_STARTING)

    def _not_started(self, event: NotStarted, now: Instant) -> None:
        shard = self._shards[event.shard]
        shard.busy = False
        if shard.phase is not Phase.WAITING or shard.reason != event.reason:
            shard.enter(Phase.WAITING, now, event.reason)
        shard.due = later(now, WAIT_BETWEEN_LOOKS)

    def _exited(self, event: Exited, now: Instant, out: list[Instruction]) -> None:
        shard = self._current(event.shard, event.attempt)
        if shard is None or shard.pid is None or shard.phase is Phase.STOPPING:
            return
        shard.end = (event.attempt, now, event.code, event.text, event.tail)
        self._stop(shard, now, out, grace=0.0, failing=True, reason=Reason(event.code, event.text))

    def _gone(self, event: Gone, now: Instant, out: list[Instruction]) -> None:
        shard = self._current(event.shard, event.attempt)
        if shard is None or shard.phase is not Phase.STOPPING or shard.running is None:
            return
        if event.holdouts:
            pids = ", ".join(str(pid) for pid in event.holdouts)
            shard.reason = Reason("cannot_kill", f"processes {pids} do not end; look at them on the node")
            out.append(Stop(event.shard, event.attempt, shard.pid or 0, 0.0))
            return
        policy = shard.running.restarts
        shard.running = None
        shard.pid = None
        if self._unwanted(shard):
            del self._shards[event.shard]
            out.append(Reap(event.shard))
            return
        shard.due = now
        if not shard.failing:
            shard.enter(Phase.WAITING, now)
            return
        shard.failing = False
        shard.failures += 1
        reason = shard.reason
        if shard.failures >= policy.give_up_after:
            shard.enter(Phase.FAILED, now, reason)
        else:
            shard.enter(Phase.BACKOFF, now, reason)
            shard.due = later(now, policy.delay(shard.failures))

    def _probed(self, event: Probed, now: Instant) -> None:
        shard = self._current(event.shard, event.attempt)
        if shard is None:
            return
        if shard.phase not in (Phase.STARTING, Phase.READY):
            return  # what is busy then is another start, which a late probe says nothing of
        shard.busy = False
        if event.ready:
            shard.failed_probes = 0
            shard.degraded = None
            if shard.phase is Phase.STARTING:
                shard.enter(Phase.READY, now)
        elif shard.phase is Phase.STARTING:
            shard.reason = Reason("loading", event.text)
        else:
            shard.failed_probes += 1
            if shard.failed_probes >= PROBES_TO_DEGRADED:
                shard.degraded = event.text
        shard.due = later(now, PROBE_READY if shard.phase is Phase.READY else PROBE_STARTING)

    def _unwanted(self, shard: _Shard) -> bool:
        """Whether the order in force leaves a shard out; without any (its file was lost) nobody knows what is wanted."""
        return self.order is not None and shard.order is None

    def _current(self, key: ShardId, attempt: int) -> _Shard | None:
        shard = self._shards.get(key)
        return shard if shard is not None and shard.attempt == attempt else None

    def _advance(self, shard: _Shard, now: Instant, out: list[Instruction]) -> None:
        """Do what is due for one shard, after any event."""
        match shard.phase:
            case Phase.WAITING | Phase.BACKOFF | Phase.FAILED:
                if shard.busy:
                    return
                if self._unwanted(shard):
                    del self._shards[shard.spec.shard]
                    out.append(Reap(shard.spec.shard))
                elif shard.phase is not Phase.FAILED and shard.due <= now:
                    shard.busy = True
                    cause = str(self.order.cause) if self.order else ""
                    out.append(Start(shard.spec, shard.attempt + 1, cause))
            case Phase.STARTING | Phase.READY:
                self._advance_running(shard, now, out)
            case Phase.STOPPING | Phase.DRAINING | Phase.FETCHING:
                pass
            case _:
                assert_never(shard.phase)

    def _advance_running(self, shard: _Shard, now: Instant, out: list[Instruction]) -> None:
        running = shard.running
        assert running is not None
        assert shard.pid is not None
        never_ready = shard.phase is Phase.STARTING
        if self._unwanted(shard) or (shard.spec.hash, shard.spec.port) != (running.hash, running.port):
            # an engine that never became ready has nothing to finish, and some swallow SIGTERM while they load
            self._stop(shard, now, out, grace=0.0 if never_ready else running.stop_grace, failing=False, reason=None)
        elif never_ready and now - shard.since > shard.spec.start_timeout:
            text = f"not ready within {shard.spec.start_timeout:.0f} s"
            last = f"; last answer: {shard.reason.text}" if shard.reason else ""
            shard.end = (shard.attempt, now, "start_timeout", text + last, ())
            self._stop(shard, now, out, grace=0.0, failing=True, reason=Reason("start_timeout", text + last))
        elif not shard.busy and shard.due <= now:
            shard.busy = True
            out.append(Probe(running, shard.attempt, shard.pid, proof=never_ready))
        if shard.phase is Phase.READY and shard.failures and now - shard.since >= running.restarts.reset_after:
            shard.failures = 0

    def _stop(
        self, shard: _Shard, now: Instant, out: list[Instruction], *, grace: float, failing: bool, reason: Reason | None
    ) -> None:
        shard.failing = failing
        shard.busy = False
        shard.enter(Phase.STOPPING, now, reason)
        out.append(Stop(shard.spec.shard, shard.attempt, shard.pid or 0, grace))


def _report(shard: _Shard, now: Instant) -> ShardReport:
    draining = shard.order is not None and shard.order.draining
    phase = Phase.DRAINING if draining and shard.phase is Phase.READY else shard.phase
    ended = None
    if shard.end is not None:
        attempt, at, code, text, tail = shard.end
        ended = Ended(attempt, code, text, now - at, tail)
    return ShardReport(
        spec=shard.running or shard.spec,
        phase=phase,
        age=now - shard.since,
        attempt=shard.attempt,
        failures=shard.failures,
        pid=shard.pid,
        reason=shard.reason,
        degraded=shard.degraded,
        draining=draining,
        last_end=ended,
    )
