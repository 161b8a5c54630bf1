"""What stands against a revision, and how far one is: pure functions."""

import pytest

from llmgw.base.ids import Revision
from llmgw.base.time import Instant
from llmgw.catalog.compile import Accepted
from llmgw.catalog.guard import guarded
from llmgw.control.catalogs import Candidate
from llmgw.control.revisions import Progress, Revisions, Stage, progress, revert_line, until_of, waits_for
from llmgw.fleet.report import Phase, Reason
from llmgw.fleet.usage import Unknown, UsageView
from llmgw.plan.result import Plan
from llmgw.plan.snapshot import Suspension
from llmgw.ports.revisions import Standing
from tests.builders import Desk, Object, catalog, cluster, model, node, tree

A, B = node("a"), node("b")
NOW = Instant(100.0)
RULES = guarded(catalog(A, model("m", protect=True)))


def _candidate(*objects: Object, trailers: tuple[str, ...] = (), revision: str = "new-revision") -> Candidate:
    from dataclasses import replace

    found = replace(tree(*objects, revision=revision), trailers=trailers)
    return Candidate(found, Accepted(catalog(*objects, revision=revision)), NOW)


KEEPS = _candidate(A, model("m"))
REMOVES = _candidate(A)


def _kind(candidate: Candidate, standing: Standing, *, leads: bool = True, first: bool = False) -> str | None:
    waiting = waits_for(candidate, None if first else RULES, standing, NOW, leads=leads)
    return waiting.kind if waiting is not None else None


def test_nothing_stands_against_a_valid_revision() -> None:
    assert _kind(KEEPS, Standing()) is None


def test_only_who_leads_takes_up() -> None:
    assert _kind(KEEPS, Standing(), leads=False) == "leader"


def test_a_suspension_holds_until_it_is_over() -> None:
    assert _kind(KEEPS, Standing(suspension=Suspension("x", "ann", Instant(0), Instant(101)))) == "suspended"
    assert _kind(KEEPS, Standing(suspension=Suspension("x", "ann", Instant(0), NOW))) is None


def test_what_was_rolled_back_or_passed_over_stays_out_and_another_does_not() -> None:
    assert _kind(KEEPS, Standing(bad=(Revision("new-revision"),))) == "held"
    assert _kind(KEEPS, Standing(over=Revision("new-revision"))) == "passed over"
    assert _kind(KEEPS, Standing(bad=(Revision("older"),), over=Revision("older"))) is None


def test_by_hand_means_by_what_is_in_force_and_for_the_very_first_by_itself() -> None:
    says_manual = _candidate(cluster(sync="manual"), A, model("m"))
    assert _kind(KEEPS, Standing(manual=True)) == "manual"
    assert _kind(says_manual, Standing(manual=False)) is None
    assert _kind(says_manual, Standing(), first=True) == "manual"
    assert _kind(KEEPS, Standing(), first=True) is None


def test_a_guard_refuses_until_the_commit_says_so() -> None:
    assert _kind(REMOVES, Standing()) == "guard"
    assert _kind(_candidate(A, trailers=("LLMGW-Allow-Remove: model/m",)), Standing()) is None
    assert _kind(_candidate(A, trailers=("LLMGW-Allow-Remove: model/n",)), Standing()) == "guard"


def test_what_the_guard_has_against_it_is_said_whatever_else_it_waits_for() -> None:
    waiting = waits_for(REMOVES, RULES, Standing(manual=True), NOW, leads=True)
    assert waiting is not None
    assert (waiting.kind, waiting.guard[0].objects) == ("manual", ("model/m",))


def test_a_refusal_says_what_to_write() -> None:
    waiting = waits_for(REMOVES, RULES, Standing(), NOW, leads=True)
    assert waiting is not None
    assert "`LLMGW-Allow-Remove: model/m`" in waiting.text
    assert "`llmgw apply --rev new-revisi --allow-remove model/m`" in waiting.text


# how far


def _far(desk: Desk, decided: Plan) -> Progress:
    stage = Stage(desk.catalog.revision, "s", "ann", NOW)
    return progress(decided, desk.snapshot(), Revisions(attempted=stage))


def test_a_revision_is_healthy_only_when_nothing_is_left_to_do() -> None:
    desk = Desk.of(A, model("m"))
    assert not _far(desk, desk.plan()).healthy, "a start is to be done"
    desk.obey(Phase.STARTING)
    starting = _far(desk, desk.plan())
    assert not starting.healthy
    assert [(one.subject, one.what, one.waits_for) for one in starting.todo] == [
        ("replica/m-1-0", "to serve", "it is starting")
    ]
    desk.phase("m-1-0", Phase.READY)
    assert not _far(desk, desk.plan()).healthy, "it is being published"
    assert _far(desk, desk.plan()).healthy


