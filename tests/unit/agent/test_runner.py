"""The agent's hands with real processes and fake cards: what is verified before an attempt counts as gone."""

import asyncio
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from llmgw.agent import runner as hands
from llmgw.agent.cards import Card, Maker, Reading
from llmgw.agent.disk import Disk
from llmgw.agent.gpus import Gpus
from llmgw.agent.probe import Prober
from llmgw.agent.runner import Runner
from llmgw.agent.secrets import Secrets
from llmgw.agent.state import AgentState
from llmgw.base.ids import BootId, NodeName
from llmgw.engines.shard import RestartPolicy, ShardSpec
from llmgw.fleet.report import Phase, ShardReport
from llmgw.runtime.clock import SystemClock
from llmgw.runtime.supervisor import Supervisor
from tests.builders import order
from tests.unit.agent.host import agent, spec

GIB = 1 << 30
SLOW = RestartPolicy(base=60.0, maximum=60.0, give_up_after=5, reset_after=600.0)


@dataclass
class OneCard:
    """A card whose driver says what the test puts in."""

    maker: Maker = Maker.NVIDIA
    there: bool = True
    users: tuple[tuple[int, int | None], ...] = ()

    async def read(self, *, urgent: bool) -> Reading:
        del urgent
        used = sum(size or 0 for _, size in self.users)
        return Reading("570", (Card(self.maker, "GPU-0", "0:1:0", "H100", 80 * GIB, used, self.users),))

    async def close(self) -> None:
        return


class Hands:
    """A runner that has adopted nothing, and its one shard."""

    def __init__(self, root: Path, card: OneCard | None = None, secrets: Secrets | None = None) -> None:
        self.processes = agent(root, values=secrets)
        self.disk = self.processes._disk
        self.runner = Runner(
            AgentState(BootId("b")), self.disk, self.processes, Prober(self.processes.shard_of), SystemClock(), root
        )
        if card is not None:
            self.gpus = Gpus((card,), self.processes.shard_of, interval=0.05)
            self.runner.use_gpus(self.gpus)

    def order(self, *specs: ShardSpec, generation: int = 1, secrets: dict[str, str] | None = None) -> None:
        self.runner.obey(order("n", *specs, generation=generation), "c", secrets)

    @property
    def shard(self) -> ShardReport:
        return self.runner.report(NodeName("n")).shards[0]

    async def until(self, holds: Callable[[], bool], what: str) -> None:
        """Let time pass for the runner until something holds."""
        tasks = Supervisor("time")
        tasks.loop("run", self.runner.run())
        try:
            async with asyncio.timeout(15):
                while not holds():  # noqa: ASYNC110 - other processes do it
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise AssertionError(f"{what}: {self.shard}") from None
        finally:
            await tasks.stop()


async def test_a_card_that_a_dead_engine_still_holds_is_not_free_however_often_it_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hands, "RELEASE_PATIENCE", 0.3)
    card = OneCard()
    scene = Hands(tmp_path, card)
    await scene.gpus.first_look()
    scene.order(spec(gpus=("GPU-0",), restarts=SLOW))
    await scene.until(lambda: scene.shard.phase is Phase.STARTING, "a start")
    pid = scene.shard.pid
    assert pid is not None
    card.users = ((pid, 60 * GIB),)
    os.kill(pid, signal.SIGKILL)
    await scene.until(lambda: scene.shard.reason is not None and scene.shard.reason.code == "gpu_busy", "a held card")
    said: list[Phase] = []
    loop = asyncio.get_running_loop()
    later = loop.time() + 1.5
    await scene.until(lambda: said.append(scene.shard.phase) or loop.time() > later, "some more looks")
    assert set(said) == {Phase.STOPPING}, "asked again and again, and it is not free"
    assert f"pid {pid}" in (scene.shard.reason.text if scene.shard.reason else "")
    card.users = ()
    await scene.until(lambda: scene.shard.phase is Phase.BACKOFF, "the end")
    await scene.runner.stop(engines=True)


async def test_an_attempt_that_was_ended_for_good_reason_shows_the_end_of_its_log(tmp_path: Path) -> None:
    scene = Hands(tmp_path)
    program = "import time; print('loading shard 3 of 9', flush=True); time.sleep(60)"
    scene.order(spec(program, start_timeout=0.5, restarts=SLOW))
    await scene.until(lambda: scene.shard.phase is Phase.BACKOFF, "the start's end")
    end = scene.shard.last_end
    assert end is not None
    assert (end.code, end.tail[-1]) == ("start_timeout", "loading shard 3 of 9")
    await scene.runner.stop(engines=True)


async def test_an_order_that_cannot_be_stored_leaves_the_secrets_of_the_one_in_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Hands(tmp_path, secrets=Secrets(tmp_path / "secrets"))
    scene.order(spec(secrets={"TOKEN": "T"}, weights="missing"), secrets={"T": "value"})

    def full(_: Disk, __: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Disk, "store_order", full)
    scene.order(spec(weights="missing"), generation=2)
    assert scene.runner.report(NodeName("n")).generation == 1
    assert scene.processes.secrets.get("T") == "value", "an engine of the order in force may have to be started again"
    await scene.runner.stop(engines=True)
