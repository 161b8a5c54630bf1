"""What is installed and stored on the node: engine programs with their versions, and weights.

A version is read off the installed package where a program is a Python script: `vllm --version` loads half of PyTorch,
ten seconds of a core for one line. Programs are asked again only when their file has changed.
"""

import importlib.metadata
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from llmgw.agent.asked import Errors, Silent, ask
from llmgw.fleet.report import Program

LIMIT = 60.0
"""Seconds for a program to say its version."""

AT_MOST = 2000
"""Weights that are reported; the first by path."""

FILES_AT_MOST = 100_000
"""Files that are looked at; a directory with more holds something else than weights."""

DEPTH = 8
"""Directories below each other that are looked into; a hub cache has `models--org--name/snapshots/COMMIT`."""

PARTIAL = (".part", ".partial", ".incomplete", ".tmp", ".temp", ".download", ".aria2", ".crdownload", ".lock")
"""Endings of files that are still on their way."""

TENSORS = (".safetensors", ".bin", ".pth", ".pt", ".onnx")
"""Endings that make a directory with them one set of weights."""


@dataclass(frozen=True, slots=True)
class Known:
    """An engine's program: what it is called, and how its version is asked."""

    engine: str
    program: str
    package: str = ""
    """The Python package it comes from, if it is a Python script."""
    pattern: str = r"(\d[\w.+-]*)"
    """The version in what `--version` prints."""


PROGRAMS = (
    Known("llamacpp", "llama-server", pattern=r"version:\s*(\S+)"),
    Known("vllm", "vllm", package="vllm"),
    Known("sglang", "sglang", package="sglang"),
    Known("tei", "text-embeddings-router", pattern=r"text-embeddings-router\s+(\S+)"),
)


class Inventory:
    """The engine programs of this node. `programs` from one task only."""

    def __init__(
        self,
        known: tuple[Known, ...] = PROGRAMS,
        *,
        which: Callable[[str], str | None] = shutil.which,
        limit: float = LIMIT,
    ) -> None:
        self._known = known
        self._which = which
        self._limit = limit
        self._asked: dict[str, tuple[float, str]] = {}

    async def programs(self) -> tuple[Program, ...]:
        """Return the programs found in the agent's PATH, and the llama.cpp wheel beside the agent if it is installed."""
        found = []
        for known in self._known:
            path = self._which(known.program)
            if path is None:
                continue
            try:
                changed = Path(path).stat().st_mtime
            except OSError:
                continue
            if self._asked.get(path, (None, ""))[0] != changed:
                self._asked[path] = (changed, await self._version(known, path))
            found.append(Program(known.engine, self._asked[path][1], path))
        try:
            wheel = importlib.metadata.version("xllamacpp")
        except importlib.metadata.PackageNotFoundError:
            return tuple(found)
        return (*found, Program("llamacpp", f"xllamacpp {wheel}", sys.executable))

    async def _version(self, known: Known, path: str) -> str:
        """Return the version, empty if the program does not say one."""
        interpreter = _interpreter(Path(path)) if known.package else None
        if interpreter is not None:
            code = f"import importlib.metadata as m; print(m.version({known.package!r}))"
            argv = [interpreter, "-I", "-c", code]
            pattern = r"^(\d\S*)\s*$"
        else:
            argv = [path, "--version"]
            pattern = known.pattern
        output = await ask(argv, self._limit, Errors.WITH_OUTPUT)
        if isinstance(output, Silent):
            return ""
        match = re.search(pattern, output.decode(errors="replace"))
        return match.group(1) if match else ""


def _interpreter(script: Path) -> str | None:
    """Return the interpreter of a Python script by its first line, None if it is no such script."""
    try:
        with script.open("rb") as file:
            first = file.readline(512).decode(errors="replace").split()
    except OSError:
        return None
    path = first[0].removeprefix("#!") if first and first[0].startswith("#!") else ""
    return path if "python" in Path(path).name and Path(path).exists() else None


def weights_below(root: Path) -> Mapping[str, int]:
    """Return path below `root` -> bytes: every GGUF file, and every directory that holds a model's tensors directly.

    Hidden files are left out, and so is what is on its way: partial files, and directories that hold one. Links are
    followed, since a hub cache consists of them. Blocks, for as long as the disk takes.
    """
    found: dict[str, int] = {}
    for directory, files in _directories(root):
        for name, size in files.items():
            if name.endswith(".gguf"):
                found[str((directory / name).relative_to(root))] = size
        holds_model = directory != root and any(name.endswith(TENSORS) for name in files)
        if holds_model and not any(name.endswith(PARTIAL) for name in files) and not _downloading(directory):
            found[str(directory.relative_to(root))] = sum(files.values())
    return dict(sorted(found.items())[:AT_MOST])


def _directories(root: Path) -> Iterator[tuple[Path, dict[str, int]]]:
    """Yield directories with their files and sizes, each once however many links lead to it."""
    seen: set[tuple[int, int]] = set()
    left = FILES_AT_MOST
    waiting = [(root, 0)]
    while waiting:
        directory, depth = waiting.pop()
        files: dict[str, int] = {}
        try:
            identity = directory.stat()
            if (identity.st_dev, identity.st_ino) in seen:
                continue
            seen.add((identity.st_dev, identity.st_ino))
            entries = sorted(os.scandir(directory), key=lambda entry: entry.name, reverse=True)
        except OSError:
            continue
        for entry in entries:
            if entry.name.startswith("."):
                continue
            left -= 1
            if left < 0:
                return
            try:
                if entry.is_dir():
                    if depth < DEPTH and not entry.name.endswith(PARTIAL):
                        waiting.append((directory / entry.name, depth + 1))
                elif entry.is_file():
                    files[entry.name] = entry.stat().st_size
            except OSError:
                continue
        yield directory, files


def _downloading(directory: Path) -> bool:
    """Whether huggingface_hub is still bringing a directory in: it keeps what is on its way in a hidden one within."""
    return any((directory / ".cache/huggingface/download").rglob("*.incomplete"))
