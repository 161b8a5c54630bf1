"""Engine logs: kept within bounds under a writer that knows nothing of it, read past what is gone, and full disks."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmgw.agent import disk as disks
from llmgw.agent import log_files
from llmgw.agent.disk import Disk, Record, StateLocked
from llmgw.agent.log_files import FIRST, GONE
from llmgw.base.ids import ShardId
from llmgw.fleet.report import Reason
from tests.unit.agent import host
from tests.unit.agent.brain import SPEC

SHARD = ShardId("m-1-0.s0")
LINE = b"x" * 99 + b"\n"
NEWEST = 1 << 20


def _grow(path: Path, size: int) -> int:
    """Append so many bytes of numbered lines through a descriptor as an engine holds one; return it."""
    engine = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    count = size // 100
    os.write(engine, b"".join(b"%099d\n" % number for number in range(count)))
    return engine


@pytest.fixture
def long(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    path = tmp_path / "1.log"
    engine = _grow(path, 12 << 20)
    yield path, engine
    os.close(engine)


def test_the_middle_of_a_long_log_is_given_back_and_the_writer_goes_on(long: tuple[Path, int]) -> None:
    path, engine = long
    size = path.stat().st_size
    assert log_files.trim(path, NEWEST)
    assert path.stat().st_size == size, "offsets stay what they were"
    assert path.stat().st_blocks * 512 < FIRST + NEWEST + (64 << 10)
    os.write(engine, b"the newest line\n")
    assert log_files.tail(path, 2) == (f"{size // 100 - 1:099d}", "the newest line")
    data = path.read_bytes()
    assert data[:FIRST] == b"".join(b"%099d\n" % number for number in range(FIRST // 100 + 1))[:FIRST]
    assert data[FIRST:].startswith(GONE)
    assert not log_files.trim(path, NEWEST), "what is cut already is left alone"


def test_a_short_log_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "1.log"
    os.close(_grow(path, 1 << 20))
    before = path.read_bytes()
    assert not log_files.trim(path, NEWEST)
    assert path.read_bytes() == before


def test_a_follower_reads_every_line_once_and_jumps_over_the_hole(long: tuple[Path, int]) -> None:
    path, _ = long
    assert log_files.trim(path, NEWEST)
    offset, text, jumps = 0, b"", 0
    while True:
        start, data, size = log_files.read(path, offset, 64 << 10)
        jumps += start != offset
        whole = data[: data.rfind(b"\n") + 1]
        text += whole
        offset = start + len(whole)
        if offset >= size:
            break
        assert whole, f"it does not get past {offset}"
    assert jumps == 1
    assert b"\0" not in text
    assert GONE.strip() in text
    lines = text.splitlines()
    assert (lines[0], lines[-1]) == (b"%099d" % 0, b"%099d" % (size // 100 - 1))
    after = lines[lines.index(b"%099d" % (size // 100 - 1)) - 1]
    assert after == b"%099d" % (size // 100 - 2)


def test_a_read_inside_the_hole_begins_with_a_whole_line(long: tuple[Path, int]) -> None:
    path, _ = long
    assert log_files.trim(path, NEWEST)
    start, data, size = log_files.read(path, 4 << 20, 1000)
    assert start > size - NEWEST - 8192
    assert data.startswith(b"0" * 80)
    assert len(data.splitlines()[0]) == 99


def test_the_end_of_a_log_and_beyond_it(tmp_path: Path) -> None:
    path = tmp_path / "1.log"
    assert log_files.read(path, 0, 10) == (0, b"", 0)
    path.write_bytes(b"one\ntwo\n")
    assert log_files.read(path, 0, 0) == (0, b"", 8)
    assert log_files.read(path, 4, 10) == (4, b"two\n", 8)
    assert log_files.read(path, 8, 10) == (8, b"", 8)
    assert log_files.read(path, 99, 10) == (8, b"", 8)


def test_where_there_are_no_holes_the_log_is_shortened(long: tuple[Path, int], monkeypatch: pytest.MonkeyPatch) -> None:
    path, engine = long

    def no_holes(descriptor: int, offset: int, length: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(log_files, "_punch", no_holes)
    last = log_files.tail(path, 1)
    assert log_files.trim(path, NEWEST)
    assert path.stat().st_size == FIRST + len(GONE) + log_files.SHORTENED
    assert log_files.tail(path, 1) == last
    os.write(engine, b"after\n")
    assert log_files.tail(path, 2) == (*last, "after")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    disk = Disk(tmp_path / "state")
    disk.open()
    yield disk
    disk.close()


def test_all_logs_together_are_limited_and_what_runs_keeps_its_own(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disks, "ALL_LOGS", 300_000)
    for attempt in (1, 2, 3, 4):
        path = disk.log_path(SHARD, attempt)
        path.write_bytes(LINE * 1000)
        os.utime(path, (attempt, attempt))
    disk.store_record(Record(SPEC, 1, 99, 0, "boot"))
    disk.sweep()
    assert disk.attempts(SHARD) == [1, 4], "the oldest that ended went; the running one stays"


def test_the_holder_of_a_state_directory_is_named(disk: Disk) -> None:
    with pytest.raises(StateLocked, match=rf"another agent \(pid {os.getpid()}\)"):
        Disk(disk.root).open()


def test_little_room_cuts_logs_shorter(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    os.close(_grow(disk.log_path(SHARD, 1), 12 << 20))
    disk.sweep()
    before = disk.log_path(SHARD, 1).stat().st_blocks
    monkeypatch.setattr(disks, "LOW", 1 << 60)
    disk.sweep()
    assert disk.log_path(SHARD, 1).stat().st_blocks < before / 4


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    mount = shutil.which("mount")
    root = tmp_path / "small"
    root.mkdir()
    if mount is None or os.geteuid() != 0:
        pytest.skip("only root can mount")
    if subprocess.run([mount, "-t", "tmpfs", "-o", "size=1m", "none", root], check=False).returncode != 0:
        pytest.skip("this machine lets us mount nothing")
    yield root
    subprocess.run(["umount", "-l", root], check=True)


TALKER = """
import os, sys, time
while not os.path.exists(sys.argv[1] + ".go"):
    time.sleep(0.01)
