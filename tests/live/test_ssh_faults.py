"""What goes wrong between a control plane and a node, with a real sshd: each is noticed, none stops an engine."""

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from tests.live.lab import Lab, alive, fake_yaml
from tests.live.sshd import Sshd, tunnels
from tests.live.test_skeleton import Stream

QUICK = "  unreachable_after: 2s\n"
"""Makes silence end a connection after 15 seconds, the least that agents' reports every 10 allow."""


def begin(lab: Lab, node: str, *, control: str = "", env: dict[str, str] | None = None) -> None:
    """Serve two fake models on one node over SSH, `m` at once and `slow` for some seconds."""
    (lab.cluster / "nodes/local.yaml").unlink(missing_ok=True)
    if control:
        lab.write("cluster.yaml", (lab.cluster / "cluster.yaml").read_text() + control)
    lab.write("nodes/far.yaml", node)
    lab.write("models/m.yaml", fake_yaml("m"))
    lab.write("models/slow.yaml", fake_yaml("slow", "--chunks", "60", "--chunk-interval", "0.1"))
    lab.commit()
    lab.start_agent()
    lab.environment.update(env or {})
    lab.server = lab.start_server()
    lab.until(lambda: lab.ready("m") and lab.ready("slow"), "the models")


@pytest.fixture
def sshd(lab: Lab) -> Sshd:
    return Sshd(lab)


def pinned(sshd: Sshd, lab: Lab, **options: str) -> str:
    """Return the node behind this sshd, with the key that it has."""
    return sshd.node_yaml("far", sshd.public(sshd.host_key), lab.root / "a.sock", **options)  # type: ignore[arg-type]


def whole(stream: Stream) -> bool:
    """Whether a stream came to its own end."""
    stream.end()
    return (stream.error, stream.finish) == (None, "stop")


def test_a_connection_killed_mid_report_cuts_no_stream(lab: Lab, sshd: Sshd) -> None:
    begin(lab, pinned(sshd, lab))
    before = lab.pids()
    stream = Stream(lab, "slow")
    for _ in range(3):
        session = lab.until(lambda: _session(sshd, lab.server.pid), "a connection")
        os.kill(session, signal.SIGKILL)
        lab.until(lambda one=session: _session(sshd, lab.server.pid) not in (None, one), "another connection")
    assert lab.ready("m"), "the tunnel is there, so the endpoint is"
    assert isinstance(lab.ask("m"), str)
    assert whole(stream)
    lab.until(lambda: lab.node()["state"] == "reporting", "reports")
    assert lab.pids() == before


def test_an_agent_that_restarts_cuts_no_stream(lab: Lab, sshd: Sshd) -> None:
    begin(lab, pinned(sshd, lab))
    before = lab.pids()
    stream = Stream(lab, "slow")
    agent = lab.processes[next(i for i, one in enumerate(lab.processes) if "agent" in one.args)]  # type: ignore[operator]
    agent.kill()
    agent.wait()
    lab.until(lambda: lab.node()["state"] == "unreachable", "the agent's end to be noticed")
    assert isinstance(lab.ask("m"), str), "the engines have not gone"
    lab.start_agent()
    lab.until(lambda: lab.node()["state"] == "reporting", "the agent to be back")
    assert whole(stream)
    assert lab.pids() == before
    assert lab.log("sshd.log").count("Accepted publickey") == 2, "the connection was kept, and the tunnel"


def test_a_tunnel_that_was_killed_is_rebuilt_beside_the_reports(lab: Lab, sshd: Sshd) -> None:
    begin(lab, pinned(sshd, lab))
    reports = sshd.session_of(lab.server.pid)
    for _ in range(2):
        (client,) = lab.until(lambda: len(tunnels(lab)) == 1 and tunnels(lab), "one client")
        os.kill(client, signal.SIGKILL)
        lab.until(lambda one=client: one not in tunnels(lab) and len(tunnels(lab)) == 1, "another client")
        lab.until(lambda: lab.ready("m") and lab.replicas("m")[0]["address"], "the way to be back")
    lab.until(lambda: _answers(lab, "m"), "an answer through the new tunnel")
    assert lab.node()["state"] == "reporting"
    assert sshd.session_of(lab.server.pid) == reports
    left = [path for path in (lab.root / "s/tunnels").iterdir() if path.suffix == ".s"]
    assert len(left) == 2, "one socket for each engine, and none of an old client"
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in left)


def test_a_tunnel_that_cannot_come_back_leaves_no_endpoint(lab: Lab, sshd: Sshd) -> None:
    begin(lab, pinned(sshd, lab))
    sshd.stop()  # its sessions live on
    os.kill(tunnels(lab)[0], signal.SIGKILL)
    lab.until(lambda: not lab.ready("m"), "the endpoint without a way to be withdrawn")
    assert lab.node()["state"] == "reporting"
    sshd.process = sshd.start(sshd.host_key)
    lab.until(lambda: lab.ready("m"), "the way to be back")


