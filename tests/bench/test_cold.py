"""What a start costs: the command's answer to `--help`, and the memory of an idle server with one worker."""

import statistics
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest

from tests.live.lab import Lab, model_yaml

pytestmark = pytest.mark.bench

RUNS = 15


def _median(*arguments: str) -> float:
    seconds = []
    for _ in range(RUNS):
        start = time.perf_counter()
        subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def test_help_answers_at_once() -> None:
    bare = _median("-c", "pass")
    shown = _median("-m", "llmgw", "--help")
    print(f"\nllmgw --help: {shown * 1000:.0f} ms, python -c pass: {bare * 1000:.0f} ms, ratio {shown / bare:.1f}")
    assert shown / bare < 20, "something heavy is imported before a command runs"


@pytest.fixture
def lab() -> Iterator[Lab]:
    lab = Lab()
    try:
        yield lab
    finally:
        lab.close()


def test_an_idle_server_is_small(lab: Lab) -> None:
    lab.write("models/m.yaml", model_yaml("m"))
    lab.commit()
    agent = lab.start_agent()
    server = lab.start_server()
    lab.until(lambda: lab.ready("m"), "the model")
    lab.ask("m")
    worker = lab.status()["control"]["workers"][0]
    sizes = {name: psutil.Process(pid).memory_info().rss >> 20 for name, pid in
             {"server": server.pid, "worker": worker, "agent": agent.pid}.items()}  # fmt: skip
    before = {pid: sum(psutil.Process(pid).cpu_times()[:2]) for pid in (server.pid, worker, agent.pid)}
    start = time.monotonic()
    while time.monotonic() - start < 5:
        time.sleep(0.5)
    spent = {pid: (sum(psutil.Process(pid).cpu_times()[:2]) - was) / 5 * 100 for pid, was in before.items()}
    print(f"\nmemory (MiB): {sizes}, server and worker together {sizes['server'] + sizes['worker']}")
    print(
        f"idle cpu (% of a core): server {spent[server.pid]:.1f}, worker {spent[worker]:.1f}, agent {spent[agent.pid]:.1f}"
    )
    assert sizes["server"] + sizes["worker"] < 150
    assert sizes["agent"] < 60
