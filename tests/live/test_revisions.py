"""Revisions in a cluster of real processes: commits, guards, rollbacks, suspensions, and applies through the admin API."""

import base64
import http.client
import json
import socket
from typing import Any

import openai
import pytest

from llmgw.cli.client import ask
from llmgw.cli.outcomes import Failed, GuardRefused
from tests.live.lab import CLUSTER, Lab, fake_yaml

BROKEN = "--exit-at-once", "1"


def _cluster(lab: Lab, extra: str = "") -> None:
    text = (lab.cluster / "cluster.yaml").read_text()
    ports = next(line for line in text.splitlines() if line.startswith("  ports"))
    impatient = CLUSTER.replace("max: 2s", "max: 1s, give_up_after: 2")
    lab.write("cluster.yaml", f"{impatient}{ports}\n{extra}")


def _start(lab: Lab) -> None:
    lab.agent = lab.start_agent()
    lab.server = lab.start_server()


def _stage(lab: Lab, name: str) -> str | None:
    stage = lab.status()["revisions"][name]
    return stage["revision"] if stage else None


def _applied(lab: Lab, revision: str) -> None:
    lab.until(lambda: _stage(lab, "applied") == revision, f"{revision[:10]} to be applied")


def _waits(lab: Lab, kind: str) -> dict[str, Any]:
    return lab.until(
        lambda: (found := lab.status()["waiting"]) and found["kind"] == kind and found, f"waiting for {kind}"
    )


def _metrics(lab: Lab) -> str:
    connection = http.client.HTTPConnection("localhost")
    connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.sock.connect(str(lab.admin))
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().read().decode()
    finally:
        connection.close()


def _restart(lab: Lab) -> None:
    lab.server.kill()
    lab.server.wait()
    lab.server = lab.start_server()


def test_the_four_revisions_and_the_history_of_good_bad_and_failing_commits(lab: Lab) -> None:
    _cluster(lab)
    lab.write("models/m.yaml", fake_yaml("m"))
    first = lab.commit("the first")
    _start(lab)
    _applied(lab, first)
    lab.write("models/m.yaml", fake_yaml("m").replace("llamacpp", "nonsense"))
    bad = lab.commit("a bad one")
    lab.until(lambda: _stage(lab, "fetched") == bad, "the bad one to be fetched")
    lab.until(lambda: lab.status()["source"]["refused"], "it to be refused")
    assert [_stage(lab, name) for name in ("validated", "attempted", "applied")] == [first] * 3
    lab.write("models/m.yaml", fake_yaml("m", *BROKEN))
    failing = lab.commit("a failing one")
    lab.until(lambda: lab.status()["attempt"]["outcome"] == "failed", "the failing one to fail")
    assert [_stage(lab, name) for name in ("fetched", "validated", "attempted", "applied")] == [failing] * 3 + [first]
    lab.write("models/m.yaml", fake_yaml("m", "--chunks", "3"))
    mended = lab.commit("a mended one")
    _applied(lab, mended)
    shown = ask(str(lab.admin), "GET", "/v1/history")["revisions"]
    assert [(one["revision"], one["outcome"], one["by"]) for one in shown] == [
        (mended, "applied", "lab"), (failing, "failed", "lab"), (bad, "refused", "lab"), (first, "applied", "lab"),
    ]  # fmt: skip
    lines = lab.llmgw("history").stdout.splitlines()
    assert [line.split()[:2] for line in lines[1:]] == [
        [mended[:10], "applied"], [failing[:10], "failed"], [bad[:10], "refused"], [first[:10], "applied"],
    ]  # fmt: skip
    text = lab.llmgw("status").stdout
    for name in ("fetched", "validated", "attempted", "applied"):
        assert any(line.startswith(name) and "a mended one (lab)" in line for line in text.splitlines()), text


