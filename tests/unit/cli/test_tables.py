"""`llmgw get`: columns, filters, orders; and how explanations and drains read."""

from typing import Any

import pytest

from llmgw.base.ids import ModelName
from llmgw.base.time import Instant
from llmgw.catalog.compile import Accepted
from llmgw.cli import explaining, planning
from llmgw.cli.acts import seconds_of, still_there
from llmgw.cli.outcomes import WrongUsage
from llmgw.cli.overview import act_line
from llmgw.cli.tables import TABLES, Asked, chosen, text
from llmgw.control.operator import explained
from llmgw.control.overview import act_row, endpoint_rows, gpu_rows
from llmgw.control.preview import as_json, preview
from llmgw.fleet.report import GpuUser
from llmgw.fleet.usage import Active, Idle, Unknown
from llmgw.plan.explain import explain
from llmgw.plan.snapshot import Act
from tests.builders import GIB, Desk, model, node
from tests.unit.cli.fleets import CLUSTER, cards, fleet, on_cards, shown


def desk() -> Desk:
    found = fleet({"a": cards("a", 4), "b": cards("b", 2)}, node("a"), node("b"), on_cards("m", 2, 2), model("n", 1))
    found.card("GPU-a-3", unhealthy="XID 79")
    found.settle()
    return found


def rows(what: str) -> list[dict[str, Any]]:
    at = desk()
    at.use("m-1-0", Active(3))
    at.use("m-1-1", Idle(Instant(at.now - 90)))
    at.use("n-1-0", Unknown("no word"))
    match what:
        case "gpus":
            return gpu_rows(at.snapshot())
        case "endpoints":
            return endpoint_rows(at.snapshot())
        case "events":
            return [
                {"at": 0.0, "age": 5.0, "kind": "start", "subject": "replica/m-1-0", "cause": "r#1", "text": "2 wanted"}
            ]
        case "audit":
            named = {"who": "user/ann", "said": "ann", "act": "drain", "subject": "node/a", "outcome": "done"}
            return [{"at": 0.0, "age": 5.0, "cause": "", "text": "new memory", **named}]
        case "leader":
            return [{"owner": "1a@h:1", "epoch": 3, "here": True, "changes": 0, "store": "ok", "asked": "1a@h:1"}]
        case _:
            found: list[dict[str, Any]] = shown(at, None)[what]
            return found


@pytest.mark.parametrize("what", TABLES)
@pytest.mark.parametrize("output", ["", "wide"])
def test_every_table_can_be_shown_in_both_widths_filtered_and_sorted_by_each_column(what: str, output: str) -> None:
    there = rows(what)
    lines = text(there, Asked(what, output))
    assert len(lines) == len(there) + 1
    for column in TABLES[what][1]:
        name = column.title.lower().replace(" ", "-")
        assert len(chosen(there, Asked(what, sort=name))) == len(there)
        first = column.cell(there[0])
        assert there[0] in chosen(there, Asked(what, filters=(f"{name}={first}",)))


def test_the_table_of_cards_says_what_each_is_and_why() -> None:
    lines = [line.split(maxsplit=7) for line in text(rows("gpus"), Asked("gpus"))[1:]]
    assert [(line[0], line[1], line[3]) for line in lines] == [
        ("a", "0", "used"),
        ("a", "1", "used"),
        ("a", "2", "free"),
        ("a", "3", "unhealthy"),
        ("b", "0", "used"),
        ("b", "1", "used"),
    ]
    assert lines[3][7] == "unhealthy (XID 79)"


def test_what_is_not_known_is_a_dash_and_comes_last_in_every_order() -> None:
    found = chosen(rows("endpoints"), Asked("endpoints", sort="idle-for"))
    assert [(one["endpoint"], one["in_flight"]) for one in found] == [("m-1-1", 0), ("m-1-0", 3), ("n-1-0", None)]
    assert text(found, Asked("endpoints"))[-1].split()[-2:] == ["-", "-"]
    back = chosen(rows("endpoints"), Asked("endpoints", sort="-in-flight"))
    assert [(one["endpoint"], one["in_flight"]) for one in back] == [("m-1-0", 3), ("m-1-1", 0), ("n-1-0", None)]


