"""A saved snapshot: every kind of view and usage comes back as it was, and what cannot be read says why."""

import json
from dataclasses import replace

import pytest

from llmgw.base.ids import NodeName
from llmgw.base.time import Instant
from llmgw.catalog.compile import compile_tree
from llmgw.fleet.usage import Active, Idle, Unknown
from llmgw.fleet.view import NeverSeen, Reporting, Unreachable
from llmgw.plan.saved import BadSnapshot, dump_snapshot, load_snapshot
from llmgw.plan.snapshot import Snapshot
from tests.builders import Desk, cluster, model, node, tree
from tests.cards import CLASSES, gpus, on_cards, stranger

TREE = tree(
    cluster(gpu_classes=CLASSES), *(node(name) for name in "abc"), model("m", 2, profile=on_cards(2)), model("n", 1)
)


def a_snapshot() -> Snapshot:
    desk = Desk.of(
        cluster(gpu_classes=CLASSES), *(node(name) for name in "abc"), model("m", 2, profile=on_cards(2)), model("n", 1),
        cards={NodeName("a"): gpus("a"), NodeName("b"): gpus("b")},
    )  # fmt: skip
    desk.settle()
    desk.card("GPU-a-1", users=(stranger(),), unhealthy="XID 79")
    desk.lose("b", surviving=True)
    desk.views[NodeName("c")] = NeverSeen(Instant(900.0), "no route to host")
    desk.ask("cordon", "node/c", until=2000.0)
    desk.use("m-1-0", Active(3))
    desk.use("m-1-1", Idle(Instant(950.0)))
    desk.use("n-1-0", Unknown("a worker has not reported", quiet=True))
    return replace(desk.snapshot(), held=frozenset({NodeName("b"), NodeName("a")}))


def test_every_kind_of_view_and_usage_comes_back() -> None:
    snapshot = a_snapshot()
    assert {type(view) for view in snapshot.nodes.values()} == {NeverSeen, Reporting, Unreachable}
    loaded, kept = load_snapshot(json.dumps(dump_snapshot(snapshot, TREE)), snapshot.engines)
    assert kept == TREE
    assert loaded.catalog == snapshot.catalog
    assert loaded.previous.catalog is loaded.catalog
    assert loaded == snapshot


def test_orders_of_another_catalog_are_not_taken_for_this_one_s() -> None:
    snapshot = a_snapshot()
    other = replace(snapshot, previous=replace(snapshot.previous, catalog=None))
    loaded, _ = load_snapshot(json.dumps(dump_snapshot(other, TREE)), snapshot.engines)
    assert loaded.previous.catalog is None


def test_what_cannot_be_read_says_why() -> None:
    data = dump_snapshot(a_snapshot(), TREE)
    later = {**data, "format_version": "2.0"}
    broken_tree = {**data, "tree": {**data["tree"], "files": {"x.yaml": "a2luZDogWw=="}}}
    not_base64 = {**data, "tree": {**data["tree"], "files": {"x.yaml": "%"}}}
    for said, word in (
        ("", "not JSON"),
        ("[]", "not JSON"),
        ("{}", "format_version is missing"),
        (json.dumps(later), "format_version is 2.0, this llmgw reads 1.x"),
        (json.dumps({**data, "nodes": {"a": 3}}), "damaged: nodes.a"),
        (json.dumps(not_base64), "damaged"),
        (json.dumps(broken_tree), "does not take the cluster directory in the snapshot for valid"),
    ):
        with pytest.raises(BadSnapshot, match=word):
            load_snapshot(said)
    added = {**data, "format_version": "1.7", "more": 1}
    assert load_snapshot(json.dumps(added))[1] == TREE
    assert compile_tree(TREE)