def test_a_frozen_peer_is_noticed_and_ended(lab: Lab, sshd: Sshd) -> None:
    begin(lab, pinned(sshd, lab), control=QUICK)
    before = lab.pids()
    frozen = sshd.session_of(lab.server.pid)
    os.kill(frozen, signal.SIGSTOP)
    stopped = time.monotonic()
    try:
        lab.until(lambda: lab.node()["state"] == "unreachable", "the silence to be noticed")
        took = time.monotonic() - stopped
        assert "silent for 15 s" in lab.node()["why"] or lab.node()["state"] == "reporting"
        assert took < 25
        lab.until(lambda: lab.node()["state"] == "reporting", "another connection")
        assert _session(sshd, lab.server.pid) != frozen
    finally:
        os.kill(frozen, signal.SIGKILL)
    assert lab.pids() == before


def test_a_host_key_that_changed_is_refused_by_both(lab: Lab, sshd: Sshd) -> None:
    begin(lab, pinned(sshd, lab))
    sessions = [sshd.session_of(lab.server.pid), sshd.session_of(tunnels(lab)[0])]
    sshd.stop()
    sshd.process = sshd.start(sshd.key("other"))
    for session in sessions:
        os.kill(session, signal.SIGKILL)
    lab.until(lambda: "pinned" in str(lab.node()["why"]), "the refusal")
    lab.until(lambda: "Host key verification failed" in lab.log("server.log"), "the tunnel's refusal")
    assert lab.log("sshd.log").count("Accepted publickey") == 2, "no credential is shown to a stranger"
    assert lab.node()["state"] == "unreachable"


def test_through_a_jump_host(lab: Lab, sshd: Sshd) -> None:
    hop = Sshd(lab, "hop")
    hop.authorized.write_text(Path(f"{sshd.identity}.pub").read_text())
    jump = f"""\
  proxy_jump:
    - {{host: 127.0.0.1, port: {hop.port}, user: {hop.user}, host_key: {hop.public(hop.host_key)}}}
"""
    begin(lab, pinned(sshd, lab, extra=jump))
    assert isinstance(lab.ask("m"), str)
    assert whole(Stream(lab, "slow"))
    hop.session_of(lab.server.pid)  # raises if the server went straight to the node
    accepted = lab.log("sshd.log").count("Accepted publickey")
    assert accepted == 4, "two connections by two sshds: reports and tunnel"
    assert lab.log("sshd.log").count("Starting session: command") == 2, "both sshds of the tunnel were made prompt"
    wrong = jump.replace(hop.public(hop.host_key), hop.public(hop.key("other")))
    lab.write("nodes/far.yaml", pinned(sshd, lab, extra=wrong))
    lab.commit("a hop that is somebody else")
    lab.until(lambda: "pinned" in str(lab.node()["why"]), "the refusal of the hop")
    assert f"ssh-keyscan -p {hop.port}" in lab.node()["why"]


def test_a_key_that_is_a_secret_shows_nowhere(lab: Lab, sshd: Sshd) -> None:
    key = sshd.identity.read_text()
    directory = lab.root / "secrets"
    directory.mkdir(mode=0o700)
    (directory / "NODE_KEY").write_text(key)
    (directory / "NODE_KEY").chmod(0o600)
    begin(
        lab,
        pinned(sshd, lab, key="identity: {secret: NODE_KEY}"),
        env={"LLMGW_SECRETS_DIR": str(directory)},
    )
    assert isinstance(lab.ask("m"), str)
    body = key.splitlines()[3]
    for path in lab.root.rglob("*"):
        if path.is_file() and path not in (sshd.identity, directory / "NODE_KEY"):
            assert body.encode() not in path.read_bytes(), path
    assert body not in str(lab.status())
    for process in psutil.process_iter(["cmdline"]):
        assert body not in " ".join(process.info["cmdline"] or [])
    (directory / "NODE_KEY").chmod(0o644)
    session = sshd.session_of(lab.server.pid)
    os.kill(session, signal.SIGKILL)
    lab.until(lambda: "NODE_KEY" in str(lab.node()["why"]), "the refusal of a key that others may read")
    assert "chmod 600" in lab.log("server.log")


def test_an_engines_secret_is_in_its_environment_and_nowhere_else(lab: Lab, sshd: Sshd) -> None:
    value, name = "swordfish-and-a-half", "ENGINE_TOKEN"
    extra = f"    env:\n      HF_TOKEN: {{secret: {name}}}\n"
    lab.write("models/s.yaml", fake_yaml("s", extra=extra))
    begin(lab, pinned(sshd, lab), env={f"LLMGW_SECRET_{name}": value})
    lab.until(lambda: lab.ready("s"), "the model with a secret")
    engine = lab.replicas("s")[0]["pid"]
    assert f"HF_TOKEN={value}".encode() in Path(f"/proc/{engine}/environ").read_bytes()
    assert value not in str(lab.status())
    assert value not in str(lab.plan())
    for path in lab.root.rglob("*"):
        kept = path.is_relative_to(lab.root / "ag")  # what the agent keeps, so that it can start the engine again
        if path.is_file() and not (kept and path.stat().st_mode & 0o077 == 0):
            assert value.encode() not in path.read_bytes(), path
    for process in psutil.process_iter(["cmdline"]):
        assert value not in " ".join(process.info["cmdline"] or [])


