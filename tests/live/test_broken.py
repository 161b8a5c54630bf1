"""What an attacker's afternoon found, one test a kind: damaged files, damaged git, hung workers, two masters."""

import os
import signal
import socket
from pathlib import Path

from tests.live.lab import CLUSTER, Lab, alive, fake_yaml, model_yaml
from tests.live.test_skeleton import Stream

SLOW = ("--chunks", "60", "--chunk-interval", "0.1")


def _serving(lab: Lab, *flags: str) -> tuple[int, int]:
    """Serve one model by the fake engine; return the engine's and the worker's pid."""
    lab.write("models/m.yaml", fake_yaml("m", *flags))
    lab.commit()
    lab.agent = lab.start_agent()
    lab.server = lab.start_server()
    lab.until(lambda: lab.ready("m"), "the model")
    return lab.pids()["m-1-0"], lab.status()["control"]["workers"][0]


def _object(lab: Lab, digest: str) -> Path:
    return lab.cluster / ".git/objects" / digest[:2] / digest[2:]


def test_a_commit_whose_contents_are_missing_changes_nothing_and_is_named(lab: Lab) -> None:
    engine, _ = _serving(lab, *SLOW)
    good = lab.status()["source"]["in_force"]
    stream = Stream(lab, "m")
    lab.write("models/new.yaml", model_yaml("new"))
    lab.git("add", "-A")
    lab.git("commit", "-q", "-m", "will be damaged")
    blob = lab.git("rev-parse", "HEAD:models/new.yaml")
    aside = lab.root / "blob"
    lab.git("reset", "-q", "--hard", "HEAD~1")
    bad = lab.git("rev-parse", "ORIG_HEAD")
    _object(lab, blob).rename(aside)
    lab.git("update-ref", "HEAD", bad)
    failed = lab.until(lambda: lab.status()["source"]["failed"], "the damage to be noticed")
    assert "models/new.yaml" in failed
    assert "git fsck" in failed
    assert lab.status()["source"]["in_force"] == good
    lab.server.kill()
    lab.server.wait()
    lab.start_server()
    lab.until(lambda: lab.ready("m"), "the last good revision to be served after a restart, too")
    aside.rename(_object(lab, blob))
    lab.until(lambda: lab.ready("new"), "the mended commit")
    stream.end()
    assert (stream.error, stream.finish) == (None, "stop")
    assert lab.pids()["m-1-0"] == engine


def _restart_agent(lab: Lab) -> None:
    lab.agent.kill()
    lab.agent.wait()


def test_an_order_that_is_damaged_on_disk_stops_nothing(lab: Lab) -> None:
    engine, _ = _serving(lab, *SLOW)
    stream = Stream(lab, "m")
    _restart_agent(lab)
    order = lab.root / "ag/order.json"
    order.write_bytes(order.read_bytes()[:50])
    lab.start_agent()
    lab.until(lambda: lab.ready("m") and lab.node()["state"] == "reporting", "the model")
    stream.end()
    assert (stream.error, stream.finish) == (None, "stop")
    assert lab.pids() == {"m-1-0": engine}


def test_a_record_that_is_damaged_on_disk_stops_nothing(lab: Lab) -> None:
    engine, _ = _serving(lab, *SLOW)
    stream = Stream(lab, "m")
    _restart_agent(lab)
    (lab.root / "ag/shards/m-1-0.s0.json").write_text("garbage")
    lab.start_agent()
    lab.until(lambda: lab.ready("m") and lab.node()["state"] == "reporting", "the model")
    stream.end()
    assert (stream.error, stream.finish) == (None, "stop")
    assert lab.pids() == {"m-1-0": engine}


def test_an_engine_that_is_too_busy_to_answer_an_adopting_agent_is_still_ready(lab: Lab) -> None:
    engine, _ = _serving(lab, *SLOW)
    stream = Stream(lab, "m")
    port = lab.replicas("m")[0]["port"]
    _switch(port, '{"health_status": 503}')
    _restart_agent(lab)
    lab.start_agent()
    lab.until(lambda: lab.node()["state"] == "reporting", "the agent to be back")
    assert lab.ready("m")
    stream.end()
    assert stream.error is None
    assert lab.pids() == {"m-1-0": engine}


def _switch(port: int, body: str) -> None:
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    connection.request("POST", "/switches", body, {"content-type": "application/json"})
    assert connection.getresponse().status == 200
    connection.close()