def test_a_guard_keeps_a_protected_model_until_a_trailer_names_it(lab: Lab) -> None:
    _cluster(lab, "guard:\n  protect: ['model/pre*']\n")
    lab.write("models/precious.yaml", fake_yaml("precious"))
    lab.write("models/other.yaml", fake_yaml("other"))
    first = lab.commit()
    _start(lab)
    _applied(lab, first)
    lab.git("rm", "-q", "models/precious.yaml")
    _cluster(lab)
    refused = lab.commit("clean up\n\nLLMGW-Allow-Remove: model/other")
    waiting = _waits(lab, "guard")
    assert waiting["guard"][0]["objects"] == ["model/precious"]
    assert waiting["guard"][0]["trailer"] == "LLMGW-Allow-Remove: model/precious"
    assert lab.status()["source"]["in_force"] == first
    told = lab.llmgw("status").stdout
    assert "model/precious (guard.protect: model/pre*), which is protected" in told
    assert "end the commit's message with the line `LLMGW-Allow-Remove: model/precious`" in told
    assert lab.plan()[1]["guard"][0]["objects"] == ["model/precious"]
    with pytest.raises(GuardRefused, match="--allow-remove model/precious"):
        ask(str(lab.admin), "POST", "/v1/apply", {"revision": refused})
    named = lab.commit("clean up\n\nIt is meant.\n\nLLMGW-Allow-Remove: model/precious")
    _applied(lab, named)
    assert [one["model"] for one in lab.status()["replicas"]] == ["other"]


def test_a_rollback_holds_until_the_next_commit_and_says_how_to_make_it_permanent(lab: Lab) -> None:
    lab.write("models/m.yaml", fake_yaml("m", "--chunks", "2"))
    good = lab.commit("good")
    _start(lab)
    _applied(lab, good)
    lab.write("models/m.yaml", fake_yaml("m", "--chunks", "3"))
    bad = lab.commit("bad")
    _applied(lab, bad)
    done = lab.llmgw("rollback")
    assert done.returncode == 0, done
    revert = f"git revert --no-edit {good[:12]}..{bad[:12]}"
    assert revert in done.stdout
    _applied(lab, good)
    _restart(lab)
    waiting = _waits(lab, "held")
    assert "rolled back from" in waiting["text"]
    assert lab.status()["source"]["in_force"] == good
    assert lab.plan()[1]["waiting"]["kind"] == "held"
    assert f"rolled back from {bad[:10]} to {good[:10]}" in lab.llmgw("status").stdout
    lab.git("commit", "-q", "--amend", "--allow-empty", "-m", "bad", "--date", "2026-01-01T00:00Z")
    lab.git("reset", "-q", "--hard", bad)
    lab.git(*revert.split()[1:])
    permanent = lab.git("rev-parse", "HEAD")
    _applied(lab, permanent)
    assert lab.status()["waiting"] is None
    assert [one["outcome"] for one in ask(str(lab.admin), "GET", "/v1/history?limit=4")["revisions"]][-3:] == [
        "applied", "rolled_back", "applied",
    ]  # fmt: skip


def test_a_suspension_outlives_a_restart_and_nothing_changes_until_it_ends(lab: Lab) -> None:
    lab.write("models/m.yaml", fake_yaml("m"))
    first = lab.commit()
    _start(lab)
    _applied(lab, first)
    engines = lab.pids()
    assert lab.llmgw("suspend", "--until", "1h").returncode == 64, "a reason is mandatory"
    refused = lab.llmgw("suspend", "--reason", "x", "--until", "30d")
    assert (refused.returncode, "at most 7d" in refused.stderr) == (64, True)
    done = lab.llmgw("suspend", "--reason", "a new switch", "--until", "1h")
    assert "(a new switch)" in done.stdout, done
    lab.write("models/m.yaml", fake_yaml("m", "--chunks", "3"))
    lab.write("models/n.yaml", fake_yaml("n"))
    second = lab.commit()
    _waits(lab, "suspended")
    _restart(lab)
    lab.until(lambda: lab.ready("m"), "the model after the restart")
    _waits(lab, "suspended")
    assert lab.status()["source"]["in_force"] == first
    assert lab.pids() == engines
    assert "! suspended by" in lab.llmgw("status").stdout
    code, plan = lab.plan()
    assert plan["suspended"]["reason"] == "a new switch"
    assert plan["replicas"] == []
    assert any("the end of the suspension" in one["waits_for"] for one in plan["held"]), (code, plan["held"])
    with pytest.raises(Failed, match="run `llmgw resume` first"):
        ask(str(lab.admin), "POST", "/v1/apply", {"revision": second})
    metrics = _metrics(lab)
    assert "llmgw_suspended 1.0" in metrics
    assert "Resumed" in lab.llmgw("resume").stdout
    _applied(lab, second)
    assert lab.status()["suspended"] is None


