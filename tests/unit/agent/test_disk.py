"""What an agent keeps is on the disk before anybody relies on it."""

import os
import stat
from pathlib import Path

import pytest

from llmgw.agent.disk import Disk, Record
from tests.builders import order
from tests.unit.agent.brain import SPEC


def test_an_order_is_flushed_before_it_takes_the_place_of_the_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this order: the bytes are on the disk, the name changes, the change of the name is on the disk."""
    disk = Disk(tmp_path)
    disk.open()
    done: list[str] = []
    fsync, rename = os.fsync, Path.rename

    def flushed(descriptor: int) -> None:
        done.append(f"flush {Path(f'/proc/self/fd/{descriptor}').readlink().name}")
        fsync(descriptor)

    def renamed(path: Path, target: Path) -> Path:
        done.append(f"rename {path.name} {target.name}")
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", flushed)
    monkeypatch.setattr(Path, "rename", renamed)
    disk.store_order(order("a", SPEC))
    assert done == [
        *("flush rank.tmp", "rename rank.tmp rank", f"flush {tmp_path.name}"),
        *("flush order.tmp", "rename order.tmp order.json", f"flush {tmp_path.name}"),
    ], "its rank comes first: an order that was stored in part must not let older ones in"
    disk.close()


def _modes(root: Path) -> dict[str, str]:
    found = {str(path.relative_to(root)): oct(stat.S_IMODE(path.stat().st_mode)) for path in root.rglob("*")}
    return {".": oct(stat.S_IMODE(root.stat().st_mode)), **found}


def test_nobody_else_may_read_what_is_kept_nor_what_an_earlier_version_left_open(tmp_path: Path) -> None:
    root = tmp_path / "agent"
    for again in (False, True):
        if again:
            for path in (root, *root.rglob("*")):
                path.chmod(0o755 if path.is_dir() else 0o644)
        disk = Disk(root)
        disk.open()
        if not again:
            disk.store_order(order("a", SPEC))
            disk.store_cluster("c")
            disk.store_record(Record(SPEC, 1, 2, 3, "boot"))
        disk.close()
        modes = _modes(root)
        assert modes.pop(".") == modes.pop("shards") == modes.pop("logs") == "0o700"
        assert set(modes) == {"lock", "rank", "order.json", "cluster", f"shards/{SPEC.shard}.json"}
        assert set(modes.values()) == {"0o600"}


def test_a_directory_that_all_users_need_stays_theirs(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    disk = Disk(tmp_path)
    disk.open()
    disk.close()
    assert _modes(tmp_path)["."] == "0o1777"
