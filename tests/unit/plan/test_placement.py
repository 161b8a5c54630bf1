"""Where replicas go, in which order models get them, and what is said of the nodes that will not do."""

import pytest

from llmgw.base.ids import NodeName
from llmgw.base.time import later
from llmgw.engines.adapter import ENGINES
from llmgw.fleet.report import Phase, Reason
from llmgw.fleet.view import NeverSeen, Reporting
from llmgw.plan.capacity import Ledger
from tests.builders import (
    GIB,
    LONG_AGO,
    Desk,
    catalog,
    cluster,
    cordoned,
    facts,
    held,
    model,
    node,
    ordered,
    published,
    report,
    told,
    why,
)


def test_the_first_replica_goes_to_the_first_empty_node_and_says_so() -> None:
    desk = Desk.of(node("b"), node("a"), model("m"))
    decided = desk.plan()
    assert told(decided) == ["start m-1-0 @a"]
    assert why(decided, "start m-1-0 @a") == "1 wanted, 0 there; fewest replicas on a, port 20000"
    wanted = decided.orders["a"].shards[0].spec
    assert (wanted.shard, wanted.replica, wanted.port, wanted.served_name) == ("m-1-0.s0", "m-1-0", 20000, "m")
    assert decided.orders["b"].shards == ()
    assert decided.holds == ()


def test_an_order_that_was_given_is_not_given_again() -> None:
    desk = Desk.of(node("a"), model("m"))
    first = desk.plan()
    second = desk.plan()
    assert second.actions == ()
    assert second.orders["a"] is first.orders["a"]
    assert second.table == first.table


def test_replicas_of_a_model_spread_over_nodes_and_fill_up_evenly() -> None:
    desk = Desk.of(node("a"), node("b"), node("c"), model("m", 4))
    assert ordered(desk.plan()) == {"a": ["m-1-0", "m-1-3"], "b": ["m-1-1"], "c": ["m-1-2"]}


def test_models_avoid_nodes_that_have_more_replicas_of_any_model() -> None:
    desk = Desk.of(node("a"), node("b"), model("m"), model("n"))
    assert ordered(desk.plan()) == {"a": ["m-1-0"], "b": ["n-1-0"]}


def test_every_model_gets_its_first_replica_before_any_its_second_and_priority_comes_first() -> None:
    desk = Desk.of(node("a"), model("low", 2), model("high", 2, priority=5), model("also", 1))
    started = [line.split()[1] for line in told(desk.plan())]
    assert started == ["high-1-0", "also-1-0", "low-1-0", "high-1-1", "low-1-1"]


def test_where_room_is_short_priority_decides_who_gets_it() -> None:
    needs = {"cpus": 8}
    desk = Desk.of(node("a"), model("low", profile=needs), model("high", profile=needs, priority=1))
    decided = desk.plan()
    assert told(decided) == ["start high-1-0 @a"]
    assert held(decided) == {"model/low: start replica 1 of 1": "room: a: 0 of 8 cpus free, needs 8"}


NEEDS = {"cpus": 4, "memory": "24GiB", "pool": "big", "labels": {"disk": "nvme"}}
REASONS = [
    (cordoned("a", "new memory"), {}, "cordoned (new memory)"),
    (node("a"), {}, "is in pool default, not big"),
    (node("a", pool="big"), {}, "label disk is not set, not nvme"),
    (node("a", pool="big", labels={"disk": "hdd"}), {}, "label disk is hdd, not nvme"),
    (node("a", pool="big", labels={"disk": "nvme"}), {"cpus": 3}, "3 of 3 cpus free, needs 4"),
    (node("a", pool="big", labels={"disk": "nvme"}), {"memory": 16 * GIB}, "16GiB of memory free, needs 24GiB"),
]


@pytest.mark.parametrize(("wanted", "given", "reason"), REASONS, ids=[reason for _, _, reason in REASONS])
def test_each_reason_of_a_node_is_named(wanted, given, reason) -> None:
    desk = Desk.of(wanted, node("z", pool="big"), model("m", profile=NEEDS), facts={"a": facts(**given)})
    decided = desk.plan()
    assert told(decided) == []
    assert held(decided)["model/m: start replica 1 of 1"] == _room(reason)