def test_an_engine_of_a_wiped_agent_is_named(lab: Lab) -> None:
    engine, _ = _serving(lab)
    _restart_agent(lab)
    (lab.root / "ag/id").write_text("")
    lab.start_agent()

    def is_named() -> bool:
        told = [line for line in lab.log("agent.log").splitlines() if "another agent's state directory" in line]
        return any(f"pid={engine}" in line for line in told)

    lab.until(is_named, "the foreign engine to be named")
    assert alive(engine), "what is not provably ours is not killed"


def test_two_clusters_on_one_agent_are_told_apart(lab: Lab) -> None:
    engine, _ = _serving(lab)
    other = lab.root / "other"
    other.mkdir()
    (other / "cluster.yaml").write_text(CLUSTER.replace("name: lab", "name: intruder"))
    (other / "node.yaml").write_text((lab.cluster / "nodes/local.yaml").read_text())
    intruder = lab.spawn(
        "server", "--worktree", str(other), "--listen", "127.0.0.1:0", log="intruder.log",
        env={"LLMGW_STATE_DIR": str(lab.root / "i")},
    )  # fmt: skip
    lab.until(lambda: "for cluster lab, not intruder" in lab.log("intruder.log"), "the refusal", intruder)
    lab.until(lambda: "cluster intruder was refused" in lab.log("agent.log"), "the agent's word")
    assert lab.ready("m")
    assert lab.pids() == {"m-1-0": engine}


def test_a_hung_worker_is_killed_and_replaced(lab: Lab) -> None:
    _, worker = _serving(lab)
    os.kill(worker, signal.SIGSTOP)
    lab.until(lambda: not alive(worker), "the hung worker to be killed")
    lab.until(lambda: lab.status()["control"]["workers"] not in ([], [worker]), "another worker")
    lab.until(lambda: _answers(lab), "the gateway to answer")


def _answers(lab: Lab) -> bool:
    import openai

    try:
        return bool(lab.ask("m"))
    except openai.APIError:
        return False


def test_a_worker_that_was_left_behind_is_found_without_any_record(lab: Lab) -> None:
    _, worker = _serving(lab)
    lab.server.kill()
    lab.server.wait()
    for left in (lab.root / "s").glob("*.json"):
        left.unlink()
    lab.start_server()
    lab.until(lambda: not alive(worker), "the old worker to be retired")
    lab.until(lambda: _answers(lab), "the gateway to answer")


def test_what_is_in_the_way_of_the_admin_socket_is_not_removed(lab: Lab) -> None:
    lab.commit()
    file = lab.root / "precious"
    file.write_text("data")
    done = lab.llmgw("server", str(lab.cluster), "--listen", "127.0.0.1:0", "--admin-socket", str(file))
    assert (done.returncode, file.read_text()) == (1, "data")
    assert "not a socket" in done.stderr
    lab.start_server()
    done = lab.llmgw(
        "server",
        str(lab.cluster),
        "--listen",
        "127.0.0.1:0",
        "--state-dir",
        str(lab.root / "t"),
        "--admin-socket",
        str(lab.admin),
    )
    assert done.returncode == 1
    assert "another server listens there" in done.stderr
    assert lab.answers()


def test_nonsense_to_the_admin_api_is_refused_and_nothing_breaks(lab: Lab) -> None:
    lab.commit()
    lab.start_server()
    for head in (b"POST /v1/plan", b"GET /v1/logs?replica=x&lines=%C2%B2", b"GET /v1/logs?attempt=" + b"9" * 5000):
        for body in (b"", b"{", b"\xff", b"[" * 100_000, b"[]", b'{"files": {"x": 3}}'):
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(str(lab.admin))
                client.settimeout(10)
                client.sendall(
                    head + b" HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nconnection: close\r\n"
                    b"content-length: %d\r\n\r\n" % len(body) + body
                )
                answer = client.recv(100)
                assert answer.startswith((b"HTTP/1.1 400", b"HTTP/1.1 404")), (head, body[:20], answer)
    assert "Traceback" not in lab.log("server.log")
    assert lab.answers()


def test_a_node_that_left_while_no_server_ran_is_emptied_before_it_is_forgotten(lab: Lab) -> None:
    engine, _ = _serving(lab)
    lab.server.terminate()
    assert lab.server.wait(20) == 0
    assert alive(engine)
    (lab.cluster / "nodes/local.yaml").unlink()
    (lab.cluster / "models/m.yaml").unlink()
    lab.commit("node and model are gone")
    lab.start_server()
    lab.until(lambda: not alive(engine), "the engine to be stopped")
    lab.until(lambda: lab.status()["nodes"] == [], "the empty node to be forgotten")
    lab.server = lab.processes[-1]
    lab.server.terminate()
    assert lab.server.wait(20) == 0
    lab.start_server()
    assert lab.status()["nodes"] == [], "what was empty is not remembered"
