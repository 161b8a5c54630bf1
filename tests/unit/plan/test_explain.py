"""Why a replica does not run: each node's reason, what would have to move or give way, and the round that says so."""

import pytest

from llmgw.base.ids import ModelName, NodeName
from llmgw.base.time import Instant
from llmgw.fleet.report import Phase, Reason
from llmgw.fleet.usage import Idle
from llmgw.plan.explain import Move, explain
from tests.builders import Desk, cluster, held, model, node
from tests.cards import CLASSES, L40S, gpus, on_cards, stranger

CLUSTER = cluster(gpu_classes=CLASSES)


def desk_of(*objects, cards=None, count=4) -> Desk:
    names = [each["name"] for each in objects if each["kind"] == "Node"]
    known = {NodeName(name): gpus(name, count) for name in names} | (cards or {})
    return Desk.of(CLUSTER, *objects, cards=known)


def needs(name: str, count: int, replicas: int = 1, **fields):
    return model(name, replicas, profile=on_cards(count), **fields)


def told(desk: Desk, name: str = "m"):
    return explain(desk.snapshot(), ModelName(name))


def test_what_runs_is_told_and_nothing_is_missing() -> None:
    desk = desk_of(node("a"), needs("m", 1))
    desk.settle()
    found = told(desk)
    assert (found.wanted, found.missing, found.there) == (1, 0, (("m-1-0", "a", "ready"),))
    assert (found.nodes, found.moves, found.preempts, found.holds) == ({}, (), (), ())


def test_every_node_says_why_not_in_one_line() -> None:
    desk = desk_of(
        node("gpu-a3"), node("gpu-b1", pool="other"), node("gpu-c1"), node("gpu-d1"),
        model("m", profile=on_cards(4, pool="default")),
        cards={"gpu-c1": gpus("gpu-c1", 2, L40S)},
    )  # fmt: skip
    desk.card("GPU-gpu-a3-0", users=(stranger(),))
    desk.card("GPU-gpu-a3-1", unhealthy="XID 79")
    desk.lose("gpu-d1")
    assert told(desk).nodes == {
        "gpu-a3": "2 of 4 h100 free, needs 4; 1 held by pid 4242 (python), 1 unhealthy (XID 79)",
        "gpu-b1": "is in pool other, not default",
        "gpu-c1": "has no h100 (has 2 l40s)",
        "gpu-d1": "does not answer (no route to host)",
    }


def test_it_says_what_the_plan_says() -> None:
    desk = desk_of(node("a"), needs("m", 4, 2))
    desk.settle()
    found = told(desk)
    assert {f"{one.subject}: {one.what}": one.waits_for for one in found.holds} == held(desk.plan())
    assert found.missing == 1


def test_a_replica_that_gave_up_says_why_and_its_node_is_not_tried_again() -> None:
    desk = desk_of(node("a"), needs("m", 1))
    desk.settle()
    desk.phase("m-1-0", Phase.FAILED, Reason("exit", "out of memory"))
    found = told(desk)
    assert found.there == (("m-1-0", "a", "failed: out of memory"),)
    assert found.nodes == {"a": "it gave up there (out of memory)"}


def test_the_fewest_moves_that_would_make_room_are_named() -> None:
    """Two free cards on either node, and four are needed: one of the small replicas would have to move."""
    desk = desk_of(node("a"), node("b"), needs("s", 2, 2))
    desk.settle()
    desk.want(CLUSTER, node("a"), node("b"), needs("s", 2, 2), needs("m", 4))
    found = told(desk)
    assert found.nodes == dict.fromkeys("ab", "2 of 4 h100 free, needs 4; 2 in use")
    assert found.moves == (Move("s-1-0", "a", "b"),)


def test_no_moves_are_named_where_none_would_help() -> None:
    desk = desk_of(node("a"), node("b"), needs("s", 3, 2))
    desk.settle()
    desk.want(CLUSTER, node("a"), node("b"), needs("s", 3, 2), needs("m", 4))
    found = told(desk)
    assert (found.missing, found.moves) == (1, ())


def test_to_explain_changes_nothing_and_leaves_the_next_plan_as_it_was() -> None:
    desk = desk_of(node("a"), node("b"), needs("s", 2, 2))
    desk.settle()
    desk.want(CLUSTER, node("a"), node("b"), needs("s", 2, 2), needs("m", 4))
    before = desk.snapshot()
    told(desk)
    assert desk.snapshot() == before
    assert told(desk) == told(desk)


def test_what_would_give_way_is_named_when_it_may() -> None:
    desk = desk_of(node("a"), needs("low", 4))
    desk.settle()
    desk.now = Instant(desk.now + 3600)
    desk.regain("a")
    desk.want(CLUSTER, node("a"), needs("low", 4), needs("m", 4, priority=3))
    assert told(desk).preempts == ()
    desk.use("low-1-0", Idle(desk.now))
    assert [hold.waits_for for hold in told(desk).holds if hold.subject == "model/m"] == [
        "low-1-0 to be gone, which gives way to it"
    ]


def test_a_model_that_is_not_there_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        told(desk_of(node("a")), "nobody")