def _room(reason: str) -> str:
    other = "label disk is not set, not nvme"
    return f"room: a, z: {other}" if reason == other else f"room: a: {reason}; z: {other}"


def test_a_node_that_does_not_answer_gets_nothing_and_says_why() -> None:
    desk = Desk.of(node("a"), node("b"), model("m"))
    desk.views["a"] = NeverSeen(later(desk.now, -60), "connection refused")
    desk.lose("b")
    assert held(desk.plan()) == {
        "model/m: start replica 1 of 1": (
            "room: a: never connected (connection refused); b: does not answer (no route to host)"
        )
    }


def test_without_nodes_the_hold_says_what_to_add() -> None:
    assert held(Desk.of(model("m")).plan()) == {
        "model/m: start replica 1 of 1": "room: there are no nodes; add a file with `kind: Node`"
    }


def test_declared_needs_are_summed_over_all_that_a_node_has() -> None:
    desk = Desk.of(node("a"), node("b"), model("m", 5, profile={"cpus": 3, "memory": "1GiB"}))
    decided = desk.plan()
    assert ordered(decided) == {"a": ["m-1-0", "m-1-2"], "b": ["m-1-1", "m-1-3"]}
    assert held(decided) == {"model/m: start replica 5 of 5": "room: a, b: 2 of 8 cpus free, needs 3"}


def test_memory_of_models_that_share_a_node_adds_up() -> None:
    desk = Desk.of(node("a"), model("m", profile={"memory": "20GiB"}), model("n", profile={"memory": "13GiB"}))
    decided = desk.plan()
    assert told(decided) == ["start m-1-0 @a"]
    assert held(decided)["model/n: start replica 1 of 1"] == "room: a: 12GiB of memory free, needs 13GiB"


def test_a_replica_on_its_way_out_keeps_its_room_and_its_port_until_it_is_gone() -> None:
    desk = Desk.of(node("a"), model("m", profile={"cpus": 5}))
    desk.settle()
    desk.want(node("a"), model("n", profile={"cpus": 5}))
    assert told(desk.plan()) == ["drain m-1-0 @a", "withdraw m-1-0 @a"]
    desk.obey()
    assert told(desk.plan()) == ["stop m-1-0 @a"]
    desk.phase("m-1-0", Phase.STOPPING)
    decided = desk.plan()
    assert told(decided) == []
    assert held(decided)["model/n: start replica 1 of 1"] == "m-1-0 to be gone, whose place it gets"
    desk.hear("a")
    assert told(desk.plan()) == ["start n-1-0 @a"]


def test_profiles_are_tried_in_order_of_priority_and_the_first_that_fits_is_taken() -> None:
    profiles = [
        {"name": "small", "engine": "llamacpp", "cpus": 2, "priority": 2},
        {"name": "large", "engine": "llamacpp", "cpus": 6, "priority": 1},
    ]
    desk = Desk.of(node("a"), model("m", 2, profiles=profiles))
    decided = desk.plan()
    assert [(one.spec.replica, one.spec.profile) for one in decided.orders["a"].shards] == [
        ("m-1-0", "large"),
        ("m-1-1", "small"),
    ]


def test_a_node_never_gives_a_port_twice_and_passes_over_ports_that_others_use() -> None:
    desk = Desk.of(node("a"), model("m", 3), facts={"a": facts(foreign_ports=(20001, 30000))})
    decided = desk.plan()
    assert [one.spec.port for one in decided.orders["a"].shards] == [20000, 20002, 20003]


def test_a_full_port_range_is_a_reason() -> None:
    few = cluster(control={"ports": [20000, 20001]})
    taken = facts(foreign_ports=(20001,))
    desk = Desk.of(few, node("a"), model("m", 2), facts={"a": taken})
    assert held(desk.plan()) == {
        "model/m: start replica 2 of 2": "room: a: no free port in 20000-20001 (control.ports)"
    }


def test_a_shard_whose_port_another_program_took_gets_another_one() -> None:
    desk = Desk.of(node("a"), model("m"))
    desk.plan()
    desk.facts["a"] = facts(foreign_ports=(20000,))
    desk.obey(Phase.WAITING)
    desk.phase("m-1-0", Phase.WAITING, Reason("port_taken", "port 20000 is taken"))
    decided = desk.plan()
    assert told(decided) == ["move port m-1-0 @a"]
    assert why(decided, "move port m-1-0 @a") == "port 20000 is taken; gets port 20001"
    assert [(one.spec.shard, one.spec.port) for one in decided.orders["a"].shards] == [("m-1-0.s0", 20001)]
    assert told(desk.plan()) == [], "the node's old word about the old port moves it once only"


