"""What must work end to end, through real processes: git, server, workers, agent, llama.cpp, the `openai` client."""

import json
import os
import signal
import threading
import time
from typing import Any

import openai
import pytest

from tests.live.lab import Lab, alive, fake_yaml, model_yaml


def test_a_commit_becomes_a_served_model_and_nothing_else_restarts(lab: Lab) -> None:
    lab.write("models/one.yaml", model_yaml("one"))
    lab.commit("first")
    lab.start_agent()
    lab.start_server()
    lab.until(lambda: lab.ready("one"), "model one to be ready")
    assert isinstance(lab.ask("one"), str)
    assert lab.plan()[0] == 0
    before = lab.pids()

    lab.write("models/two.yaml", model_yaml("two"))
    code, shown = lab.plan()
    assert code == 2
    assert [(one["actions"], one["kind"], one["name"]) for one in shown["objects"]] == [(["create"], "Model", "two")]
    assert [(one["actions"], one["model"]) for one in shown["replicas"]] == [(["start"], "two")]
    revision = lab.commit("second")
    committed = time.monotonic()
    lab.until(lambda: lab.status()["source"]["in_force"] == revision, "the commit to be in force")
    print(f"commit to validated: {time.monotonic() - committed:.2f} s")  # a figure; the machine may be busy
    lab.until(lambda: lab.ready("two"), "model two to be ready")
    assert isinstance(lab.ask("two"), str)
    after = lab.pids()
    assert {name: after[name] for name in before} == before
    code, shown = lab.plan()
    assert (code, shown["changes"], shown["held"]) == (0, False, [])
    assert "No changes." in lab.llmgw("plan", str(lab.cluster)).stdout


def test_two_replicas_have_ports_of_their_own_and_both_are_asked(lab: Lab) -> None:
    lab.write("models/m.yaml", fake_yaml("m"))
    lab.commit()
    lab.start_agent()
    lab.start_server()
    lab.until(lambda: lab.ready("m"), "one replica")
    first = lab.pids()
    lab.write("models/m.yaml", fake_yaml("m", replicas=2))
    code, shown = lab.plan()
    assert code == 2
    assert shown["objects"][0]["fields"] == [{"path": "replicas", "before": "1", "after": "2", "impact": "live"}]
    assert [one["actions"] for one in shown["replicas"]] == [["start"]]
    lab.commit()
    lab.until(lambda: lab.ready("m", 2), "two replicas")
    assert len({one["port"] for one in lab.replicas("m")}) == 2
    assert lab.pids()["m-1-0"] == first["m-1-0"]
    answers = {lab.ask("m") for _ in range(20)}
    assert len(answers) == 2, answers  # the fake engine's answer names its process


def test_an_alias_is_answered_without_any_restart(lab: Lab) -> None:
    lab.write("models/m.yaml", model_yaml("m"))
    lab.commit()
    lab.start_agent()
    lab.start_server()
    lab.until(lambda: lab.ready("m"), "the model")
    before = lab.pids()
    with pytest.raises(openai.NotFoundError) as refusal:
        lab.ask("gpt-4")
    assert refusal.value.code == "model_not_found"
    lab.write("models/m.yaml", model_yaml("m", aliases="[gpt-4, default]"))
    code, shown = lab.plan()
    assert code == 2
    assert [field["impact"] for field in shown["objects"][0]["fields"]] == ["route"]
    assert shown["replicas"] == []
    lab.commit()
    with lab.client() as client:
        lab.until(
            lambda: {one.id for one in client.models.list()} == {"m", "gpt-4", "default"}, "the alias to be listed"
        )
    assert isinstance(lab.ask("gpt-4"), str)
    assert lab.pids() == before


def test_an_invalid_commit_changes_nothing_and_is_shown_with_its_position(lab: Lab) -> None:
    lab.write("models/x.yaml", model_yaml("x"))
    lab.commit()
    lab.start_agent()
    lab.start_server()
    lab.until(lambda: lab.ready("x"), "the model")
    before = lab.pids()
    good = lab.status()["source"]["in_force"]
    lab.write("models/x.yaml", model_yaml("x").replace("replicas:", "replcas:"))
    code, shown = lab.plan()
    assert code == 1
    assert not shown["valid"]
    bad = lab.commit("a typo")
    status = lab.until(lambda: lab.status()["source"]["refused"] and lab.status(), "the refusal")
    expected = "models/x.yaml:7:1 unknown key 'replcas', did you mean 'replicas'?"
    assert status["source"]["refused"]["problems"][0]["text"] == expected
    assert (status["source"]["in_force"], status["source"]["fetched"]) == (good, bad)
    assert expected in lab.llmgw("status").stdout
    assert expected in lab.llmgw("ctl", "status").stdout
    assert expected in lab.log("server.log")
    assert isinstance(lab.ask("x"), str)
    lab.write("models/x.yaml", model_yaml("x", aliases="[mended]"))
    mended = lab.commit("mended")
    lab.until(lambda: lab.status()["source"]["planned"] == mended, "the mended revision")
    assert lab.status()["source"]["refused"] is None
    assert isinstance(lab.ask("mended"), str)
    assert lab.pids() == before


