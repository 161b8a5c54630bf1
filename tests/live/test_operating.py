"""What operators do by command, through a real server: acts that outlive it, tables, explanations, suppositions."""

import json
import signal
import subprocess
import sys
import time

from tests.live.lab import Lab, alive, fake_yaml


def test_a_node_is_cordoned_by_command_over_a_restart_of_the_server_and_taken_back(lab: Lab) -> None:
    lab.write("models/m.yaml", fake_yaml("m"))
    lab.commit()
    lab.start_agent()
    server = lab.start_server()
    lab.until(lambda: lab.ready("m"), "one replica")
    name = lab.node()["name"]
    refused = lab.llmgw("cordon", f"node/{name}")
    assert (refused.returncode, refused.stderr.count("\n")) == (64, 1)
    assert "--reason" in refused.stderr
    missing = lab.llmgw("drain", "node/zz", "--reason", "r")
    assert (missing.returncode, missing.stderr) == (1, f"llmgw: there is no node 'zz'; there are: {name}\n")
    assert lab.llmgw("cordon", f"node/{name}", "--reason", "strange noise", "--until", "2h").returncode == 0

    lab.write("models/n.yaml", fake_yaml("n"))
    lab.commit("a second model")
    lab.until(
        lambda: any("strange noise" in text for one in lab.status()["models"] for text in one["waits_for"]), "a hold"
    )
    said = lab.llmgw("explain", "model/n").stdout
    assert f"{name}: cordoned (strange noise)" in said
    assert "cordon node/" in lab.llmgw("status").stdout
    assert "Asked for by operators:" in lab.llmgw("plan", str(lab.cluster)).stdout

    server.send_signal(signal.SIGTERM)
    server.wait(30)
    lab.start_server()
    lab.until(lambda: lab.ready("m"), "the replica again")
    time.sleep(1.0)  # a round in which the second model would be started
    assert not lab.ready("n")
    assert lab.llmgw("uncordon", f"node/{name}").returncode == 0
    lab.until(lambda: lab.ready("n"), "the second model, once nothing is in its way")
    assert lab.llmgw("uncordon", f"node/{name}").returncode == 1


def test_tables_events_and_suppositions_come_from_the_running_server(lab: Lab) -> None:
    lab.write("models/m.yaml", fake_yaml("m"))
    lab.commit()
    lab.start_agent()
    lab.start_server()
    lab.until(lambda: lab.ready("m"), "one replica")
    rows = json.loads(lab.llmgw("get", "replicas", "-o", "json", "--filter", "model=m").stdout)
    assert [one["replica"] for one in rows] == ["m-1-0"]
    lab.until(lambda: "publish" in lab.llmgw("get", "events", "--filter", "subject=model/m").stdout, "the event")
    assert lab.llmgw("get", "gpus").returncode == 0
    name = lab.node()["name"]
    supposed = lab.llmgw("plan", "--what-if", f"node {name} lost")
    assert supposed.stdout.startswith(f"If node {name} lost:\n"), supposed.stderr
    assert lab.llmgw("plan", "--what-if", "the moon falls").stderr.startswith(
        "llmgw: 'the moon falls' cannot be supposed"
    )
    pid = lab.pids()["m-1-0"]
    assert lab.llmgw("restart", "model/m", "--reason", "a leak").returncode == 0
    lab.until(lambda: lab.ready("m") and "m-1-0" not in lab.pids(), "another replica in its place")
    assert not alive(pid)


def test_watching_the_status_ends_with_ctrl_c(lab: Lab) -> None:
    lab.write("models/m.yaml", fake_yaml("m"))
    lab.commit()
    lab.start_server()
    command = [sys.executable, "-m", "llmgw", "status", "--watch", "0.2", "--server", str(lab.admin)]
    watching = subprocess.Popen(command, env=lab.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert watching.stdout is not None
    seen = 0
    while seen < 2:
        seen += watching.stdout.readline().startswith(b"revision ")
    watching.send_signal(signal.SIGINT)
    _, errors = watching.communicate(timeout=20)
    assert (watching.returncode, errors) == (0, b"")
