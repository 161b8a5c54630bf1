"""What is shown beside a commit, and that nobody waits for ever, and nobody is flooded."""

from dataclasses import replace
from typing import Any

import pytest

from llmgw.base.ids import Revision
from llmgw.base.time import Instant
from llmgw.catalog.compile import Accepted, Rejected, compile_tree
from llmgw.catalog.source import SourceFailed, SourceTree, Trouble
from llmgw.control import commit_status
from llmgw.control.catalogs import CatalogState
from llmgw.control.commit_status import Statuses
from llmgw.ports.forges import CommitStatus, Never, Outcome, Shown, TryAgain
from tests.builders import Desk as PlanDesk
from tests.builders import catalog

A, B = Revision("a" * 40), Revision("b" * 40)


def tree(revision: Revision, text: str = "apiVersion: llmgw/v1\nkind: Cluster\nname: home\n") -> SourceTree:
    return SourceTree(revision, {"cluster.yaml": text.encode()}, committed=1.0)


def in_force(revision: Revision) -> CatalogState:
    found = tree(revision)
    outcome = compile_tree(found)
    assert isinstance(outcome, Accepted)
    return CatalogState(outcome.catalog, found, Instant(0.0), fetched=found)


def refused(revision: Revision, before: CatalogState) -> CatalogState:
    found = tree(revision, "nonsense: true\n")
    outcome = compile_tree(found)
    assert isinstance(outcome, Rejected)
    return replace(before, fetched=found, rejected=outcome)


def planned(revision: Revision, *, busy: bool = False, settled: bool = True) -> Any:
    plan = PlanDesk(catalog()).plan()
    return replace(plan, based_on=revision, actions=("an action",) if busy else (), holds=(), settled=settled)


class Desk:
    """A forge and what is to be told to it."""

    def __init__(self) -> None:
        self.seen: tuple[CatalogState, Any] | None = None
        self.outcome: Outcome = Shown()
        self.calls: list[CommitStatus] = []
        self.time = 1000.0
        self.statuses = Statuses(self, lambda: self.seen, self)

    def now(self) -> Instant:
        return Instant(self.time)

    async def show(self, status: CommitStatus) -> Outcome:
        self.calls.append(status)
        return self.outcome

    async def steps(self, state: CatalogState, plan: Any = None, count: int = 5) -> list[tuple[str, str]]:
        """Look some times; return what was shown since, as (commit's first letter, mark)."""
        self.seen = (state, plan)
        before = len(self.calls)
        for _ in range(count):
            await self.statuses.step()
        return [(call.revision[0], call.mark.value) for call in self.calls[before:]]


@pytest.fixture
def desk() -> Desk:
    return Desk()


async def test_pending_then_success_each_once_and_then_nothing(desk: Desk) -> None:
    assert await desk.steps(in_force(A)) == [("a", "pending")]
    assert await desk.steps(in_force(A), planned(A, busy=True)) == []
    assert await desk.steps(in_force(A), planned(A, settled=False)) == []
    assert await desk.steps(in_force(A), planned(B)) == []
    assert await desk.steps(in_force(A), planned(A)) == [("a", "success")]
    assert await desk.steps(in_force(A), planned(A, busy=True)) == [], "a crash a week later is not the commit's fault"
    assert {call.context for call in desk.calls} == {"llmgw/home/apply"}


async def test_a_refused_and_a_held_commit_fail(desk: Desk) -> None:
    assert await desk.steps(refused(A, in_force(B))) == [("a", "failure")]
    assert "nonsense" in desk.calls[-1].description or "not valid" in desk.calls[-1].description
    held = replace(in_force(B), fetched=tree(A), failed=SourceFailed("why", Trouble.UNVERIFIED))
    desk = Desk()
    assert await desk.steps(held) == [("a", "failure")]
    assert desk.calls[-1].description == "held: not verified"
    assert await desk.steps(in_force(A), planned(A)) == [("a", "success")], "an operator accepted it"


async def test_a_commit_that_another_one_came_before_is_told_so(desk: Desk) -> None:
    await desk.steps(in_force(A))
    assert await desk.steps(in_force(B)) == [("a", "success"), ("b", "pending")]
    assert desk.calls[-2].description == "superseded by bbbbbbbbbb before it was complete"
    await desk.steps(in_force(B), planned(B))
    assert await desk.steps(in_force(A), planned(A)) == []


@pytest.mark.parametrize("trouble", [Trouble.UNREACHABLE, Trouble.BRANCH_MISSING, Trouble.EMPTY])
async def test_a_source_that_cannot_be_read_changes_no_verdict(desk: Desk, trouble: Trouble) -> None:
    await desk.steps(in_force(A), planned(A))
    assert await desk.steps(replace(in_force(A), failed=SourceFailed("why", trouble)), planned(A)) == []


async def test_what_flaps_is_told_a_few_times_only(desk: Desk) -> None:
    told = []
    for _ in range(10):
        told += await desk.steps(refused(A, in_force(B)), count=1)
        told += await desk.steps(in_force(A), planned(A, busy=True), count=1)
    assert len(told) == commit_status.MOST


async def test_a_work_tree_and_another_leader_are_not_told(desk: Desk) -> None:
    files = SourceTree(Revision("worktree-1"), tree(A).files)
    assert await desk.steps(replace(in_force(A), fetched=files, tree=files)) == []
    desk.seen = None
    await desk.statuses.step()
    assert desk.calls == []


async def test_a_failure_waits_longer_each_time_and_what_is_told_then_is_the_newest(desk: Desk) -> None:
    desk.outcome = TryAgain("it is broken")
    waits = []
    for _ in range(8):
        assert len(await desk.steps(in_force(A))) == 1
        start = desk.time
        while not await desk.steps(in_force(A), count=1):
            desk.time += 1.0
        waits.append(desk.time - start)
        desk.time += 0
        desk.statuses._not_before = Instant(desk.time)
    assert waits == sorted(waits)
    assert "it is broken" in desk.statuses.trouble
    desk.outcome = Shown()
    desk.time += commit_status.LONGEST_WAIT
    assert await desk.steps(in_force(A), planned(A)) == [("a", "success")]
    assert desk.statuses.trouble == ""


async def test_a_forge_that_says_when_is_left_alone_until_then(desk: Desk) -> None:
    desk.outcome = TryAgain("too many requests", 1000.0)
    assert len(await desk.steps(in_force(A))) == 1
    desk.time += 999
    assert await desk.steps(in_force(A)) == []
    desk.time += 1
    assert len(await desk.steps(in_force(A))) == 1


async def test_what_will_never_do_is_given_up_for_that_commit_alone(desk: Desk) -> None:
    desk.outcome = Never("too many statuses")
    assert len(await desk.steps(refused(A, in_force(B)))) == 1
    assert "too many statuses" in desk.statuses.trouble
    desk.outcome = Shown()
    assert await desk.steps(in_force(B), planned(B)) == [("b", "success")]
