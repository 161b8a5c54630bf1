"""How a login is put together, what OpenSSH's client is told, and how many handshakes run at once."""

import asyncio
import itertools
import random
import subprocess
from pathlib import Path
from typing import Any

import asyncssh
import pytest

from llmgw.adapters import ssh_login
from llmgw.adapters.secrets import Secrets
from llmgw.adapters.ssh_client import ClientTunnel, configuration
from llmgw.adapters.ssh_link import SshWays
from llmgw.adapters.ssh_login import KeyAgent, KeyFile, KeySecret, Login, Stop, log_in, login_of, private_key
from llmgw.agent.server import LONGEST_SOCKET_PATH
from llmgw.app.places import tunnels_dir
from llmgw.base.ids import ShardId
from llmgw.ports.links import LinkBroken, Target
from llmgw.runtime.supervisor import Supervisor
from llmgw.spec.cluster import SshDefaults
from llmgw.spec.common import Secret
from llmgw.spec.node import Hop, Node, Ssh

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGZLHJZKHtmUFh0mFDGxbHqL3gI8OBDDF7SbgX7nVxBz"
NO_SECRETS = Secrets({}, None)


def node(**ssh: Any) -> Node:
    """Return a node."""
    return Node(apiVersion="llmgw/v1", kind="Node", name="n", ssh=Ssh(host="n.test", host_key=KEY, **ssh))


def login(**fields: Any) -> Login:
    """Return a login at a node, by a hop."""
    stop = {"host": "n.test", "port": 22, "user": "u", "host_key": KEY, **fields}
    return Login((Stop("hop.test", 2222, "jumper", "ssh-ed25519 HOP"), Stop(**stop)), KeyFile("/k"))


def test_hops_take_the_clusters_user_and_come_first() -> None:
    hops = [Hop(host="one", host_key=KEY), Hop(host="two", port=23, user="x", host_key=KEY)]
    found = login_of(node(user="u", proxy_jump=hops), SshDefaults(user="d"))
    assert [(stop.host, stop.port, stop.user) for stop in found.stops] == [
        ("one", 22, "d"),
        ("two", 23, "x"),
        ("n.test", 22, "u"),
    ]


def test_the_nodes_own_key_comes_before_any_of_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", "/agent")
    secret, other = Secret(secret="A"), Secret(secret="B")
    file = SshDefaults(identity_file="/d")
    assert login_of(node(), SshDefaults()).identity == KeyAgent("/agent")
    assert login_of(node(), file).identity == KeyFile("/d")
    assert login_of(node(), SshDefaults(identity=secret)).identity == KeySecret("A")
    assert login_of(node(identity=other), SshDefaults(identity=secret)).identity == KeySecret("B")
    assert login_of(node(identity_file="/n"), SshDefaults(identity=secret)).identity == KeyFile("/n")
    assert login_of(node(identity=other), file).identity == KeySecret("B")


def test_a_key_that_is_missing_is_said_with_what_to_do() -> None:
    with pytest.raises(LinkBroken, match="LLMGW_SECRET_A"):
        private_key(KeySecret("A"), NO_SECRETS)
    assert private_key(KeySecret("A"), Secrets({"LLMGW_SECRET_A": "k"}, None)) == "k\n"


def test_the_client_is_told_everything_and_asks_nobody(tmp_path: Path) -> None:
    known = tmp_path / "known with a blank"
    text = configuration(login(), "IdentityFile none\nIdentityAgent /agent\n", known, tmp_path / "c")
    (tmp_path / "config").write_text(text)
    shown: dict[str, dict[str, str]] = {}
    for host in ("node", "hop0"):
        done = subprocess.run(
            ["ssh", "-G", "-F", str(tmp_path / "config"), host], check=True, capture_output=True, text=True
        )
        shown[host] = dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)
    assert shown["node"]["proxyjump"] == "hop0"
    assert "proxyjump" not in shown["hop0"]
    assert shown["hop0"]["controlpath"] == f"{tmp_path}/c.hop0"
    assert (shown["hop0"]["hostname"], shown["hop0"]["port"], shown["hop0"]["user"]) == ("hop.test", "2222", "jumper")
    for alias, options in shown.items():
        assert options["hostkeyalias"] == alias
        assert options["stricthostkeychecking"] == "true"
        assert options["batchmode"] == "yes"
        assert options["globalknownhostsfile"] == "none"
        assert options["userknownhostsfile"].strip('"') == str(known)
        assert (options["serveraliveinterval"], options["serveralivecountmax"]) == ("15", "3")
        assert options["exitonforwardfailure"] == "yes"
        assert options["streamlocalbindunlink"] == "yes"
        assert options["streamlocalbindmask"] == "0177"
        assert options["preferredauthentications"] == "publickey"
        assert options["updatehostkeys"] == "false"


@pytest.mark.parametrize(
    "name",
    ["a\nProxyCommand x", "-oProxyCommand=x", 'a"b', "a b", "a#b", "*", "!a", "a\\b", "a\tb", "a,b", "a\u2028b"],
)
@pytest.mark.parametrize("field", ["host", "user"])
def test_a_name_that_would_be_read_as_more_is_refused(field: str, name: str) -> None:
    with pytest.raises(LinkBroken, match=f"{field} .* cannot be given to ssh"):
        configuration(login(**{field: name}), "", Path("/known"), Path("/c"))


