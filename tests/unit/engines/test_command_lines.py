"""What is run for which profile: one committed file a case, whole command lines and environments, so that a change shows.

`LLMGW_UPDATE=1` writes the files anew.
"""

import os
from pathlib import Path
from typing import Any

import pytest

from llmgw.agent.shard import LONGEST_START
from llmgw.base.ids import ModelName, NodeName, replica_id
from llmgw.engines.adapter import ENGINES
from llmgw.engines.facts import FACTS
from llmgw.engines.placed import Placed, Seat
from llmgw.engines.shard import ShardSpec
from llmgw.spec.cluster import Backoff
from tests.builders import FIRST, Object, catalog, cluster, model

GOLDEN = Path(__file__).with_name("golden")
CLASSES = [{"name": "h100", "match": ["NVIDIA H100*"]}]


def cards(count: int) -> Object:
    return {"class": "h100", "count": count}


def gang(engine: str, **fields: Any) -> Object:
    return {"engine": engine, "gpu": cards(4), "nodes": 2, "tensor_parallel": 4, "pipeline_parallel": 2, **fields}


CASES: dict[str, tuple[Object, list[Object], int]] = {
    "llamacpp": ({"engine": "llamacpp", "cpus": 4, "args": ["--ctx-size", "4096"]}, [], 1),
    "vllm": ({"engine": "vllm", "gpu": cards(1), "args": ["--max-model-len", "32k"]}, [], 1),
    "vllm_tensor_parallel": (
        {"engine": "vllm", "gpu": cards(4), "tensor_parallel": 4, "env": {"VLLM_LOGGING_LEVEL": "DEBUG"}},
        [{"name": "vllm", "command": ["/opt/vllm/bin/vllm", "serve"], "env": {"HF_TOKEN": {"secret": "HF_TOKEN"}}}],
        1,
    ),
    "vllm_data_parallel": (
        {"engine": "vllm", "gpu": cards(4), "tensor_parallel": 2, "data_parallel": 2, "start_timeout": "30m"},
        [],
        1,
    ),
    "vllm_two_nodes": (gang("vllm"), [], 2),
    "vllm_lora": ({"engine": "vllm", "gpu": cards(1), "args": ["--max-lora-rank", "32"]}, [], 1),
    "vllm_copies_on_two_nodes": (
        gang("vllm", pipeline_parallel=1, tensor_parallel=2, data_parallel=4),
        [],
        2,
    ),
    "sglang": ({"engine": "sglang", "gpu": cards(1)}, [], 1),
    "sglang_tensor_parallel": ({"engine": "sglang", "gpu": cards(4), "tensor_parallel": 4}, [], 1),
    "sglang_data_parallel": ({"engine": "sglang", "gpu": cards(4), "tensor_parallel": 2, "data_parallel": 2}, [], 1),
    "sglang_two_nodes": (gang("sglang"), [], 2),
    "sglang_lora": ({"engine": "sglang", "gpu": cards(1), "args": ["--max-lora-rank", "16"]}, [], 1),
    "tei": ({"engine": "tei", "gpu": cards(1), "args": ["--pooling", "cls"]}, [], 1),
    "tei_on_a_cpu": ({"engine": "tei"}, [], 1),
    "command": (
        {
            "engine": "command",
            "command": ["transformers", "serve", "{weights}", "--host={host}", "--port={port}"],
            "env": {"NAME": "{model}"},
        },
        [{"name": "command", "metrics": {"running": "my_running", "generation_tokens": "my_tokens_total"}}],
        1,
    ),
}


def shards(case: str, **changes: Any) -> tuple[ShardSpec, ...]:
    profile, engines, seats = CASES[case]
    lora = [{"name": "sql", "weights": {"path": "lora/sql"}}] if case.endswith("_lora") else []
    found = catalog(cluster(gpu_classes=CLASSES, engines=engines), model("m", profile=profile, adapters=lora))
    name = ModelName("m")
    wanted = found.models[name]
    one = wanted.profiles[0]
    count = one.gpu.count if one.gpu is not None else 0
    placed: dict[str, Any] = {
        "replica": replica_id(name, FIRST, 0),
        "model": wanted,
        "profile": one,
        "definition": found.engine(one.engine),
        "hash": found.hash_of(wanted, one),
        "backoff": Backoff(),
        "seats": tuple(
            Seat(
                NodeName(f"n{rank}"),
                port=20000 + 100 * rank,
                address=f"10.0.0.{rank + 1}",
                gpus=tuple(f"GPU-{rank}-{n}" for n in range(count)),
            )
            for rank in range(seats)
        ),
        **changes,
    }
    return ENGINES[one.engine].shards(Placed(**placed))


def shown(spec: ShardSpec) -> str:
    """Return a shard as people read it: a flag with its values a line."""
    lines = [f"shard {spec.rank} of {spec.shards}: ports {spec.port} to {spec.port + spec.ports - 1}"]
    if spec.gpus:
        lines[0] += f", cards {' '.join(spec.gpus)}"
    lines += [f"$ {' '.join(program)}" for program in spec.programs]
    for arg in spec.args:
        if arg.startswith("-") or not lines[-1].startswith("    "):
            lines.append(f"    {arg}")
        else:
            lines[-1] += f" {arg}"
    lines += [f"  {name}={value}" for name, value in sorted(spec.env.items())]
    lines += [f"  {name} from secret {secret}" for name, secret in sorted(spec.secrets.items())]
    lines.append(f"  ready: {spec.ready_path or 'while its process lives'}; names its model: {spec.models_path or '-'}")
    if spec.metrics is not None:
        names = (spec.metrics.running, spec.metrics.waiting, spec.metrics.prompt_tokens, spec.metrics.generation_tokens)
        lines.append(f"  figures: {' '.join(name or '-' for name in names)}")
    if spec.lora is not None:
        lines.append(f"  adapters: POST {spec.lora.load} and {spec.lora.unload}")
        lines += [f"    {one.name} from {one.weights}, asked for as {one.asked_as}" for one in spec.adapters]
    lines.append(f"  stops within {spec.stop_grace:.0f} s")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("case", CASES)
