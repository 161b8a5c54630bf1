"""A saved plan: what makes it stale and what does not, and that a file that was touched is not taken."""

import hashlib
import json
import sys
from collections.abc import Callable
from dataclasses import replace

import pytest

from llmgw.base.ids import Epoch, NodeName
from llmgw.base.time import Instant
from llmgw.catalog.compile import Accepted
from llmgw.catalog.digest import tree_digest
from llmgw.catalog.source import SourceTree
from llmgw.control.plan_file import BadPlanFile, PlanFile, Terms, dump_plan, load_plan, plan_row, save, stale
from llmgw.control.preview import preview
from llmgw.fleet.report import Phase
from llmgw.fleet.view import Reporting
from llmgw.plan.snapshot import Suspension
from tests.builders import COMPILER, Desk, Object, cluster, model, node, tree
from tests.cards import CLASSES, gpus, on_cards, stranger

CLUSTER = cluster(gpu_classes=CLASSES)
NODES = (node("a"), node("b"))
BEFORE = tree(CLUSTER, *NODES, model("m", 1, profile=on_cards(2)), model("idle", 0))
AFTER = tree(CLUSTER, *NODES, model("m", 1, "--new", profile=on_cards(2)), model("idle", 0), revision="r2")
TERMS = Terms("n1", Instant(1000.0), 3600.0, "0.1.0")


def a_desk(*objects: Object) -> Desk:
    """Return a desk with two nodes of eight cards where `m` runs."""
    desk = Desk.of(
        *(objects or (CLUSTER, *NODES, model("m", 1, profile=on_cards(2)), model("idle", 0))),
        cards={NodeName("a"): gpus("a"), NodeName("b"): gpus("b")},
    )
    desk.settle()
    return desk


def saved(desk: Desk, wanted: SourceTree = AFTER, terms: Terms = TERMS) -> PlanFile:
    outcome = COMPILER.compile(wanted)
    assert isinstance(outcome, Accepted)
    shown = preview(outcome, desk.catalog, desk.snapshot())
    assert shown.decision is not None
    return save(shown.decision.plan, shown.decision.there, BEFORE, wanted, terms)


def why(plan: PlanFile, desk: Desk, **changes: object) -> tuple[str, ...]:
    given = {
        "in_force": BEFORE,
        "desired_digest": tree_digest(AFTER),
        "used": frozenset(),
        "now": Instant(1500.0),
        **changes,
    }
    return stale(plan, desk.snapshot(), **given)  # type: ignore[arg-type]


def test_a_plan_holds_while_only_time_memory_and_reports_move() -> None:
    desk = a_desk()
    plan = saved(desk)
    assert why(plan, desk) == ()
    desk.now = Instant(desk.now + 500)
    for uuid in ("GPU-a-0", "GPU-b-0", "GPU-b-5"):
        desk.card(uuid, memory_used=7 << 30)
    for name in ("a", "b"):
        view = desk.views[NodeName(name)]
        assert isinstance(view, Reporting)
        desk.views[NodeName(name)] = replace(
            view,
            report=replace(
                view.report,
                sequence=view.report.sequence + 50,
                shards=tuple(replace(one, age=one.age + 500, in_flight=9, progress="x") for one in view.report.shards),
            ),
        )
    assert why(plan, desk) == ()


def test_it_says_which_of_the_things_it_relied_on_changed() -> None:
    def lose_the_node(desk: Desk) -> None:
        desk.lose("b")

    def card_falls_ill(desk: Desk) -> None:
        desk.card("GPU-b-3", unhealthy="XID 79")

    def a_stranger_comes(desk: Desk) -> None:
        desk.card("GPU-b-3", users=(stranger(),))

    def replica_gives_up(desk: Desk) -> None:
        desk.phase("m-1-0", Phase.FAILED)

    def an_operator_cordons(desk: Desk) -> None:
        desk.ask("cordon", "node/b")

    def another_leads(desk: Desk) -> None:
        desk.epoch = Epoch(2)

    unfit = "node/b has changed: which cards it has and which of them are fit to use (now: 8 cards, not fit: GPU-b-3)"
    answers = "node/b has changed: whether it answers, or takes new replicas"
    cases: list[tuple[Callable[[Desk], None], str]] = [
        (lose_the_node, f"{answers} (now: it does not answer)"),
        (card_falls_ill, unfit),
        (a_stranger_comes, unfit),
        (replica_gives_up, "model/m has changed: which replicas it has, and which of them serve (now: m-1-0 gave up)"),
        (an_operator_cordons, f"{answers} (now: it answers; closed by cordon node/b)"),
        (another_leads, "another control plane decides now (epoch 2, it was 1)"),
    ]  # fmt: skip
    for change, expected in cases:
        desk = a_desk()
        plan = saved(desk)
        change(desk)
        assert why(plan, desk) == (expected,), change.__name__