while True:
    try:
        os.write(1, b"x" * 4096)
    except OSError:
        open(sys.argv[1], "w").write("full\\n")
        time.sleep(0.01)
"""


async def test_a_full_disk_ends_no_engine_and_starts_again_by_itself(small: Path, tmp_path: Path) -> None:
    processes = host.agent(small)
    told = tmp_path / "told"
    spec = host.spec(TALKER, args=(str(told),))
    spawned = await host.started(processes, spec)
    Path(f"{told}.go").touch()  # not before it is recorded: the disk is very small
    await host.until(told.exists)
    assert host.alive(spawned.pid)
    disk = Disk(small / "state")
    with pytest.raises(OSError, match="No space"):
        disk.store_cluster("c" * 8192)
    assert list((small / "state").glob("*.tmp")) == [], "half a file takes room that others need"
    (small / "state" / "lock").unlink()
    await host.until(lambda: os.statvfs(small).f_bavail == 0)
    disk.open()  # an agent that starts now looks after the engine
    assert [record.pid for record in disk.records()] == [spawned.pid]
    disk.close()
    other = host.spec(shard=ShardId("other-1-0.s0"))
    refused = processes.spawn(other, 1, "", None)
    assert isinstance(refused, Reason)
    assert refused.code == "state_unwritable"
    assert disk.tail(spec.shard, 1, 1)[0].startswith("xxx")
    assert await processes.end(spawned.pid, spec.shard, 1, 0.0) == ()
    (small / "state/logs" / spec.shard / "1.log").unlink()
    again = await host.started(processes, other)
    assert await processes.end(again.pid, other.shard, 1, 0.0) == ()
