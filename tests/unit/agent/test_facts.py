"""What an agent says of its node: programs and their versions, weights on the disk, memory it can have, foreign ports."""

import asyncio
import os
import select
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from llmgw.agent.asked import Child, Errors, Silent, ask
from llmgw.agent.facts import NodeFacts, aside, memory_limit
from llmgw.agent.inventory import AT_MOST, PROGRAMS, Inventory, Known, weights_below
from llmgw.engines.shape import Layer
from llmgw.fleet.report import Program
from llmgw.runtime.supervisor import Supervisor
from tests.fakes.gguf_file import write_tiny_gguf

GIB = 1024**3


def _script(directory: Path, name: str, text: str) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / name
    path.write_text(text)
    path.chmod(0o755)
    return path


def _ends(pid: int) -> bool:
    """Whether a process has ended or does so by itself: a kill that was sent takes effect when its victim next runs."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], 30.0)[0])
    finally:
        os.close(handle)


# --- programs that are asked something


async def test_a_program_answers_with_what_it_prints(tmp_path: Path) -> None:
    path = _script(tmp_path, "speaks", "#!/bin/sh\necho out; echo err >&2\n")
    assert await ask([str(path)], 10.0, Errors.WITH_OUTPUT) == b"out\nerr\n"
    assert await ask([str(path)], 10.0, Errors.DROPPED) == b"out\n"


async def test_one_that_does_not_answer_is_ended_with_all_its_children(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    path = _script(tmp_path, "hangs", f"#!/bin/sh\nsleep 3600 &\necho $$ $! > {pids}\nwait\n")
    answer = await ask([str(path)], 1.0, Errors.DROPPED)
    assert answer == Silent(f"`{path}` does not answer within 1 s", hung=True)
    for pid in pids.read_text().split():
        assert _ends(int(pid))


async def test_one_that_is_not_there_says_so() -> None:
    assert await ask(["/nonexistent/program"], 1.0, Errors.DROPPED) == Silent(
        "cannot run /nonexistent/program: No such file or directory"
    )


async def test_a_status_that_somebody_else_collected_is_not_waited_for(tmp_path: Path) -> None:
    child = Child(["/bin/true"], Errors.DROPPED)
    os.waitpid(child.pid, 0)  # noqa: ASYNC222
    assert await child.gone(5.0)
    child.kill()  # signals nobody: the pid may be another's by now
    child.close()


# --- versions


async def test_versions_are_read_as_each_program_prints_them(tmp_path: Path) -> None:
    _script(
        tmp_path,
        "llama-server",
        "#!/bin/sh\necho 'load_backend: loaded CPU' >&2\necho 'version: 11434 (9e41a2c0)' >&2\n",
    )
    _script(tmp_path, "text-embeddings-router", "#!/bin/sh\necho 'text-embeddings-router 1.9.3'\n")
    _script(tmp_path, "vllm", "#!/bin/sh\necho '0.33.0'\n")
    _script(tmp_path, "sglang", "#!/bin/sh\necho usage: sglang serve\nexit 2\n")
    found = await Inventory(which=_below(tmp_path)).programs()
    assert [(one.engine, one.version) for one in found if one.path.startswith(str(tmp_path))] == [
        ("llamacpp", "11434"),
        ("vllm", "0.33.0"),
        ("sglang", ""),
        ("tei", "1.9.3"),
    ]


def _below(directory: Path) -> Callable[[str], str | None]:
    return lambda name: str(directory / name) if (directory / name).exists() else None


async def test_the_version_of_a_python_script_is_read_off_its_package_without_running_it(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    _script(tmp_path, "pytest", f"#!{sys.executable}\nopen({str(ran)!r}, 'w')\n")
    known = (Known("vllm", "pytest", package="pytest"),)
    found = await Inventory(known, which=_below(tmp_path)).programs()
    assert found[0] == Program("vllm", pytest.__version__, str(tmp_path / "pytest"))
    assert not ran.exists()


async def test_a_program_is_asked_again_only_when_it_changed(tmp_path: Path) -> None:
    count = tmp_path / "count"
    path = _script(tmp_path, "llama-server", f"#!/bin/sh\necho x >> {count}\necho version: 1\n")
    inventory = Inventory(PROGRAMS[:1], which=_below(tmp_path))
    await inventory.programs()
    await inventory.programs()
    assert count.read_text() == "x\n"
    path.write_text("#!/bin/sh\necho version: 2\n")
    os.utime(path, (1, 1))
    assert (await inventory.programs())[0].version == "2"


async def test_a_program_that_hangs_has_no_version_and_is_not_asked_again(tmp_path: Path) -> None:
    count = tmp_path / "count"
    _script(tmp_path, "llama-server", f"#!/bin/sh\necho x >> {count}\nsleep 3600\n")
    inventory = Inventory(PROGRAMS[:1], which=_below(tmp_path), limit=0.5)
    for _ in range(2):
        assert (await inventory.programs())[0] == Program("llamacpp", "", str(tmp_path / "llama-server"))
    assert count.read_text() == "x\n"


# --- weights


def _file(path: Path, size: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"0" * size)


def test_weights_are_gguf_files_and_directories_of_tensors(tmp_path: Path) -> None:
    _file(tmp_path / "qwen/q4.gguf", 40)
    _file(tmp_path / "qwen/q8.gguf", 80)
    _file(tmp_path / "top.gguf", 5)
    _file(tmp_path / "org/llama/model-00001-of-00002.safetensors", 100)
    _file(tmp_path / "org/llama/model-00002-of-00002.safetensors", 100)
    _file(tmp_path / "org/llama/config.json", 7)
    _file(tmp_path / "notes.txt", 9)
    assert weights_below(tmp_path) == {"qwen/q4.gguf": 40, "qwen/q8.gguf": 80, "top.gguf": 5, "org/llama": 207}


def test_what_is_hidden_or_on_its_way_is_left_out(tmp_path: Path) -> None:
    _file(tmp_path / ".hidden/a.gguf", 1)
    _file(tmp_path / ".b.gguf", 1)
    _file(tmp_path / "c.gguf.partial", 1)
    _file(tmp_path / "half/model.safetensors", 1)
    _file(tmp_path / "half/other.safetensors.partial", 1)
    _file(tmp_path / "hub/model.safetensors", 1)
    _file(tmp_path / "hub/.cache/huggingface/download/x.abc.incomplete", 1)
    assert weights_below(tmp_path) == {}


def test_a_hub_cache_counts_what_its_links_lead_to_and_loops_end(tmp_path: Path) -> None:
    _file(tmp_path / "models--a--b/blobs/abc", 30)
    snapshot = tmp_path / "models--a--b/snapshots/0123"
    snapshot.mkdir(parents=True)
    (snapshot / "model.safetensors").symlink_to("../../blobs/abc")
    (snapshot / "gone.safetensors").symlink_to("../../blobs/none")
    (tmp_path / "again").symlink_to(tmp_path)
    assert weights_below(tmp_path) == {"models--a--b/snapshots/0123": 30}


def test_there_is_a_limit_to_how_many_are_told(tmp_path: Path) -> None:
    for number in range(AT_MOST + 5):
        (tmp_path / f"{number:05}.gguf").touch()
    found = weights_below(tmp_path)
    assert len(found) == AT_MOST
    assert "00000.gguf" in found
    assert weights_below(tmp_path / "nowhere") == {}


# --- memory


@pytest.mark.parametrize(
    ("memberships", "files", "limit"),
    [
        ("0::/\n", {}, 64),
        ("0::/\n", {"memory.max": "max"}, 64),
        ("0::/\n", {"memory.max": str(8 * GIB)}, 8),
        ("0::/llm.slice/agent.service\n", {"llm.slice/memory.max": str(32 * GIB)}, 32),
        ("0::/system.slice/agent.service\n", {"system.slice/agent.service/memory.max": str(GIB)}, 64),
        ("0::/a/b\n", {"memory.max": str(16 * GIB), "a/memory.max": str(24 * GIB)}, 16),
        ("4:cpu,memory:/docker/1\n", {"memory/docker/1/memory.limit_in_bytes": str(4 * GIB)}, 4),
        ("4:memory:/docker/1\n0::/\n", {"memory/memory.limit_in_bytes": str(4 * GIB)}, 4),
        ("4:memory:/\n", {"memory/memory.limit_in_bytes": "9223372036854771712"}, 64),
    ],
)
def test_memory_is_what_engines_can_have(tmp_path: Path, memberships: str, files: dict[str, str], limit: int) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    assert memory_limit(64 * GIB, memberships, tmp_path) == limit * GIB


# --- together


@pytest_asyncio.fixture
async def tasks() -> AsyncIterator[Supervisor]:
    tasks = Supervisor("test")
    yield tasks
    await tasks.stop()


async def test_facts_come_in_the_background_and_changes_are_told(tmp_path: Path, tasks: Supervisor) -> None:
    weights = tmp_path / "weights"
    _file(weights / "a.gguf", 10)
    tiny = write_tiny_gguf(weights / "tiny.gguf")
    own: set[int] = set()
    node = NodeFacts(weights, tmp_path, lambda: frozenset(own), Inventory(PROGRAMS[:1], which=lambda _: None))
    assert node.current().weights == {}, "an answer is given before anything was looked at"
    with socket.socket() as ours, socket.socket() as foreign:
        for one in (ours, foreign):
            one.bind(("127.0.0.1", 0))
            one.listen()
        own.add(ours.getsockname()[1])
        tasks.loop("facts", node.run())
        async with asyncio.timeout(10):
            await node.changes.newer(0)
        now = node.current(complaint="x", driver="570", gpu_trouble="y", cgroups="v2")
        assert now.weights == {"a.gguf": 10, "tiny.gguf": tiny.stat().st_size}
        assert {name: shape.layers for name, shape in now.shapes.items()} == {"tiny.gguf": (Layer(2, 32),)}
        assert foreign.getsockname()[1] in now.foreign_ports
        assert ours.getsockname()[1] not in now.foreign_ports
        own.clear()
        assert ours.getsockname()[1] not in node.current().foreign_ports, "one that ended since the look is no stranger"
        assert (now.complaint, now.driver, now.gpu_trouble, now.cgroups) == ("x", "570", "y", "v2")
        assert now.disk_free is not None
        assert now.disk_free > 0
        _file(weights / "b.gguf", 20)
        node.wake()
        async with asyncio.timeout(10):
            while "b.gguf" not in node.current().weights:
                await node.changes.newer(node.changes.version)
        other = tmp_path / "other"
        _file(other / "c.gguf", 30)
        node.use_weights_dir(other)
        async with asyncio.timeout(10):
            while node.current().weights != {"c.gguf": 30}:
                await node.changes.newer(node.changes.version)
        assert node.current().weights_dir == str(other)


async def test_a_disk_that_hangs_holds_up_neither_reports_nor_the_end(tmp_path: Path) -> None:
    hangs, freed = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()
    begun = []

    def dead_disk(root: Path) -> dict[str, int]:
        begun.append(root)
        loop.call_soon_threadsafe(hangs.set)
        freed.wait(30)
        return {}

    node = NodeFacts(tmp_path, tmp_path, frozenset, Inventory((), which=lambda _: None), dead_disk)
    tasks = Supervisor("test")
    tasks.loop("facts", node.run())
    async with asyncio.timeout(10):
        await hangs.wait()
    for _ in range(5):
        node.wake()
        await asyncio.sleep(0)
        assert node.current().cpus >= 1
    assert len(begun) == 1, "no second thread beside the one that hangs"
    async with asyncio.timeout(5):
        await tasks.stop()
    freed.set()


async def test_an_error_aside_is_raised_where_it_is_waited_for() -> None:
    def broken() -> int:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await aside(broken)
    assert await aside(lambda: 7) == 7
