"""What a leader leaves to the next one: whole, by age, and never in the way."""

import json
from dataclasses import fields

import pytest

from llmgw.base.ids import ModelName, NodeName, ReplicaId, RestartHash
from llmgw.base.time import Instant
from llmgw.plan.memory import BadMemory, Memory, memory_of, read, recalled, written
from llmgw.plan.snapshot import Decided, GaveUp, Rollout
from tests.builders import catalog, cluster, model, node

M = ModelName("m")
DECIDED = Decided(
    rollouts={M: Rollout((RestartHash("h"),), Instant(900.0), Instant(950.0), 2, "it failed")},
    gave_up={M: (GaveUp(RestartHash("h"), NodeName("a"), "it ended"),)},
    preempted={ReplicaId("n-1-0"): M},
    owed={ReplicaId("m-1-0"): M},
    braked={NodeName("b"): Instant(940.0)},
)


def test_it_is_the_same_when_it_is_read_again_and_older_by_its_age_on_a_clock_that_is_wrong() -> None:
    wanted = catalog(cluster(), node("a"), model("m"))
    memory = memory_of(Decided(**{**_fields(DECIDED), "good": dict(wanted.models)}))
    again = read(written(memory, Instant(1000.0)), Instant(5000.0), 30.0)
    moved = 5000.0 - 30.0 - 1000.0
    assert again.gave_up == memory.gave_up
    assert (again.preempted, again.owed) == (memory.preempted, memory.owed)
    assert again.rollouts[M].since == 900.0 + moved
    assert again.rollouts[M].failed == "it failed"
    assert again.braked == {"b": 940.0 + moved}
    fresh = recalled(again, Decided(), wanted)
    assert fresh.good[M] is wanted.models[M], "what the catalog still wants was not reverted"
    assert memory_of(fresh) == again
    assert (fresh.orders, fresh.catalog, fresh.left_out) == ({}, None, {})


def test_all_that_a_plan_decides_is_either_kept_or_told_by_nodes() -> None:
    told_by_nodes = {"orders", "table", "catalog", "left_out", "spent", "draining", "told"}
    assert {one.name for one in fields(Decided)} - told_by_nodes == {one.name for one in fields(Memory)} - {"version"}


@pytest.mark.parametrize("text", ["", "[]", '{"version": 2}', '{"rollouts": {"m": 1}}', "\x00"])
def test_what_cannot_be_read_is_said_and_is_no_memory(text: str) -> None:
    with pytest.raises(BadMemory):
        read(text, Instant(0.0), 0.0)


def test_it_is_small() -> None:
    assert len(written(memory_of(DECIDED), Instant(1000.0))) < 700
    assert json.loads(written(Memory(), Instant(0.0)))["version"] == 1


def _fields(decided: Decided) -> dict[str, object]:
    return {one.name: getattr(decided, one.name) for one in fields(decided)}
