"""`llmgw apply` against a small fake of the server's side: what is sent, what is waited for, how each end is told."""

import json
import signal
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from llmgw.cli.apply_screen import Lines, line_of
from llmgw.cli.applying import Patience, Wanted, _ended_as_by_ctrl_c, begin, follow, judge, request_of
from llmgw.cli.outcomes import Failed, GuardRefused, NoServer, NotHealthy, ServerRefused, StalePlan, WrongUsage
from llmgw.cli.planning import _save
from llmgw.control.plan_file import dump_plan, plan_row
from llmgw.control.requests import tree_from
from tests.unit.control.test_plan_file import AFTER, a_desk, saved

DIRECTORY = Wanted(Path("examples/cluster"))


def row(phase: str = "under_way", **changes: Any) -> dict[str, Any]:
    """Return what the server says of an apply."""
    base = {
        "id": "i1", "revision": "0123456789abcdef", "tree": "", "subject": "a change", "author": "ann", "committed": None,
        "at": 0.0, "age": 3.0, "by": "ann@host", "how": "apply", "outcome": "under_way", "note": "", "ended": None,
        "applied": None, "phase": phase, "healthy": False, "models": [], "todo": [], "evidence": [],
    }  # fmt: skip
    return {**base, "outcome": "under_way" if phase == "planning" else phase, **changes}


LOADING = {"subject": "replica/m-1-1", "what": "to serve", "waits_for": "it is starting"}


@dataclass
class FakeServer:
    """Answers what a test says, one answer after another for each route; the last one again and again."""

    answers: dict[str, list[Any]]
    asked: list[tuple[str, dict[str, Any] | None]] = field(default_factory=list)

    def __call__(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        route = f"{method} {path.partition('?')[0]}"
        self.asked.append((route, body))
        left = self.answers[route]
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, BaseException):
            raise answer
        assert isinstance(answer, dict)
        return answer


class Time:
    """Time that passes only by waiting."""

    def __init__(self) -> None:
        self.now = 0.0

    def pause(self, seconds: float) -> None:
        self.now += seconds

    def patience(self, limit: float = 60.0) -> Patience:
        return Patience(limit, lambda: self.now, self.pause)


def end_of(server: FakeServer, limit: float = 60.0) -> dict[str, Any]:
    patience = Time().patience(limit)
    return follow(server, begin(server, {}, DIRECTORY, patience, Lines()), patience, Lines())


def test_it_looks_on_until_the_revision_is_applied_with_a_line_for_every_change(
    capsys: pytest.CaptureFixture[str],
) -> None:
    models = [{"model": "m", "ready": 1, "wanted": 2}]
    server = FakeServer(
        {
            "POST /v1/apply": [row("planning")],
            "GET /v1/apply/i1": [
                row(models=models, todo=[LOADING, LOADING]),
                row(models=models, todo=[LOADING, LOADING], age=9.0),
                row("applied", healthy=True, models=[{"model": "m", "ready": 2, "wanted": 2}]),
            ],
        }
    )
    last = end_of(server)
    judge(last, 60.0)
    assert capsys.readouterr().out.splitlines() == [
        "0123456789 planning",
        "0123456789 under way: 1 of 2 replicas serve; left: replica/m-1-1 to serve (it is starting) and 1 more",
        "0123456789 applied: 2 of 2 replicas serve",
    ]


def test_a_failed_rollout_ends_at_once_with_its_evidence() -> None:
    evidence = {"model": "m", "replica": "m-1-1", "node": "a", "reason": "out of memory", "log": ["one", "CUDA OOM"]}
    server = FakeServer(
        {
            "POST /v1/apply": [row()],
            "GET /v1/apply/i1": [row("failed", note="model/m: out of memory", evidence=[evidence])],
        }
    )
    with pytest.raises(NotHealthy) as caught:
        judge(end_of(server), 60.0)
    assert len(server.asked) == 2
    assert str(caught.value).splitlines() == [
        "revision 0123456789 failed: model/m: out of memory; push a fix, or go back with `llmgw rollback`",
        "  model/m: m-1-1 on a: out of memory",
        "    | one",
        "    | CUDA OOM",
        "    `llmgw logs m-1-1` shows more",
    ]