def test_a_shard_whose_port_is_taken_waits_with_a_reason_if_the_range_is_full() -> None:
    desk = Desk.of(cluster(control={"ports": [20000, 20000]}), node("a"), model("m"))
    desk.plan()
    desk.facts["a"] = facts(foreign_ports=(20000,))
    desk.obey(Phase.WAITING)
    desk.phase("m-1-0", Phase.WAITING, Reason("port_taken", "port 20000 is taken"))
    decided = desk.plan()
    assert told(decided) == []
    assert held(decided) == {"replica/m-1-0: move to another port": "a free port in control.ports"}


def test_the_smallest_free_number_names_a_replica_and_one_on_its_way_out_still_has_its_own() -> None:
    desk = Desk.of(node("a"), node("b"), model("m", 3))
    desk.settle()
    desk.want(node("a"), node("b"), model("m", 0))
    desk.plan()
    desk.obey()
    desk.plan()
    desk.phase("m-1-0", Phase.STOPPING)
    desk.phase("m-1-2", Phase.STOPPING)
    desk.hear("b")
    desk.want(node("a"), node("b"), model("m", 1))
    assert told(desk.plan()) == ["start m-1-1 @b"]


def test_the_same_snapshot_gives_the_same_plan() -> None:
    first, second = (Desk.of(node("a"), node("b"), model("m", 3), model("n", 2)) for _ in range(2))
    assert first.plan() == second.plan()


def test_what_an_unreachable_node_holds_still_counts_when_it_is_back() -> None:
    desk = Desk.of(node("a"), node("b"), model("m"))
    desk.settle()
    desk.lose("a")
    desk.want(node("a"), node("b"), model("m"), model("n"), model("o"))
    assert [line for line in told(desk.plan()) if line.startswith("start")] == ["start n-1-0 @b", "start o-1-0 @b"]
    desk.regain("a")
    desk.obey()
    desk.want(node("a"), node("b"), *(model(name) for name in "mnop"))
    assert [line for line in told(desk.plan()) if line.startswith("start")] == ["start p-1-0 @a"]


@pytest.mark.parametrize(
    ("foreign", "count", "port"),
    [((), 3, 20000), ((20001,), 3, 20002), ((20002, 20005), 3, None), ((20002, 20005), 2, 20000), ((20006,), 7, None)],
)
def test_a_block_of_ports_is_consecutive_and_wholly_free(foreign, count, port) -> None:
    wanted = catalog(cluster(control={"ports": [20000, 20006]}), node("a"))
    said = report("a", facts=facts(foreign_ports=foreign))
    ledger = Ledger(wanted, {NodeName("a"): Reporting(said, LONG_AGO, {})}, {}, {}, ENGINES)
    assert ledger.machines[NodeName("a")].port(ledger.ports, count) == port


def test_profiles_that_differ_only_in_where_they_may_run_are_told_apart_by_the_node() -> None:
    profiles = [
        {"name": "first", "engine": "llamacpp", "pool": "one", "priority": 1},
        {"name": "second", "engine": "llamacpp", "pool": "two", "priority": 2},
    ]
    desk = Desk.of(node("a", pool="two"), model("m", 1, profiles=profiles))
    desk.settle()
    decided = desk.plan()
    assert (told(decided), published(decided)) == ([], ["m-1-0"])


def test_a_port_that_something_else_listens_on_is_not_free_when_its_claim_is_given_back() -> None:
    desk = Desk.of(node("a"), model("m"), model("n"))
    desk.settle(Phase.WAITING)
    desk.facts[NodeName("a")] = facts(foreign_ports=(20000, 20001))
    desk.phase("m-1-0", Phase.WAITING, Reason("port_taken", "port 20000 is taken"))
    desk.phase("n-1-0", Phase.WAITING, Reason("port_taken", "port 20001 is taken"))
    decided = desk.plan()
    ports = {one.spec.replica: one.spec.port for one in decided.orders["a"].shards}
    assert ports == {"m-1-0": 20002, "n-1-0": 20003}