class Stream:
    """A stream that is read in a thread, so that the test can act in the middle of it."""

    def __init__(self, lab: Lab, model: str) -> None:
        self.chunks: list[str] = []
        self.error: Exception | None = None
        self.finish: str | None = None
        self._lab = lab
        self._model = model
        self.thread = threading.Thread(target=self._read)
        self.thread.start()
        lab.until(lambda: self.chunks or self.error, "the first chunk")

    def _read(self) -> None:
        try:
            with self._lab.client() as client:
                for chunk in client.chat.completions.create(
                    model=self._model, stream=True, messages=[{"role": "user", "content": "hi"}]
                ):
                    if chunk.choices:
                        self.finish = chunk.choices[0].finish_reason
                        self.chunks.append(chunk.choices[0].delta.content or "")
        except openai.OpenAIError as error:
            self.error = error

    def end(self) -> None:
        self.thread.join(60)
        assert not self.thread.is_alive()


def test_a_deleted_model_is_withdrawn_then_drained_then_stopped(lab: Lab) -> None:
    lab.write("models/keep.yaml", fake_yaml("keep"))
    lab.write("models/gone.yaml", fake_yaml("gone", "--chunks", "30", "--chunk-interval", "0.1"))
    lab.commit()
    lab.start_agent()
    lab.start_server()
    lab.until(lambda: lab.ready("gone") and lab.ready("keep"), "both models")
    pid = lab.pids()["gone-1-0"]
    stream = Stream(lab, "gone")
    (lab.cluster / "models/gone.yaml").unlink()
    code, shown = lab.plan()
    assert code == 2
    assert [one["actions"] for one in shown["replicas"]] == [["drain"], ["withdraw"]]
    lab.commit("remove")

    def refused() -> bool:
        try:
            lab.ask("gone")
        except openai.NotFoundError as error:
            return error.code == "model_not_found"
        return False

    lab.until(refused, "new requests to be refused")
    assert alive(pid), "the engine must live while its stream runs"
    assert "gone-1-0" in lab.llmgw("status").stdout
    stream.end()
    assert (stream.error, stream.finish) == (None, "stop")
    assert len(stream.chunks) >= 30
    lab.until(lambda: not alive(pid), "the engine to stop")
    lab.until(lambda: lab.replicas("gone") == [], "the replica to be gone")
    assert isinstance(lab.ask("keep"), str)
    assert lab.plan()[0] == 0


def test_a_killed_engine_comes_back_and_says_why(lab: Lab) -> None:
    lab.write("models/m.yaml", model_yaml("m"))
    lab.commit()
    lab.start_agent()
    lab.start_server()
    lab.until(lambda: lab.ready("m"), "the model")
    pid = lab.pids()["m-1-0"]
    os.kill(pid, signal.SIGKILL)
    refusals: list[openai.APIStatusError] = []

    def refused() -> bool:
        try:
            lab.ask("m")
        except openai.APIStatusError as error:
            refusals.append(error)
        return bool(refusals)

    lab.until(refused, "a refusal while the engine is down")
    assert refusals[0].status_code == 503
    assert int(refusals[0].response.headers["retry-after"]) >= 1
    lab.until(lambda: lab.ready("m") and lab.pids()["m-1-0"] not in (pid, None), "another process")
    assert isinstance(lab.ask("m"), str)
    row = lab.replicas("m")[0]
    assert (row["attempt"], row["last_end"]["attempt"], row["last_end"]["code"]) == (2, 1, "killed")
    shown = lab.llmgw("status").stdout
    assert "attempt 1 killed by SIGKILL" in shown
    first = json.loads(lab.llmgw("logs", "m-1-0", "--attempt", "1", "--json").stdout)
    assert (first["attempt"], first["attempts"]) == (1, [1, 2])
    assert any("--alias m" in line for line in first["lines"])
    assert lab.plan()[0] == 0
    missing = lab.llmgw("logs", "m-1-0", "--attempt", "9")
    assert missing.returncode == 1
    assert "kept: 1, 2" in missing.stderr


