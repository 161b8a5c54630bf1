"""A lab: one cluster of real processes in one temporary directory, and what a person does with it.

`git commit`, `llmgw server`, `llmgw agent`, `llmgw plan`, `llmgw status`, an OpenAI client, `kill`. Every process that a lab
started is ended with it, engines included, and a test fails if one is left over.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai

from llmgw.adapters.git_command import git_environment
from llmgw.agent.procfs import stat_of
from llmgw.cli.client import ask
from llmgw.cli.outcomes import Failed
from tests.fakes.gguf_file import write_tiny_gguf

ENGINE = Path(__file__).parents[1] / "fakes/engine.py"
PATIENCE = 60.0

CLUSTER = """\
apiVersion: llmgw/v1
kind: Cluster
name: lab
control:
  interval: 1s
  backoff: {base: 500ms, max: 2s}
"""
NODE = """\
apiVersion: llmgw/v1
kind: Node
name: local
local: true
"""


def model_yaml(
    name: str, *, replicas: int = 1, aliases: str = "[]", extra: str = "", weights: str = "tiny.gguf"
) -> str:
    """Return a model that real llama.cpp serves."""
    return f"""\
apiVersion: llmgw/v1
kind: Model
name: {name}
aliases: {aliases}
weights:
  path: {weights}
replicas: {replicas}
profiles:
  - name: cpu
    engine: llamacpp
    args: [--ctx-size, "4096", --parallel, "2", --threads, "1"]
{extra}"""


def fake_yaml(name: str, *flags: str, replicas: int = 1, extra: str = "") -> str:
    """Return a model that the fake engine serves with these flags."""
    command = json.dumps([sys.executable, str(ENGINE), *flags])
    return f"""\
apiVersion: llmgw/v1
kind: Model
name: {name}
weights:
  path: tiny.gguf
replicas: {replicas}
profiles:
  - name: fake
    engine: llamacpp
    command: {command}
{extra}"""


def alive(pid: int) -> bool:
    """Whether a process runs; one that ended and waits for its parent's look does not."""
    stat = stat_of(pid)
    return stat is not None and stat.state not in ("Z", "X")


@contextmanager
def stolen(lab: "Lab", port: int) -> Iterator[None]:
    """Take a port as soon as its engine has lost it, and listen there until the end of the block."""
    with socket.socket() as thief:
        thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)

        def bound() -> bool:
            try:
                thief.bind(("127.0.0.1", port))
            except OSError:
                return False
            return True

        lab.until(bound, "the port to be free")
        thief.listen()
        yield


