"""Bad input: one clear line that says what to do, exit code 1, no traceback, no process left behind."""

import os
import socket
import subprocess
import sys

import pytest

from tests.live.lab import CLUSTER, Lab, fake_yaml, model_yaml


def _refused(lab: Lab, done: subprocess.CompletedProcess[str], *expected: str) -> None:
    assert done.returncode == 1, done
    assert "Traceback" not in done.stderr
    last = done.stderr.strip().splitlines()
    assert last[0 if len(last) == 1 else -1], done.stderr
    for text in expected:
        assert text in done.stderr, done.stderr
    assert lab.left_over() == {}


def _server(lab: Lab, *arguments: str) -> subprocess.CompletedProcess[str]:
    return lab.llmgw("server", "--log-level", "error", "--listen", f"127.0.0.1:{lab.port}", *arguments)


def test_a_missing_directory(lab: Lab) -> None:
    _refused(lab, _server(lab, str(lab.root / "nowhere")), "there is no directory", "create it, or name another one")
    _refused(lab, lab.llmgw("validate", str(lab.root / "nowhere")), "there is no directory")
    _refused(lab, lab.llmgw("plan", str(lab.root / "nowhere")), "there is no directory")


def test_a_directory_outside_git(lab: Lab) -> None:
    bare = lab.root / "plain"
    bare.mkdir()
    (bare / "cluster.yaml").write_text(CLUSTER)
    _refused(lab, _server(lab, str(bare)), "is not in a git repository", "--worktree")


def test_a_repository_without_a_commit(lab: Lab) -> None:
    _refused(lab, _server(lab, str(lab.cluster)), "has no commit yet; commit the cluster directory")


def test_an_empty_directory(lab: Lab) -> None:
    for path in ("cluster.yaml", "nodes/local.yaml"):
        (lab.cluster / path).unlink()
    lab.commit("nothing")
    _refused(lab, _server(lab, str(lab.cluster)), "is not a valid cluster directory")
    done = lab.llmgw("validate", str(lab.cluster))
    assert done.returncode == 1
    assert "no YAML file in this directory; add one" in done.stdout


def test_a_directory_without_a_cluster(lab: Lab) -> None:
    (lab.cluster / "cluster.yaml").unlink()
    lab.commit("no cluster")
    _refused(lab, _server(lab, str(lab.cluster)), "no Cluster object")


def test_a_port_in_use(lab: Lab) -> None:
    lab.commit()
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", lab.port))
        holder.listen()
        _refused(
            lab,
            _server(lab, str(lab.cluster)),
            f"cannot listen on 127.0.0.1:{lab.port}",
            f"pid {os.getpid()}",
            "--listen",
        )


def test_a_port_that_another_server_of_ours_uses(lab: Lab) -> None:
    lab.commit()
    lab.start_server()
    done = _server(lab, str(lab.cluster), "--state-dir", str(lab.root / "other"))
    assert done.returncode == 1
    assert f"cannot listen on 127.0.0.1:{lab.port}" in done.stderr
    done = _server(lab, str(lab.cluster))
    assert done.returncode == 1
    assert "another llmgw server" in done.stderr
    assert lab.answers()


@pytest.mark.parametrize("command", ["server", "agent"])
def test_a_socket_path_that_is_too_long(lab: Lab, command: str) -> None:
    lab.commit()
    long = lab.root / ("x" * 90)
    if command == "server":
        done = _server(lab, str(lab.cluster), "--state-dir", str(long))
    else:
        done = lab.llmgw("agent", "--state-dir", str(lab.root / "ag"), "--socket", str(long / "agent.sock"))
    _refused(lab, done, "at most 107 will do", "choose a shorter")