def test_the_keys_of_an_agent(lab: Lab, sshd: Sshd) -> None:
    socket = lab.root / "agent.s"
    keeper = subprocess.Popen(["ssh-agent", "-D", "-a", str(socket)], stdout=subprocess.DEVNULL)
    lab.processes.append(keeper)
    lab.until(socket.is_socket, "ssh-agent", keeper)
    env = {"SSH_AUTH_SOCK": str(socket)}
    subprocess.run(["ssh-add", "-q", str(sshd.identity)], env={**os.environ, **env}, check=True)
    begin(lab, pinned(sshd, lab, key="user: " + sshd.user).replace(f"  user: {sshd.user}\n", "", 1), env=env)
    assert isinstance(lab.ask("m"), str)


def test_the_users_own_ssh_configuration_changes_nothing(lab: Lab, sshd: Sshd) -> None:
    home = lab.root / "home"
    (home / ".ssh").mkdir(parents=True, mode=0o700)
    (home / ".ssh/config").write_text(
        "Host *\n  ProxyCommand false\n  Port 1\n  User nobody\n  IdentityFile /nowhere\n"
    )
    (home / ".ssh/known_hosts").write_text(f"[127.0.0.1]:{sshd.port} {sshd.public(sshd.key('liar'))}\n")
    begin(lab, pinned(sshd, lab), env={"HOME": str(home)})
    assert isinstance(lab.ask("m"), str)
    assert tunnels(lab)


def test_without_the_client_asyncssh_carries_the_streams(lab: Lab, sshd: Sshd) -> None:
    tools = lab.root / "bin"
    tools.mkdir()
    for name in ("git", "sh"):
        (tools / name).symlink_to(str(shutil.which(name)))
    begin(lab, pinned(sshd, lab), env={"PATH": str(tools)})
    assert not tunnels(lab)
    before = lab.pids()
    assert whole(Stream(lab, "slow"))
    os.kill(sshd.session_of(lab.server.pid), signal.SIGKILL)
    lab.until(lambda: not lab.ready("m") or lab.log("sshd.log").count("Accepted publickey") == 2, "the loss")
    lab.until(lambda: lab.ready("m") and _answers(lab, "m"), "the way to be back")
    assert lab.pids() == before


def test_a_killed_server_leaves_no_client(lab: Lab, sshd: Sshd) -> None:
    begin(lab, pinned(sshd, lab))
    before = lab.pids()
    (client,) = tunnels(lab)
    lab.server.kill()
    lab.server.wait()
    lab.until(lambda: not alive(client) and not tunnels(lab), "the client's end")
    lab.server = lab.start_server()
    lab.until(lambda: lab.ready("m") and _answers(lab, "m"), "the new server's tunnel")
    assert lab.pids() == before
    left = {path.suffix for path in (lab.root / "s/tunnels").iterdir()}
    assert len([path for path in (lab.root / "s/tunnels").iterdir() if path.suffix == ".s"]) == 2, left
    lab.server.terminate()
    lab.server.wait()
    assert not tunnels(lab)
    assert list((lab.root / "s/tunnels").iterdir()) == []


def test_another_user_or_key_is_used_at_the_next_connect_only(lab: Lab, sshd: Sshd) -> None:
    begin(lab, pinned(sshd, lab))
    session = sshd.session_of(lab.server.pid)
    stream = Stream(lab, "slow")
    other = sshd.key("other-user")
    sshd.authorized.write_text(Path(f"{other}.pub").read_text())
    lab.write("nodes/far.yaml", pinned(sshd, lab, key=f"identity_file: {other}"))
    revision = lab.commit("another key")
    lab.until(lambda: lab.status()["source"]["planned"] == revision, "the commit to be in force")
    assert whole(stream)
    assert sshd.session_of(lab.server.pid) == session
    os.kill(session, signal.SIGKILL)
    lab.until(lambda: _session(sshd, lab.server.pid) not in (None, session), "another connection")
    lab.until(lambda: lab.node()["state"] == "reporting", "reports, by the new key")


def _session(sshd: Sshd, client: int) -> int | None:
    try:
        return sshd.session_of(client)
    except AssertionError:
        return None


def _answers(lab: Lab, model: str) -> bool:
    import openai

    try:
        return bool(lab.ask(model))
    except openai.OpenAIError:
        return False
