"""One real vLLM behind the gateway, from its start to its stop. Each test gets it ready, whatever the one before did to it."""

import json
import os
import signal
import socket
import urllib.error
import urllib.request
from pathlib import Path

import openai
import pytest

from llmgw.agent import figures
from llmgw.engines.vllm import METRICS
from tests.live.lab import alive, stolen
from tests.vllm.rig import Rig, Talk

RECORDED = Path(__file__).parents[1] / "unit/engines/recorded/vllm_0.33.0.json"
BLOCK = 128
"""Tokens of a prompt that are cached together on a CPU."""


@pytest.fixture(scope="module")
def started(rig: Rig) -> Rig:
    rig.write("m", adapters=("sql",))
    rig.lab.commit()
    rig.lab.start_agent()
    rig.lab.start_server()
    return rig


@pytest.fixture
def served(started: Rig) -> Rig:
    """Give the model as it is in the repository, ready."""
    started.write("m", adapters=("sql",))
    started.lab.commit()
    started.until(lambda: started.lab.ready("m") and "sql" in models(started), "the model and its adapter")
    return started


def models(rig: Rig) -> set[str]:
    with rig.lab.client() as client:
        return {one.id for one in client.models.list()}


def get(rig: Rig, path: str) -> tuple[int, str]:
    """Ask the engine itself."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{rig.replica('m')['port']}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def keys(value: object) -> object:
    """Return what a JSON value is made of, without what it says."""
    if isinstance(value, dict):
        return {name: keys(each) for name, each in value.items()}
    return [keys(each) for each in value[:1]] if isinstance(value, list) else ""


def test_it_answers_and_streams_and_nothing_is_left_to_change(served: Rig) -> None:
    lab = served.lab
    said = lab.ask("m", "w20 w21", temperature=0)
    assert said == lab.ask("m", "w20 w21", temperature=0)
    assert len(said.split()) == 8
    talk = Talk(served, "m", tokens=50)
    talk.end()
    assert (talk.error, talk.finish) == (None, "length")
    assert talk.usage is not None
    assert (talk.usage.prompt_tokens, talk.usage.completion_tokens) == (4, 50)
    assert lab.plan()[0] == 0


def test_usage_says_how_much_of_a_prompt_was_cached(served: Rig) -> None:
    prompt = " ".join(f"w{20 + number % 100}" for number in range(2 * BLOCK))
    found = []
    with served.lab.client() as client:
        for _ in range(2):
            answer = client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": prompt}], max_tokens=1
            )
            assert answer.usage is not None
            assert answer.usage.prompt_tokens_details is not None
            found.append(answer.usage.prompt_tokens_details.cached_tokens)
    assert found == [0, 2 * BLOCK]


def test_its_figures_have_the_names_that_the_agent_reads(served: Rig) -> None:
    idle = figures.pulse(METRICS, get(served, METRICS.path)[1].encode(), None)
    assert (idle.answered, idle.in_flight) == (True, 0)
    talk = Talk(served, "m", tokens=30000)
    served.until(lambda: served.replica("m").get("engine_in_flight") == 1 or talk.ended, "the agent to see the request")
    busy = figures.pulse(METRICS, get(served, METRICS.path)[1].encode(), None)
    assert not talk.ended
    assert busy.in_flight == 1
    assert idle.tokens is not None
    assert busy.tokens is not None
    assert busy.tokens > idle.tokens, "they move while the request runs"
    page = get(served, METRICS.path)[1]
    for name in (METRICS.running, METRICS.waiting, METRICS.prompt_tokens, METRICS.generation_tokens):
        assert f"\n{name}{{" in page, name
    talk.hang_up()
    served.until(
        lambda: figures.pulse(METRICS, get(served, METRICS.path)[1].encode(), None).in_flight == 0,
        "it to stop what nobody waits for",
    )


def test_its_answers_are_made_as_those_that_unit_tests_replay(served: Rig) -> None:
    recorded = json.loads(RECORDED.read_text())["states"]["adapted"]
    assert list(get(served, "/health")) == recorded["/health"]
    status, text = get(served, "/v1/models")
    assert [status, keys(json.loads(text))] == [recorded["/v1/models"][0], keys(recorded["/v1/models"][1])]
    ours, theirs = recorded["/v1/models"][1]["data"], json.loads(text)["data"]
    assert [keys(one) for one in theirs] == [keys(one) for one in ours]
    assert [one["parent"] for one in theirs] == [None, "m"]
    assert theirs[1]["root"] == str(served.lab.weights / "lora")


def test_adapters_come_and_go_while_it_serves(served: Rig) -> None:
    lab = served.lab
    engine = lab.pids()
    plain, adapted = (lab.ask(name, "w20 w21", temperature=0) for name in ("m", "sql"))
    assert plain != adapted
    served.write("m", adapters=("fr",))
    lab.commit()
    served.until(lambda: "fr" in models(served) and "sql" not in models(served), "the change")
    served.until(lambda: "serve adapter" not in json.dumps(lab.status()), "the engine to have it")
    assert lab.ask("fr", "w20 w21", temperature=0) == adapted
    assert lab.pids() == engine


def test_what_outlives_a_killed_server_is_ended_before_it_starts_again(served: Rig) -> None:
    before, shared = set(served.engines()), served.shared_memory()
    assert shared
    assert len(served.titled("VLLM::EngineCore")) == len(served.titled("VLLM::Worker")) == 1
    (engine,) = served.lab.pids().values()
    os.kill(engine, signal.SIGKILL)
    served.until(lambda: not any(alive(pid) for pid in before), "all of it to be gone")
    assert not shared & served.shared_memory(), "the memory that they shared is free"
    served.until(lambda: served.lab.ready("m") and served.lab.pids() != {"m-1-0": engine}, "another one")
    assert served.replica("m")["last_end"]["code"] == "killed"
    assert served.lab.ask("m")
    assert set(served.engines()).isdisjoint(before)
    assert len(served.titled("VLLM::EngineCore")) == len(served.titled("VLLM::Worker")) == 1


def test_a_stream_of_a_server_that_somebody_tells_to_end_does_not_end_as_if_it_were_whole(served: Rig) -> None:
    (engine,) = served.lab.pids().values()
    talk = Talk(served, "m", tokens=4000)
    os.kill(engine, signal.SIGTERM)
    talk.end()
    # it finishes what it runs with `abort` as if that were an end, or is too slow to, and closes the connection
    assert "broke off its response: it " in str(talk.error)
    assert talk.finish is None
    assert 0 < len(talk.chunks) < 4000
    served.until(lambda: served.lab.ready("m") and served.lab.pids() != {"m-1-0": engine}, "another one")
    print(f"{talk.error} {served.replica('m')['last_end']}")
    assert served.lab.ask("m")


def test_a_dead_engine_process_is_named_and_the_server_that_ends_with_0_for_it_starts_again(served: Rig) -> None:
    (worker,) = served.titled("VLLM::Worker")
    (engine,) = served.lab.pids().values()
    os.kill(worker, signal.SIGKILL)
    try:
        served.lab.ask("m")
    except openai.OpenAIError as error:
        print(f"a request to it: {error}")
    served.until(lambda: served.lab.ready("m") and served.lab.pids() != {"m-1-0": engine}, "another one")
    end = served.replica("m")["last_end"]
    assert end["code"] == "engine_died", end
    assert served.lab.ask("m")


def test_a_port_stolen_while_it_is_down_is_left_to_its_thief(served: Rig) -> None:
    lab, port = served.lab, served.replica("m")["port"]
    (engine,) = lab.pids().values()
    os.kill(engine, signal.SIGKILL)
    with stolen(lab, port):
        who = f"port {port} is taken by pid {os.getpid()} ("
        served.until(lambda: who in json.dumps(lab.status()) or served.replica("m").get("port") != port, "the thief")
        served.until(lambda: lab.ready("m") and served.replica("m")["port"] != port, "the model at another port")
        assert lab.ask("m")
        with socket.create_connection(("127.0.0.1", port), timeout=2):
            pass


def test_a_deleted_model_is_withdrawn_then_drained_then_stopped(served: Rig) -> None:
    lab, before = served.lab, served.shared_memory()
    assert before
    (engine,) = lab.pids().values()
    tokens = 4000
    talk = Talk(served, "m", tokens)
    (lab.cluster / "models/m.yaml").unlink()
    lab.commit()
    served.until(lambda: served.refuses("m"), "new requests to be refused")
    assert alive(engine)
    assert not talk.ended, "its stream runs on"
    talk.end()
    assert (talk.error, talk.finish) == (None, "length")
    assert talk.usage is not None
    assert talk.usage.completion_tokens == tokens
    served.until(lambda: not served.engines() and not lab.replicas("m"), "all of it to be gone")
    assert not served.shared_memory(), "told to end, it frees what it shared"