@pytest.mark.parametrize(
    ("last", "kind", "said"),
    [
        (row(todo=[LOADING]), NotHealthy, "after 60s: replica/m-1-1: to serve, waits for it is starting; the server goes on"),
        (row("planning"), NotHealthy, "its plan is not made yet"),
        (row("superseded", note="by fedcba9876"), Failed, "was superseded by fedcba9876 before it was applied"),
        (row("rolled_back", note="to r0, by bob"), Failed, "was rolled back to r0, by bob"),
    ],
)  # fmt: skip
def test_every_other_end_says_what_it_is(last: dict[str, Any], kind: type[Failed], said: str) -> None:
    server = FakeServer({"POST /v1/apply": [row()], "GET /v1/apply/i1": [last]})
    with pytest.raises(Failed, match=said) as caught:
        judge(end_of(server), 60.0)
    assert type(caught.value) is kind


def test_a_server_that_restarts_is_waited_out_and_one_that_forgot_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    away = NoServer("no llmgw server answers")
    store = ServerRefused("the store is away", 503, {})
    server = FakeServer(
        {"POST /v1/apply": [row()], "GET /v1/apply/i1": [away, away, store, row("applied", healthy=True)]}
    )
    assert end_of(server)["phase"] == "applied"
    assert "the server does not answer now; asking again" in capsys.readouterr().out
    server = FakeServer(
        {"POST /v1/apply": [row()], "GET /v1/apply/i1": [ServerRefused("there is no apply i1", 404, {})]}
    )
    with pytest.raises(ServerRefused, match="no apply i1"):
        end_of(server)


UNDER_WAY = ServerRefused("apply i0 of revision r0 by bob is under way; wait for it", 409, {"guard": []})
OTHER = {"revisions": [row(id="i0", revision="r0", by="bob")]}


def test_the_second_of_two_applies_is_refused_and_told_how_to_wait() -> None:
    server = FakeServer({"POST /v1/apply": [UNDER_WAY], "GET /v1/history": [OTHER]})
    with pytest.raises(Failed, match="is under way; wait for it, or wait for its end with --wait-for-other"):
        end_of(server)
    assert [route for route, _ in server.asked] == ["POST /v1/apply", "GET /v1/history"]


@pytest.mark.parametrize("end", ["applied", "failed", "superseded"])
def test_or_waits_for_the_end_of_the_first_and_then_goes_on(end: str) -> None:
    server = FakeServer(
        {
            "POST /v1/apply": [UNDER_WAY, row("applied")],
            "GET /v1/history": [OTHER],
            "GET /v1/apply/i0": [row(id="i0"), row(id="i0"), row(end, id="i0")],
        }
    )
    waiting = Wanted(None, wait_for_other=True)
    assert begin(server, {"by": "x"}, waiting, Time().patience(), Lines())["phase"] == "applied"
    routes = [route for route, _ in server.asked]
    assert routes == ["POST /v1/apply", "GET /v1/history", *["GET /v1/apply/i0"] * 3, "POST /v1/apply"]


def test_waiting_for_another_has_the_same_limit() -> None:
    server = FakeServer({"POST /v1/apply": [UNDER_WAY], "GET /v1/history": [OTHER], "GET /v1/apply/i0": [row(id="i0")]})
    with pytest.raises(
        NotHealthy, match="apply i0 of revision r0 by bob did not end in 5s; nothing of this one was done"
    ):
        begin(server, {}, Wanted(None, wait_for_other=True), Time().patience(5.0), Lines())


@pytest.mark.parametrize("wait", [False, True])
def test_a_refusal_for_another_reason_is_no_reason_to_wait(wait: bool) -> None:
    suspended = ServerRefused("suspended by ann until noon", 409, {})
    server = FakeServer({"POST /v1/apply": [suspended], "GET /v1/history": [{"revisions": [row("applied")]}]})
    with pytest.raises(ServerRefused, match="suspended by ann"):
        begin(server, {}, Wanted(None, wait_for_other=wait), Time().patience(), Lines())
    server = FakeServer({"POST /v1/apply": [GuardRefused("would remove model/m")]})
    with pytest.raises(GuardRefused):
        begin(server, {}, Wanted(None, wait_for_other=wait), Time().patience(), Lines())


