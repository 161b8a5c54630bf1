"""What people must know: cards that are missing, rollouts that failed; and nodes that come back one by one."""

from collections import Counter
from dataclasses import replace

import pytest

from llmgw.fleet.report import Phase
from llmgw.plan.alarms import drift
from llmgw.spec.node import Node
from tests.builders import Desk, cluster, held, model, node, told, why
from tests.unit.cli.fleets import cards, fleet, on_cards

CLUSTER = cluster(control={"lost_after": "1m", "unreachable_after": "10s", "brake": {"share": "50%", "min_nodes": 2}})


@pytest.mark.parametrize(
    ("expect", "has", "said"),
    [
        (None, {}, ""),
        ({"gpus": 4}, {"h100": 4}, ""),
        ({"gpus": 4, "gpu_class": "h100"}, {"h100": 4}, ""),
        ({"gpus": 4, "gpu_class": "h100"}, {"h100": 3}, "node a should have 4 h100; it has 3 h100"),
        ({"gpus": 4, "gpu_class": "h100"}, {"h100": 5}, "node a should have 4 h100; it has 5 h100"),
        (
            {"gpus": 2, "gpu_class": "h100"},
            {"h100": 1, "": 1},
            "node a should have 2 h100; it has 1 of no class, 1 h100",
        ),
        ({"gpus": 2, "gpu_class": "h100"}, {"l40s": 2}, "node a should have 2 h100; it has 2 l40s"),
        ({"gpus": 1}, {}, "node a should have 1 cards; it has none"),
        ({"gpus": 0}, {"h100": 1}, "node a should have 0 cards; it has 1 h100"),
        ({"gpu_class": "h100"}, {"h100": 9}, ""),
        ({"gpu_class": "h100"}, {}, "node a should have h100 cards; it has none"),
    ],
)
def test_a_node_that_has_other_cards_than_it_should_is_an_alarm(expect, has, said) -> None:
    fields = node("a") if expect is None else node("a", expect=expect)
    assert drift(Node.model_validate(fields), Counter(has)) == said


def test_the_drift_is_in_the_plan_while_the_node_answers_and_what_it_has_counts() -> None:
    desk = fleet({"a": cards("a", 3)}, node("a", expect={"gpus": 4, "gpu_class": "h100"}), on_cards("m", 3, 1))
    decided = desk.plan()
    assert decided.alarms == ("node a should have 4 h100; it has 3 h100",)
    assert len(told(decided)) == 3
    desk.lose("a")
    assert desk.plan().alarms == ()


def test_a_node_that_does_not_know_its_cards_is_not_one_without_cards() -> None:
    desk = fleet({"a": cards("a", 4)}, node("a", expect={"gpus": 4, "gpu_class": "h100"}))
    desk.cards["a"] = ()
    desk.facts["a"] = replace(desk.views["a"].report.facts, gpu_trouble="the cards have not been looked at yet")
    desk.regain("a")
    assert desk.plan().alarms == ()
    desk.facts["a"] = replace(desk.facts["a"], gpu_trouble="")
    desk.regain("a")
    assert desk.plan().alarms == ("node a should have 4 h100; it has none",)


def test_nodes_that_come_back_one_by_one_are_not_lost_for_being_last() -> None:
    desk = Desk.of(CLUSTER, *(node(name) for name in "abcd"), model("m", 4))
    desk.settle()
    desk.lose("c")
    desk.lose("d")
    assert desk.plan(90.0).alarms[0].startswith("2 of 4 nodes have not answered")
    desk.regain("c")
    decided = desk.plan()
    assert [line for line in told(decided) if line.startswith("start")] == []
    assert decided.alarms[0].startswith("1 of 4 nodes have not answered")
    assert [line for line in told(desk.plan(50.0)) if line.startswith("start")] == []
    late = desk.plan(20.0)
    assert [line for line in told(late) if line.startswith("start")] == ["start m-1-4 @a"], (
        "after another lost_after it is"
    )
    assert late.alarms == ()


def test_what_ran_on_a_card_that_is_gone_moves_but_not_while_the_cards_are_not_known() -> None:
    desk = fleet({"a": cards("a", 2), "b": cards("b", 2)}, node("a"), node("b"), on_cards("m", 1, 1))
    desk.settle()
    desk.cards["a"] = desk.cards["a"][1:]
    known = replace(desk.facts.get("a") or desk.views["a"].report.facts, gpu_trouble="the driver does not answer")
    desk.facts["a"] = known
    desk.regain("a")
    assert told(desk.plan()) == []
    desk.facts["a"] = replace(known, gpu_trouble="")
    desk.regain("a")
    assert told(desk.plan()) == [], "it serves, so it has its card"
    desk.phase("m-1-0", Phase.BACKOFF)
    decided = desk.plan()
    assert told(decided) == ["start m-1-1 @b", "withdraw m-1-0 @a"]
    desk.obey()
    decided = desk.plan()
    assert why(decided, "drain m-1-0 @a") == "card GPU-a-0 is no longer there (node a has 1) and it does not serve"


def test_the_last_one_without_room_says_that_recreate_would_do() -> None:
    desk = fleet({"a": cards("a", 1)}, node("a"), on_cards("m", 1, 1))
    desk.settle()
    changed = model("m", 1, "--new", profile={"gpu": {"class": "h100", "count": 1}})
    desk.want(cluster(gpu_classes=[{"name": "h100", "match": ["*H100*"]}]), node("a"), changed)
    assert held(desk.plan())["model/m: start replica 1 of 1"].endswith(
        "; or for `strategy: recreate`, which stops the old one first"
    )
