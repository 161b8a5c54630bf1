"""The text, the Markdown and the JSON of plans: pinned for several, from the planner's own answers."""

import json
from pathlib import Path
from typing import Any

import pytest

from llmgw.base.ids import ModelName, NodeName
from llmgw.base.time import Instant
from llmgw.catalog.source import SourceTree
from llmgw.cli import plan_text
from llmgw.cli.plan_markdown import LONGEST, MARK, markdown
from llmgw.cli.plan_text import coloured, replica_lines
from llmgw.control.plan_rows import cold_starts
from llmgw.control.preview import as_json, preview
from llmgw.fleet.usage import Active
from llmgw.plan.result import Verb
from llmgw.ports.sinks import Event
from tests.builders import COMPILER, Desk, Object, cluster, model, node, tree
from tests.cards import CLASSES, gpus, on_cards, stranger

TEXTS = Path(__file__).parent / "plans"
CLUSTER = cluster(gpu_classes=CLASSES)


def shown(desk: Desk, wanted: SourceTree, cold: dict[ModelName, float] | None = None) -> dict[str, Any]:
    """Return what the server answers, as the command reads it."""
    row = as_json(preview(COMPILER.compile(wanted), desk.catalog, desk.snapshot()), cold)
    read: dict[str, Any] = json.loads(json.dumps(row))
    return read


def on_two_nodes(*models: Object) -> Desk:
    desk = Desk.of(CLUSTER, node("a"), node("b"), *models, cards={NodeName("a"): gpus("a"), NodeName("b"): gpus("b")})
    desk.settle()
    return desk


def changed(*models: Object, revision: str = "0123456789abcdef") -> SourceTree:
    return tree(CLUSTER, node("a"), node("b"), *models, revision=revision)


def a_new_model() -> dict[str, Any]:
    return shown(on_two_nodes(), changed(model("m", 2, profile=on_cards(4))), {ModelName("m"): 95.0})


def a_rollover() -> dict[str, Any]:
    desk = on_two_nodes(model("m", 1, profile=on_cards(2)))
    return shown(desk, changed(model("m", 1, "--parallel", "4", profile=on_cards(2))), {ModelName("m"): 95.0})


def old_before_new() -> dict[str, Any]:
    desk = on_two_nodes(model("m", 1, profile=on_cards(8)))
    desk.use("m-1-0", Active(3))
    wanted = model("m", 1, "--new", profile=on_cards(8), rollout={"strategy": "recreate"})
    return shown(desk, changed(wanted))


def scaled_down_and_removed() -> dict[str, Any]:
    desk = on_two_nodes(model("m", 2), model("n", 1))
    desk.use("n-1-0", Active(1))
    return shown(desk, changed(model("m", 1)))


def drifted() -> dict[str, Any]:
    desk = on_two_nodes(model("m", 1, profile=on_cards(2)))
    desk.card("GPU-b-3", unhealthy="XID 79")
    desk.card("GPU-b-4", users=(stranger(),))
    desk.cards[NodeName("a")] = desk.cards[NodeName("a")][1:]
    desk.obey()
    desk.lose("b")
    desk.now = Instant(desk.now + 300)
    return shown(desk, changed(model("m", 1, profile=on_cards(2))))


def no_room() -> dict[str, Any]:
    return shown(on_two_nodes(), changed(model("big", 3, profile=on_cards(8))))


def nothing() -> dict[str, Any]:
    desk = on_two_nodes(model("m", 1))
    return shown(desk, changed(model("m", 1)))


def not_valid() -> dict[str, Any]:
    return shown(on_two_nodes(), SourceTree(changed().revision, {**changed().files, "models/x.yaml": b"kind: [\n"}))


PLANS = {
    "a_new_model": a_new_model,
    "a_rollover": a_rollover,
    "old_before_new": old_before_new,
    "scaled_down_and_removed": scaled_down_and_removed,
    "drifted": drifted,
    "no_room": no_room,
    "nothing": nothing,
    "not_valid": not_valid,
}


@pytest.mark.parametrize("name", PLANS)
def test_the_text_is_as_pinned(name: str) -> None:
    """A changed text shows as a difference of a committed file."""
    assert plan_text.text(PLANS[name]()) + "\n" == (TEXTS / f"{name}.txt").read_text()


@pytest.mark.parametrize("name", ["a_rollover", "drifted", "not_valid"])
def test_the_markdown_is_as_pinned(name: str) -> None:
    assert markdown(PLANS[name]()) == (TEXTS / f"{name}.md").read_text()


def test_every_replacement_can_be_found_by_its_delete_and_says_its_order() -> None:
    assert [(one["actions"], one["replaces"]) for one in a_rollover()["objects"]] == [
        (["create", "delete"], "new first")
    ]
    assert [(one["actions"], one["replaces"]) for one in old_before_new()["objects"]] == [
        (["delete", "create"], "old first")
    ]
    assert [one["replaces"] for one in scaled_down_and_removed()["objects"]] == [None, None]


