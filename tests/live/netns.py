"""A node on a network of its own: a network namespace at the end of a veth pair, that can be unplugged. Needs root."""

import os
import subprocess
import sys

import pytest

from tests.live.conftest import program
from tests.live.lab import Lab


class Network:
    """One namespace and the cable to it. `close` takes both away; processes in it are the lab's to end."""

    def __init__(self) -> None:
        program("ip")
        number = os.getpid() % 250
        self.name = f"llmgw-{os.getpid()}"
        self.near, self.far = f"10.213.{number}.1", f"10.213.{number}.2"
        self._outer, self._inner = f"lg{os.getpid()}a", f"lg{os.getpid()}b"
        try:
            self._ip("netns", "add", self.name)
        except subprocess.CalledProcessError as error:
            reason = f"network namespaces cannot be made here: {error.stderr.strip()}; run the tests as root"
            if os.environ.get("LLMGW_NO_SKIP") and os.geteuid() == 0:
                pytest.fail(reason)
            pytest.skip(reason)
        self._ip("link", "add", self._outer, "type", "veth", "peer", "name", self._inner, "netns", self.name)
        self._ip("addr", "add", f"{self.near}/30", "dev", self._outer)
        self._ip("link", "set", self._outer, "up")
        self._ip("-n", self.name, "addr", "add", f"{self.far}/30", "dev", self._inner)
        self._ip("-n", self.name, "link", "set", "lo", "up")
        self.plug()

    def plug(self) -> None:
        """Let packets through."""
        self._ip("-n", self.name, "link", "set", self._inner, "up")

    def unplug(self) -> None:
        """Let none through, and tell nobody."""
        self._ip("-n", self.name, "link", "set", self._inner, "down")

    def start_agent(self, lab: Lab) -> None:
        """Start the lab's agent in here."""
        command = ["ip", "netns", "exec", self.name, sys.executable, "-m", "llmgw", "agent"]
        places = ["--state-dir", str(lab.root / "ag"), "--weights-dir", str(lab.weights)]
        with (lab.root / "agent.log").open("ab") as log:
            process = subprocess.Popen(
                [*command, *places], env=lab.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        lab.processes.append(process)
        lab.until((lab.root / "a.sock").is_socket, "the agent to listen", process)

    def close(self) -> None:
        """Take the namespace and the cable away."""
        self._ip("netns", "del", self.name)
        subprocess.run(["ip", "link", "del", self._outer], check=False, capture_output=True)

    def _ip(self, *arguments: str) -> None:
        subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)
