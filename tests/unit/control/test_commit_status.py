"""What is shown beside a commit, and that nobody waits for ever, and nobody is flooded."""

from dataclasses import replace

import pytest

from llmgw.base.ids import ModelName, ReplicaId, Revision
from llmgw.base.time import Instant
from llmgw.catalog.compile import Accepted, Rejected, compile_tree
from llmgw.catalog.source import SourceFailed, SourceTree, Trouble
from llmgw.control import commit_status
from llmgw.control.catalogs import Candidate, CatalogState, Waiting
from llmgw.control.commit_status import Statuses
from llmgw.control.revisions import Evidence, ModelProgress, Progress, Todo
from llmgw.ports.forges import CommitStatus, Never, Outcome, Shown, TryAgain

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


DONE = Progress(planned=True, models=(ModelProgress(ModelName("m"), 2, 2),))
STARTING = Progress(
    planned=True, models=(ModelProgress(ModelName("m"), 1, 2),), todo=(Todo("replica/m-1-1", "to serve", "it starts"),)
)
FAILED = replace(STARTING, evidence=(Evidence(ModelName("m"), ReplicaId("m-1-1"), "a", "out of GPU memory"),))
UNPLANNED = Progress(planned=False)


class Desk:
    """A forge and what is to be told to it."""

    def __init__(self) -> None:
        self.seen: CatalogState | None = None
        self.far = UNPLANNED
        self.outcome: Outcome = Shown()
        self.calls: list[CommitStatus] = []
        self.time = 1000.0
        self.statuses = Statuses(self, lambda: self.seen, lambda: self.far, self)

    def now(self) -> Instant:
        return Instant(self.time)

    async def show(self, status: CommitStatus) -> Outcome:
        self.calls.append(status)
        return self.outcome

    async def steps(self, state: CatalogState, far: Progress = UNPLANNED, count: int = 5) -> list[tuple[str, str]]:
        """Look some times; return what was shown since, as (commit's first letter, mark)."""
        self.seen, self.far = state, far
        before = len(self.calls)
        for _ in range(count):
            await self.statuses.step()
        return [(call.revision[0], call.mark.value) for call in self.calls[before:]]


@pytest.fixture
def desk() -> Desk:
    return Desk()


async def test_pending_then_success_each_once_and_then_nothing(desk: Desk) -> None:
    assert await desk.steps(in_force(A)) == [("a", "pending")]
    assert await desk.steps(in_force(A), STARTING) == [], "a replica that still starts is not there"
    assert await desk.steps(in_force(A), DONE) == [("a", "success")]
    assert await desk.steps(in_force(A), FAILED) == [], "a crash a week later is not the commit's fault"
    assert {call.context for call in desk.calls} == {"llmgw/home/apply"}


async def test_a_refused_and_a_held_commit_fail(desk: Desk) -> None:
    assert await desk.steps(refused(A, in_force(B))) == [("a", "failure")]
    assert desk.calls[-1].description.startswith("not valid: cluster.yaml:1:1 ")
    held = replace(in_force(B), fetched=tree(A), failed=SourceFailed("why", Trouble.UNVERIFIED))
    desk = Desk()
    assert await desk.steps(held) == [("a", "failure")]
    assert desk.calls[-1].description == "held: not verified"
    assert await desk.steps(in_force(A), DONE) == [("a", "success")], "an operator accepted it"


async def test_a_rollout_that_failed_is_told_with_its_reason_and_its_recovery_too(desk: Desk) -> None:
    assert await desk.steps(in_force(A), STARTING) == [("a", "pending")]
    assert await desk.steps(in_force(A), FAILED) == [("a", "failure")]
    assert desk.calls[-1].description == "in force; model m failed: out of GPU memory"
    assert await desk.steps(in_force(A), DONE) == [("a", "success")]


async def test_warnings_are_not_why_a_commit_is_not_valid(desk: Desk) -> None:
    state = refused(A, in_force(B))
    assert state.rejected is not None
    (error,) = state.rejected.problems
    warned = replace(state.rejected, problems=(replace(error, severity="warning", message="a warning"), error))
    await desk.steps(replace(state, rejected=warned))
    assert desk.calls[-1].description == f"not valid: {error}"


@pytest.mark.parametrize(("kind", "mark"), [("guard", "failure"), ("manual", "pending"), ("suspended", "pending")])
async def test_a_commit_that_waits_says_for_what(desk: Desk, kind: str, mark: str) -> None:
    found = tree(A)
    waits = Candidate(found, Accepted(in_force(A).catalog), Instant(0.0))  # type: ignore[arg-type] # it is there
    state = replace(in_force(B), fetched=found, candidate=waits, waiting=Waiting(kind, "for something"))
    assert await desk.steps(state, DONE) == [("a", mark)]
    assert desk.calls[-1].description == "not in force: for something"


async def test_a_commit_that_another_one_came_before_is_told_so(desk: Desk) -> None:
    await desk.steps(in_force(A))
    assert await desk.steps(in_force(B)) == [("a", "success"), ("b", "pending")]
    assert desk.calls[-2].description == "superseded by bbbbbbbbbb before it was complete"
    await desk.steps(in_force(B), DONE)
    assert await desk.steps(in_force(A), DONE) == []


@pytest.mark.parametrize("trouble", [Trouble.UNREACHABLE, Trouble.BRANCH_MISSING, Trouble.EMPTY])
async def test_a_source_that_cannot_be_read_changes_no_verdict(desk: Desk, trouble: Trouble) -> None:
    await desk.steps(in_force(A), DONE)
    assert await desk.steps(replace(in_force(A), failed=SourceFailed("why", trouble)), DONE) == []


async def test_what_flaps_is_told_a_few_times_only(desk: Desk) -> None:
    told = []
    for _ in range(10):
        told += await desk.steps(refused(A, in_force(B)), count=1)
        told += await desk.steps(in_force(A), STARTING, count=1)
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
        desk.statuses._not_before = Instant(desk.time)
    assert waits == sorted(waits)
    assert waits[0] < waits[-1] <= commit_status.LONGEST_WAIT
    assert "it is broken" in desk.statuses.trouble
    desk.outcome = Shown()
    desk.time += commit_status.LONGEST_WAIT
    assert await desk.steps(in_force(A), DONE) == [("a", "success")]
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
    assert await desk.steps(in_force(B), DONE) == [("b", "success")]
