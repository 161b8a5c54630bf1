"""The restart hash: what changes it replaces replicas everywhere, so each field's effect is a promise.

`restart_hashes.json` holds documents with the hashes that released versions gave them. A new version that gives another
one would restart the fleets of all who upgrade; if that is meant, say so in the changelog and write the file anew with
`LLMGW_UPDATE=1`.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from llmgw.catalog.catalog import Catalog
from tests.builders import Object, catalog, cluster, model

CORPUS = Path(__file__).with_name("restart_hashes.json")


def hash_of(*objects: Object) -> str:
    """Return the restart hash of the only model, by its first profile."""
    found: Catalog = catalog(*objects)
    (only,) = found.models.values()
    return found.hash_of(only, only.profiles[0])


BASE = hash_of(model("m"))
UNAFFECTED: dict[str, Object] = {
    "replicas": model("m", 7),
    "aliases": model("m", aliases=["x", "y"]),
    "priority": model("m", priority=3),
    "model name": model("n", weights={"path": "/weights/m.gguf"}),
    "moved": model("n", weights={"path": "/weights/m.gguf"}, moved_from="m"),
    "profile name": model("m", profile={"name": "renamed"}),
    "profile priority": model("m", profile={"priority": 3}),
    "start timeout": model("m", profile={"start_timeout": "1h"}),
    "memory": model("m", profile={"memory": "1GiB"}),
    "pool": model("m", profile={"pool": "p"}),
    "labels": model("m", profile={"labels": {"a": "b"}}),
    "empty args written down": model("m", profile={"args": []}),
    "empty env written down": model("m", profile={"env": {}}),
    "every default written down": model(
        "m",
        profile={"name": "default", "args": [], "env": {}, "labels": {}, "priority": 0, "start_timeout": "20m"},
        aliases=[],
        priority=0,
    ),
}
AFFECTED: dict[str, Object] = {
    "weights": model("m", weights={"path": "/weights/other.gguf"}),
    "args": model("m", 1, "--ctx-size", "1"),
    "order of args": model("m", 1, "1", "--ctx-size"),
    "env": model("m", profile={"env": {"A": "1"}}),
    "value of env": model("m", profile={"env": {"A": "2"}}),
    "command": model("m", profile={"command": ["/opt/x"]}),
    "cpus": model("m", profile={"cpus": 2}),
}


@pytest.mark.parametrize("change", UNAFFECTED)
def test_what_restarts_nothing_leaves_the_hash_alone(change) -> None:
    assert hash_of(UNAFFECTED[change]) == BASE


def test_what_restarts_changes_the_hash_and_no_two_the_same_way() -> None:
    hashes = {change: hash_of(changed) for change, changed in AFFECTED.items()}
    assert BASE not in hashes.values()
    assert len(set(hashes.values())) == len(hashes)


def test_the_clusters_own_engine_counts_where_it_restarts() -> None:
    engine = {"name": "llamacpp", "command": ["/opt/llama"]}
    with_command = hash_of(cluster(engines=[engine]), model("m"))
    assert with_command != BASE
    assert hash_of(cluster(engines=[{**engine, "env": {"A": "1"}}]), model("m")) not in (BASE, with_command)
    assert hash_of(cluster(engines=[{"name": "llamacpp"}]), model("m")) == BASE
    assert hash_of(cluster(name="other", control={"interval": "9s"}), model("m")) == BASE


def test_that_a_model_has_lora_adapters_counts_and_which_ones_does_not() -> None:
    def with_adapters(*names: str) -> str:
        adapters = [{"name": name, "weights": {"path": f"lora/{name}"}} for name in names]
        profile = {"engine": "vllm", "gpu": {"class": "h100"}}
        classes = [{"name": "h100", "match": ["NVIDIA H100*"]}]
        return hash_of(cluster(gpu_classes=classes), model("m", profile=profile, adapters=adapters))

    assert with_adapters("a") == with_adapters("a", "b") == with_adapters("c")
    assert with_adapters() != with_adapters("a")


def test_the_order_of_env_does_not_count() -> None:
    first, second = ({"A": "1", "B": "2"}, {"B": "2", "A": "1"})
    assert hash_of(model("m", profile={"env": first})) == hash_of(model("m", profile={"env": second}))


def _documents() -> list[list[Object]]:
    rich = {"command": ["/opt/x", "serve"], "env": {"B": "ü", "A": "1"}, "cpus": 4, "memory": "8GiB", "pool": "p"}
    return [
        [model("m")],
        [model("m", 1, "--ctx-size", "4096")],
        [model("qwen3-0.6b", 3, "--ctx-size", "4096", profile=rich, aliases=["q"])],
        [cluster(engines=[{"name": "llamacpp", "command": ["/opt/llama"], "env": {"A": "1"}}]), model("m")],
    ]


def test_hashes_are_those_of_earlier_versions() -> None:
    if os.environ.get("LLMGW_UPDATE") == "1":
        made = [{"objects": objects, "hash": hash_of(*objects)} for objects in _documents()]
        CORPUS.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n")
    corpus: list[dict[str, Any]] = json.loads(CORPUS.read_text())
    assert len(corpus) >= 4
    for entry in corpus:
        assert hash_of(*entry["objects"]) == entry["hash"], entry["objects"]