def test_by_hand_nothing_is_taken_up_until_an_apply_which_tells_how_far_it_is(lab: Lab) -> None:
    _cluster(lab, "sync: manual\n")
    lab.write("models/m.yaml", fake_yaml("m"))
    first = lab.commit("first")
    _start(lab)
    _waits(lab, "manual")
    assert lab.status()["source"]["in_force"] is None
    assert "waits: it waits for `llmgw apply`" in lab.llmgw("status").stdout
    with pytest.raises(openai.APIStatusError):
        lab.ask("m")
    admin = str(lab.admin)
    begun = ask(admin, "POST", "/v1/apply", {"revision": first, "by": "ci"})
    assert begun["phase"] in ("planning", "under_way")
    assert begun["by"].startswith("ci (user/")  # what it calls itself, and who it is
    path = f"/v1/apply/{begun['id']}"
    lab.until(lambda: ask(admin, "GET", path)["phase"] == "applied", "the first apply")
    done = ask(admin, "GET", path)
    assert (done["healthy"], done["todo"], done["models"]) == (True, [], [{"model": "m", "ready": 1, "wanted": 1}])
    lab.write("models/m.yaml", fake_yaml("m", *BROKEN))
    second = lab.commit("second")
    lab.until(lambda: _stage(lab, "validated") == second, "the second commit")
    assert lab.status()["source"]["in_force"] == first
    begun = ask(admin, "POST", "/v1/apply", {"revision": second[:12], "by": "ci"})
    _restart(lab)
    path = f"/v1/apply/{begun['id']}"
    lab.until(lambda: ask(admin, "GET", path)["phase"] == "failed", "the second apply to fail")
    shown = ask(admin, "GET", path)
    assert shown["evidence"][0]["model"] == "m"
    assert shown["evidence"][0]["reason"]
    assert shown["evidence"][0]["log"], "the last lines of the engine's output"
    files = {
        "cluster.yaml": (lab.cluster / "cluster.yaml").read_text(),
        "nodes/local.yaml": (lab.cluster / "nodes/local.yaml").read_text(),
    }
    files["models/m.yaml"] = fake_yaml("m", "--chunks", "5")
    tree = {
        "revision": "worktree-5",
        "files": {path: base64.b64encode(text.encode()).decode() for path, text in files.items()},
    }
    mine = ask(admin, "POST", "/v1/apply", {"tree": tree, "by": "bob"})
    lab.until(lambda: ask(admin, "GET", f"/v1/apply/{mine['id']}")["phase"] == "applied", "the apply of a tree")
    assert lab.status()["waiting"]["kind"] == "passed over"
    files["models/m.yaml"] = "nonsense: 1\n"
    tree["files"] = {path: base64.b64encode(text.encode()).decode() for path, text in files.items()}
    for body, said in [
        ({"tree": tree}, "is not valid: models/m.yaml:1:1"),
        ({"revision": "f00dcafe"}, "not one that"),
        ({}, "must have"),
    ]:
        with pytest.raises(Failed, match=said):
            ask(admin, "POST", "/v1/apply", body)
    with pytest.raises(Failed, match="there is no apply x"):
        ask(admin, "GET", "/v1/apply/x")
    assert json.loads(lab.llmgw("history", "--json").stdout)["revisions"][0]["by"].startswith("bob (")
