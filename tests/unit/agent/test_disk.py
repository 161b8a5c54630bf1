"""What an agent keeps is on the disk before anybody relies on it."""

import os
from pathlib import Path

import pytest

from llmgw.agent.disk import Disk
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