def _without_rights(lab: Lab, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run without root's right to write anywhere."""
    drop = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
    return subprocess.run(
        [*drop, sys.executable, "-m", "llmgw", *arguments],
        env=lab.environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("command", ["server", "agent"])
def test_no_permission_to_write(lab: Lab, command: str) -> None:
    lab.commit()
    closed = lab.root / "closed"
    closed.mkdir(mode=0o555)
    if command == "server":
        done = _without_rights(
            lab, "server", str(lab.cluster), "--state-dir", str(closed / "s"), "--log-level", "error"
        )
    else:
        done = _without_rights(lab, "agent", "--state-dir", str(closed / "a"), "--socket", str(closed / "a.sock"))
    _refused(lab, done, "cannot write", "--state-dir")


def test_weights_that_do_not_exist_are_waited_for(lab: Lab) -> None:
    lab.write("models/m.yaml", model_yaml("m", weights="later.gguf"))
    lab.commit()
    lab.start_agent()
    lab.start_server()
    row = lab.until(lambda: lab.replicas("m") and lab.replicas("m")[0]["reason"] and lab.replicas("m")[0], "a reason")
    assert (row["phase"], row["attempt"]) == ("waiting", 0)
    assert "later.gguf do not exist on this node" in row["reason"]
    assert "later.gguf" in lab.llmgw("status").stdout
    (lab.weights / "tiny.gguf").rename(lab.weights / "later.gguf")
    lab.until(lambda: lab.ready("m"), "the model, once its weights are there")


def _gives_up(lab: Lab, code: str) -> str:
    def failed() -> str | None:
        rows = lab.replicas("m")
        return rows[0]["reason"] if rows and rows[0]["phase"] == "failed" else None

    reason = lab.until(failed, "the replica to be given up")
    assert isinstance(reason, str)
    row = lab.replicas("m")[0]
    assert (row["failures"], row["last_end"]["code"]) == (5, code)
    assert row["last_end"]["tail"]
    return reason


FAST = CLUSTER.replace("base: 500ms, max: 2s", "base: 100ms, max: 200ms")


def test_an_engine_that_exits_at_once_is_given_up_and_a_mended_spec_clears_it(lab: Lab) -> None:
    lab.write("cluster.yaml", FAST + lab._ports())
    lab.write("models/m.yaml", model_yaml("m").replace("--threads", "--treads"))
    lab.commit()
    lab.start_agent()
    lab.start_server()
    assert "the engine refused its arguments" in _gives_up(lab, "bad_arguments")
    lab.write("models/m.yaml", model_yaml("m"))
    lab.commit("mended")
    lab.until(lambda: lab.ready("m"), "the mended model")


def test_weights_that_are_no_weights(lab: Lab) -> None:
    lab.write("cluster.yaml", FAST + lab._ports())
    (lab.weights / "bad.gguf").write_text("these are no weights")
    lab.write("models/m.yaml", model_yaml("m", weights="bad.gguf"))
    lab.commit()
    lab.start_agent()
    lab.start_server()
    assert "the weights cannot be loaded" in _gives_up(lab, "weights_bad")


def test_a_taken_engine_port_is_named_and_left(lab: Lab) -> None:
    lab.write("models/m.yaml", fake_yaml("m"))
    lab.commit()
    first = int((lab.cluster / "cluster.yaml").read_text().rpartition("[")[2].split(",")[0])
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", first))
        holder.listen()
        lab.start_agent()
        lab.start_server()
        lab.until(lambda: lab.ready("m"), "the model on another port")
        assert lab.replicas("m")[0]["port"] != first


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("nonsense",), 64, "No such command"),
        (("plan", "--nope"), 64, "No such option"),
        (("server", "--workers", "-1"), 64, "--workers"),
        (("server", "--listen", "here"), 64, "write HOST:PORT"),
        (("status", "--server", "ftp://x"), 64, "is not known"),
        (("status", "--server", "/nowhere/admin.sock"), 1, "start one with `llmgw server DIR`"),
        (("server", "--store", "mysql://x/y"), 1, "a store is sqlite:///FILE or postgresql://"),
        (("status", "--server", "127.0.0.1:9"), 64, "write http://127.0.0.1:9"),
        (("server", "--log-level", "loud"), 64, "use debug, info, warning or error"),
        (("plan",), 1, "start one with `llmgw server DIR`"),
        (("validate", "--format", "xml"), 64, "use text, json, github, sarif"),
    ],
)
def test_wrong_usage(lab: Lab, arguments: tuple[str, ...], code: int, text: str) -> None:
    done = lab.llmgw(*arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert text in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_restart_with_a_broken_source_serves_what_was_good(lab: Lab) -> None:
    lab.write("models/m.yaml", model_yaml("m"))
    good = lab.commit()
    lab.start_agent()
    server = lab.start_server()
    lab.until(lambda: lab.ready("m"), "the model")
    pids = lab.pids()
    server.terminate()
    assert server.wait(20) == 0
    lab.write("models/m.yaml", "nonsense: true\n")
    lab.commit("broken")
    lab.start_server()
    lab.until(lambda: lab.ready("m"), "the model of the last good revision")
    assert lab.status()["source"]["in_force"] == good
    assert lab.status()["source"]["refused"] is not None
    assert lab.pids() == pids


def test_a_stopped_server_leaves_nothing_but_its_engines(lab: Lab) -> None:
    lab.write("models/m.yaml", model_yaml("m"))
    lab.commit()
    agent = lab.start_agent("--ephemeral")
    server = lab.start_server()
    lab.until(lambda: lab.ready("m"), "the model")
    server.terminate()
    assert server.wait(20) == 0
    assert not lab.admin.exists()
    assert [command for command in lab.left_over().values() if "app.worker" in command] == []
    agent.terminate()
    assert agent.wait(20) == 0
    assert lab.left_over() == {}


def test_a_reader_that_goes_away_is_no_error_to_talk_about(lab: Lab) -> None:
    lab.commit()
    command = f"{sys.executable} -m llmgw show node/local --dir {lab.cluster} | head -1"
    done = subprocess.run(
        ["bash", "-c", command], env=lab.environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stderr, done.stdout.startswith("apiVersion")) == ("", True)
