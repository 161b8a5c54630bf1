"""What strangers can send a real server: over its TCP address, in a request, in a commit. It stays up and shows nothing raw."""

import http.client
import json
import socket
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from llmgw.cli.client import ask
from llmgw.cli.outcomes import ServerRefused, WrongUsage
from llmgw.control.plan_file import load_plan
from tests.live.lab import Lab, fake_yaml, free_port

ESCAPES = "\x1b]0;pwned\x07\x1b[2J"


@pytest.fixture
def port(lab: Lab) -> int:
    """Return the port of `--admin-listen` of a server whose agent runs."""
    port = free_port()
    lab.environment["LLMGW_SECRET_HOOK"] = "hunter2hunter2"
    lab.write("models/m.yaml", fake_yaml("m", replicas=0))
    lab.commit("first")
    lab.start_agent()
    lab.start_server("--admin-listen", f"127.0.0.1:{port}", "--hook-secret", "HOOK")
    return port


def _over_tcp(port: int, method: str, path: str, body: bytes | None = None) -> tuple[int, str]:
    headers = {"Content-Type": "application/json", "Origin": "http://evil.example"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", body, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_over_tcp_there_are_health_metrics_and_webhooks_and_nothing_else(lab: Lab, port: int) -> None:
    assert _over_tcp(port, "GET", "/health")[0] == 200
    assert "llmgw_" in _over_tcp(port, "GET", "/metrics")[1]
    assert _over_tcp(port, "POST", "/hooks/github", b"{}")[0] == 401
    before = lab.status()["source"]["in_force"]
    tree = {"revision": "evil", "files": {}}
    for method, path, body in (
        ("GET", "/v1/status", None), ("GET", "/v1/history", None), ("GET", "/v1/snapshot", None),
        ("POST", "/v1/plan", tree), ("POST", "/v1/apply", {"tree": tree}), ("POST", "/v1/rollback", {}),
        ("POST", "/v1/suspend", {"reason": "x"}), ("POST", "/v1/acts", {}), ("POST", "/v1/forget", {}),
        ("POST", "/v1/source/accept", {"revision": before}), ("DELETE", "/v1/acts?target=node/local", None),
    ):  # fmt: skip
        status, said = _over_tcp(port, method, path, json.dumps(body).encode() if body is not None else None)
        assert (status, "LLMGW_TOKEN" in said, "llmgw keys create --admin" in said) == (401, True, True), (path, said)
    done = lab.llmgw("status", "--server", f"http://127.0.0.1:{port}")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "LLMGW_TOKEN" in done.stderr
    assert lab.status()["source"]["in_force"] == before
    assert lab.status()["suspended"] is None


def test_many_who_connect_and_say_nothing_leave_room_for_the_rest(lab: Lab, port: int) -> None:
    head = (
        b"POST /hooks/github HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 3000000\r\n\r\nx"
    )
    held = []
    try:
        for _ in range(400):
            connection = socket.create_connection(("127.0.0.1", port), timeout=5)
            held.append(connection)
            try:
                connection.sendall(head)
            except OSError:
                continue  # it was closed at once
        lab.until(lambda: _open_files(lab) < 330, "the connections to be limited")
        assert lab.answers()
    finally:
        for connection in held:
            connection.close()
    lab.until(lambda: _answered(port), "a free place")
    said = lab.log("server.log")
    assert "Traceback" not in said
    assert said.count("connections were closed") == 1


def _open_files(lab: Lab) -> int:
    return len(list(Path(f"/proc/{lab.processes[-1].pid}/fd").iterdir()))


def _answered(port: int) -> bool:
    try:
        return _over_tcp(port, "GET", "/health")[0] == 200
    except (OSError, http.client.HTTPException):
        return False


@pytest.mark.usefixtures("port")
def test_what_no_request_can_mean_is_refused_in_one_line(lab: Lab) -> None:
    tree = {"revision": "r1", "files": {"a.yaml": "eA=="}}
    bad: list[dict[str, Any]] = [
        {"revision": "abcdefg\ud83d"}, {"tree": {**tree, "revision": "\ud83d"}}, {"tree": {**tree, "committed": 10**400}},
        {"tree": {**tree, "files": {"\ud83d.yaml": "eA=="}}},
    ]  # fmt: skip
    for body in bad:
        with pytest.raises(WrongUsage) as refused:
            ask(str(lab.admin), "POST", "/v1/apply", body)
        assert str(refused.value).isprintable()
    with pytest.raises(WrongUsage, match="committed"):
        ask(str(lab.admin), "POST", "/v1/plan", {**tree, "committed": float("inf")})
    plan = {"desired_digest": "", "format_version": "1.0", "created": float("nan"), "id": ""}
    for path, plan_body in (("/v1/plan/verify", {"plan": plan}), ("/v1/apply", {"tree": tree, "plan": plan})):
        with pytest.raises(ServerRefused, match="no plan that can be applied") as impossible:
            ask(str(lab.admin), "POST", path, plan_body)
        assert impossible.value.status == 422
    assert "Traceback" not in lab.log("server.log")


@pytest.mark.usefixtures("port")
def test_what_the_server_does_not_understand_ends_with_64(lab: Lab) -> None:
    for command in (
        ["drain", "local", "--reason", "r"], ["drain", "model/m", "--reason", "r"], ["plan", "--what-if", "nonsense"],
        ["cordon", "node/local", "--reason", "r", "--until", "yesterday"], ["get", "events", "--since", "bogus"],
        ["suspend", "--reason", "r", "--until", "8d"],
    ):  # fmt: skip
        done = lab.llmgw(*command)
        assert (done.returncode, done.stderr.count("\n")) == (64, 1), done
    snapshot = lab.root / "fleet.json"
    lab.until(lambda: lab.llmgw("get", "snapshot", "--out", str(snapshot)).returncode == 0, "a snapshot")
    offline = lab.llmgw("plan", "--fleet", str(snapshot), "--what-if", "nonsense")
    assert (offline.returncode, offline.stderr.count("\n")) == (64, 1), offline


@pytest.mark.usefixtures("port")
def test_what_a_commit_says_is_shown_without_what_rules_terminals(lab: Lab) -> None:
    lab.git("commit", "-q", "--allow-empty", "-m", f"hi {ESCAPES} there", "--author", "\x1b[31mRed <a@b>")
    head = lab.git("rev-parse", "HEAD")
    lab.until(lambda: lab.status()["source"]["in_force"] == head, "the commit")
    for command in (["status"], ["history"], ["get", "events"], ["get", "events", "--json"]):
        done = lab.llmgw(*command)
        assert done.returncode == 0, done.stderr
        assert "\x1b" not in done.stdout
    assert "hi \ufffd]0;pwned\ufffd\ufffd[2J there" in lab.llmgw("history").stdout
    assert "\x1b" not in lab.log("server.log")


@pytest.mark.usefixtures("port")
def test_models_behind_a_link_or_a_bomb_are_refused_and_the_last_good_revision_stays(lab: Lab, tmp_path: Path) -> None:
    good = lab.git("rev-parse", "HEAD")
    (lab.cluster / "models").rename(tmp_path / "models")
    (lab.cluster / "models").symlink_to(tmp_path / "models")
    linked = lab.commit("models is a link")
    refused = lab.until(lambda: lab.status()["source"]["refused"], "the link to be refused")
    assert refused["revision"] == linked
    assert "models a symlink, which is not read" in refused["problems"][0]["text"]
    assert lab.status()["source"]["in_force"] == good
    assert lab.llmgw("validate", str(lab.cluster)).returncode == 1
    (lab.cluster / "models").unlink()
    zeros = subprocess.run(
        ["git", "-C", str(lab.cluster), "hash-object", "-w", "--stdin"], input=bytes(24 << 20), capture_output=True, check=True
    ).stdout.decode()  # fmt: skip
    lab.git("add", "-A")
    for number in range(100):
        lab.git("update-index", "--add", "--cacheinfo", f"100644,{zeros.strip()},models/z{number}.yaml")
    lab.git("commit", "-q", "-m", "bomb")
    bomb = lab.git("rev-parse", "HEAD")
    lab.until(lambda: (lab.status()["source"]["refused"] or {}).get("revision") == bomb, "the bomb to be refused")
    assert lab.status()["source"]["in_force"] == good
    peak = next(
        line for line in Path(f"/proc/{lab.processes[-1].pid}/status").read_text().splitlines() if "VmHWM" in line
    )
    assert int(peak.split()[1]) < 400_000, "KiB: not one of its 2.4 GB was read"


def test_a_saved_plan_is_applied_by_what_its_commit_says_and_a_lone_restart_blames_nobody(lab: Lab) -> None:
    guard = "guard: {max_removed: 0}\nsync: manual\n"
    lab.write("cluster.yaml", (lab.cluster / "cluster.yaml").read_text() + guard)
    for name in ("m", "n"):
        lab.write(f"models/{name}.yaml", fake_yaml(name, replicas=0))
    first = lab.commit("first")
    lab.start_agent()
    server = lab.start_server()
    assert lab.llmgw("apply", str(lab.cluster), "--rev", first).returncode == 0
    (lab.cluster / "models/n.yaml").unlink()
    plain = lab.root / "plain.json"
    made = lab.llmgw("plan", str(lab.cluster), "--out", str(plain))
    assert f"a guard refuses it unless it is applied with `llmgw apply {plain} --allow-remove model/n`" in made.stdout
    refused = lab.llmgw("apply", str(plain))
    assert (refused.returncode, f"`llmgw apply {plain} --allow-remove model/n`" in refused.stderr) == (4, True), refused
    second = lab.commit("without n\n\nLLMGW-Allow-Remove: model/n")
    file = lab.root / "p.json"
    assert "does exactly this" in lab.llmgw("plan", str(lab.cluster), "--rev", second, "--out", str(file)).stdout
    assert load_plan(file.read_bytes()).trailers == ("LLMGW-Allow-Remove: model/n",)
    assert lab.llmgw("plan", "--verify", str(file)).returncode == 0
    done = lab.llmgw("apply", str(file))
    assert done.returncode == 0, done.stderr
    assert lab.status()["source"]["in_force"] == second
    server.kill()
    server.wait()
    lab.commit("third")
    (lab.root / "server.log").unlink()
    lab.start_server()
    lab.until(lambda: lab.status()["waiting"] and lab.status()["waiting"]["kind"] == "manual", "it to lead")
    assert "another control plane" not in lab.log("server.log")
