"""A lab whose engines are real vLLM, and what a test wants to know of them that status does not tell.

vLLM's processes set titles and so wipe their environments and arguments, which /proc then shows no more; what they write to
tells whose they are.
"""

import json
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
from openai.types import CompletionUsage

from llmgw.agent.procfs import is_resource_tracker
from tests.live.lab import Lab, alive

VLLM = os.environ.get("LLMGW_VLLM", "")
"""The program, in a virtual environment of its own; empty outside of `make test-vllm`."""
START = 300.0
"""Seconds that a start may take; on two free cores it is 30."""
CONTEXT = 32768
ARGS = ["--dtype", "float32", "--enforce-eager", "--max-model-len", str(CONTEXT)]
"""float32: with bfloat16 it uses AMX where the processor says it has that, and dies by SIGILL where a hypervisor says no."""
ENV = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
"""A cache of 1 GiB instead of most of the memory, and threads that the kernel places, since engines share the cores."""


class Rig:
    """One cluster of real processes, and its engines."""

    def __init__(self) -> None:
        self._before = _segments()
        self.lab = Lab()
        scratch = self.lab.root / "t"
        scratch.mkdir()
        self.lab.environment["TMPDIR"] = str(scratch)  # an agent passes it on

    def write(self, name: str, adapters: tuple[str, ...] = (), **profile: object) -> None:
        """Write a model of one vLLM, served on a CPU unless the profile says otherwise."""
        one: dict[str, object] = {"engine": "vllm", "command": [VLLM, "serve"], "args": ARGS, "env": ENV, **profile}
        body = {
            "apiVersion": "llmgw/v1",
            "kind": "Model",
            "name": name,
            "replicas": 1,
            "weights": {"path": "m"},
            "profiles": [one],
            "adapters": [{"name": each, "weights": {"path": "lora"}} for each in adapters],
        }
        self.lab.write(f"models/{name}.yaml", json.dumps(body))

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        """Wait as long as a start may take."""
        return self.lab.until(condition, what, patience=START)

    def replica(self, model: str) -> dict[str, Any]:
        """Return the row of a model's only replica; empty while there is none."""
        return next(iter(self.lab.replicas(model)), {})

    def engines(self) -> dict[int, str]:
        """Return pid -> arguments of all that writes into an attempt's log: servers, their engines, workers and trackers."""
        found = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                place = str((entry / "fd/1").readlink())
                arguments = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if place.startswith(f"{self.lab.root}/") and "/logs/" in place and alive(int(entry.name)):
                found[int(entry.name)] = arguments.rstrip(b"\0").replace(b"\0", b" ").decode(errors="replace")
        return found

    def refuses(self, model: str) -> bool:
        """Whether new requests for a model are answered as those for one that there is not."""
        try:
            self.lab.ask(model)
        except openai.NotFoundError as error:
            return error.code == "model_not_found"
        return False

    def titled(self, title: str) -> list[int]:
        """Return the engines' processes with such a title."""
        return [pid for pid, arguments in self.engines().items() if arguments.startswith(title)]

    def shared_memory(self) -> set[str]:
        """Return segments of shared memory that came since this rig began."""
        return _segments() - self._before

    def close(self) -> None:
        """End all of it: who would start engines again, then those, and of their processes last what frees their memory."""
        for process in self.lab.processes:
            process.terminate()
            process.wait(30)
        for pid in self.engines():
            if not is_resource_tracker(pid):
                os.kill(pid, signal.SIGKILL)
        try:
            self.lab.until(lambda: not self.engines(), "the engines to be gone")
        finally:
            self.lab.close()


def _segments() -> set[str]:
    return {path.name for path in Path("/dev/shm").glob("psm_*")}


class Talk:
    """A stream of so many tokens that is read in a thread, so that the test can act in the middle of it."""

    def __init__(self, rig: Rig, model: str, tokens: int) -> None:
        self.chunks: list[str] = []
        self.error: Exception | None = None
        self.finish: str | None = None
        self.usage: CompletionUsage | None = None
        self._rig = rig
        self._enough = False
        self._thread = threading.Thread(target=self._read, args=(model, tokens))
        self._thread.start()
        rig.until(lambda: len(self.chunks) > 1 or self.error, "the first tokens")

    @property
    def ended(self) -> bool:
        return not self._thread.is_alive()

    def _read(self, model: str, tokens: int) -> None:
        try:
            with self._rig.lab.client() as client:
                for chunk in client.chat.completions.create(
                    model=model,
                    messages=[{"role": "user", "content": "w20 w21"}],
                    max_tokens=tokens,
                    stream=True,
                    stream_options={"include_usage": True},
                    extra_body={"ignore_eos": True},
                ):
                    if self._enough:
                        return
                    self.usage = chunk.usage or self.usage
                    for choice in chunk.choices:
                        self.finish = choice.finish_reason or self.finish
                        self.chunks.append(choice.delta.content or "")
        except openai.OpenAIError as error:
            self.error = error

    def hang_up(self) -> None:
        """Go away in the middle of it."""
        self._enough = True
        self._thread.join(START)
        assert not self._thread.is_alive()

    def end(self) -> None:
        """Wait for its end; fail unless it was told whole."""
        self._thread.join(START)
        assert not self._thread.is_alive()