def test_a_killed_server_is_replaced_without_touching_engines_or_streams(lab: Lab) -> None:
    lab.write("models/m.yaml", fake_yaml("m", "--chunks", "60", "--chunk-interval", "0.1"))
    lab.commit()
    lab.start_agent()
    server = lab.start_server()
    lab.until(lambda: lab.ready("m"), "the model")
    before = lab.status()
    stream = Stream(lab, "m")
    server.kill()
    server.wait()
    assert isinstance(Answer(lab, "m").text, str), "the worker serves without its control plane"
    lab.start_server()
    lab.until(lambda: lab.ready("m"), "the model to be published again")
    after = lab.status()
    assert after["replicas"][0]["pid"] == before["replicas"][0]["pid"]
    assert after["replicas"][0]["attempt"] == 1
    assert after["replicas"][0]["port"] == before["replicas"][0]["port"]
    assert after["control"]["epoch"] > before["control"]["epoch"]
    lab.until(lambda: isinstance(Answer(lab, "m").text, str), "the new worker")
    stream.end()
    assert (stream.error, stream.finish) == (None, "stop"), "a stream through the old worker runs to its end"
    lab.until(lambda: lab.status()["control"]["workers"] and len(lab.status()["control"]["workers"]) == 1, "one worker")
    assert lab.plan()[0] == 0


class Answer:
    """One short answer of the fake engine, whatever its chunk interval."""

    def __init__(self, lab: Lab, model: str) -> None:
        with lab.client() as client:
            stream: Any = client.chat.completions.create(
                model=model, stream=True, messages=[{"role": "user", "content": "hi"}]
            )
            self.text = next(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
            stream.close()


def test_a_killed_agent_is_replaced_and_adopts_its_engine(lab: Lab) -> None:
    lab.write("models/m.yaml", model_yaml("m"))
    lab.commit()
    agent = lab.start_agent()
    lab.start_server()
    lab.until(lambda: lab.ready("m"), "the model")
    pid = lab.pids()["m-1-0"]
    agent.kill()
    agent.wait()
    lab.until(lambda: lab.node()["state"] == "unreachable", "the loss to be noticed")
    assert isinstance(lab.ask("m"), str), "an engine outlives its agent, and stays published"
    lab.start_agent()
    lab.until(lambda: lab.node()["state"] == "reporting", "the agent to be back")
    lab.until(lambda: lab.ready("m"), "the model")
    row = lab.replicas("m")[0]
    assert (row["pid"], row["attempt"], row["phase"]) == (pid, 1, "ready")
    assert isinstance(lab.ask("m"), str)
    assert lab.plan()[0] == 0
    os.kill(pid, signal.SIGKILL)
    lab.until(lambda: lab.ready("m") and lab.pids()["m-1-0"] != pid, "an adopted engine's end to be noticed")


def test_an_agent_that_stops_leaves_its_engines_and_an_ephemeral_one_does_not(lab: Lab) -> None:
    lab.write("models/m.yaml", model_yaml("m"))
    lab.commit()
    agent = lab.start_agent()
    lab.start_server()
    lab.until(lambda: lab.ready("m"), "the model")
    pid = lab.pids()["m-1-0"]
    agent.terminate()
    assert agent.wait(10) == 0
    assert alive(pid)
    agent = lab.start_agent("--ephemeral")
    lab.until(lambda: lab.ready("m") and lab.pids()["m-1-0"] == pid, "the engine to be adopted")
    agent.terminate()
    assert agent.wait(20) == 0
    assert not alive(pid)


def test_changed_arguments_roll_over_without_a_gap(lab: Lab) -> None:
    lab.write("models/m.yaml", fake_yaml("m"))
    lab.commit()
    lab.start_agent()
    lab.start_server()
    lab.until(lambda: lab.ready("m"), "the model")
    before = lab.pids()
    lab.write("models/m.yaml", fake_yaml("m", "--load-seconds", "1"))
    code, shown = lab.plan()
    assert code == 2
    assert [field["impact"] for field in shown["objects"][0]["fields"]] == ["restart"]
    assert any(one["waits_for"] == "1 more to serve first" for one in shown["held"])
    lab.commit()
    answers = 0

    def rolled_over() -> bool:
        nonlocal answers
        assert isinstance(lab.ask("m"), str)
        answers += 1
        return set(lab.pids().values()).isdisjoint(before.values()) and lab.ready("m")

    lab.until(rolled_over, "the new replica to take over")
    assert answers > 5
