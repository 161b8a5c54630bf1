"""A node of one's own for a test: an agent as a program, its directories, and a control plane of three messages."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from llmgw import __version__
from llmgw.agent import procfs
from llmgw.base.ids import NodeName
from llmgw.engines.shard import PYTHON, ShardSpec
from llmgw.fleet.order import NodeOrder
from llmgw.fleet.report import Phase, Report
from llmgw.wire.frames import frame
from llmgw.wire.messages import PROTOCOL, Hello, Order, Said, encode
from llmgw.wire.session import Session
from tests.unit.agent import host
from tests.unit.agent.brain import SPEC

ENGINE = str(Path(__file__).parent.parent / "fakes" / "engine.py")


class Node:
    """A node: an agent's directories, and the agent."""

    def __init__(self, root: Path, runtime: Path) -> None:
        self.root = root
        self.socket = runtime / "llmgw" / "agent.sock"
        self.process: subprocess.Popen[bytes] | None = None
        (root / "w.gguf").write_text("weights")

    def start(self) -> None:
        with (self.root / "agent.log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "llmgw", "agent", "--socket", str(self.socket)),
                    *("--weights-dir", str(self.root), "--state-dir", str(self.root / "state")),
                ],
                stdout=log,
                stderr=log,
            )

    def end(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)
        self.process.wait(20)

    async def tell(self, wanted: NodeOrder | None, until: Phase, secrets: dict[str, str] | None = None) -> Report:
        """Connect, give an order, wait until its first shard is in a phase; return the report that said so."""
        return await self.hear(wanted, lambda report: any(one.phase is until for one in report.shards), secrets)

    async def hear(
        self, wanted: NodeOrder | None, holds: Callable[[Report], bool], secrets: dict[str, str] | None = None
    ) -> Report:
        """Connect, give an order, wait for a report of which something holds; return it."""
        async with asyncio.timeout(30):
            while True:  # it may not listen yet
                try:
                    reader, writer = await asyncio.open_unix_connection(str(self.socket))
                    break
                except OSError:
                    await asyncio.sleep(0.05)
            try:
                writer.write(frame(encode(Hello(PROTOCOL, __version__, "c", NodeName("a")))))
                if wanted is not None:
                    writer.write(frame(encode(Order(wanted, secrets or {}))))
                session = Session("control_of_agent")
                while data := await reader.read(1 << 16):
                    for message in session.feed(data):
                        if isinstance(message, Said) and holds(message.report):
                            return message.report
            finally:
                writer.close()
        raise AssertionError((self.root / "agent.log").read_text())


@contextmanager
def running_node(root: Path) -> Iterator[Node]:
    """Give a node that nothing of is left afterwards."""
    runtime = Path(tempfile.mkdtemp(prefix="llmgw-life-", dir="/dev/shm"))
    node = Node(root, runtime)
    try:
        yield node
    finally:
        if node.process is not None and node.process.poll() is None:
            node.end(signal.SIGTERM)
        for pid in engines(root):
            os.kill(pid, signal.SIGKILL)
        shutil.rmtree(runtime)


def engines(root: Path) -> list[int]:
    """Return the fake engines that were started for this test."""
    return [stat.pid for stat in procfs.processes() if f"{root}/w.gguf" in procfs.arguments_of(stat.pid)]


def fake(root: Path, **changes: object) -> ShardSpec:
    """Return a shard whose engine is a fake one."""
    port = host.free_port()
    args = ("--alias", SPEC.served_name, "--port", str(port), "--model", f"{root}/w.gguf")
    return replace(SPEC, programs=((PYTHON, ENGINE),), args=args, port=port, weights="w.gguf", **changes)  # type: ignore[arg-type]
