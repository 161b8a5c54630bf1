"""`Shard`: what the brain remembers of one shard, and how it is told. The rules are in `state`; only that module changes it."""

from dataclasses import dataclass, field, replace
from typing import assert_never

from llmgw.agent.adapting import Adapting
from llmgw.agent.liveness import Liveness
from llmgw.base.time import EARLIEST, Instant
from llmgw.engines.shard import ShardSpec
from llmgw.engines.weights import Source, told
from llmgw.fleet.order import ShardOrder
from llmgw.fleet.report import Ended, Phase, Reason, ShardReport

QUIET_SHARE = 0.5
"""Share of `start_timeout` that a log may be silent for, once that time is over."""
LONGEST_START = 4.0
"""Times `start_timeout` after which a start has failed whatever the log says."""


@dataclass(slots=True)
class Shard:
    """One shard. `running` is the spec of the attempt whose process exists, if one does."""

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
    alive: Liveness = field(default_factory=Liveness)
    adapting: Adapting = field(default_factory=Adapting)
    looks: int = 0
    """Looks at the ready engine since the last proof."""
    strangers: int = 0
    """Looks in a row that found another process at the port of a starting engine."""
    log: int = 0
    advanced: Instant = EARLIEST
    """When its log grew, or a byte of its weights came, last."""
    last_line: str = ""
    fetching: Source | None = None
    fetched: Source | None = None
    """What was found to be on the disk."""
    fetch_failures: int = 0
    spent: int = -1
    """Highest incarnation that ended here, of a replica of several shards."""
    bytes_done: int = 0
    bytes_total: int | None = None

    def enter(self, phase: Phase, now: Instant, reason: Reason | None = None) -> None:
        """Begin a phase."""
        self.phase = phase
        self.since = now
        self.reason = reason
        self.advanced = now

    def begin(self, spec: ShardSpec, attempt: int, pid: int) -> None:
        """Take over a process: nothing that was known of an earlier one holds for it."""
        self.busy = False
        self.attempt = attempt
        self.pid = pid
        self.running = spec
        self.failed_probes = self.looks = self.strangers = self.log = 0
        self.degraded = None
        self.last_line = ""
        self.alive = Liveness()
        self.adapting = Adapting()

    def begin_fetch(self, source: Source, now: Instant) -> None:
        """Its weights are on their way; of an earlier try, the reason of its end is still said."""
        self.fetching, self.bytes_done, self.bytes_total = source, 0, None
        again = f"again, after: {self.reason.text}" if self.fetch_failures and self.reason else ""
        self.enter(Phase.FETCHING, now, Reason("fetching", again or f"its weights come from {told(source)}"))

    @property
    def held(self) -> bool:
        """Whether it may not start: its incarnation ended, and the planner has not begun another with all shards."""
        return self.spent >= self.spec.incarnation

    def start_overdue(self, now: Instant) -> str:
        """Say that a start has taken too long; empty if it may go on.

        `start_timeout` is what a start may take while nothing is seen of it. A load that visibly advances (its log grows)
        may take longer: it has failed when the log was silent for half of that time. A log that never falls silent proves
        no progress either (an engine that waits for ever may say so every second), so there is an end to that.
        """
        limit = self.spec.start_timeout
        took = now - self.since
        if took > limit * LONGEST_START:
            return f"not ready within {limit * LONGEST_START:.0f} s, though its log grows"
        if took > limit and now - self.advanced > limit * QUIET_SHARE:
            silent = now - self.advanced
            return f"not ready within {took:.0f} s" + (f", its log silent for {silent:.0f} s" if self.log else "")
        return ""

    def visible(self) -> object:
        """Return what others are told of at once when it changes."""
        return (
            *(self.phase, self.attempt, self.pid, self.reason, self.degraded, self.order, self.end, self.spent),
            10 * self.bytes_done // self.bytes_total if self.bytes_total else 0,  # a word at every tenth
            self.adapting.report(self.spec.adapters),
        )

    def report(self, now: Instant) -> ShardReport:
        """Return what is told of it."""
        draining = self.order is not None and self.order.draining
        ended = None
        if self.end is not None:
            attempt, at, code, text, tail = self.end
            ended = Ended(attempt, code, text, now - at, tail)
        ready = self.phase is Phase.READY
        return ShardReport(
            # the model's name is the order's: a model may be renamed while its engine runs
            spec=replace(self.running, model=self.spec.model) if self.running else self.spec,
            phase=Phase.DRAINING if draining and ready else self.phase,
            age=now - self.since,
            attempt=self.attempt,
            failures=self.failures,
            pid=self.pid,
            reason=self.reason,
            degraded=self.degraded,
            draining=draining,
            last_end=ended,
            progress=self._progress(now),
            in_flight=self.alive.in_flight if ready else None,
            quiet_for=self.alive.quiet_for if ready else None,
            spent=self.spent,
            adapters=self.adapting.report(self.spec.adapters) if ready else (),
        )

    def _progress(self, now: Instant) -> str:
        match self.phase:
            case Phase.FETCHING:
                return _bytes(self.bytes_done, self.bytes_total)
            case Phase.STARTING:
                silent = now - self.advanced
                quiet = f" ({silent:.0f} s ago)" if silent >= 10 else ""
                return self.last_line[:200] + quiet if self.last_line else ""
            case Phase.BACKOFF:
                with_others = " at the earliest, with the other shards of its replica" if self.held else ""
                return f"next start in {max(0.0, self.due - now):.0f} s{with_others}"
            case Phase.WAITING | Phase.READY | Phase.DRAINING | Phase.STOPPING | Phase.FAILED:
                return ""
            case _:
                assert_never(self.phase)


def _bytes(done: int, total: int | None) -> str:
    unit, size = ("GiB", 1 << 30) if max(done, total or 0) >= 10 << 30 else ("MiB", 1 << 20)
    if not total:
        return f"{done / size:.0f} {unit}" if done else ""
    return f"{done / size:.0f} {unit} of {total / size:.0f} {unit} ({100 * done // total} %)"
