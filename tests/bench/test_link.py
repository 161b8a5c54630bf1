"""What links cost: a stream's events through tunnels against the same events direct, and the start of a fleet of 400 nodes.

Every assertion is about a ratio or a difference within one run. The stall that must not be there is Nagle's algorithm
against delayed acknowledgements: 40 ms and more, which direct connections do not have.
"""

import asyncio
import contextlib
import random
import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from llmgw.adapters.secrets import Secrets
from llmgw.adapters.ssh_forwards import Forwards
from llmgw.adapters.ssh_link import SshLink, SshWays
from llmgw.base.ids import NodeName, ShardId
from llmgw.control.book import FleetBook
from llmgw.control.sessions import Sessions
from llmgw.fleet.table import UnixAddress
from llmgw.fleet.view import Reporting
from llmgw.ports.links import Target
from llmgw.runtime.clock import SystemClock
from llmgw.spec.cluster import SshDefaults
from llmgw.spec.node import Hop, Node, Ssh
from tests.live.lab import Lab
from tests.live.sshd import Sshd, tunnels

pytestmark = pytest.mark.bench

EVENTS = 250
INTERVAL = 0.004
STREAMS = 20
NODES = 400
STALL = 0.020
"""Seconds of added delay that would be Nagle's."""
SHARD = ShardId("m-0.s0")
SOURCE = """
import asyncio, socket, time
async def serve(reader, writer):
    writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    count, interval = (await reader.readline()).split()
    for n in range(int(count)):
        writer.write(b"%020d" % time.monotonic_ns() + b"x" * 159 + b"\\n")
        await asyncio.sleep(float(interval))
    await writer.drain()
    writer.close()
async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().create_future()
asyncio.run(main())
"""


@dataclass(frozen=True)
class Delay:
    """Seconds from an event's write to its read."""

    median: float
    worst: float


@pytest.fixture
def lab() -> Iterator[Lab]:
    lab = Lab()
    try:
        yield lab
    finally:
        lab.close()


