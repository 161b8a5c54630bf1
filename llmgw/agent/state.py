"""The agent's brain: `handle(event, now) -> [Instruction]`, pure. A runner does the instructions; results come back as events.

A node keeps itself at its last order: a crashed engine is started again with backoff while nobody is connected. What the
order leaves out is stopped. Two rules keep attempts apart: each start has its number, and an event of another attempt
than the current one is ignored; and nothing of a shard is started before everything of its last attempt is verified gone.
Nor is it started on a card that another shard still has: an order may come from a control plane that did not know of it.

A start that cannot happen (no weights, no program, port taken) is `waiting`, not a failed attempt: it is looked at again
every few seconds, so that a mount that comes late heals itself and no crash loop hides the reason. Weights with a source
are fetched before; a fetch that fails is waited for in the same way.

A ready engine is stopped for three things only: no token with work in flight (see `liveness`), proof that its port is not
its own any more, and an order. A failed health probe is none of them.

A shard of a replica of several is not started again by itself: what ended in one incarnation waits for an order in a higher
one, and that ends what runs in a lower one, without grace, since an engine that lost a part of itself has nothing to finish.
"""

from dataclasses import dataclass, field, replace
from typing import assert_never

from llmgw.agent.events import (
    Adapt,
    Adapted,
    CancelFetch,
    Event,
    Exited,
    Fetch,
    Fetched,
    FetchProgress,
    Found,
    Gone,
    Instruction,
    LeftOver,
    NotFetched,
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
from llmgw.agent.shard import Shard
from llmgw.agent.users import Users
from llmgw.base.ids import BootId, Epoch, Generation, NodeName, ShardId
from llmgw.base.time import Instant, later
from llmgw.engines.exits import PORT_TAKEN, WEIGHTS_MISSING
from llmgw.engines.shard import ShardSpec
from llmgw.fleet.order import NodeOrder
from llmgw.fleet.report import Facts, Gpu, Phase, Reason, Report

WAIT_BETWEEN_LOOKS = 2.0
"""Seconds between two looks for what a waiting shard needs."""
PROBE_STARTING = 0.25
PROBE_READY = 5.0
"""Seconds between probes, before and after readiness."""
PROBES_TO_DEGRADED = 3
"""Failed probes in a row of a ready engine until it is called degraded."""
LOOKS_PER_PROOF = 6
"""Every so many looks at a ready engine it is proven again who answers; after a failed probe at once."""
STRANGERS_TO_GIVE_UP = 8
"""Looks in a row that find another process at a starting engine's port until the start has failed."""
PROOFS_TO_LOSE = 2
"""Proofs in a row that a ready engine's port is not its own until it is ended; the kernel's tables change while read."""
PROVE_AGAIN = 1.0
"""Seconds until the second."""
FETCH_SILENCE = 180.0
"""Seconds without a sign of life after which a fetch is begun anew; a fetch has shorter limits of its own."""
CONFLICTS = (PORT_TAKEN, "port_stolen")
"""Ends after which another port may help, so that the planner is asked for one."""
FETCH_FAILURE_THAT_COUNTS = "checksum_mismatch"
"""What trying again and again would only download again and again."""


@dataclass(slots=True)
class AgentState:
    """All that an agent knows. Use from one thread; every change goes through `handle`."""

    boot: BootId
    order: NodeOrder | None = None
    floor: tuple[int, int] = (0, 0)
    """Rank of the newest order ever obeyed here, which is known even if the order itself was lost."""
    refused: int = 0
    sequence: int = 0
    users: Users = field(default_factory=Users)
    """Who sends requests to what runs here. It decides nothing here, and is passed on."""
    _shards: dict[ShardId, Shard] = field(default_factory=dict)

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
        self._take(event, now, out)
        for shard in [self._shards[key] for key in sorted(self._shards)]:
            self._advance(shard, now, out)
        if self._visible() != before:
            out.append(Say())
        return out

    def _take(self, event: Event, now: Instant, out: list[Instruction]) -> None:
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
                self._probed(event, now, out)
            case Adapted():
                self._adapted(event, now)
            case FetchProgress() | Fetched() | NotFetched():
                self._of_fetch(event, now)
            case Tick():
                pass
            case _:
                assert_never(event)

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

    def report(self, node: NodeName, facts: Facts, now: Instant, gpus: tuple[Gpu, ...] = ()) -> Report:
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
            shards=tuple(self._shards[key].report(now) for key in sorted(self._shards)),
            gpus=gpus,
            users=self.users.said(now),
        )

    def _visible(self) -> object:
        return (
            self.order.rank if self.order else None,
            self.refused,
            [(key, shard.visible()) for key, shard in sorted(self._shards.items())],
        )

    def _obey(self, order: NodeOrder, now: Instant) -> None:
        self.order = order
        wanted = {one.spec.shard: one for one in order.shards}
        for key, shard in self._shards.items():
            shard.order = wanted.get(key)
        for key, one in wanted.items():
            known = self._shards.get(key)
            if known is None:
                self._shards[key] = Shard(one.spec, one, Phase.WAITING, now, due=now)
                continue
            # another incarnation is another try of the same: what it cost so far still counts
            same = one.spec == replace(known.spec, incarnation=one.spec.incarnation)
            if not same and known.phase in (Phase.BACKOFF, Phase.FAILED, Phase.WAITING):
                known.failures = known.fetch_failures = 0
                known.enter(Phase.WAITING, now)
                known.due = now
            elif not same and known.phase is Phase.STOPPING:
                known.failing, known.failures = False, 0  # what ends there is not what is wanted any more
            known.due = now if known.spec.adapters != one.spec.adapters else known.due
            known.spec = one.spec

    def _found(self, event: Found, now: Instant) -> None:
        order = self.order.shard(event.spec.shard) if self.order else None
        shard = Shard(order.spec if order else event.spec, order, Phase.WAITING, now, due=now)
        shard.begin(event.spec, event.attempt, event.pid)
        if event.ready:
            shard.enter(Phase.READY, now)
        else:
            shard.enter(Phase.STARTING, now, Reason("loading", "adopted; not asked yet"))
        self._shards[event.spec.shard] = shard

    def _left_over(self, event: LeftOver, now: Instant) -> None:
        order = self.order.shard(event.spec.shard) if self.order else None
        if order is None:
            return
        shard = Shard(order.spec, order, Phase.WAITING, now, attempt=event.attempt, due=now)
        shard.spent = event.spec.incarnation if event.spec.shards > 1 else -1
        shard.end = (event.attempt, now, "ended_unseen", "it ended while the agent was not running", ())
        self._shards[event.spec.shard] = shard

    def _started(self, event: Started, now: Instant) -> None:
        shard = self._shards[event.spec.shard]
        shard.begin(event.spec, event.attempt, event.pid)
        shard.enter(Phase.STARTING, now, Reason("loading", "started; not asked yet"))
        shard.due = later(now, PROBE_STARTING)

    def _not_started(self, event: NotStarted, now: Instant) -> None:
        shard = self._shards[event.shard]
        shard.busy = False
        if event.reason.code == WEIGHTS_MISSING:
            shard.fetched = None
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
            out.append(Stop(event.shard, event.attempt, shard.pid or 0, 0.0, shard.running.gpus))
            return
        if event.gpu_held:
            shard.reason = Reason("gpu_busy", event.gpu_held)
            out.append(Stop(event.shard, event.attempt, shard.pid or 0, 0.0, shard.running.gpus))
            return
        if shard.failing and shard.end is not None and shard.end[0] == event.attempt and not shard.end[4]:
            shard.end = (*shard.end[:4], event.tail)
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
        reason = self._end_reason(shard)
        if shard.failures >= policy.give_up_after:
            shard.enter(Phase.FAILED, now, reason)
            return
        # for the planner, which gives another port to what waits for one; it counts as failed all the same, since nobody
        # knows whether a port was the reason
        conflict = reason is not None and reason.code in CONFLICTS
        shard.enter(Phase.WAITING if conflict else Phase.BACKOFF, now, reason)
        if conflict and reason is not None:
            shard.reason = Reason(PORT_TAKEN, reason.text)
        shard.due = later(now, policy.delay(shard.failures))

    def _probed(self, event: Probed, now: Instant, out: list[Instruction]) -> None:
        shard = self._current(event.shard, event.attempt)
        if shard is None:
            return
        if shard.phase not in (Phase.STARTING, Phase.READY):
            return  # what is busy then is another start, which a late probe says nothing of
        shard.busy = False
        if shard.phase is Phase.STARTING:
            self._probed_starting(shard, event, now, out)
        else:
            self._probed_ready(shard, event, now, out)

    def _probed_starting(self, shard: Shard, event: Probed, now: Instant, out: list[Instruction]) -> None:
        if event.log != shard.log:
            shard.log, shard.last_line, shard.advanced = event.log, event.last_line, now
        if event.adapters is not None:
            shard.adapting.seen(event.adapters, now)
        if event.ready:
            shard.failed_probes = 0
            shard.strangers = 0
            shard.enter(Phase.READY, now)
            shard.due = later(now, PROBE_READY)
            return
        shard.due = later(now, PROBE_STARTING)
        shard.reason = Reason("loading", event.text)
        # another engine answers at its port: it will never be ready, and some wait for ever without a word
        shard.strangers = shard.strangers + 1 if event.lost is not None and event.lost.code in CONFLICTS else 0
        if event.lost is not None and shard.strangers >= STRANGERS_TO_GIVE_UP:
            self._fail(shard, now, out, Reason(PORT_TAKEN, event.lost.text))

    def _probed_ready(self, shard: Shard, event: Probed, now: Instant, out: list[Instruction]) -> None:
        if event.ready:
            shard.failed_probes = 0
            shard.degraded = None
        else:
            shard.failed_probes += 1
            if shard.failed_probes >= PROBES_TO_DEGRADED:
                shard.degraded = event.text
        shard.strangers = shard.strangers + 1 if event.lost is not None else 0
        shard.due = later(now, PROVE_AGAIN if shard.strangers else PROBE_READY)
        if event.adapters is not None:
            shard.adapting.seen(event.adapters, now)
            if not shard.adapting.knows(shard.spec.adapters):
                shard.due = now
        if event.lost is not None and shard.strangers >= PROOFS_TO_LOSE:
            self._fail(shard, now, out, event.lost)
            return
        names = shard.running.metrics if shard.running is not None else None
        if event.pulse is not None and names is not None:
            shard.alive.look(event.pulse, now)
            stalled = shard.alive.stalled(shard.spec.stall_after, from_loop=names.from_loop)
            if stalled is not None:
                self._fail(shard, now, out, stalled)

    def _adapted(self, event: Adapted, now: Instant) -> None:
        shard = self._current(event.shard, event.attempt)
        if shard is None or shard.phase is not Phase.READY:
            return
        shard.adapting.done(event.failed, shard.spec.restarts, now)
        shard.looks, shard.due = LOOKS_PER_PROOF, now

    def _fail(self, shard: Shard, now: Instant, out: list[Instruction], reason: Reason) -> None:
        """End an attempt that will not serve (any more), without grace: it has nothing to finish."""
        shard.end = (shard.attempt, now, reason.code, reason.text, ())
        self._stop(shard, now, out, grace=0.0, failing=True, reason=reason)

    def _end_reason(self, shard: Shard) -> Reason | None:
        """Return why the attempt ended; what came up while it was being cleared away is over."""
        if shard.end is None:
            return shard.reason
        return Reason(shard.end[2], shard.end[3])

    def _of_fetch(self, event: FetchProgress | Fetched | NotFetched, now: Instant) -> None:
        shard = self._shards.get(event.shard)
        if shard is None or shard.phase is not Phase.FETCHING or shard.fetching != event.source:
            return  # a word of an earlier fetch
        match event:
            case FetchProgress(done=done, total=total):
                shard.bytes_done, shard.bytes_total, shard.advanced = done, total, now
            case Fetched():
                shard.fetched, shard.fetch_failures, shard.due = event.source, 0, now
                shard.enter(Phase.WAITING, now)
            case NotFetched(reason=reason):
                self._fetch_failed(shard, reason, now)
            case _:
                assert_never(event)

    def _fetch_failed(self, shard: Shard, reason: Reason, now: Instant) -> None:
        policy = shard.spec.restarts
        shard.fetch_failures += 1
        if reason.code == FETCH_FAILURE_THAT_COUNTS and shard.fetch_failures >= policy.give_up_after:
            shard.enter(Phase.FAILED, now, reason)
            return
        shard.enter(Phase.WAITING, now, reason)
        shard.due = later(now, policy.delay(shard.fetch_failures))

    def _unwanted(self, shard: Shard) -> bool:
        """Whether the order in force leaves a shard out; without any (its file was lost) nobody knows what is wanted."""
        return self.order is not None and shard.order is None

    def _current(self, key: ShardId, attempt: int) -> Shard | None:
        shard = self._shards.get(key)
        return shard if shard is not None and shard.attempt == attempt else None

    def _advance(self, shard: Shard, now: Instant, out: list[Instruction]) -> None:
        """Do what is due for one shard, after any event."""
        match shard.phase:
            case Phase.WAITING | Phase.BACKOFF | Phase.FAILED:
                if shard.busy:
                    return
                if self._unwanted(shard):
                    del self._shards[shard.spec.shard]
                    out.append(Reap(shard.spec.shard))
                elif shard.phase is not Phase.FAILED and shard.due <= now and not shard.held:
                    self._begin(shard, now, out)
            case Phase.FETCHING:
                self._advance_fetching(shard, now, out)
            case Phase.STARTING | Phase.READY:
                self._advance_running(shard, now, out)
            case Phase.STOPPING | Phase.DRAINING:
                pass
            case _:
                assert_never(shard.phase)

    def _begin(self, shard: Shard, now: Instant, out: list[Instruction]) -> None:
        """Start an attempt; before that, have its weights fetched."""
        source = shard.spec.fetch
        if source is not None and shard.fetched != source:
            shard.begin_fetch(source, now)
            out.append(Fetch(shard.spec))
            return
        taken = self._card_in_use(shard)
        if taken is not None:
            self._not_started(NotStarted(shard.spec.shard, taken), now)
            return
        shard.busy = True
        cause = str(self.order.cause) if self.order else ""
        out.append(Start(shard.spec, shard.attempt + 1, cause))

    def _card_in_use(self, shard: Shard) -> Reason | None:
        """Say which of its cards another shard's process has, or one that is just being started."""
        for key, other in sorted(self._shards.items()):
            has = other.running or (other.spec if other.busy else None)
            both = set(has.gpus).intersection(shard.spec.gpus) if has is not None and other is not shard else None
            if both:
                return Reason("gpu_busy", f"card {min(both)} is still used by shard {key}")
        return None

    def _advance_fetching(self, shard: Shard, now: Instant, out: list[Instruction]) -> None:
        key = shard.spec.shard
        if self._unwanted(shard):
            del self._shards[key]
            out += [CancelFetch(key), Reap(key)]
        elif shard.spec.fetch != shard.fetching:
            out.append(CancelFetch(key))
            shard.enter(Phase.WAITING, now)
            self._begin(shard, now, out)
        elif now - shard.advanced >= FETCH_SILENCE:
            out.append(CancelFetch(key))
            text = f"no sign of life from its fetch for {FETCH_SILENCE:.0f} s"
            self._fetch_failed(shard, Reason("fetch_stalled", text), now)

    def _advance_running(self, shard: Shard, now: Instant, out: list[Instruction]) -> None:
        running = shard.running
        assert running is not None
        assert shard.pid is not None
        never_ready = shard.phase is Phase.STARTING
        anew = shard.spec.incarnation > running.incarnation
        replaced = anew or (shard.spec.hash, shard.spec.port) != (running.hash, running.port)
        overdue = shard.start_overdue(now) if never_ready else ""
        if self._unwanted(shard) or replaced:
            # an engine that never became ready has nothing to finish, and some swallow SIGTERM while they load
            grace = 0.0 if never_ready or (anew and not self._unwanted(shard)) else running.stop_grace
            why = "the order wants it otherwise" if not anew else "another shard of its replica ended"
            why = "the order leaves it out" if self._unwanted(shard) else why
            patience = f"; killed if it has not ended after {grace:.0f} s" if grace else ""
            self._stop(shard, now, out, grace=grace, failing=False, reason=Reason("asked_to_end", why + patience))
        elif overdue:
            last = f"; last answer: {shard.reason.text}" if shard.reason else ""
            line = f"; last line of its log: {shard.last_line[:200]}" if shard.last_line else ""
            self._fail(shard, now, out, Reason("start_timeout", overdue + last + line))
        elif not shard.busy and shard.due <= now:
            shard.busy = True
            shard.looks += 1
            # a look that failed may mean that somebody else is at its port; else it is proven now and then
            adapters = shard.spec.adapters if running.lora is not None else None
            proof = never_ready or shard.failed_probes > 0 or shard.strangers > 0 or shard.looks >= LOOKS_PER_PROOF
            proof = proof or (adapters is not None and not shard.adapting.knows(adapters))
            if proof:
                shard.looks = 0
            out.append(Probe(running, shard.attempt, shard.pid, proof, figures=not never_ready, adapters=adapters))
        changes = shard.adapting.changes(shard.spec.adapters, now) if shard.phase is Phase.READY else None
        if changes is not None:
            out.append(Adapt(running, shard.attempt, *changes))
        if shard.phase is Phase.READY and shard.failures and now - shard.since >= running.restarts.reset_after:
            shard.failures = 0

    def _stop(
        self, shard: Shard, now: Instant, out: list[Instruction], *, grace: float, failing: bool, reason: Reason
    ) -> None:
        shard.failing = failing
        shard.busy = False
        if failing and shard.running is not None and shard.running.shards > 1:
            shard.spent = max(shard.spent, shard.running.incarnation)
        shard.enter(Phase.STOPPING, now, reason)
        gpus = shard.running.gpus if shard.running is not None else ()
        out.append(Stop(shard.spec.shard, shard.attempt, shard.pid or 0, grace, gpus))
