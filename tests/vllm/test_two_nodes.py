"""One real vLLM over two nodes, which are agents of one machine with addresses of their own and a card each that is not real.

The build for CPUs splits layers (`tensor_parallel`) over gloo. Stages (`pipeline_parallel`) it starts, and then fails at the
first request, so there is no test of them.
"""

import json
import os
import signal

import pytest

from tests.fakes import nvml
from tests.live.conftest import program
from tests.live.lab import alive
from tests.live.pair import configure_pair, spawn_pair
from tests.vllm.rig import ENV, Rig, Talk

GANG = {"gpu": {"class": "h100", "count": 1}, "nodes": 2, "tensor_parallel": 2}


@pytest.fixture(scope="module")
def pair(rig: Rig, tmp_path_factory: pytest.TempPathFactory) -> Rig:
    """Give a lab of two nodes. The ports of two shards on one machine must differ, so one node keeps its first ones taken."""
    program("gcc")
    lab = rig.lab
    library = nvml.build(tmp_path_factory.mktemp("nvml"))
    spawn_pair(lab, library, cards=1)
    configure_pair(lab)
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
    pair.until(lambda: pair.refuses("m"), "new requests to be refused")
    assert not talk.ended, "its stream runs on"
    talk.end()
    assert (talk.error, talk.finish) == (None, "length")
    assert talk.usage is not None
    assert talk.usage.completion_tokens == tokens
    pair.until(lambda: not gang(pair) and not lab.replicas("m"), "both shards to be gone")


def gang(rig: Rig) -> set[int]:
    """Return the processes of both shards: all but the filler."""
    return {pid for pid, arguments in rig.engines().items() if "sleep 3600" not in arguments}
