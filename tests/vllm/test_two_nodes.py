"""One real vLLM over two nodes, which are agents of one machine with addresses of their own and a card each that is not real.

The build for CPUs splits layers (`tensor_parallel`) over gloo. Stages (`pipeline_parallel`) it starts, and then fails at the
first request, so there is no test of them.
"""

import json
import os
import signal

import openai
import pytest

from tests.fakes import nvml
from tests.live.conftest import program
from tests.live.lab import CLUSTER, alive
from tests.vllm.rig import ENV, Rig, Talk

CLASSES = '\ngpu_classes:\n- {name: h100, match: ["NVIDIA H100*"]}\n'
GANG = {"gpu": {"class": "h100", "count": 1}, "nodes": 2, "tensor_parallel": 2}
NODES = {"one": "127.0.0.1", "two": "127.0.0.2"}


@pytest.fixture(scope="module")
def pair(rig: Rig, tmp_path_factory: pytest.TempPathFactory) -> Rig:
    """Give a lab of two nodes. The ports of two shards on one machine must differ, so one node keeps its first ones taken."""
    program("gcc")
    lab = rig.lab
    library = nvml.build(tmp_path_factory.mktemp("nvml"))
    (lab.cluster / "nodes/local.yaml").unlink()
    for place, (name, address) in enumerate(NODES.items()):
        directory = lab.root / name
        directory.mkdir()
        machine = nvml.Machine(directory, library)
        machine.add(nvml.H100, count=place + 1)
        machine.cards = machine.cards[place:]
        machine.say()
        node = {
            "apiVersion": "llmgw/v1",
            "kind": "Node",
            "name": name,
            "local": True,
            "agent_socket": str(lab.root / f"{name}.sock"),
            "address": address,
            "traffic": "direct",
            "fabric": "rail",
            "pool": name,
        }
        lab.write(f"nodes/{name}.yaml", json.dumps(node))
        lab.spawn(
            *("agent", "--state-dir", str(directory / "state"), "--weights-dir", str(lab.weights)),
            log=f"{name}.log",
            env={**machine.environment, "LLMGW_AGENT_SOCKET": str(lab.root / f"{name}.sock")},
        )
    lab.write(
        "cluster.yaml", CLUSTER.replace("control:\n", "control:\n  mgmt_interface: lo\n") + lab._ports() + CLASSES
    )
    lab.write("models/filler.yaml", json.dumps(filler()))
    lab.commit()
    lab.start_server()
    rig.until(lambda: [one["phase"] for one in lab.replicas("filler")] == ["starting"], "the filler to be there")
    # the fake library of cards is for the agent alone
    rig.write("m", env={**ENV, "LD_LIBRARY_PATH": ""}, **GANG)
    lab.commit()
    return rig


def filler() -> dict[str, object]:
    profile = {"engine": "command", "command": ["sleep", "3600", "{port}"], "pool": "one"}
    return {
        "apiVersion": "llmgw/v1",
        "kind": "Model",
        "name": "filler",
        "replicas": 1,
        "weights": {"path": "m"},
        "profiles": [profile],
    }


def test_a_replica_over_two_nodes_serves_restarts_as_a_whole_and_drains(pair: Rig) -> None:
    lab = pair.lab
    pair.until(lambda: lab.ready("m"), "the replica")
    assert len(pair.titled("VLLM::Worker_TP")) == 2
    said = lab.ask("m", "w20 w21", temperature=0)
    assert len(said.split()) == 8

    before = gang(pair)
    (follower,) = (pid for pid, arguments in pair.engines().items() if "--headless" in arguments)
    os.kill(follower, signal.SIGKILL)
    pair.until(lambda: not any(alive(pid) for pid in before), "both shards to be gone")
    pair.until(lambda: lab.ready("m"), "the replica to be ready again")
    assert lab.ask("m", "w20 w21", temperature=0) == said
    assert len(pair.titled("VLLM::Worker_TP")) == 2

    tokens = 1000
    talk = Talk(pair, "m", tokens)
    (lab.cluster / "models/m.yaml").unlink()
    lab.commit()
    pair.until(lambda: refused(pair), "new requests to be refused")
    assert not talk.ended, "its stream runs on"
    talk.end()
    assert (talk.error, talk.finish) == (None, "length")
    assert talk.usage is not None
    assert talk.usage.completion_tokens == tokens
    pair.until(lambda: not gang(pair) and not lab.replicas("m"), "both shards to be gone")


def gang(rig: Rig) -> set[int]:
    """Return the processes of both shards: all but the filler."""
    return {pid for pid, arguments in rig.engines().items() if "sleep 3600" not in arguments}


def refused(rig: Rig) -> bool:
    try:
        rig.lab.ask("m")
    except openai.NotFoundError as error:
        return error.code == "model_not_found"
    return False