def free_port() -> int:
    """Return a port that nothing uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Lab:
    """One cluster. `close` ends all of it."""

    def __init__(self) -> None:
        # short: a Unix socket's path has at most 107 bytes, and pytest's own directories are long
        self.root = Path(tempfile.mkdtemp(prefix="lab-", dir="/tmp"))
        self.cluster = self.root / "c"
        self.weights = self.root / "w"
        self.weights.mkdir()
        write_tiny_gguf(self.weights / "tiny.gguf")
        self.port = free_port()
        self.admin = self.root / "s/admin.sock"
        self.processes: list[subprocess.Popen[bytes]] = []
        self.agent: subprocess.Popen[bytes]
        self.server: subprocess.Popen[bytes]
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("LLMGW_", "GIT_"))},
            "LLMGW_AGENT_SOCKET": str(self.root / "a.sock"),
            "LLMGW_STATE_DIR": str(self.root / "s"),
        }
        self.cluster.mkdir()
        self.git("init", "-q")
        self.write("cluster.yaml", CLUSTER + self._ports())
        self.write("nodes/local.yaml", NODE)

    def _ports(self) -> str:
        # ranges of labs that run one after the other do not meet, since a port of an ended engine rests for a minute; nor do
        # those of labs that run side by side
        beside = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % 3
        first = 20000 + 3000 * beside + (os.getpid() * 7 + time.monotonic_ns() // 1_000_000) % 2900
        return f"  ports: [{first}, {first + 40}]\n"

    # what a person writes

    def git(self, *arguments: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(self.cluster), "-c", "user.name=lab", "-c", "user.email=lab@localhost", *arguments],
            env=git_environment(), check=True, capture_output=True, text=True,
        )  # fmt: skip
        return done.stdout.strip()

    def write(self, path: str, text: str) -> None:
        (self.cluster / path).parent.mkdir(parents=True, exist_ok=True)
        (self.cluster / path).write_text(text)

    def commit(self, message: str = "change") -> str:
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", message)
        return self.git("rev-parse", "HEAD")

    # what a person runs

    def spawn(self, *arguments: str, log: str, env: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
        with (self.root / log).open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "llmgw", *arguments],
                env={**self.environment, **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self.processes.append(process)
        return process

    def start_server(self, *arguments: str) -> subprocess.Popen[bytes]:
        process = self.spawn(
            "server",
            str(self.cluster),
            "--listen",
            f"127.0.0.1:{self.port}",
            "--drain",
            "5",
            *arguments,
            log="server.log",
        )
        self.until(self.answers, "the server to answer", process)
        self.until(self._gateway_listens, "the gateway to listen", process)
        return process

    def start_agent(self, *arguments: str) -> subprocess.Popen[bytes]:
        process = self.spawn(
            "agent",
            "--state-dir",
            str(self.root / "ag"),
            "--weights-dir",
            str(self.weights),
            *arguments,
            log="agent.log",
        )
        self.until((self.root / "a.sock").is_socket, "the agent to listen", process)
        return process

    def llmgw(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "llmgw", *arguments],
            env=self.environment, capture_output=True, text=True, timeout=PATIENCE, check=False, cwd=self.root,
        )  # fmt: skip

    def plan(self, *arguments: str) -> tuple[int, dict[str, Any]]:
        done = self.llmgw("plan", str(self.cluster), "--json", "--detailed-exitcode", *arguments)
        return done.returncode, json.loads(done.stdout) if done.stdout else {"error": done.stderr}

    def client(self, **options: Any) -> openai.OpenAI:
        return openai.OpenAI(
            base_url=f"http://127.0.0.1:{self.port}/v1", api_key="x", max_retries=0, timeout=30, **options
        )

    def ask(self, model: str, text: str = "hi", **options: Any) -> str:
        with self.client() as client:
            answer = client.chat.completions.create(
                model=model, messages=[{"role": "user", "content": text}], max_tokens=8, **options
            )
        return answer.choices[0].message.content or ""

    # what a person sees

    def status(self) -> dict[str, Any]:
        return ask(str(self.admin), "GET", "/v1/status")

    def metrics(self) -> str:
        """What Prometheus is shown."""
        done = subprocess.run(
            ["curl", "-sS", "--unix-socket", str(self.admin), "http://server/metrics"],
            capture_output=True, text=True, timeout=PATIENCE, check=True,
        )  # fmt: skip
        return done.stdout

    def answers(self) -> bool:
        """Whether a server answers; a killed one leaves its socket behind."""
        try:
            return bool(self.status())
        except Failed:
            return False

    def _gateway_listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def replicas(self, model: str) -> list[dict[str, Any]]:
        return [one for one in self.status()["replicas"] if one["model"] == model]

    def node(self) -> dict[str, Any]:
        """The only node's row; empty before the first round."""
        return next(iter(self.status()["nodes"]), {"state": None, "why": None})

    def ready(self, model: str, count: int = 1) -> bool:
        """Whether so many replicas are ready, and every gateway worker knows."""
        status = self.status()
        row = next((one for one in status["models"] if one["name"] == model), None)
        if row is None or not status["control"]["workers_current"]:
            return False
        return row["ready"] == count and row["wanted"] == count and row["replicas"] == count

    def pids(self) -> dict[str, int]:
        return {one["replica"]: one["pid"] for one in self.status()["replicas"]}

    def log(self, name: str) -> str:
        return (self.root / name).read_text(errors="replace")

    def until(
        self,
        condition: Callable[[], Any],
        what: str,
        process: subprocess.Popen[bytes] | None = None,
        patience: float = PATIENCE,
    ) -> Any:
        """Return what the condition returns as soon as it is true."""
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            found = condition()
            if found:
                return found
            if process is not None and process.poll() is not None:
                break
            time.sleep(0.02)
        logs = "\n".join(
            f"--- {path.name}\n{path.read_text(errors='replace')[-3000:]}" for path in self.root.glob("*.log")
        )
        shown = json.dumps(self.status(), indent=1) if self.answers() else "no server"
        raise AssertionError(f"waited in vain for {what}\n{shown}\n{logs}")

    # the end

    def close(self) -> None:
        for process in reversed(self.processes):
            if process.poll() is None:
                process.terminate()
        for process in self.processes:
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        left = self.left_over()
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        for known in self.root.glob("*/id"):  # what an agent keeps in memory outlives it, as it must
            (Path("/dev/shm") / f"llmgw-{os.geteuid()}" / f"secrets-{known.read_text().strip()}").unlink(
                missing_ok=True
            )
        shutil.rmtree(self.root, ignore_errors=True)

    def left_over(self) -> dict[int, str]:
        """Return the processes that name this lab's directory in their arguments or environment, but for its own."""
        own = {process.pid for process in self.processes if process.poll() is None}
        mark = str(self.root).encode()
        found = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) in own or int(entry.name) == os.getpid():
                continue
            try:
                arguments = (entry / "cmdline").read_bytes()
                environment = (entry / "environ").read_bytes()
            except OSError:
                continue
            if mark in arguments or mark in environment:
                found[int(entry.name)] = arguments.replace(b"\0", b" ").decode(errors="replace")
        return found
