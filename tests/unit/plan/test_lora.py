"""LoRA adapters: names of their own at the endpoints that have them, held back where they are not there yet."""

from dataclasses import replace

from llmgw.base.ids import NodeName, ReplicaId
from llmgw.fleet.report import AdapterReport
from llmgw.fleet.view import Reporting
from llmgw.plan.result import Plan
from llmgw.routing.index import index_table
from tests.builders import Desk, cluster, endpoint, held, model, node, told
from tests.cards import CLASSES, gpus, on_cards

CLUSTER = cluster(gpu_classes=CLASSES)


def adapted(*names: str, engine: str = "vllm", **weights: str) -> dict[str, object]:
    adapters = [{"name": name, "weights": weights or {"path": f"lora/{name}"}} for name in names]
    return model("m", 2, profile={**on_cards(1), "engine": engine}, limits={"inflight": 4}, adapters=adapters)


def desk_of(*objects: dict[str, object]) -> Desk:
    names = {NodeName(name): gpus(name, 2) for name in "ab"}
    return Desk.of(CLUSTER, node("a"), node("b"), *objects, cards=names)


def tell(desk: Desk, replica: str, *adapters: AdapterReport) -> None:
    """Let a replica's node say what its engine has."""
    name, known = desk.shard(replica)
    view = desk.views[name]
    assert isinstance(view, Reporting)
    desk.hear(name, *(replace(one, adapters=adapters) if one is known else one for one in view.report.shards))


def asked(decided: Plan, name: str) -> dict[str, str]:
    """Return replica -> what it is asked for by a name that clients use."""
    return {one.id: one.served_name for one in index_table(decided.table).models[name].endpoints}


def test_an_adapter_is_a_model_at_the_replicas_that_have_it() -> None:
    desk = desk_of(adapted("sql"))
    decided = desk.settle()
    assert [one.name for one in decided.table.models] == ["m", "sql"]
    assert asked(decided, "sql") == {}
    assert held(decided) == {f"replica/m-1-{n}: serve adapter sql": f"node {'ab'[n]} to hear of it" for n in (0, 1)}
    tell(desk, "m-1-0", AdapterReport("sql", loaded=True))
    tell(desk, "m-1-1", AdapterReport("sql", loaded=False, reason="the engine answers 404: no such"))
    decided = desk.plan()
    assert asked(decided, "sql") == {"m-1-0": "sql"}
    assert asked(decided, "m") == {"m-1-0": "m", "m-1-1": "m"}
    assert held(decided) == {"replica/m-1-1: serve adapter sql": "the engine answers 404: no such"}
    sql = index_table(decided.table).models["sql"].model
    assert (sql.inflight, sql.adapts) == (4, "m"), "its limits are its model's: one engine serves both"


def test_sglang_is_asked_for_it_in_its_own_way() -> None:
    desk = desk_of(adapted("sql", engine="sglang"))
    desk.settle()
    tell(desk, "m-1-0", AdapterReport("sql", loaded=True))
    assert asked(desk.plan(), "sql") == {"m-1-0": "m:sql"}


def test_adapters_come_and_go_without_a_restart_except_the_first_and_the_last() -> None:
    desk = desk_of(adapted("sql"))
    desk.settle()
    for name in ("m-1-0", "m-1-1"):
        tell(desk, name, AdapterReport("sql", loaded=True))
    desk.want(CLUSTER, node("a"), node("b"), adapted("sql", "fr"))
    assert told(desk.plan()) == []
    ordered = desk.decided.orders[NodeName("a")].shards[0].spec
    assert [one.name for one in ordered.adapters] == ["sql", "fr"]
    desk.want(CLUSTER, node("a"), node("b"), adapted("fr"))
    decided = desk.plan()
    assert told(decided) == []
    assert "sql" not in index_table(decided.table).models
    desk.want(CLUSTER, node("a"), node("b"), adapted())
    assert told(desk.plan()) != []


def test_a_changed_one_is_served_while_the_new_one_is_loaded_and_the_plan_says_so() -> None:
    desk = desk_of(adapted("sql"))
    desk.settle()
    tell(desk, "m-1-0", AdapterReport("sql", loaded=True, reason="it is being loaded"))
    tell(desk, "m-1-1", AdapterReport("sql", loaded=True))
    decided = desk.plan()
    assert set(asked(decided, "sql")) == {"m-1-0", "m-1-1"}
    assert held(decided) == {"replica/m-1-0: serve adapter sql": "it is being loaded"}


def test_an_upstream_that_lists_its_name_serves_it_too() -> None:
    desk = desk_of(adapted("sql"), endpoint("box", "http://127.0.0.1:1", "sql"))
    desk.settle()
    tell(desk, "m-1-0", AdapterReport("sql", loaded=True))
    assert asked(desk.plan(), "sql") == {"box/sql": "sql", "m-1-0": "sql"}


def test_what_cannot_be_fetched_yet_is_held_and_the_model_serves() -> None:
    desk = desk_of(adapted("sql", hf="org/sql"))
    decided = desk.settle()
    assert ReplicaId("m-1-0") in asked(decided, "m")
    assert held(decided)["replica/m-1-0: serve adapter sql"].startswith("this version of llmgw fetches no adapters")
