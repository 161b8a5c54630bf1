"""The agent's connections: a control plane that reads nothing is let go of, for good."""

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest

from llmgw.agent import server as agent_server
from llmgw.agent.server import AgentServer
from llmgw.base.ids import NodeName
from llmgw.wire.frames import frame
from llmgw.wire.messages import PROTOCOL, Hello, Said, encode
from llmgw.wire.session import Session
from tests.unit.agent.test_runner import Hands


async def test_a_peer_that_reads_nothing_is_let_go_of_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_server, "SEND_LIMIT", 0.2)
    scene = Hands(tmp_path)
    scene.disk.open()
    server = AgentServer(tmp_path / "s", scene.runner, scene.disk)
    await server.start()
    reader, writer = await asyncio.open_unix_connection(str(tmp_path / "s"), limit=1)
    writer.write(frame(encode(Hello(PROTOCOL, "1", "c", NodeName("n")))))
    await asyncio.sleep(0.1)
    connections = server._connections._tasks
    assert len(connections) == 1
    async with asyncio.timeout(10):
        while connections:
            scene.runner.changes.set(scene.runner.changes.value + 1)  # a report for each
            await asyncio.sleep(0.001)
    with suppress(ConnectionResetError):
        await reader.read()
    writer.close()
    await server.stop()
    await scene.runner.stop(engines=False)
    scene.disk.close()


async def test_reports_come_at_once_at_every_change_and_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_server, "REPORT_EVERY", 0.5)
    scene = Hands(tmp_path)
    scene.disk.open()
    server = AgentServer(tmp_path / "s", scene.runner, scene.disk)
    await server.start()
    reader, writer = await asyncio.open_unix_connection(str(tmp_path / "s"))
    writer.write(frame(encode(Hello(PROTOCOL, "1", "c", NodeName("n")))))
    session, loop = Session("control_of_agent"), asyncio.get_running_loop()
    heard: list[float] = []

    async def hear(count: int) -> float:
        """Wait for so many reports; return how long the last one took."""
        begun = loop.time()
        async with asyncio.timeout(5):
            while len(heard) < count:
                said = session.feed(await reader.read(1 << 16))
                heard.extend(loop.time() for message in said if isinstance(message, Said))
        return heard[-1] - begun

    await hear(1)
    scene.runner.changes.set(scene.runner.changes.value + 1)
    assert await hear(2) < 0.3, "at once"
    assert await hear(3) > 0.3, "and again without any news"
    writer.close()
    await server.stop()
    await scene.runner.stop(engines=False)
    scene.disk.close()