def test_a_saved_plan_is_checked_first_and_sent_whole(tmp_path: Path) -> None:
    plan = saved(a_desk())
    file = tmp_path / "plan.json"
    file.write_text(dump_plan(plan))
    server = FakeServer({"POST /v1/plan/verify": [{"stale": []}]})
    body = request_of(Wanted(file, allow_remove=("model/x",)), server)
    assert body["plan"]["id"] == plan.id
    assert body["tree"] == {"revision": "r2", "files": dict(plan.files), "subject": "", "author": ""}
    assert body["allow_remove"] == ["model/x"]
    server = FakeServer({"POST /v1/plan/verify": [{"stale": ["it expired 5s ago", "node/a has changed"]}]})
    with pytest.raises(
        StalePlan, match=r"stale, nothing was changed: it expired 5s ago; node/a has changed\. Plan again"
    ):
        request_of(Wanted(file), server)
    with pytest.raises(WrongUsage, match="leave out --rev"):
        request_of(Wanted(file, "HEAD"), server)
    file.write_text(json.dumps({**json.loads(file.read_text()), "epoch": 9}))
    with pytest.raises(Failed, match="not as it was written"):
        request_of(Wanted(file), server)


def test_what_turns_stale_between_the_look_and_the_lease_is_refused_as_stale() -> None:
    refused = ServerRefused("the plan is stale", 409, {"stale": ["node/a has changed"]})
    server = FakeServer({"POST /v1/apply": [refused]})
    with pytest.raises(StalePlan, match="node/a has changed"):
        begin(server, {}, Wanted(Path("plan.json")), Time().patience(), Lines())


def test_a_revision_that_is_not_here_is_asked_for_by_name(tmp_path: Path) -> None:
    nobody: Callable[..., Any] = FakeServer({})
    assert request_of(Wanted(tmp_path, "abc123"), nobody)["revision"] == "abc123"
    assert "cluster.yaml" in request_of(DIRECTORY, nobody)["tree"]["files"]
    with pytest.raises(Failed, match="no directory and no saved plan"):
        request_of(Wanted(tmp_path / "nothing"), nobody)


def test_the_line_of_an_apply_without_models_is_short() -> None:
    assert line_of(row()) == "0123456789 under way"


GUARD = ({"rule": "protect", "objects": ["model/m", "model/n"], "text": "it removes model/m, model/n"},)


@pytest.mark.parametrize(
    ("wanted", "command"),
    [
        (Wanted(Path("my plan.json")), "`llmgw apply 'my plan.json' --allow-remove model/m --allow-remove model/n`"),
        (Wanted(None), "`llmgw apply --allow-remove model/m --allow-remove model/n`"),
        (Wanted(None, "HEAD"), "as the server says"),
    ],
)
def test_what_a_guard_refuses_is_told_with_the_command_for_just_that(wanted: Wanted, command: str) -> None:
    server = FakeServer({"POST /v1/apply": [GuardRefused("refused, as the server says", GUARD)]})
    with pytest.raises(GuardRefused) as refused:
        begin(server, {}, wanted, Time().patience(), Lines())
    assert command in str(refused.value)
    assert "--rev" not in str(refused.value)


def test_a_plan_that_a_guard_refuses_says_so_when_it_is_saved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = plan_row(saved(a_desk()))
    _save(tmp_path / "p", row, list(GUARD), quiet=False)
    assert f"a guard refuses it unless it is applied with `llmgw apply {tmp_path / 'p'} --allow-remove model/m" in (
        capsys.readouterr().out
    )
    _save(tmp_path / "p", row, [], quiet=False)
    assert "does exactly this, once" in capsys.readouterr().out


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_whoever_ends_the_command_is_told_what_ctrl_c_is(number: signal.Signals) -> None:
    before = signal.signal(number, signal.SIG_DFL)  # whoever runs this may ignore it
    try:
        with pytest.raises(KeyboardInterrupt), _ended_as_by_ctrl_c():
            signal.raise_signal(number)
        assert signal.getsignal(number) == signal.SIG_DFL
        signal.signal(number, signal.SIG_IGN)
        with _ended_as_by_ctrl_c():
            signal.raise_signal(number)
    finally:
        signal.signal(number, before)


def test_a_saved_plan_is_sent_with_what_its_commit_says_may_be_removed(tmp_path: Path) -> None:
    said = ("LLMGW-Allow-Remove: model/idle",)
    file = tmp_path / "p"
    file.write_text(dump_plan(saved(a_desk(), replace(AFTER, trailers=said))))
    body = request_of(Wanted(file), FakeServer({"POST /v1/plan/verify": [{"stale": []}]}))
    tree = tree_from(body["tree"])
    assert tree is not None
    assert tree.trailers == said
