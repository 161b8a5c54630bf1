"""`llmgw apply` on a live server: it waits until all is well, fails with the evidence, and two of them never mix."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from llmgw.cli.client import ask
from tests.live.lab import CLUSTER, Lab, fake_yaml


@pytest.fixture
def manual(lab: Lab) -> Lab:
    """A lab whose directory takes up nothing by itself, and where one model was applied."""
    ports = next(line for line in (lab.cluster / "cluster.yaml").read_text().splitlines() if line.startswith("  ports"))
    impatient = CLUSTER.replace("max: 2s", "max: 1s, give_up_after: 2")
    lab.write("cluster.yaml", f"{impatient}{ports}\nsync: manual\nguard:\n  protect: ['model/m']\n")
    lab.write("models/m.yaml", fake_yaml("m"))
    lab.commit("the first")
    lab.start_agent()
    lab.start_server()
    done = lab.llmgw("apply", str(lab.cluster), "--rev", "HEAD")
    assert done.returncode == 0, done.stderr
    assert lab.ready("m")
    return lab


def starting(lab: Lab, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "llmgw", "apply", *arguments]
    return subprocess.Popen(
        command, env=lab.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def under_way(lab: Lab) -> bool:
    rows = ask(str(lab.admin), "GET", "/v1/history?limit=5")["revisions"]
    return any(one["outcome"] == "under_way" for one in rows)


def test_it_ends_when_all_is_healthy_and_a_second_time_at_once(manual: Lab) -> None:
    manual.write("models/m.yaml", fake_yaml("m", "--load-seconds", "1", replicas=2))
    done = manual.llmgw("apply", str(manual.cluster))
    assert done.returncode == 0, done.stderr
    assert manual.ready("m", 2)
    assert "is applied: nothing is left to do, and 2 replica(s) serve." in done.stdout
    again = manual.llmgw("apply", str(manual.cluster), "--json")
    assert (again.returncode, json.loads(again.stdout)["phase"]) == (0, "applied")


def test_a_rollout_that_fails_ends_it_with_5_and_the_evidence(manual: Lab) -> None:
    manual.write("models/m.yaml", fake_yaml("m", "--exit-at-once", "1"))
    done = manual.llmgw("apply", str(manual.cluster), "--timeout", "55s")
    assert done.returncode == 5
    assert "failed: model/m" in done.stderr
    assert "`llmgw logs m-" in done.stderr
    assert manual.ask("m")


def test_a_guard_refuses_with_4_and_the_override_that_works(manual: Lab) -> None:
    (manual.cluster / "models/m.yaml").unlink()
    manual.write("models/other.yaml", fake_yaml("other"))
    done = manual.llmgw("apply", str(manual.cluster))
    assert (done.returncode, done.stderr.count("\n")) == (4, 1)
    assert "--allow-remove model/m" in done.stderr
    done = manual.llmgw("apply", str(manual.cluster), "--allow-remove", "model/m")
    assert done.returncode == 0, done.stderr
    assert manual.ready("other")


def test_of_two_at_once_the_second_is_refused_or_waits_and_ctrl_c_stops_nothing(manual: Lab) -> None:
    manual.write("models/m.yaml", fake_yaml("m", "--load-seconds", "4"))
    first = starting(manual, str(manual.cluster))
    manual.until(lambda: under_way(manual), "the first to be under way")
    manual.write("models/n.yaml", fake_yaml("n"))
    refused = manual.llmgw("apply", str(manual.cluster))
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
    assert "--wait-for-other" in refused.stderr
    second = starting(manual, str(manual.cluster), "--wait-for-other")
    assert second.stdout is not None
    assert second.stdout.readline().startswith("waiting for apply ")
    first.send_signal(signal.SIGINT)
    _, errors = first.communicate(timeout=20)
    assert first.returncode == 130
    assert "the server goes on with revision" in errors
    said, errors = second.communicate(timeout=60)
    assert second.returncode == 0, errors
    assert "is applied" in said
    assert manual.ready("m")
    assert manual.ready("n")
    newest = ask(str(manual.admin), "GET", "/v1/history?limit=5")["revisions"]
    assert [one["outcome"] for one in newest][:2] == ["applied", "applied"]


def test_a_saved_plan_is_applied_once(manual: Lab, tmp_path: Path) -> None:
    manual.write("models/n.yaml", fake_yaml("n"))
    file = tmp_path / "plan.json"
    assert manual.llmgw("plan", str(manual.cluster), "--out", str(file)).returncode == 0
    manual.write("models/n.yaml", "kind: [")
    done = manual.llmgw("apply", str(file))
    assert done.returncode == 0, done.stderr
    assert manual.ready("n")
    again = manual.llmgw("apply", str(file))
    assert again.returncode == 3
    assert "it was applied already" in again.stderr
