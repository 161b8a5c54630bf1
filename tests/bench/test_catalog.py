"""What reading a cluster directory of 1,000 files costs: cold, from the cache, and when one file changed."""

import asyncio
import subprocess
import sys
import time
from pathlib import Path

import pytest

from llmgw.adapters.document_cache import DocumentCache
from llmgw.base.ids import Revision
from llmgw.catalog.compile import Accepted, Compiler
from llmgw.catalog.source import SourceTree
from llmgw.control.catalogs import compile_in_thread

pytestmark = pytest.mark.bench

FILES = 1000


def _files() -> dict[str, bytes]:
    files = {
        "cluster.yaml": b"apiVersion: llmgw/v1\nkind: Cluster\nname: c\ncontrol: {ports: [10000, 30000]}\n",
        "node.yaml": b"apiVersion: llmgw/v1\nkind: Node\nname: n\nlocal: true\n",
    }
    for number in range(FILES - len(files)):
        files[f"models/m{number}.yaml"] = (
            f"# model {number}\napiVersion: llmgw/v1\nkind: Model\nname: m{number}\naliases: [a{number}]\n"
            f"weights:\n  path: m{number}.gguf\nreplicas: 1\nprofiles:\n  - name: cpu\n    engine: llamacpp\n"
            '    args: [--ctx-size, "4096"]\n    cpus: 2\n    memory: 4GiB\n'
        ).encode()
    return files


def _timed(compiler: Compiler, tree: SourceTree) -> float:
    start = time.perf_counter()
    assert isinstance(compiler.compile(tree), Accepted)
    return time.perf_counter() - start


def test_reading_a_thousand_files(tmp_path: Path) -> None:
    files = _files()
    tree = SourceTree(Revision("r"), files)
    kept = tmp_path / "cache.json"
    cache = DocumentCache(kept)
    compiler = Compiler(cache)
    cold = _timed(compiler, tree)
    cache.write()
    changed = SourceTree(
        Revision("s"), {**files, "models/m7.yaml": files["models/m7.yaml"].replace(b"cpus: 2", b"cpus: 3")}
    )
    one = _timed(compiler, changed)
    start = time.perf_counter()
    _timed(Compiler(DocumentCache(kept)), tree)
    warm = time.perf_counter() - start
    print(f"\n{FILES} files: cold {cold:.2f} s, from the cache {warm * 1000:.0f} ms, one changed {one * 1000:.0f} ms")
    print(f"ratios: cold/warm {cold / warm:.0f}, cold/one changed {cold / one:.0f}")
    assert cold / warm > 4
    assert cold / one > 10


def test_the_command_uses_the_cache(tmp_path: Path) -> None:
    directory = tmp_path / "cluster"
    for path, data in _files().items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_bytes(data)
    seconds = []
    for _ in range(2):
        start = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "llmgw", "validate", str(directory)],
            check=True, capture_output=True, env={"LLMGW_CACHE_DIR": str(tmp_path / "cache"), "PATH": "/usr/bin:/bin"},
        )  # fmt: skip
        seconds.append(time.perf_counter() - start)
    print(f"\nllmgw validate, {FILES} files: first {seconds[0]:.2f} s, second {seconds[1]:.2f} s")
    assert seconds[0] / seconds[1] > 2


async def test_reading_does_not_hold_up_the_event_loop() -> None:
    tree = SourceTree(Revision("r"), _files())
    loop = asyncio.get_running_loop()
    start = loop.time()
    reading = asyncio.ensure_future(compile_in_thread(tree))
    longest, last = 0.0, start
    while not reading.done():
        await asyncio.sleep(0.001)
        longest, last = max(longest, loop.time() - last), loop.time()
    took = loop.time() - start
    assert isinstance(await reading, Accepted)
    print(f"\nreading {FILES} files took {took:.2f} s; the loop stood still for {longest * 1000:.0f} ms at the longest")
    assert longest / took < 0.25
