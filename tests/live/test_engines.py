"""Engines of other kinds, by programs that behave like them: one replica over two agents of one machine, and the rest alone.

The agents have fake cards, and addresses of their own (127.0.0.1 and 127.0.0.2), so that they are two nodes in all that
matters but one: who listens at a port is told by the port alone. So fillers on one of them, which never get to listen, see to
it that the two shards of a replica get different ports.
"""

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.fakes import nvml
from tests.live.conftest import program
from tests.live.lab import ENGINE, Lab, alive
from tests.live.pair import NODES, configure_pair, spawn_pair
from tests.live.test_skeleton import Stream


def engines(**commands: list[str]) -> str:
    """Return the cluster's `engines`, each run by the fake program in that engine's manner with these switches."""
    rows = [
        {"name": name, "command": [sys.executable, str(ENGINE), "--as", name, *flags]}
        for name, flags in commands.items()
    ]
    return f"engines: {json.dumps(rows)}\n"


def model(name: str, engine: str, **profile: object) -> str:
    body = {
        "apiVersion": "llmgw/v1",
        "kind": "Model",
        "name": name,
        "replicas": 1,
        "weights": {"path": "tiny.gguf"},
        "profiles": [{"engine": engine, **profile}],
    }
    return json.dumps(body)


class Pair:
    """A lab with two agents that have two cards each."""

    def __init__(self, lab: Lab, library: Path) -> None:
        self.lab = lab
        spawn_pair(lab, library, cards=2)

    def configure(self, text: str) -> None:
        configure_pair(self.lab, text)

    def pids(self) -> dict[int, int]:
        """Return rank -> pid of the engines of this lab, from the environment and arguments that they were given."""
        found = {}
        for pid, arguments in self.lab.left_over().items():
            if "--as " in arguments and "--as tei" not in arguments:
                rank = arguments.partition("--node-rank ")[2].partition(" ")[0]
                found[int(rank or 0)] = pid
        return found


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program("gcc")
    return nvml.build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def pair(lab: Lab, library: Path) -> Pair:
    return Pair(lab, library)


EVENTS = 40
GANG = {"gpu": {"class": "h100", "count": 2}, "nodes": 2, "tensor_parallel": 2, "pipeline_parallel": 2}


@pytest.mark.parametrize(
    ("engine", "flags", "victim"),
    [
        ("vllm", [], 1),
        ("vllm", [], 0),
        ("vllm", ["--hang-with-gang"], 1),
        ("sglang", ["--hang-with-gang", "--warm-up-seconds", "0.3"], 1),
    ],
)
def test_a_replica_over_two_nodes_starts_serves_and_restarts_as_a_whole(
    pair: Pair, engine: str, flags: list[str], victim: int
) -> None:
    """With `--hang-with-gang` the shard that is left notices nothing, so that only the planner can end it."""
    lab = pair.lab
    slowly = ["--chunks", str(EVENTS), "--chunk-interval", "0.1"]
    pair.configure(engines(**{engine: ["--load-seconds", "0.3", *slowly, *flags]}, tei=["--load-seconds", "3600"]))
    lab.write("models/filler.yaml", model("filler", "tei", pool="one").replace('"replicas": 1', '"replicas": 2'))
    lab.commit()
    lab.start_server()
    lab.until(lambda: [one["phase"] for one in lab.replicas("filler")] == ["starting"] * 2, "the fillers to be there")
    lab.write("models/m.yaml", model("m", engine, **GANG))
    lab.commit()
    lab.until(lambda: lab.ready("m"), "the replica to be ready")
    assert lab.ask("m").startswith("m ")
    before = pair.pids()
    assert set(before) == {0, 1}
    os.kill(before[victim], signal.SIGKILL)

    def anew() -> bool:
        now = pair.pids()
        return set(now) == {0, 1} and not set(now.values()) & set(before.values())

    lab.until(anew, "both shards to be other processes")
    lab.until(lambda: lab.ready("m"), "the replica to be ready again")
    assert not any(alive(pid) for pid in before.values())
    assert lab.ask("m").startswith("m ")
    for name, cards in (("one", "0,1"), ("two", "0,1")):
        pid = pair.pids()[list(NODES).index(name)]
        environment = dict(
            entry.split("=", 1) for entry in Path(f"/proc/{pid}/environ").read_text().split("\0") if "=" in entry
        )
        assert environment["CUDA_VISIBLE_DEVICES"] == cards
        assert (environment["NCCL_SOCKET_IFNAME"], environment["GLOO_SOCKET_IFNAME"]) == ("=lo", "lo")
        assert environment["HF_HUB_OFFLINE"] == "1"
    leaves_in_the_middle_of_a_stream(pair)


