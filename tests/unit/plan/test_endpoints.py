"""Upstreams that somebody else runs: in the table because the catalog names them, and no replica's place is judged by them."""

from dataclasses import replace

from llmgw.base.ids import ModelName, ReplicaId
from llmgw.control.preview import as_json, preview
from llmgw.fleet.report import Phase
from llmgw.fleet.table import Endpoint, TcpAddress
from llmgw.plan.check import check
from llmgw.plan.decide import plan
from tests.builders import COMPILER, Desk, cluster, endpoint, model, node, published, told, tree

BOX = endpoint("box", "https://llm.example.org/openai/v1", "m", "org/other", api_key={"secret": "HUB"})


def test_they_are_in_the_table_beside_replicas_and_a_change_is_a_new_version() -> None:
    desk = Desk.of(node("a"), model("m", 1), BOX)
    decided = desk.settle()
    assert published(decided) == ["m-1-0", "box/m", "box/org/other"]
    assert [one.name for one in decided.table.models] == ["m", "org/other"]
    _, one, other = decided.table.endpoints
    assert (one.address, one.prefix, one.key) == (TcpAddress("llm.example.org", 443, tls=True), "/openai", "HUB")
    assert (other.model, other.served_name) == ("org/other", "org/other")

    assert desk.plan().table == decided.table, "nothing changed, so the version stays"
    desk.want(node("a"), model("m", 1), endpoint("box", "http://127.0.0.1:1", "m"))
    moved = desk.plan()
    assert told(moved) == [], "nothing is done to any replica"
    assert moved.table.version == decided.table.version + 1
    assert [(one.id, str(one.address), one.key) for one in moved.table.endpoints if one.id != "m-1-0"] == [
        ("box/m", "127.0.0.1:1", "")
    ]
    desk.want(node("a"), model("m", 1))
    gone = desk.plan()
    assert (published(gone), told(gone)) == (["m-1-0"], [])
    assert [one.name for one in gone.table.models] == ["m"]


def test_a_directory_of_nothing_else_is_served() -> None:
    desk = Desk.of(endpoint("box", "http://127.0.0.1:1", "x"))
    assert published(desk.plan()) == ["box/x"]


def test_a_plan_that_routes_to_what_the_catalog_does_not_name_breaks_a_rule() -> None:
    desk = Desk.of(node("a"), BOX)
    snapshot = desk.snapshot()
    good = plan(snapshot)
    assert check(good, snapshot) == ()
    ghost = Endpoint(ReplicaId("box/ghost"), ModelName("ghost"), TcpAddress("h", 1), "ghost")
    bad = replace(good, table=replace(good.table, endpoints=(*good.table.endpoints, ghost)))
    assert check(bad, snapshot) == ("box/ghost is published and is not meant to run",)


def test_an_upstream_is_no_reason_to_drain_the_last_replica() -> None:
    """A model with replicas of its own is judged by them: nobody here knows whether an upstream answers."""
    desk = Desk.of(node("a"), model("m", 1), BOX)
    desk.settle()
    snapshot = desk.snapshot()
    good = plan(snapshot)
    order = good.orders[next(iter(good.orders))]
    drained = replace(order, generation=order.generation + 1, shards=(replace(order.shards[0], draining=True),))
    table = replace(good.table, endpoints=tuple(one for one in good.table.endpoints if one.id != "m-1-0"))
    bad = replace(good, orders={order.node: drained}, table=table)
    assert "the last serving replica of m (m-1-0) would be drained" in check(bad, snapshot)

    desk.phase("m-1-0", Phase.STARTING)
    assert published(desk.plan()) == ["box/m", "box/org/other"], "requests go there meanwhile"


def test_a_plan_says_what_comes_of_one_that_is_new_changed_or_gone() -> None:
    def shown(desk: Desk, *objects: dict[str, object]) -> list[tuple[str, str | None, list[str]]]:
        found = as_json(preview(COMPILER.compile(tree(*objects, revision="r9")), desk.catalog, desk.snapshot()))
        return [
            (one["actions"][0], one["reason"], [f"{field['path']} {field['impact']}" for field in one["fields"]])
            for one in found["objects"]
        ]

    with_box = Desk.of(cluster(), BOX)
    with_box.plan()
    assert shown(Desk.of(cluster()), cluster(), BOX) == [
        ("create", "requests for m, org/other go to https://llm.example.org/openai/v1 [route]", [])
    ]
    assert shown(with_box, cluster()) == [
        (
            "delete",
            "requests for m, org/other go to https://llm.example.org/openai/v1 no more; those that run there finish [route]",
            [],
        )
    ]
    assert shown(with_box, cluster(), {**BOX, "url": "https://i"}) == [("update", None, ["url route"])]
