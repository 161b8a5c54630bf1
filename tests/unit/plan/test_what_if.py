"""Suppositions: the same snapshot with one thing changed, and the plan that follows."""

import pytest

from llmgw.base.ids import NodeName
from llmgw.plan.decide import plan
from llmgw.plan.what_if import CannotSuppose, suppose
from tests.builders import Desk, cluster, held, model, node, told
from tests.cards import CLASSES, gpus, on_cards

CLUSTER = cluster(gpu_classes=CLASSES)


@pytest.fixture
def desk() -> Desk:
    cards = {NodeName(name): gpus(name, 2) for name in ("a", "b")}
    desk = Desk.of(CLUSTER, node("a"), node("b"), model("m", profile=on_cards(1)), cards=cards)
    desk.settle()
    return desk


WHAT_FOLLOWS = {
    "node a lost": ["start m-1-1 @b", "withdraw m-1-0 @a"],
    "node b lost": [],
    "node a cordoned": ["start m-1-1 @b"],
    "gpu GPU-a-0 unhealthy": ["start m-1-1 @b"],
    "gpu GPU-a-1 unhealthy": [],
    "model m replicas=2": ["start m-1-1 @b"],
    "model m replicas=0": ["drain m-1-0 @a", "withdraw m-1-0 @a"],
}


@pytest.mark.parametrize("text", WHAT_FOLLOWS)
def test_what_would_follow(desk: Desk, text: str) -> None:
    assert told(plan(suppose(desk.snapshot(), text))) == WHAT_FOLLOWS[text]


def test_to_suppose_changes_nothing(desk: Desk) -> None:
    before = desk.snapshot()
    suppose(before, "node a lost")
    assert told(plan(before)) == []


def test_what_would_not_fit_is_said(desk: Desk) -> None:
    decided = plan(suppose(desk.snapshot(), "model m replicas=5"))
    assert held(decided)["model/m: start replica 5 of 5"] == "room: a, b: 0 of 2 h100 free, needs 1; 2 in use"


def test_a_lost_node_that_never_spoke_stays_as_it_is(desk: Desk) -> None:
    desk.want(CLUSTER, node("a"), node("b"), node("c"), model("m", profile=on_cards(1)))
    assert suppose(desk.snapshot(), "node c lost").nodes["c"] == desk.views["c"]


NOT_UNDERSTOOD = {
    "": "'' cannot be supposed; write `node NAME lost`, `node NAME cordoned`, `gpu UUID unhealthy` or "
    "`model NAME replicas=N`",
    "node a on fire": "'node a on fire' cannot be supposed",
    "node z lost": "there is no node z; there are: a, b",
    "node z cordoned": "there is no node z; there are: a, b",
    "gpu GPU-z unhealthy": "no node that answers has a card GPU-z; `llmgw get gpus` lists them",
    "model z replicas=1": "there is no model z; there are: m",
    "model m replicas=-1": "'model m replicas=-1' cannot be supposed",
    "model m replicas=many": "'model m replicas=many' cannot be supposed",
}


@pytest.mark.parametrize("text", NOT_UNDERSTOOD)
def test_what_is_not_understood_says_what_to_write(desk: Desk, text: str) -> None:
    with pytest.raises(CannotSuppose) as refused:
        suppose(desk.snapshot(), text)
    assert str(refused.value).startswith(NOT_UNDERSTOOD[text])
