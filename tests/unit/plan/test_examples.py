"""The example cluster has a model for each engine; switched on, each becomes just the command line that is committed here."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from llmgw.base.ids import NodeName, Revision
from llmgw.catalog.compile import Accepted, compile_tree
from llmgw.catalog.source import SourceTree
from llmgw.engines.facts import FACTS
from tests.builders import Desk, facts
from tests.cards import gpus

EXAMPLE = Path(__file__).parents[3] / "examples/cluster"
LINES = Path(__file__).with_name("example_lines.txt")


def desk() -> Desk:
    files = {
        str(path.relative_to(EXAMPLE)): path.read_bytes().replace(b"replicas: 0", b"replicas: 1")
        for path in EXAMPLE.rglob("*.yaml")
    }
    outcome = compile_tree(SourceTree(Revision("r1"), files))
    assert isinstance(outcome, Accepted)
    found = Desk(outcome.catalog, cards={NodeName("local"): gpus("local", 8)})
    found.facts[NodeName("local")] = replace(facts(cpus=32))
    found.hear("local")
    return found


def test_a_model_for_each_engine_plans_to_its_command_line() -> None:
    decided = desk().plan()
    assert decided.holds == ()
    shards = [one.spec for one in decided.orders[NodeName("local")].shards]
    text = "".join(
        f"{one.model} on {len(one.gpus)} cards: {' '.join((*one.programs[0], *one.args))}\n" for one in shards
    )
    if os.environ.get("LLMGW_UPDATE"):
        LINES.write_text(text)
    assert text == LINES.read_text()
    models: Any = desk().catalog.models
    assert {model.profiles[0].engine for model in models.values()} == set(FACTS), "each engine has its example"