@pytest.fixture
def source() -> Iterator[int]:
    process = subprocess.Popen([sys.executable, "-c", SOURCE], stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


async def _read(where: int | Path, count: int, interval: float) -> list[float]:
    if isinstance(where, int):
        reader, writer = await asyncio.open_connection("127.0.0.1", where)
    else:
        reader, writer = await asyncio.open_unix_connection(str(where))
    writer.write(f"{count} {interval}\n".encode())
    delays = []
    while line := await reader.readline():
        delays.append((time.monotonic_ns() - int(line[:20])) / 1e9)
    writer.close()
    await writer.wait_closed()
    assert len(delays) == count
    return delays


async def _delay(where: int | Path) -> Delay:
    delays = sorted(await _read(where, EVENTS, INTERVAL))
    return Delay(statistics.median(delays), delays[-EVENTS // 50])  # the worst two of a hundred may be the machine's


async def _cpu(where: int | Path, others: list[int]) -> float:
    """Return the seconds of CPU that an event costs this process and the others."""
    before = _spent(others)
    await asyncio.gather(*(_read(where, EVENTS, INTERVAL) for _ in range(STREAMS)))
    return (_spent(others) - before) / (STREAMS * EVENTS)


def _spent(others: list[int]) -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime + sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in others)


@contextlib.asynccontextmanager
async def _tunnel(
    lab: Lab, sshd: Sshd, client: str | None, port: int, hop: Sshd | None = None
) -> AsyncIterator[tuple[Path, Any]]:
    socket = lab.root / "a.sock"
    ended = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()
        await writer.wait_closed()
        ended.set()

    agent = await asyncio.start_unix_server(silent, str(socket))
    ways = SshWays.prepare(lab.root / "t", str(socket), client, Secrets({}, None))
    link = SshLink(ways, "n", random.Random(1))
    ssh = Ssh(host="127.0.0.1", port=sshd.port, user=sshd.user, host_key=sshd.public(sshd.host_key))
    if hop is not None:
        jump = Hop(host="127.0.0.1", port=hop.port, user=hop.user, host_key=hop.public(hop.host_key))
        ssh = ssh.model_copy(update={"proxy_jump": [jump]})
    node = Node(apiVersion="llmgw/v1", kind="Node", name="n", ssh=ssh)
    channel = await link.connect(node, SshDefaults(identity_file=str(sshd.identity)))
    routes = await channel.routes({SHARD: Target(port)})
    while SHARD not in routes:
        await channel.stirred()
        routes = channel.surviving()
    address = routes[SHARD]
    assert isinstance(address, UnixAddress)
    try:
        yield Path(address.path), channel
    finally:
        await channel.close()
        await link.close()
        await ended.wait()
        agent.close()
        socket.unlink()


async def test_a_tunnel_adds_no_stall_and_little_cpu(lab: Lab, source: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sshd = Sshd(lab)
    direct, direct_cpu = await _delay(source), await _cpu(source, [])
    async with _tunnel(lab, sshd, None, source) as (path, _):
        own, own_cpu = await _delay(path), await _cpu(path, []) - direct_cpu
    async with _tunnel(lab, sshd, shutil.which("ssh"), source) as (path, _):
        client, client_cpu = await _delay(path), await _cpu(path, tunnels(lab)) - direct_cpu
    hop = Sshd(lab, "hop")
    hop.authorized.write_text(sshd.authorized.read_text())
    async with _tunnel(lab, sshd, None, source, hop) as (path, _):
        own_hop = await _delay(path)
    async with _tunnel(lab, sshd, shutil.which("ssh"), source, hop) as (path, _):
        client_hop = await _delay(path)

    async def not_prompt(_: object) -> None:
        """As if no command were run over the connection."""

    monkeypatch.setattr(Forwards, "_be_prompt", not_prompt)
    async with _tunnel(lab, sshd, None, source) as (path, _):
        held_back = await _delay(path)
    print()
    shown = {"direct": direct, "asyncssh": own, "OpenSSH": client, "asyncssh, one hop": own_hop}
    for name, delay in {**shown, "OpenSSH, one hop": client_hop, "no TCP_NODELAY": held_back}.items():
        print(
            f"{name:20} delay of an event: median {delay.median * 1e3:6.2f} ms, 98 % within {delay.worst * 1e3:6.2f} ms"
        )
    print(
        f"cpu an event on this side, above direct ({direct_cpu * 1e6:.1f} us): asyncssh {own_cpu * 1e6:.1f} us, "
        f"OpenSSH {client_cpu * 1e6:.1f} us, ratio {own_cpu / client_cpu:.1f}"
    )
    for delay in (own, client, own_hop, client_hop):
        assert delay.median - direct.median < STALL / 4
        assert delay.worst - direct.worst < STALL
    assert client_cpu < own_cpu


async def test_400_nodes_are_connected_in_30_seconds(lab: Lab) -> None:
    sshd = Sshd(lab)  # for its keys
    fleet = _start_fleet(sshd)
    assert fleet.stdout is not None
    try:
        port = int(await asyncio.to_thread(fleet.stdout.readline))
        ssh = Ssh(host="127.0.0.1", port=port, user="bench", host_key=sshd.public(sshd.host_key))
        nodes = {
            NodeName(f"n{i}"): Node(apiVersion="llmgw/v1", kind="Node", name=f"n{i}", ssh=ssh, agent_socket="/agent")
            for i in range(NODES)
        }
        ways = SshWays.prepare(lab.root / "t", "/agent", shutil.which("ssh"), Secrets({}, None))
        changed = asyncio.Event()
        book = FleetBook(SystemClock(), changed.set)
        rng = random.Random(1)
        sessions = Sessions(lambda node: SshLink(ways, node.name, rng), book, rng)
        memory, start = psutil.Process().memory_info().rss, time.monotonic()
        spent = _spent([])
        sessions.follow("bench", nodes, SshDefaults(identity_file=str(sshd.identity)))
        while True:
            await changed.wait()
            changed.clear()
            if all(isinstance(view, Reporting) for view in book.views.values()):
                break
        took, cpu = time.monotonic() - start, _spent([]) - spent
        each = (psutil.Process().memory_info().rss - memory) / NODES
        spent = _spent([])
        await asyncio.sleep(15)
        idle = (_spent([]) - spent) / 15
        print(
            f"\n{NODES} nodes connected in {took:.1f} s ({cpu:.1f} s of CPU here), {each / 1024:.0f} KiB a session, "
            f"idle {idle * 100:.1f} % of a core ({idle * 60:.2f} s of CPU a minute)"
        )
        assert took <= 30
        await sessions.stop()
    finally:
        fleet.kill()
        fleet.wait()
        fleet.stdout.close()


def _start_fleet(sshd: Sshd) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.bench.fleet", str(sshd.host_key), str(sshd.authorized)]
    return subprocess.Popen(command, stdout=subprocess.PIPE)
