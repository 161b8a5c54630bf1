"""A snapshot that was saved and read again gives the same plan as the live one: on all that the planner's machine comes to."""

import json
from dataclasses import replace
from typing import ClassVar

from hypothesis import HealthCheck, settings

from llmgw.catalog.catalog import Catalog
from llmgw.catalog.source import SourceTree
from llmgw.engines.adapter import ENGINES
from llmgw.plan.decide import plan
from llmgw.plan.result import Plan
from llmgw.plan.saved import dump_snapshot, load_snapshot
from llmgw.plan.snapshot import Snapshot
from tests.properties.planner_machine import PlannerMachine
from tests.properties.test_planner import EXAMPLES


def tree_of(catalog: Catalog) -> SourceTree:
    """Return a directory that compiles to a catalog."""
    objects = [catalog.cluster, *catalog.nodes.values(), *catalog.models.values()]
    files = {
        catalog.paths[one.kind, one.name]: one.model_dump_json(exclude_unset=True, by_alias=True).encode()
        for one in objects
    }
    return SourceTree(catalog.revision, files)


def plan_and_compare(snapshot: Snapshot) -> Plan:
    """Plan, and plan again from the saved snapshot."""
    saved = json.dumps(dump_snapshot(snapshot, tree_of(snapshot.catalog)))
    loaded, tree = load_snapshot(saved, ENGINES)
    assert replace(loaded, previous=replace(loaded.previous, catalog=snapshot.previous.catalog)) == snapshot
    assert (loaded.previous.catalog is loaded.catalog) == (snapshot.previous.catalog is snapshot.catalog)
    decided = plan(snapshot)
    assert plan(loaded) == decided
    assert json.dumps(dump_snapshot(loaded, tree)) == saved
    return decided


class SavedMachine(PlannerMachine):
    """The same life, each plan compared."""

    planner: ClassVar = staticmethod(plan_and_compare)


TestSavedSnapshots = SavedMachine.TestCase
TestSavedSnapshots.settings = settings(
    max_examples=int(EXAMPLES or 10),
    derandomize=EXAMPLES is None,
    database=None,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
