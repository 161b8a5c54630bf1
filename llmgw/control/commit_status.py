"""Tells a forge what became of each commit: pending, then success or failure, once; or that another one came before.

What is to be shown is a function of the source's state and of how far the revision is. The loop shows it, one request at a
time, and is what no other loop waits for. A commit that was shown as done is left alone: a replica that crashes a week later
is no business of the commit. And no commit is shown more than `MOST` times, whatever flaps.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import assert_never

from llmgw.base.ids import Revision, short
from llmgw.base.time import Clock, Instant, later
from llmgw.control.catalogs import HELD, CatalogState
from llmgw.control.revisions import Progress
from llmgw.ports.forges import CommitStatus, Forge, Mark, Never, Shown, TryAgain

log = logging.getLogger(__name__)

TICK = 1.0
MOST = 6
"""Statuses of one commit."""
FIRST_WAIT = 5.0
LONGEST_WAIT = 300.0
REMEMBERED = 200
"""Commits of which is remembered what was shown."""


def verdict(state: CatalogState, far: Callable[[], Progress]) -> CommitStatus | None:
    """Return what is to be shown beside the newest commit; None while nothing is known of it.

    `far` returns how far the attempted revision is, and is asked only about one that is in force.
    """
    newest = state.fetched
    if newest is None or state.catalog is None or newest.committed is None:
        return None
    context = f"llmgw/{state.catalog.cluster.name}/apply"
    if state.failed is not None and state.failed.trouble in HELD:
        return CommitStatus(newest.revision, context, Mark.FAILURE, f"held: {state.failed.trouble}")
    if state.rejected is not None and state.rejected.revision == newest.revision:
        problems = [one for one in state.rejected.problems if one.severity == "error"]
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        return CommitStatus(newest.revision, context, Mark.FAILURE, f"not valid: {problems[0]}{more}")
    if state.tree is None or state.tree.revision != newest.revision:
        if state.waiting is None or state.candidate is None or state.candidate.tree.revision != newest.revision:
            return None
        refused = state.waiting.kind == "guard"
        return CommitStatus(
            newest.revision, context, Mark.FAILURE if refused else Mark.PENDING, f"not in force: {state.waiting.text}"
        )
    reached = far()
    if reached.failed:
        return CommitStatus(newest.revision, context, Mark.FAILURE, f"in force; {_evidence(reached)}")
    if reached.healthy:
        return CommitStatus(newest.revision, context, Mark.SUCCESS, "in force; every replica is as it should be")
    ready, wanted = sum(one.ready for one in reached.models), sum(one.wanted for one in reached.models)
    what = f"{ready} of {wanted} replicas serve by it" if reached.planned else "nodes are asked"
    return CommitStatus(newest.revision, context, Mark.PENDING, f"in force; {what}")


def _evidence(reached: Progress) -> str:
    first = reached.evidence[0]
    more = f" (and {len(reached.evidence) - 1} more)" if len(reached.evidence) > 1 else ""
    return f"model {first.model} failed: {first.reason}{more}"


@dataclass(slots=True)
class _Told:
    """What a commit's status is."""

    status: CommitStatus
    count: int = 1

    @property
    def open(self) -> bool:
        """Whether somebody may still wait for its end."""
        return self.status.mark is Mark.PENDING


class Statuses:
    """The loop. `trouble` is shown in the status."""

    def __init__(
        self,
        forge: Forge,
        look: Callable[[], CatalogState | None],
        far: Callable[[], Progress],
        clock: Clock,
    ) -> None:
        """`look` returns what is known of the source; None while another control plane speaks of it."""
        self._forge = forge
        self._look = look
        self._far = far
        self._clock = clock
        self._told: OrderedDict[Revision, _Told] = OrderedDict()
        self._not_before = Instant(0.0)
        self._tries = 0
        self.trouble = ""

    async def run(self) -> None:
        """Show what is new for ever."""
        while True:
            await self.step()
            await asyncio.sleep(TICK)

    async def step(self) -> None:
        """Show one status, if one is due."""
        state = self._look()
        if state is None or self._clock.now() < self._not_before:
            return
        wanted = verdict(state, self._far)
        if wanted is None:
            return
        status = self._overtaken(wanted) or (wanted if self._news(wanted) else None)
        if status is not None:
            await self._show(status)

    def _overtaken(self, newest: CommitStatus) -> CommitStatus | None:
        """Return the last word on a commit that another one came before, so that nobody waits for it for ever."""
        for revision, told in self._told.items():
            if told.open and revision != newest.revision:
                text = f"superseded by {short(newest.revision)} before it was complete"
                return CommitStatus(revision, told.status.context, Mark.SUCCESS, text)
        return None

    def _news(self, wanted: CommitStatus) -> bool:
        told = self._told.get(wanted.revision)
        if told is None:
            return True
        if told.status == wanted or told.status.mark is Mark.SUCCESS or told.count >= MOST:
            return False
        # a failed commit is pending again only on its way to success, which is then told
        return not (told.status.mark is Mark.PENDING and wanted.mark is Mark.PENDING)

    async def _show(self, status: CommitStatus) -> None:
        outcome = await self._forge.show(status)
        match outcome:
            case Shown():
                self._note(status)
                self._tries = 0
                self.trouble = ""
            case Never(reason):
                self._note(status)
                self._tell(f"the status of commit {short(status.revision)} is not shown: {reason}")
            case TryAgain(reason, after):
                wait = min(FIRST_WAIT * 2**self._tries, LONGEST_WAIT) if after is None else after
                self._tries = min(self._tries + 1, 20)
                self._not_before = later(self._clock.now(), wait)
                self._tell(f"commit statuses are not shown: {reason}")
            case _:
                assert_never(outcome)

    def _note(self, status: CommitStatus) -> None:
        told = self._told.get(status.revision)
        if told is None:
            self._told[status.revision] = _Told(status)
        else:
            told.status = status
            told.count += 1
        while len(self._told) > REMEMBERED:
            self._told.popitem(last=False)

    def _tell(self, trouble: str) -> None:
        if trouble != self.trouble:
            log.warning("%s", trouble)
        self.trouble = trouble
