"""A node behind a real sshd: pinned host key, agent over `direct-streamlocal`, engine traffic through the tunnel."""

import os
import signal

import openai
import pytest

from tests.live.lab import Lab, fake_yaml, model_yaml
from tests.live.sshd import Sshd, tunnels
from tests.live.test_skeleton import Stream


def test_a_node_over_ssh_serves_through_its_tunnel(lab: Lab) -> None:
    sshd = Sshd(lab)
    (lab.cluster / "nodes/local.yaml").unlink()
    lab.write("nodes/far.yaml", sshd.node_yaml("far", sshd.public(sshd.host_key), lab.root / "a.sock"))
    lab.write("models/m.yaml", model_yaml("m"))
    lab.write("models/slow.yaml", fake_yaml("slow", "--chunks", "20", "--chunk-interval", "0.1"))
    lab.commit()
    lab.start_agent()
    lab.server = lab.start_server()
    lab.until(lambda: lab.ready("m") and lab.ready("slow"), "the models")
    row = lab.replicas("m")[0]
    assert row["node"] == "far"
    assert row["address"].startswith("unix:"), "the gateway goes through the tunnel, not straight to the port"
    assert isinstance(lab.ask("m"), str)
    stream = Stream(lab, "slow")
    stream.end()
    assert (stream.error, stream.finish) == (None, "stop")
    assert lab.plan()[0] == 0

    before = lab.pids()
    sessions = [sshd.session_of(lab.server.pid), sshd.session_of(tunnels(lab)[0])]
    sshd.stop()
    for session in sessions:
        os.kill(session, signal.SIGKILL)
    lab.until(lambda: lab.node()["state"] == "unreachable", "the loss to be noticed")
    lab.until(lambda: not lab.ready("m"), "the endpoint without a way to it to be withdrawn")
    assert "does not answer" in lab.log("server.log")
    sshd.process = sshd.start(sshd.host_key)
    lab.until(lambda: lab.ready("m"), "the model to be served again")
    assert isinstance(lab.ask("m"), str)
    assert lab.pids() == before, "a lost connection is not a lost engine"


def test_a_wrong_host_key_is_refused_with_what_to_do(lab: Lab) -> None:
    sshd = Sshd(lab)
    (lab.cluster / "nodes/local.yaml").unlink()
    other = sshd.public(sshd.key("other"))
    lab.write("nodes/far.yaml", sshd.node_yaml("far", other, lab.root / "a.sock"))
    lab.write("models/m.yaml", model_yaml("m"))
    lab.commit()
    lab.start_agent()
    lab.start_server()
    node = lab.until(lambda: "pinned" in str(lab.node()["why"]) and lab.node(), "the refusal")
    assert node["state"] == "never seen"
    assert f"ssh-keyscan -p {sshd.port} 127.0.0.1" in node["why"]
    assert "Accepted publickey" not in lab.log("sshd.log"), "no credential may be shown to an unknown host"
    with pytest.raises(openai.APIStatusError) as refusal:
        lab.ask("m")
    assert refusal.value.status_code == 503
    lab.write("nodes/far.yaml", sshd.node_yaml("far", sshd.public(sshd.host_key), lab.root / "a.sock"))
    lab.commit("the right key")
    lab.until(lambda: lab.ready("m"), "the model, once the right key is pinned")


def test_a_login_that_is_refused_and_an_agent_that_is_missing_are_told_apart(lab: Lab) -> None:
    sshd = Sshd(lab)
    (lab.cluster / "nodes/local.yaml").unlink()
    lab.write("nodes/far.yaml", sshd.node_yaml("far", sshd.public(sshd.host_key), lab.root / "a.sock"))
    lab.commit()
    lab.start_server()
    lab.until(lambda: "start `llmgw agent` there" in str(lab.node()["why"]), "the missing agent")
    sshd.authorized.write_text("")
    lab.write("nodes/far.yaml", sshd.node_yaml("far", sshd.public(sshd.host_key), lab.root / "b.sock"))
    lab.commit("another socket, so that it connects anew")
    lab.until(lambda: "authorized_keys" in str(lab.node()["why"]), "the refused login")