async def test_no_more_handshakes_than_places_run_at_once() -> None:
    waiting, most = 0, 0
    tasks = Supervisor("logins")

    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal waiting, most
        greeting = await reader.readline()
        assert greeting.startswith(b"SSH-2.0-")
        waiting += 1
        most = max(most, waiting)
        await asyncio.sleep(0.05)
        waiting -= 1
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(mute, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    places = asyncio.Semaphore(3)
    source = Secrets({"LLMGW_SECRET_K": _made_key()}, None)
    away = Login((Stop("127.0.0.1", port, "u", KEY),), KeySecret("K"))
    failures: list[BaseException] = []
    all_failed = asyncio.Event()

    def failed(error: BaseException) -> None:
        failures.append(error)
        if len(failures) == 9:
            all_failed.set()

    for number in range(9):
        tasks.job(str(number), _discard(log_in("n", away, source, places)), failed)
    await asyncio.wait_for(all_failed.wait(), 20)
    assert all(isinstance(one, LinkBroken) for one in failures), failures
    assert most <= 3
    server.close()
    await tasks.stop()


async def test_a_peer_that_takes_connections_and_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh_login, "CONNECT_LIMIT", 0.2)
    ended = asyncio.Event()

    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()
        await writer.wait_closed()
        ended.set()

    server = await asyncio.start_server(mute, "127.0.0.1", 0)
    stop = Stop("127.0.0.1", server.sockets[0].getsockname()[1], "u", KEY)
    source = Secrets({"LLMGW_SECRET_K": _made_key()}, None)
    async with asyncio.timeout(5):
        with pytest.raises(LinkBroken, match="did not finish the SSH handshake"):
            await log_in("n", Login((stop,), KeySecret("K")), source, asyncio.Semaphore(1))
        await ended.wait()  # the connection was closed, too
    server.close()


async def test_a_host_key_that_is_none_is_said_and_ends_nothing_else() -> None:
    server = await asyncio.start_server(_greet_nobody, "127.0.0.1", 0)
    stop = Stop("127.0.0.1", server.sockets[0].getsockname()[1], "u", "ssh-ed25519 AAAA")
    source = Secrets({"LLMGW_SECRET_K": _made_key()}, None)
    async with asyncio.timeout(5):
        with pytest.raises(LinkBroken, match=r"`host_key` of .* is not a public key"):
            await log_in("n", Login((stop,), KeySecret("K")), source, asyncio.Semaphore(1))
    server.close()


async def test_an_ssh_agent_that_says_nothing_is_let_go_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh_login, "CONNECT_LIMIT", 0.2)
    let_go = asyncio.Event()

    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(100):
            pass
        let_go.set()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_unix_server(mute, str(tmp_path / "agent"))
    async with asyncio.timeout(5):
        with pytest.raises(LinkBroken, match="gives no keys: no answer"):
            async with ssh_login._keys(KeyAgent(str(tmp_path / "agent")), NO_SECRETS):
                pass
        await let_go.wait()
    server.close()


async def _greet_nobody(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()
    writer.close()
    await writer.wait_closed()


async def test_a_client_that_babbles_is_ended_like_any_other_and_started_again(tmp_path: Path) -> None:
    program = tmp_path / "ssh"
    program.write_text("#!/bin/sh\nhead -c 300000 /dev/zero | tr '\\0' x >&2\necho >&2\necho the reason >&2\nexit 3\n")
    program.chmod(0o700)
    stirs: list[int] = []
    tunnel = ClientTunnel(
        str(program), tmp_path, "n", itertools.count(1), NO_SECRETS, random.Random(1), lambda: stirs.append(1)
    )
    away = Login((Stop("n.test", 22, "u", KEY),), KeyFile("/k"))
    tunnel.want({ShardId("s"): Target(20000)}, away)
    async with asyncio.timeout(10):
        while len(stirs) < 3:  # noqa: ASYNC110 - another process does it
            await asyncio.sleep(0.02)
    assert tunnel.trouble == "the tunnel is down: ssh ended with 3: the reason"
    assert tunnel.ways() == {}
    tunnel.want({}, away)
    assert tunnel.trouble == "", "nothing is wanted, so nothing is missing"
    await tunnel.close()
    assert [path.name for path in tmp_path.iterdir()] == ["ssh"]


async def _discard(wait: Any) -> None:
    await wait


def _made_key() -> str:
    return asyncssh.generate_private_key("ssh-ed25519").export_private_key().decode()


def test_what_an_earlier_control_plane_left_goes(tmp_path: Path) -> None:
    directory = tmp_path / "t"
    directory.mkdir(mode=0o755)
    (directory / "x.s").write_text("")
    (directory / "y.conf").symlink_to("/etc/passwd")
    SshWays.prepare(directory, "/agent", None, NO_SECRETS)
    assert list(directory.iterdir()) == []
    assert directory.stat().st_mode & 0o777 == 0o700
    assert Path("/etc/passwd").exists()


def test_a_long_state_directory_has_its_tunnels_elsewhere() -> None:
    assert tunnels_dir(Path("/var/lib/llmgw/server"), 48) == Path("/var/lib/llmgw/server/tunnels")
    for state in (Path("/" + "x" * 80), Path("/a:b")):
        found = tunnels_dir(state, 48)
        try:
            assert len(str(found)) + 48 <= LONGEST_SOCKET_PATH
            assert found.stat().st_mode & 0o777 == 0o700
            assert found == tunnels_dir(state, 48)
        finally:
            found.rmdir()


def test_three_keepalives_without_an_answer_end_a_connection() -> None:
    """That the library does so is its own; that it is asked to is ours."""
    stop = Stop("host.test", 22, "u", KEY)
    asked = ssh_login._options("n", stop)
    assert (asked["keepalive_interval"], asked["keepalive_count_max"]) == (15.0, 3)
    assert (asked["config"], asked["agent_path"]) == (None, None), "nothing of the user's own set-up"
