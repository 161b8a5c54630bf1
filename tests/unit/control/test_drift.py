"""What changed outside, and what only takes its time."""

from dataclasses import replace

from llmgw.base.ids import Epoch, Generation, NodeName
from llmgw.base.time import Instant
from llmgw.control.drift import drift
from llmgw.fleet.report import Phase, Report
from llmgw.fleet.view import NeverSeen, Reporting
from tests.builders import Desk, cluster, model, node, shard_report, spec_of
from tests.cards import CLASSES, gpus, on_cards, stranger


def a_desk() -> Desk:
    desk = Desk.of(
        cluster(gpu_classes=CLASSES), node("a"), model("m", 1, profile=on_cards(2)), cards={NodeName("a"): gpus("a", 4)}
    )
    desk.settle()
    obeyed(desk)
    return desk


def report_at(desk: Desk, name: str = "a") -> Report:
    view = desk.views[NodeName(name)]
    assert isinstance(view, Reporting)
    return view.report


def say(desk: Desk, report: Report) -> None:
    view = desk.views[NodeName("a")]
    assert isinstance(view, Reporting)
    desk.views[NodeName("a")] = replace(view, report=report)


def obeyed(desk: Desk) -> None:
    """Let the node say that it goes by its order."""
    order = desk.decided.orders[NodeName("a")]
    say(desk, replace(report_at(desk), epoch=order.epoch, generation=order.generation))


def told(desk: Desk) -> list[tuple[str, str, str]]:
    return [(one.kind, one.subject, one.text) for one in drift(desk.snapshot())]


def test_a_cluster_that_is_as_ordered_has_none_whatever_its_engines_do() -> None:
    desk = a_desk()
    assert told(desk) == []
    for phase in (Phase.BACKOFF, Phase.FAILED, Phase.STARTING):
        desk.phase("m-1-0", phase)
        obeyed(desk)
        assert told(desk) == []


def test_a_shard_that_no_order_wants_and_one_that_is_missing() -> None:
    desk = a_desk()
    known = report_at(desk)
    stray = shard_report(spec_of(desk.catalog, "m", 7, 20100))
    say(desk, replace(known, shards=(stray,)))
    assert told(desk) == [
        ("shard_unwanted", "replica/m-1-7", "node/a has m-1-7.s0 (ready), which no order wants"),
        ("shard_missing", "replica/m-1-0", "node/a does not have m-1-0.s0, which is ordered there"),
    ]
    say(desk, replace(known, shards=(*known.shards, replace(stray, phase=Phase.STOPPING))))
    assert told(desk) == []


def test_a_node_that_has_not_heard_its_newest_order_yet_has_not_drifted() -> None:
    desk = a_desk()
    known = report_at(desk)
    say(desk, replace(known, shards=(), generation=Generation(known.generation - 1)))
    assert told(desk) == []
    say(desk, replace(known, shards=()))
    assert [kind for kind, _, _ in told(desk)] == ["shard_missing"]


def test_cards_that_are_gone_ill_or_used_by_others() -> None:
    desk = a_desk()
    known = report_at(desk)
    gone, ill, used, _ = known.gpus
    say(
        desk,
        replace(
            known,
            gpus=(replace(ill, unhealthy="XID 79"), replace(used, users=tuple(stranger(pid) for pid in range(6)))),
        ),
    )
    assert told(desk) == [
        ("card_gone", f"gpu/{gone.uuid}", "card GPU-a-0 of node/a, which m-1-0 has, is gone"),
        ("card_unhealthy", "gpu/GPU-a-1", "card 1 of node/a (GPU-a-1) is not well: XID 79"),
        (
            "card_foreign",
            "gpu/GPU-a-2",
            "card 2 of node/a (GPU-a-2) is used by what is not ours: python (pid 0), python (pid 1), python (pid 2), "
            "python (pid 3) and 2 more",
        ),
    ]
    say(desk, replace(known, facts=replace(known.facts, gpu_trouble="NVML does not load")))
    assert told(desk) == [("cards_unknown", "node/a", "node/a does not know all of its cards: NVML does not load")]


def test_nodes_that_are_away_and_another_leader() -> None:
    desk = a_desk()
    say(desk, replace(report_at(desk), epoch=Epoch(5)))
    assert told(desk) == [("other_leader", "node/a", "node/a obeys another control plane (epoch 5, this one has 1)")]
    desk.lose("a")
    desk.now = Instant(desk.now + 300)
    desk.views[NodeName("z")] = NeverSeen(Instant(desk.now - 10))
    assert told(desk) == [
        ("node_away", "node/a", "node/a does not answer, for 5m: no route to host; it may still run m-1-0"),
        ("node_never_seen", "node/z", "node/z has not answered yet, for 10s: not connected yet"),
    ]


def test_a_fresh_control_plane_takes_nodes_at_their_word() -> None:
    desk = a_desk()
    desk.take_over()
    assert told(desk) == []