def leaves_in_the_middle_of_a_stream(pair: Pair) -> None:
    """The stream goes on to its end, and then both shards end: the one that obeys no signal, too."""
    lab, pids = pair.lab, pair.pids()
    stream = Stream(lab, "m")
    (lab.cluster / "models/m.yaml").unlink()
    lab.commit()
    stream.end()
    assert (stream.error, stream.finish, len(stream.chunks)) == (None, "stop", EVENTS + 1)
    lab.until(lambda: not any(alive(pid) for pid in pids.values()), "both shards to be gone")
    lab.until(lambda: not lab.replicas("m"), "the replica to be forgotten")


def test_one_of_each_engine_alone(pair: Pair) -> None:
    lab = pair.lab
    (lab.cluster / "nodes/two.yaml").unlink()
    pair.configure(engines(vllm=["--load-seconds", "0.2"], sglang=[], tei=[]))
    lab.write("models/v.yaml", model("v", "vllm", gpu={"class": "h100"}))
    lab.write("models/s.yaml", model("s", "sglang", gpu={"class": "h100"}))
    lab.write("models/t.yaml", model("t", "tei"))
    command = [sys.executable, str(ENGINE), "--alias={model}", "--host={host}", "--port={port}", "{weights}"]
    lab.write("models/c.yaml", model("c", "command", command=command))
    lab.commit()
    lab.start_server()
    for name in "vstc":
        lab.until(lambda name=name: lab.ready(name), f"{name} to be ready")
    assert [lab.ask(name).split()[0] for name in "vsc"] == ["v", "s", "c"]
    serves_lora_adapters(lab)


def serves_lora_adapters(lab: Lab) -> None:
    """They come to engines that run, one that is broken is told and keeps nothing back, and one that changes is replaced."""
    before = lab.left_over()
    for path in ("lora/sql", "lora/fr", "lora/fr-2"):
        (lab.weights / path).mkdir(parents=True)

    def write(name: str, engine: str, **adapters: str) -> None:
        listed = [{"name": one, "weights": {"path": path}} for one, path in adapters.items()]
        wanted = {**json.loads(model(name, engine, gpu={"class": "h100"})), "adapters": listed}
        wanted["rollout"] = {"strategy": "recreate"}  # both cards are taken
        lab.write(f"models/{name}.yaml", json.dumps(wanted))

    def served() -> list[str]:
        with lab.client() as client:
            return sorted(one.id for one in client.models.list())

    write("v", "vllm", sql="lora/sql", lost="lora/none")
    write("s", "sglang", fr="lora/fr")
    lab.commit()
    lab.until(lambda: {"sql", "fr"} <= set(served()) and lab.ready("v") and lab.ready("s"), "the adapters to be served")
    assert [lab.ask(name).split()[0] for name in ("sql", "fr", "v", "s")] == ["sql", "fr", "v", "s"]
    lab.until(lambda: "lora/none does not exist on this node" in json.dumps(lab.status()), "the reason to be told")
    running = lab.left_over()
    assert running.keys() != before.keys(), "the first adapter of a model restarts it"
    write("s", "sglang", fr="lora/fr-2", sql2="lora/sql")
    write("v", "vllm", lost="lora/none")
    lab.commit()
    lab.until(lambda: "sql2" in served() and "sql" not in served(), "the change")
    lab.until(lambda: "serve adapter fr" not in json.dumps(lab.status()), "the changed adapter")
    assert [lab.ask(name).split()[0] for name in ("fr", "sql2", "v")] == ["fr", "sql2", "v"]
    assert lab.left_over().keys() == running.keys(), "the others come and go while it serves"


def test_a_vllm_that_ends_with_status_0_has_failed_and_the_reason_is_told(pair: Pair) -> None:
    lab = pair.lab
    pair.configure(engines(vllm=["--engine-dies-after", "1"]))
    lab.write("models/v.yaml", model("v", "vllm", gpu={"class": "h100"}))
    lab.commit()
    lab.start_server()

    def why() -> str:
        return json.dumps(lab.replicas("v"))

    lab.until(lambda: "its engine process died" in why(), "the reason")


def test_a_vllm_that_does_not_know_an_argument_says_so(pair: Pair) -> None:
    lab = pair.lab
    pair.configure(engines(vllm=[]))
    lab.write("models/v.yaml", model("v", "vllm", gpu={"class": "h100"}, args=["--no-such-flag"]))
    lab.commit()
    lab.start_server()
    lab.until(lambda: "the engine refused its arguments" in json.dumps(lab.replicas("v")), "the reason")
    assert "--no-such-flag" in json.dumps(lab.replicas("v"))
