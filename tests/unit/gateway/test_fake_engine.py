"""The fake engine as a program: what the agent's tests rely on."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

from tests.unit.gateway.support import CHAT, PATIENCE, Client, Response, until

PROGRAM = Path(__file__).parents[2] / "fakes" / "engine.py"


class Running:
    """The program, its address and what it says."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.port = 0
        self.lines: list[str] = []

    async def line(self) -> str:
        assert self.process.stderr is not None
        async with asyncio.timeout(PATIENCE):
            self.lines.append((await self.process.stderr.readline()).decode().strip())
        return self.lines[-1]

    async def ask(self, path: str, body: object = None) -> Response:
        client = Client(*await asyncio.open_connection("127.0.0.1", self.port))
        client.get(path) if body is None else client.post(body, path)
        response = await client.response()
        await client.close()
        return response

    async def ended(self) -> int:
        async with asyncio.timeout(PATIENCE):
            return await self.process.wait()


async def start(*flags: str) -> Running:
    args = ["--model", "w.gguf", "--alias", "tiny", "--host", "127.0.0.1", "--port", "0", "--metrics", "--threads", "2"]
    running = Running(
        await asyncio.create_subprocess_exec(
            *(sys.executable, str(PROGRAM), *args, "--sse-ping-interval", "5", *flags),
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
    )
    while not (line := await running.line()).startswith("main: server is listening"):
        if not line:
            break
    running.port = int(line.rpartition(":")[2]) if line else 0
    return running


async def test_it_loads_serves_and_ends_when_told() -> None:
    engine = await start("--load-seconds", "0.4")
    for path, body in (("/health", None), ("/v1/models", None), ("/v1/chat/completions", CHAT)):
        assert (await engine.ask(path, body)).status == 503
    while (await engine.ask("/health")).status != 200:
        pass
    assert (await engine.ask("/v1/models")).json["data"][0]["id"] == "tiny"
    answer = (await engine.ask("/v1/chat/completions", CHAT)).json
    assert answer["choices"][0]["message"]["content"] == f"tiny {engine.process.pid} answers"
    assert (await engine.ask("/seen")).json["requests"] == 1
    assert b"requests_processing 0" in (await engine.ask("/metrics")).body
    engine.process.send_signal(signal.SIGTERM)
    assert await engine.ended() == 0


async def test_switches_are_thrown_while_it_runs() -> None:
    engine = await start("--ignore-sigterm")
    assert (await engine.ask("/switches", {"no_such": 1})).status == 400
    assert (await engine.ask("/switches", {"health_status": 500})).status == 200
    assert (await engine.ask("/health")).status == 500
    engine.process.send_signal(signal.SIGTERM)
    assert (await engine.ask("/v1/models")).status == 200
    await engine.ask("/switches", {"exit_after": 0.01, "exit_code": 42})
    assert await engine.ended() == 42


async def test_it_fails_at_once_with_a_status() -> None:
    engine = await start("--exit-at-once", "7")
    assert await engine.ended() == 7


async def test_a_port_that_is_taken_is_said_in_llama_cpps_words() -> None:
    first = await start()
    second = await start("--port", str(first.port))
    assert await second.ended() == 1
    assert "couldn't bind HTTP server socket" in "".join(second.lines)
    first.process.kill()
    await first.ended()


async def test_an_orphan_outlives_it_in_its_process_group() -> None:
    engine = await start("--spawn-child")
    orphan = int(engine.lines[0])
    engine.process.kill()
    await engine.ended()
    assert os.getpgid(orphan) == engine.process.pid
    os.killpg(engine.process.pid, signal.SIGKILL)
    await until(lambda: not Path(f"/proc/{orphan}").exists() or b"Z" in Path(f"/proc/{orphan}/stat").read_bytes()[:40])


async def test_it_says_what_it_saw() -> None:
    engine = await start("--echo-headers", "--chunks", "2")
    echoed = (await engine.ask("/v1/completions", CHAT)).json
    assert json.loads(echoed["body"]) == CHAT
    assert ["host", "gw"] in echoed["headers"]
    engine.process.terminate()
    await engine.ended()