def test_a_plan_made_while_suspended_is_not_applied_after_it_and_the_other_way_round() -> None:
    desk = a_desk()
    before = saved(desk)
    desk.suspended = Suspension("a switch", "ann", desk.now, Instant(desk.now + 3600))
    assert why(before, desk) == ("cluster has changed: whether it is suspended (now: suspended)",)
    under = saved(desk)
    assert (under.actions, why(under, desk)) == ((), ())
    desk.suspended = None
    assert why(under, desk) == ("cluster has changed: whether it is suspended (now: not suspended)",)


def test_what_no_action_touches_may_change() -> None:
    desk = a_desk()
    plan = saved(desk)
    assert {key.partition(" ")[0] for key in plan.observed} == {"node/b", "model/m", "cluster"}
    desk.lose("a")
    desk.card("GPU-a-1", unhealthy="XID 79")
    assert why(plan, desk) == ()


def test_it_is_bound_to_its_base_its_tree_one_use_and_a_time() -> None:
    desk = a_desk()
    plan = saved(desk)
    other = replace(BEFORE, revision=AFTER.revision, files={**BEFORE.files, "x.yaml": b"#"})
    assert why(plan, desk, in_force=other) == ("revision r2 is in force now; it was r1 when this was planned",)
    assert why(plan, desk, in_force=None) == ("revision none is in force now; it was r1 when this was planned",)
    assert why(plan, desk, desired_digest="0" * 64) == ("what is to be applied is not what was planned for",)
    assert why(plan, desk, used={plan.id}) == ("it was applied already; a saved plan is good for one apply",)
    assert why(plan, desk, now=Instant(4600.0)) == ("it expired 0s ago",)
    assert why(plan, desk, now=Instant(4599.0)) == ()
    assert stale(plan, None, BEFORE, plan.desired_digest, (), Instant(1500.0)) == (
        "the state of the nodes is not known now",
    )


def test_the_file_is_canonical_comes_back_and_has_no_ages_in_it() -> None:
    desk = a_desk()
    plan = saved(desk)
    said = dump_plan(plan)
    assert load_plan(said) == plan
    assert dump_plan(load_plan(said)) == said
    assert json.loads(said)["actions"] == ["start m-1-1 on b"]
    assert plan.tree == AFTER
    assert saved(desk, terms=replace(TERMS, nonce="n2")).id != plan.id
    assert saved(desk).id == plan.id
    desk.now = Instant(desk.now + 100)
    assert saved(desk).observed == plan.observed


def test_a_touched_file_is_not_taken() -> None:
    data = json.loads(dump_plan(saved(a_desk())))
    for change in ({"expires": 1e12}, {"observed": {}}, {"files": {}}, {"epoch": 9}, {"id": "0" * 64}, {"more": 1}):
        with pytest.raises(BadPlanFile, match="not as it was written"):
            load_plan(json.dumps({**data, **change}))
    for text, said in (
        ("", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "not a saved plan"),
        ("{}", "not a saved plan"),
        (json.dumps({**data, "format_version": "2.0"}), "format_version is 2.0"),
    ):
        with pytest.raises(BadPlanFile, match=said):
            load_plan(text)


def test_a_plan_keeps_what_its_commit_says_may_be_removed() -> None:
    said = ("LLMGW-Allow-Remove: model/idle",)
    plan = saved(a_desk(), replace(AFTER, trailers=said))
    again = load_plan(dump_plan(plan))
    assert (again, again.tree.trailers) == (plan, said)
    assert load_plan(json.dumps(plan_row(again))) == plan, "as it travels, too"


def test_a_file_from_before_trailers_were_kept_is_read_and_travels_unchanged() -> None:
    text = dump_plan(saved(a_desk()))
    assert "trailers" not in json.loads(text)
    plan = load_plan(text)
    assert plan.trailers == ()
    assert load_plan(json.dumps(plan_row(plan))) == plan


@pytest.mark.parametrize(
    "change",
    [
        {"created": float("nan")}, {"expires": float("inf")}, {"created": 10**400}, {"epoch": 10**5000},
        {"files": {"\ud83d.yaml": "eA=="}}, {"subject": "\ud83d"}, {"revision": "\ud83d"},
    ],
    ids=["nan", "inf", "huge", "huger", "path", "subject", "revision"],
)  # fmt: skip
def test_a_file_with_what_cannot_be_is_refused_in_one_line(change: dict[str, object]) -> None:
    sys.set_int_max_str_digits(0)
    try:
        row = {**plan_row(saved(a_desk())), **change}
        del row["id"]
        written = json.dumps(row, sort_keys=True, separators=(",", ":"))
        forged = {"id": hashlib.sha256(written.encode()).hexdigest(), **row}
        text = json.dumps(forged).replace("Infinity", "1e999")
    finally:
        sys.set_int_max_str_digits(4300)
    with pytest.raises(BadPlanFile) as refused:
        load_plan(text)
    assert str(refused.value).isprintable()