def test_filters_are_joined_and_numbers_are_ordered_as_numbers() -> None:
    there = rows("gpus")
    both = chosen(there, Asked("gpus", filters=("node=a", "state=used")))
    assert [one["index"] for one in both] == [0, 1]
    assert [one["index"] for one in chosen(there, Asked("gpus", sort="-index"))] == [3, 2, 1, 1, 0, 0]
    ages = [{"age": 5.0, **rows("events")[0]} | {"age": age} for age in (5.0, 100.0, 40.0)]
    assert [one["age"] for one in chosen(ages, Asked("events", sort="ago"))] == [5.0, 40.0, 100.0]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (Asked("gpus", filters=("node",)), "--filter node is not understood; write --filter COLUMN=VALUE"),
        (
            Asked("endpoints", sort="size"),
            "there is no column 'size'; there are: endpoint, model, address, in-flight, idle-for",
        ),
    ],
)
def test_a_slip_is_told_with_what_there_is(asked: Asked, said: str) -> None:
    with pytest.raises(WrongUsage) as refused:
        chosen(rows(asked.what), asked)
    assert str(refused.value) == said


def test_a_filter_by_model_leaves_what_the_server_found_of_its_replicas() -> None:
    assert len(chosen(rows("events"), Asked("events", filters=("subject=model/m",)))) == 1


def test_an_explanation_names_what_is_missing_each_node_and_what_would_help() -> None:
    at = fleet(
        {"a": cards("a", 4), "b": cards("b", 4)}, node("a"), node("b"), on_cards("m", 2, 2), on_cards("big", 1, 4)
    )
    at.settle()
    at.want(*at_all(at), on_cards("m", 2, 2), on_cards("big", 1, 4), on_cards("wide", 1, 4))
    at.card("GPU-b-3", users=(GpuUser(4242, 20 * GIB, "python", None),))
    at.plan()
    said = explaining.text(explained(explain(at.snapshot(), ModelName("wide")), at.now))
    assert said.startswith("model/wide: 0 of 1 replicas serve; 1 is missing\n")
    assert "\nNodes:\n" in said
    assert "needs 4" in said


def at_all(at: Desk) -> list[Any]:
    return [CLUSTER, *(node(name) for name in at.catalog.nodes)]


def test_a_plan_shows_what_is_supposed_what_operators_asked_for_and_alarms() -> None:
    at = desk()
    at.ask("drain", "node/a")
    shown_plan = preview(Accepted(at.catalog, ()), at.catalog, at.snapshot(), ("node b lost",))
    said = planning.text(as_json(shown_plan))
    assert said.startswith("If node b lost:\n")
    assert "Asked for by operators:\n  drain node/a: memory errors (0s ago by ann)" in said
    assert "Held back:" in said


def test_an_act_reads_in_one_line() -> None:
    act = Act("drain", "node/a", "new memory", Instant(0.0), Instant(4000.0), "ann")
    assert act_line(act_row(act, 100.0)) == "drain node/a: new memory (100s ago by ann, for another 65m)"
    assert act_line(act_row(Act("cordon", "gpu/G", "noise", Instant(0.0)), 0.0)) == "cordon gpu/G: noise (0s ago)"


def test_what_is_still_on_a_target_is_found_by_node_card_and_replica() -> None:
    at = desk()
    status = shown(at, at.plan())
    assert still_there("node/b", status) == ["m-1-0 (ready)"]
    assert still_there("gpu/GPU-a-0", status) == ["m-1-1 (ready)"]
    assert still_there("gpu/GPU-a-2", status) == []
    assert still_there("replica/m-1-1", status) == ["m-1-1 (ready)"]


def test_what_a_drain_waits_for_is_said() -> None:
    at = desk()
    at.ask("drain", "replica/m-1-0")
    at.use("m-1-0", Active(3))
    status = shown(at, at.plan())
    status["held"] = [{"subject": "replica/m-1-0", "what": "stop", "waits_for": "its requests to finish: 3 in flight"}]
    assert still_there("gpu/GPU-b-0", status)[0].endswith("waits for its requests to finish: 3 in flight)")


def test_a_time_limit_is_a_duration() -> None:
    assert seconds_of("10m") == 600.0
    with pytest.raises(WrongUsage, match="write 30s, 10m or 2h"):
        seconds_of("soon")
