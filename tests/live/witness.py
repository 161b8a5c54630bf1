"""What must hold after anything was broken: no process lost, none doubled, no stranger touched, and the models serve.

The strangers are there from the start: a program that listens on the first port of the cluster's range, an engine that
bears another agent's mark but names a shard and an attempt of ours, and a real engine of a second, real agent.
"""

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import openai

from llmgw.agent.process import MARK_AGENT, MARK_ATTEMPT, MARK_HASH, MARK_SHARD
from llmgw.agent.procfs import arguments_of, environment_of, processes, stat_of
from llmgw.fleet.report import Phase
from tests.builders import order
from tests.live.agent_node import Node, fake
from tests.live.lab import ENGINE, Lab

LISTEN = "import socket, sys, time; s = socket.create_server(('127.0.0.1', int(sys.argv[1]))); time.sleep(3600)"


@dataclass(frozen=True)
class Stranger:
    """A process that nobody here may touch, known by its start, and the port it listens on."""

    what: str
    pid: int
    start: int
    port: int

    @staticmethod
    def of(what: str, pid: int, port: int) -> "Stranger":
        """Know a process that runs."""
        stat = stat_of(pid)
        assert stat is not None
        return Stranger(what, pid, stat.start_ticks, port)

    def check(self) -> None:
        """Fail unless it runs and listens as before."""
        stat = stat_of(self.pid)
        assert stat is not None, f"{self.what} is gone"
        assert (stat.start_ticks, stat.state in "RS") == (self.start, True), self.what
        assert _listens(self.port), f"{self.what} does not listen any more"


class OtherAgent:
    """A second agent of this host with a ready engine, for all tests of a module."""

    def __init__(self, node: Node) -> None:
        node.start()
        report = asyncio.run(node.tell(order("a", fake(node.root)), Phase.READY))
        (shard,) = report.shards
        assert shard.pid is not None
        assert node.process is not None
        self.agent = node.process
        self.engine = Stranger.of("another agent's engine", shard.pid, shard.spec.port)


class Witness:
    """Looks at one lab. Made before its agent starts; `close` ends the strangers that it started."""

    def __init__(self, lab: Lab, other: OtherAgent) -> None:
        self.lab = lab
        self.other = other
        found = re.search(r"ports: \[(\d+)", (lab.cluster / "cluster.yaml").read_text())
        assert found is not None
        self.first = int(found.group(1))
        self._started = [self._bystander(self.first), self._impostor(self.first + 1)]
        lab.until(lambda: _listens(self.first) and _listens(self.first + 1), "the strangers to listen")
        whats = ("a bystander in the port range", "an engine with another agent's mark")
        self.strangers = [
            *(Stranger.of(what, one.pid, self.first + n) for n, (what, one) in enumerate(zip(whats, self._started))),
            other.engine,
        ]

    def check(self, **wanted: int) -> None:
        """Wait until so many replicas of each model serve; fail unless all is as it must be."""
        lab = self.lab
        lab.until(lambda: all(lab.ready(model, count) for model, count in wanted.items()), f"ready: {wanted}")
        lab.until(lambda: lab.node()["state"] == "reporting", "reports")
        for model in wanted:
            lab.until(lambda one=model: answers(lab, one), f"an answer of {model}")
        lab.until(lambda: len(lab.pids()) == sum(wanted.values()), "no other replica")
        lab.until(lambda: engines(lab) == sorted(lab.pids().values()), "just the engines that status names")
        assert len({one["port"] for one in lab.status()["replicas"]}) == sum(wanted.values())
        assert marked(lab) == engines(lab), "nothing else bears this agent's mark"
        self.check_strangers()
        lab.until(lambda: lab.plan()[0] == 0, "a plan without changes")

    def check_strangers(self) -> None:
        """Fail if anything foreign was touched."""
        for stranger in self.strangers:
            stranger.check()
        assert self.other.agent.poll() is None

    def close(self) -> None:
        """End the strangers of this lab."""
        for process in self._started:
            process.kill()
            process.wait()

    def _bystander(self, port: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", LISTEN, str(port)], start_new_session=True)

    def _impostor(self, port: int) -> subprocess.Popen[bytes]:
        marks = {MARK_AGENT: "feedfacefeedface", MARK_SHARD: "m-1-0.s0", MARK_ATTEMPT: "1", MARK_HASH: "x"}
        return subprocess.Popen(
            [sys.executable, str(ENGINE), "--alias", "m", "--port", str(port)],
            env={**os.environ, **marks},
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )


def engines(lab: Lab) -> list[int]:
    """Return the processes that serve this lab's weights, whoever started them and whatever their environment."""
    mark = f"{lab.weights}/"
    return sorted(
        stat.pid
        for stat in processes()
        if stat.state not in ("Z", "X") and any(one.startswith(mark) for one in arguments_of(stat.pid))
    )


def marked(lab: Lab) -> list[int]:
    """Return the processes with the mark of this lab's agent."""
    own = (lab.root / "ag/id").read_text().strip()
    return sorted(
        stat.pid
        for stat in processes()
        if stat.state not in ("Z", "X") and environment_of(stat.pid).get(MARK_AGENT) == own
    )


def tagged(tag: str) -> list[int]:
    """Return the processes with this among their arguments."""
    return [stat.pid for stat in processes() if stat.state not in ("Z", "X") and tag in arguments_of(stat.pid)]


def answers(lab: Lab, model: str) -> bool:
    """Whether a model answers a question."""
    try:
        return bool(lab.ask(model)) or True
    except openai.OpenAIError:
        return False


def kill(*processes: subprocess.Popen[bytes]) -> None:
    """End programs of a lab as a power cut would."""
    for process in processes:
        process.send_signal(signal.SIGKILL)
    for process in processes:
        process.wait()


def secrets_of(lab: Lab) -> Path:
    """Return the file in memory where this lab's agent keeps secrets."""
    own = (lab.root / "ag/id").read_text().strip()
    return Path(f"/dev/shm/llmgw-{os.geteuid()}/secrets-{own}")


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
