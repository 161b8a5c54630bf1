"""The process that stands for a container: what it makes of every way in which a container does not start, or ends."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llmgw.agent import container
from llmgw.agent.container import Devices, Wanted
from llmgw.agent.endings import classify as ending
from llmgw.engines.exits import CONTAINER, classify
from llmgw.engines.shard import ShardSpec
from tests.fakes.docker import Docker, docker
from tests.unit.agent import host
from tests.unit.agent.brain import SPEC

IMAGE = "an/engine:1"
NAME = "llmgw-m-1-0.s0.1-abc"
SLEEP = [sys.executable, "-c", "import time; print('loaded', flush=True); time.sleep(60)"]


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[Docker]:
    with docker(tmp_path / "docker") as found:
        end = [sys.executable, "-c", "raise SystemExit(3)"]
        found.image(IMAGE, present=True, programs={"serve": SLEEP, "end": end, "broken": None})
        found.image("an/engine:slow", pull=5.0, programs={"serve": SLEEP})
        yield found


class Tended:
    """A tender that runs, with its log in a file, as an agent starts it."""

    def __init__(self, fake: Docker, root: Path, program: str = "docker", image: str = IMAGE, **changes: Any) -> None:
        entry = changes.pop("entry", "serve")
        self.note = root / "note"
        self.log = root / "log"
        (root / "w.gguf").touch()
        spec = host.spec(runtime=program, image=image, programs=((entry,),) if entry else ())
        fields = {
            "name": NAME,
            "program": str(fake.bin / program),
            "id_file": root / "id",
            "weights": root / "w.gguf",
            "mounts": (root,),
            "env": {},
            "secrets": (),
            "labels": {container.LABEL_AGENT: "abc"},
            "devices": Devices(),
            "shared_memory": 1 << 26,
            **changes,
        }
        run = container.arguments(spec, Wanted(**fields))
        argv = [sys.executable, "-m", "llmgw.agent.tender", str(root / "id"), str(self.note), *run]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    async def runs(self) -> container.Container:
        await host.until(lambda: container.noted(self.note) is not None and "loaded" in self.log.read_text())
        found = container.noted(self.note)
        assert found is not None
        return found

    def ended(self) -> tuple[int, str]:
        """Return the exit status, and the code that an agent gives to such an end."""
        status = self.process.wait(20)
        said = ending(-status if status < 0 else status << 8, None, by_us=False)
        return status, classify(CONTAINER, said.code, said.text, tuple(self.log.read_text().splitlines()))[0]


@pytest.mark.parametrize("program", ["docker", "podman"])
@pytest.mark.parametrize(
    ("changes", "outcome"),
    [
        ({"image": "an/other:1"}, (125, "image_missing")),
        ({"entry": "vllm"}, (127, "not_executable")),
        ({"entry": "broken"}, (126, "not_executable")),
        ({"mounts": (Path("/not/there"),)}, (125, "container_not_started")),
        ({"devices": Devices(("--gpus", '"device=GPU-9"'))}, (125, "gpu_unusable")),
        ({"entry": "end"}, (3, "exited")),
    ],
)
def test_an_end_says_what_it_was(
    fake: Docker, tmp_path: Path, program: str, changes: dict[str, Any], outcome: tuple[int, str]
) -> None:
    assert Tended(fake, tmp_path, program, **changes).ended() == outcome


async def test_a_name_that_another_container_has_is_a_reason_and_that_one_goes_on(fake: Docker, tmp_path: Path) -> None:
    (tmp_path / "first").mkdir()
    first = Tended(fake, tmp_path / "first")
    running = await first.runs()
    (tmp_path / "second").mkdir()
    # it sees that what runs under the name is not what it started, which it never had an id of
    second = Tended(fake, tmp_path / "second")
    assert second.ended() == (125, "container_name_taken")
    assert host.alive(running.pid)
    assert fake("rm", "--force", NAME).returncode == 0
    assert first.ended() == (-signal.SIGKILL, "container_removed")


async def test_a_container_that_the_kernel_ended_for_memory_says_so(fake: Docker, tmp_path: Path) -> None:
    tended = Tended(fake, tmp_path)
    await tended.runs()
    fake.kill_for_memory(NAME)
    assert tended.ended() == (-signal.SIGKILL, "out_of_host_memory")


async def test_sigterm_reaches_the_container_and_its_end_is_told(fake: Docker, tmp_path: Path) -> None:
    tended = Tended(fake, tmp_path)
    running = await tended.runs()
    assert running.holds(running.pid)
    assert not running.holds(os.getpid())
    tended.process.send_signal(signal.SIGTERM)
    assert tended.ended() == (-signal.SIGTERM, "killed")
    assert not host.alive(running.pid)


async def test_sigterm_while_the_image_is_on_its_way_leaves_no_container(fake: Docker, tmp_path: Path) -> None:
    tended = Tended(fake, tmp_path, image="an/engine:slow")
    await host.until(lambda: "Pulling" in tended.log.read_text())
    tended.process.send_signal(signal.SIGTERM)
    tended.process.wait(20)
    assert fake.containers == []


def test_a_daemon_that_is_away_starts_nothing(fake: Docker, tmp_path: Path) -> None:
    fake.stop()
    assert Tended(fake, tmp_path).ended() == (125, "runtime_away")


async def test_a_daemon_that_goes_takes_no_container_with_it_and_what_ends_meanwhile_is_told_when_it_is_back(
    fake: Docker, tmp_path: Path
) -> None:
    tended = Tended(fake, tmp_path)
    running = await tended.runs()
    fake.stop()
    await host.until(lambda: "unexpected EOF" in tended.log.read_text())
    assert tended.process.poll() is None
    assert host.alive(running.pid)
    os.kill(running.pid, signal.SIGKILL)
    assert tended.ended() == (125, "exited"), "nobody can say how, and it is over all the same"
    assert "ended while docker did not answer" in tended.log.read_text()


def test_the_spec_of_an_older_order_is_a_process() -> None:
    assert (SPEC.runtime, SPEC.image) == ("process", "")
    assert ShardSpec.__dataclass_fields__["runtime"].default == "process"