def test_a_profile_becomes_just_this(case: str) -> None:
    text = "\n".join(shown(spec) for spec in shards(case))
    file = GOLDEN / f"{case}.txt"
    if os.environ.get("LLMGW_UPDATE"):
        file.write_text(text)
    assert text == file.read_text()


def test_every_golden_file_has_its_case() -> None:
    assert {file.stem for file in GOLDEN.iterdir()} == set(CASES)


@pytest.mark.parametrize("case", CASES)
def test_no_two_replicas_of_one_node_meet_at_a_port(case: str) -> None:
    """Every port that a command line names, and that is opened on this node, lies in the block of the shard."""
    for spec in shards(case):
        text = " ".join(spec.args).replace(":", " ").replace("=", " ")
        named = {int(word) for word in text.split() if word.isdigit() and 20000 <= int(word) < 21000}
        block = range(spec.port, spec.port + spec.ports)
        head = range(20000, 20000 + spec.ports)
        assert named <= {*block, *head}
        assert spec.rank > 0 or named <= set(block)


@pytest.mark.parametrize("case", [case for case in CASES if "two_nodes" in case])
def test_a_gang_shares_what_its_shards_must_share(case: str) -> None:
    head, other = shards(case, interface="eno1", incarnation=3)
    assert (head.incarnation, other.incarnation, head.shards, other.shards) == (3, 3, 2, 2)
    assert (head.replica, head.hash) == (other.replica, other.hash)
    assert head.shard != other.shard
    for spec in (head, other):
        assert (spec.env["NCCL_SOCKET_IFNAME"], spec.env["GLOO_SOCKET_IFNAME"]) == ("=eno1", "eno1")
    assert other.metrics is None
    assert other.models_path == ""
    assert head.models_path


def test_a_node_that_is_known_by_name_leaves_the_interface_to_the_engine() -> None:
    named = tuple(Seat(NodeName(name), 20000, address=f"{name}.lan") for name in ("a", "b"))
    for case in ("vllm_two_nodes", "sglang_two_nodes"):
        for spec in shards(case, seats=named):
            assert not {"NCCL_SOCKET_IFNAME", "VLLM_HOST_IP", "SGLANG_ZMQ_ALLOWED_PEERS"} & set(spec.env)
            assert any("a.lan" in arg for arg in spec.args)


def test_vllm_is_as_patient_with_a_load_as_the_agent() -> None:
    (spec,) = shards("vllm_data_parallel")
    assert float(spec.env["VLLM_ENGINE_READY_TIMEOUT_S"]) == spec.start_timeout * LONGEST_START


def test_addresses_of_version_6_are_written_so_that_a_port_can_follow() -> None:
    seats = tuple(Seat(NodeName(name), 20000, address=f"fd00::{name}") for name in ("a", "b"))
    assert "[fd00::a]:20002" in shards("sglang_two_nodes", seats=seats)[1].args
    assert "fd00::a" in shards("vllm_two_nodes", seats=seats)[1].args


RELEASES: dict[str, tuple[str, ...]] = {
    "llamacpp": ("b11434",),
    "vllm": ("0.10.2", "0.16.0", "0.22.1", "0.33.0"),
    "sglang": ("0.5.5", "0.5.10", "0.5.23"),
    "tei": ("1.9.3",),
}
"""Releases whose flags are in `flags/`, oldest first: read from their sources, TEI's as far as they are of use here."""
NEEDS = {"vllm_two_nodes": "0.16.0"}
"""Cases that older releases cannot do, as the adapter's docstring says."""


def flags_of(engine: str, release: str) -> set[str]:
    return set((GOLDEN.parent / f"flags/{engine}-{release}.txt").read_text().split())


@pytest.mark.parametrize(
    ("case", "release"),
    [(case, release) for case, (profile, _, _) in CASES.items() for release in RELEASES.get(profile["engine"], ())],
)
def test_a_command_line_has_only_flags_that_a_release_takes(case: str, release: str) -> None:
    engine = CASES[case][0]["engine"]
    used = {arg for spec in shards(case) for arg in spec.args if arg.startswith("-")}
    unknown = used - flags_of(engine, release)
    releases = RELEASES[engine]
    if releases.index(release) < releases.index(NEEDS.get(case, releases[0])):
        assert unknown == {"--nnodes", "--node-rank", "--master-addr", "--master-port"}
    else:
        assert unknown == set()


@pytest.mark.parametrize("engine", RELEASES)
def test_flags_that_an_operator_may_not_set_are_some_releases_flags(engine: str) -> None:
    known = set().union(*(flags_of(engine, release) for release in RELEASES[engine]))
    abbreviated = {"-p", "--dp", "--tp", "--pp"}  # short ones of TEI, and prefixes that argparse takes
    assert set(FACTS[engine].own_flags) - known <= abbreviated
