"""`llmgw logs -f`: over an engine's restart, a server's restart, and to its own end."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.live.lab import Lab, fake_yaml
from tests.live.witness import kill

TALKS = ("--log-every", "0.3")


class Follower:
    """A running `llmgw logs -f` and what it printed so far."""

    def __init__(self, lab: Lab, *arguments: str) -> None:
        self.out, self.err = lab.root / "follow.out", lab.root / "follow.err"
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "llmgw", "logs", *arguments], env=lab.environment, stdout=out, stderr=err
            )
        lab.processes.append(self.process)

    def lines(self) -> list[str]:
        return self.out.read_text().splitlines()

    def said(self) -> str:
        return self.err.read_text()

    def status(self, lab: Lab) -> int:
        """Wait for its end; return its exit status."""
        lab.until(lambda: self.process.poll() is not None, "the follower to end by itself")
        return self.process.returncode


def begin(lab: Lab, *flags: str) -> int:
    lab.write("models/m.yaml", fake_yaml("m", *flags))
    lab.commit()
    lab.agent = lab.start_agent()
    lab.server = lab.start_server()
    lab.until(lambda: lab.ready("m"), "the model")
    return lab.pids()["m-1-0"]


def log_of(lab: Lab, attempt: int) -> list[str]:
    return Path(lab.root / f"ag/logs/m-1-0.s0/{attempt}.log").read_text().splitlines()


def test_following_goes_over_an_engines_restart_and_ends_with_the_replica(lab: Lab) -> None:
    engine = begin(lab, *TALKS)
    follower = Follower(lab, "m-1-0", "-f")
    lab.until(lambda: len(follower.lines()) > 4, "lines")
    os.kill(engine, signal.SIGKILL)
    lab.until(lambda: "attempt 2" in follower.said(), "the next attempt")
    lab.until(lambda: lab.ready("m") and lab.replicas("m")[0]["attempt"] == 2, "the model")
    first, so_far = log_of(lab, 1), len(follower.lines())
    lab.until(lambda: len(follower.lines()) > so_far, "lines of the next attempt")
    lab.write("models/m.yaml", fake_yaml("m", *TALKS, replicas=0))
    lab.commit()
    assert follower.status(lab) == 0
    assert "the replica is gone" in follower.said()
    assert follower.lines() == first + log_of(lab, 2), "every line once, in order"


def test_following_one_attempt_ends_with_it(lab: Lab) -> None:
    engine = begin(lab, *TALKS)
    follower = Follower(lab, "m-1-0", "-f", "--attempt", "1")
    lab.until(lambda: len(follower.lines()) > 4, "lines")
    os.kill(engine, signal.SIGKILL)
    assert follower.status(lab) == 0
    assert "attempt 1 has ended" in follower.said()
    assert follower.lines() == log_of(lab, 1)


def test_following_goes_over_the_restarts_of_server_and_agent(lab: Lab) -> None:
    begin(lab, *TALKS)
    follower = Follower(lab, "m-1-0", "-f")
    lab.until(lambda: len(follower.lines()) > 4, "lines")
    for what in ("server", "agent"):
        said = follower.said().count("waiting")
        kill(lab.server if what == "server" else lab.agent)
        lab.until(lambda said=said: follower.said().count("waiting") > said, "it to say that it waits")
        so_far = len(follower.lines())
        if what == "server":
            lab.server = lab.start_server()
        else:
            lab.agent = lab.start_agent()
        lab.until(lambda so_far=so_far: len(follower.lines()) > so_far + 3, "lines again")
    follower.process.send_signal(signal.SIGINT)
    assert follower.process.wait(10) == 130
    shown = follower.lines()
    assert shown == log_of(lab, 1)[: len(shown)], "none lost, none twice"


def test_the_log_of_what_is_gone_is_shown_and_following_it_ends_at_once(lab: Lab) -> None:
    begin(lab)
    lab.write("models/m.yaml", fake_yaml("m", replicas=0))
    lab.commit()
    lab.until(lambda: not lab.replicas("m"), "the end of it")
    follower = Follower(lab, "m-1-0", "-f")
    assert follower.status(lab) == 0
    assert follower.lines() == log_of(lab, 1)
    assert "the replica is gone" in follower.said()