def test_a_revision_is_not_applied_before_every_gateway_goes_by_its_table() -> None:
    desk = Desk.of(A, model("m"))
    decided = desk.settle()
    assert _far(desk, decided).healthy
    desk.usage = UsageView({}, Unknown("gateway worker 7 goes by an older table"))
    far = _far(desk, decided)
    assert not far.healthy
    assert [(one.subject, one.waits_for) for one in far.todo] == [
        ("gateway", "gateway worker 7 goes by an older table")
    ]


def test_a_replica_that_still_leaves_is_something_to_do() -> None:
    desk = Desk.of(A, B, model("m"))
    desk.settle()
    desk.want(A, B)
    draining = desk.plan()
    assert not _far(desk, draining).healthy
    desk.obey()
    stopping = desk.plan()
    assert not _far(desk, stopping).healthy
    gone = desk.plan()
    assert (gone.actions, gone.holds) == ((), ()), "all is ordered, and its process ends"
    assert [(one.subject, one.what) for one in _far(desk, gone).todo] == [("replica/m-1-0", "to be gone")]
    assert _far(desk, desk.settle()).healthy


def test_a_plan_of_another_revision_says_nothing_of_this_one() -> None:
    desk = Desk.of(A, model("m"))
    decided = desk.settle()
    desk.want(A, model("m", 2))
    assert _far(desk, decided) == Progress(planned=False)
    assert not _far(desk, decided).healthy
    assert not progress(None, None, Revisions()).healthy


def test_what_waits_for_room_has_not_failed() -> None:
    desk = Desk.of(A, model("m", 2, profile={"cpus": 8}))
    decided = desk.settle()
    far = _far(desk, decided)
    assert (far.healthy, far.failed) == (False, False)
    assert [(one.subject, one.what) for one in far.todo] == [("model/m", "start replica 2 of 2")]
    assert [(one.ready, one.wanted) for one in far.models] == [(1, 2)]


def test_what_gave_up_wherever_it_could_run_has_failed_with_the_evidence() -> None:
    desk = Desk.of(A, model("m"))
    desk.settle()
    desk.want(A, model("m", 1, "--broken"))
    desk.plan()
    desk.obey(Phase.STARTING)
    assert not _far(desk, desk.plan()).failed
    new = desk.decided.orders["a"].shards[-1].spec.replica
    desk.phase(new, Phase.FAILED, Reason("ended", "ended with status 1"))
    far = _far(desk, desk.settle())
    assert far.failed
    assert not far.healthy
    assert [(one.model, one.node, one.reason) for one in far.evidence] == [("m", "a", "ended with status 1")]
    assert [(one.ready, one.wanted) for one in far.models] == [(0, 1)], "the old one serves, by another revision"


def test_what_gave_up_on_one_node_and_is_tried_on_another_has_not_failed() -> None:
    desk = Desk.of(A, B, model("m"))
    desk.plan()
    desk.obey(Phase.STARTING)
    desk.phase("m-1-0", Phase.FAILED, Reason("ended", "ended with status 1"))
    decided = desk.plan()
    assert any(action.verb == "start" for action in decided.actions)
    assert not _far(desk, decided).failed
    desk.obey(Phase.STARTING)
    assert not _far(desk, desk.plan()).failed


# what operators write


@pytest.mark.parametrize(
    ("text", "seconds"), [("24h", 86400), ("90m", 5400), ("7d", 604800), ("1970-01-01T00:03Z", 80), ("10s", 10)]
)
def test_a_suspension_ends_after_a_duration_or_at_a_moment(text: str, seconds: float) -> None:
    assert until_of(text, NOW) == NOW + seconds


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("8d", "at most 7d"),
        ("0s", "not in the future"),
        ("1970-01-01T00:01Z", "not in the future"),
        ("1970-01-01T00:03", "lacks a time zone"),
        ("soon", "write 24h"),
        ("", "write 24h"),
        ("-1h", "write 24h"),
    ],
)
def test_a_suspension_without_a_near_end_is_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        until_of(text, NOW)


def test_the_revert_is_given_for_commits_only() -> None:
    good, bad = Revision("a" * 40), Revision("b" * 40)
    assert revert_line(good, bad) == "git revert --no-edit aaaaaaaaaaaa..bbbbbbbbbbbb"
    assert revert_line(Revision("worktree-0123"), bad) is None