def test_the_json_says_cards_streams_causes_and_its_version() -> None:
    row = a_rollover()
    assert row["format_version"] == "1.1"
    start = row["replicas"][0]
    assert (start["actions"], start["nodes"], start["last_cold_start"]) == (["start"], ["b"], 95.0)
    kind = "NVIDIA H100 80GB HBM3"
    assert [(card["index"], card["name"]) for card in start["cards"]] == [(0, kind), (1, kind)]
    assert start["cause"].startswith("0123456789#")
    assert [one["streams"] for one in old_before_new()["replicas"] if one["actions"] == ["drain"]] == [3]


def test_secrets_are_shown_as_references_in_every_form() -> None:
    desk = on_two_nodes(model("m", 1, profile={"env": {"TOKEN": {"secret": "OLD_TOKEN"}}}))
    row = shown(desk, changed(model("m", 1, profile={"env": {"TOKEN": {"secret": "NEW_TOKEN"}, "PLAIN": "x"}})))
    for said in (plan_text.text(row), markdown(row), json.dumps(row)):
        assert "NEW_TOKEN" in said
        assert "OLD_TOKEN" in said
    field = row["objects"][0]["fields"][0]
    assert json.loads(field["before"]) == {"TOKEN": {"secret": "OLD_TOKEN"}}
    assert json.loads(field["after"]) == {"TOKEN": {"secret": "NEW_TOKEN"}, "PLAIN": "x"}


def test_colour_is_put_on_signs_only_and_changes_no_text() -> None:
    said = plan_text.text(a_rollover())
    shown_ = coloured(said)
    assert "\x1b[33m+/- model/m" in shown_
    assert "\x1b[32m    + start m-1-1" in shown_
    plain = shown_
    for code in ("\x1b[0m", "\x1b[31m", "\x1b[32m", "\x1b[33m", "\x1b[31;1m"):
        plain = plain.replace(code, "")
    assert plain == said


def test_a_comment_is_cut_before_the_forge_s_limit_and_says_so() -> None:
    many = [model(f"m{n:04}", 0, *[f"--flag-{k}-{'x' * 60}" for k in range(10)]) for n in range(200)]
    desk = on_two_nodes(*many)
    others = [model(f"m{n:04}", 0, *[f"--other-{k}-{'y' * 60}" for k in range(10)]) for n in range(200)]
    said = markdown(shown(desk, changed(*others)))
    assert said.startswith(MARK)
    assert LONGEST * 0.9 < len(said) < LONGEST
    assert "_Truncated: " in said
    assert said.count("<details>") == said.count("</details>")
    one = model("m0000", 0, *[f"--other-{k}-{'y' * 3000}" for k in range(60)])
    said = markdown(shown(on_two_nodes(many[0], many[1]), changed(one, others[1])))
    assert len(said) < LONGEST
    assert "model/m0001" in said


def test_every_verb_has_a_sign() -> None:
    for verb in Verb:
        if verb is not Verb.PUBLISH:
            (line,) = replica_lines({"actions": [verb], "replica": "m-1-0", "node": "a", "reason": "so"})[:1]
            assert line[0] in "+-~"


def test_a_long_list_of_problems_is_cut_and_not_left_out() -> None:
    files = {f"models/x{n}.yaml": b"kind: [\n" for n in range(1000)}
    said = markdown(shown(on_two_nodes(), SourceTree(changed().revision, {**changed().files, **files})))
    assert LONGEST * 0.9 < len(said) < LONGEST
    assert "models/x0.yaml:2:1" in said
    assert "truncated" in said


def test_a_value_cannot_break_out_of_the_comment() -> None:
    nasty = "````\n</details><script>@everyone"
    desk = on_two_nodes(model("m", 1))
    said = markdown(shown(desk, changed(model("m", 1, nasty, "`````"))))
    body = said.partition("`````diff")[0]
    assert "<script>" not in body
    assert "\n``````diff\n" in said


def test_what_stands_outside_of_fences_is_defused() -> None:
    row = drifted()
    row["drift"][0]["text"] = "<script>alert()</script> @everyone **x** `y`"
    row["objects"] = a_rollover()["objects"]
    row["objects"][0]["path"] = "models/<img src=x>.yaml"
    said = markdown(row)
    assert "<script>" not in said
    assert "<img" not in said
    assert "@everyone" not in said
    assert "**x**" not in said
    assert "&lt;script&gt;" in said
    assert "&lt;img src=x&gt;" in said


def test_a_cold_start_is_from_the_last_start_that_served() -> None:
    def event(at: float, kind: str, replica: str) -> Event:
        return Event(Instant(at), kind, f"replica/{replica}", "", "")

    found = cold_starts(
        [
            event(300.0, "publish", "m-1-1"),
            event(200.0, "start", "m-1-1"),
            event(160.0, "publish", "m-1-0"),
            event(100.0, "start", "m-1-0"),
            event(400.0, "start", "m-1-2"),
            event(410.0, "publish", "other-model-1-0"),
            event(420.0, "publish", "m-1-0"),
            Event(Instant(1.0), "start", "node/x", "", ""),
        ]
    )
    assert found == {"m": 100.0}
