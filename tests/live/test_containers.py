"""Engines in containers, by a docker and a podman that behave like them: the whole life, the agent killed in its middle."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from llmgw.agent import procfs
from llmgw.base.ids import ReplicaId, ShardId
from llmgw.engines.shard import WEIGHTS, RestartPolicy, ShardSpec
from llmgw.fleet.report import Containers, Phase, Report
from tests.builders import order
from tests.fakes.docker import Docker, docker
from tests.live.agent_node import ENGINE, Node, fake, running_node
from tests.unit.agent import host

IMAGE = "ghcr.io/ggml-org/llama.cpp:server-b11434"
CHUNKS = 40


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Docker]:
    with docker(tmp_path / "docker") as found:
        found.image(IMAGE, pull=0.5, programs={"/app/llama-server": [sys.executable, ENGINE]})
        monkeypatch.setenv("PATH", f"{found.bin}:{os.environ['PATH']}")
        monkeypatch.setenv("LEAK", "must not enter a container")
        yield found


@pytest.fixture
def node(tmp_path: Path, programs: Docker) -> Iterator[Node]:
    with running_node(tmp_path) as node:
        yield node


def contained(node: Node, runtime: str, *flags: str, **changes: object) -> ShardSpec:
    port = host.free_port()
    args = ("--alias", "m", "--port", str(port), "--model", WEIGHTS, *flags)
    fields = {"runtime": runtime, "image": IMAGE, "programs": (("/app/llama-server",),), "args": args, "port": port}
    return replace(fake(node.root), **{**fields, "restarts": RestartPolicy(0.1, 1.0, 4, 600.0), **changes})  # type: ignore[arg-type]


def ready(report: Report, *attempts: int) -> bool:
    return [one.attempt for one in report.shards if one.phase is Phase.READY] == list(attempts)


async def stream(port: int) -> str:
    """Ask an engine for a long answer; return all of it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = json.dumps({"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}]})
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write((head + body).encode())
    try:
        async with asyncio.timeout(30):
            return (await reader.readuntil(b"[DONE]")).decode()
    finally:
        writer.close()


async def test_a_container_lives_as_a_process_does_whoever_dies_around_it(node: Node, programs: Docker) -> None:
    first = contained(
        node, "docker", "--chunks", str(CHUNKS), "--chunk-interval", "0.1", memory=1 << 30, secrets={"HF_TOKEN": "hf"}
    )
    other = {"shard": ShardId("n-1-0.s0"), "replica": ReplicaId("n-1-0")}
    second = contained(node, "podman", "--ignore-sigterm", stop_grace=0.5, **other)
    node.start()
    report = await node.hear(order("a", first, second), lambda said: ready(said, 1, 1), {"hf": "v4lue"})
    assert report.facts.containers == (Containers("docker", "28.3.0"), Containers("podman", "5.4.2"))
    one, two = sorted(programs.containers, key=lambda each: each["labels"]["llmgw.shard"] != first.shard)
    assert (one["labels"]["llmgw.shard"], two["labels"]["llmgw.shard"]) == (first.shard, second.shard)
    assert (one["env"]["HF_TOKEN"], one["flags"]["--memory"]) == ("v4lue", [str(1 << 30)])
    assert "LEAK" not in one["env"]
    assert not any("v4lue" in word for stat in procfs.processes() for word in procfs.arguments_of(stat.pid))
    log = (node.root / "state/logs" / first.shard / "1.log").read_text()
    assert "Pulling fs layer" in log, "what the image's way here says is where an engine's words are"
    tenders = {each.spec.shard: each.pid for each in report.shards}

    # an answer is under way while the agent is killed and the daemon restarted
    answer = asyncio.ensure_future(stream(first.port))
    node.end(signal.SIGKILL)
    programs.stop()
    programs.start()
    node.start()
    again = await node.hear(None, lambda said: ready(said, 1, 1))
    assert (again.facts.adoptions.adopted, again.facts.adoptions.gone) == (2, 0)
    assert {each.spec.shard: each.pid for each in again.shards} == tenders
    assert (await answer).count('"content"') == CHUNKS
    assert {each["pid"] for each in programs.containers} == {one["pid"], two["pid"]}
    await host.until(lambda: "attaching again" in (node.root / "state/logs" / first.shard / "1.log").read_text())

    # an operator removes one, and it is started again; the other goes on
    assert programs("rm", "--force", one["name"]).returncode == 0
    third = await node.hear(None, lambda said: ready(said, 1, 2) or ready(said, 2, 1))
    restarted = third.shard(first.shard)
    assert restarted is not None
    assert restarted.last_end is not None
    assert (restarted.attempt, restarted.last_end.code) == (2, "container_removed")

    # one ends when it is asked to, the other is killed; nothing of either is left
    await node.hear(order("a", generation=2), lambda said: not said.shards)
    assert programs.containers == []
    assert not any(host.alive(pid or 0) for pid in tenders.values())
    assert not [stat for stat in procfs.processes() if f"{node.root}/w.gguf" in procfs.arguments_of(stat.pid)]
    assert list((node.root / "state/shards").iterdir()) == []
    assert "the container ended with status 0" in (node.root / "state/logs" / first.shard / "2.log").read_text()
    assert "the container ended" not in (node.root / "state/logs" / second.shard / "1.log").read_text(), "it was killed"
