"""Secrets on a node: one private file in memory, only what the order uses, and nowhere else."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from llmgw.agent import procfs, secrets
from llmgw.agent.secrets import Secrets
from llmgw.fleet.order import NodeOrder, ShardOrder
from llmgw.fleet.report import Reason
from tests.builders import order
from tests.unit.agent import host
from tests.unit.agent.brain import SPEC

VALUE = "s3cr3t-value"


def _order(**names: str) -> NodeOrder:
    return order("a", ShardOrder(replace(SPEC, secrets=names), draining=False), generation=1)


def test_values_survive_a_restart_in_a_file_that_only_we_can_read(tmp_path: Path) -> None:
    path = tmp_path / "secrets"
    Secrets(path).keep({"hf": VALUE, "unused": "x"}, _order(HF_TOKEN="hf"))
    assert path.stat().st_mode & 0o777 == 0o600
    assert "unused" not in path.read_text()
    again = Secrets(path)
    assert (again.get("hf"), again.get("unused"), again.complaint) == (VALUE, None, "")


def test_an_order_without_the_value_keeps_it_and_one_that_does_not_use_it_drops_it(tmp_path: Path) -> None:
    path = tmp_path / "secrets"
    kept = Secrets(path)
    kept.keep({"hf": VALUE}, _order(HF_TOKEN="hf"))
    kept.keep({}, _order(HF_TOKEN="hf"))
    assert kept.get("hf") == VALUE
    kept.keep({"hf": "newer"}, _order(HF_TOKEN="hf"))
    assert Secrets(path).get("hf") == "newer"
    kept.keep({"hf": VALUE}, _order())
    assert kept.get("hf") is None
    assert not path.exists()


def test_a_file_that_others_can_read_or_that_is_a_link_is_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "secrets"
    Secrets(path).keep({"hf": VALUE}, _order(HF_TOKEN="hf"))
    path.chmod(0o644)
    assert Secrets(path).get("hf") is None
    path.chmod(0o600)
    link = tmp_path / "link"
    link.symlink_to(path)
    assert Secrets(link).get("hf") is None
    path.write_text("[1")
    assert Secrets(path).get("hf") is None


def test_without_a_place_they_are_in_memory_and_it_is_complained_of(tmp_path: Path) -> None:
    kept = Secrets(None)
    assert kept.complaint == ""
    kept.keep({"hf": VALUE}, _order(HF_TOKEN="hf"))
    assert kept.get("hf") == VALUE
    assert "lost when the agent restarts" in kept.complaint
    unwritable = Secrets(tmp_path / "missing" / "secrets")
    unwritable.keep({"hf": VALUE}, _order(HF_TOKEN="hf"))
    assert "cannot keep secrets in" in unwritable.complaint
    assert VALUE not in unwritable.complaint
    (tmp_path / "missing").mkdir()
    unwritable.keep({"hf": VALUE}, _order(HF_TOKEN="hf"))
    assert unwritable.complaint == "", "tried again with the next order"


def test_the_place_is_beside_the_socket_on_tmpfs_else_in_shared_memory_else_none(tmp_path: Path) -> None:
    memory = Path("/dev/shm") / f"llmgw-test-{os.getpid()}"
    memory.mkdir(mode=0o700)
    try:
        assert secrets.place(memory / "run" / "agent.sock", "id") == memory / "run" / "secrets-id"
        own = memory / f"llmgw-{os.geteuid()}"
        assert secrets.place(tmp_path / "agent.sock", "id", shared=memory) == own / "secrets-id"
        own.chmod(0o777)
        assert secrets.place(tmp_path / "agent.sock", "id", shared=memory) is None, "somebody else could have made it"
        own.rmdir()
        own.symlink_to(tmp_path)
        assert secrets.place(tmp_path / "agent.sock", "id", shared=memory) is None
        own.unlink()
        assert secrets.place(tmp_path / "agent.sock", "id", shared=tmp_path) is None, "a disk is not a place"
    finally:
        (memory / "run").rmdir()
        memory.rmdir()


async def test_an_engine_gets_them_by_its_environment_and_they_are_nowhere_on_the_disk(tmp_path: Path) -> None:
    values = Secrets(None)
    processes = host.agent(tmp_path, values=values)
    spec = host.spec(secrets={"HF_TOKEN": "hf"})
    missing = processes.spawn(spec, 1, "", None)
    assert isinstance(missing, Reason)
    assert missing == Reason(
        "secret_missing",
        "secret hf is not known to the control plane; set LLMGW_SECRET_hf there or put a file hf into its --secrets-dir",
    )
    values.keep({"hf": VALUE}, order("a", ShardOrder(spec, draining=False), generation=1))
    spawned = await host.started(processes, spec)
    assert procfs.environment_of(spawned.pid)["HF_TOKEN"] == VALUE
    assert VALUE not in " ".join(procfs.arguments_of(spawned.pid))
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or VALUE.encode() not in path.read_bytes(), path
    assert VALUE not in repr(spawned)
    assert await processes.end(spawned.pid, spec.shard, 1, 0.0) == ()


@pytest.mark.parametrize("name", ["PATH", "MINE"])
async def test_a_secret_wins_over_what_is_inherited_or_set(tmp_path: Path, name: str) -> None:
    values = Secrets(None)
    processes = host.agent(tmp_path, values=values)
    spec = host.spec(env={"MINE": "open"}, secrets={name: "hf"})
    values.keep({"hf": VALUE}, order("a", ShardOrder(spec, draining=False), generation=1))
    spawned = await host.started(processes, spec)
    assert procfs.environment_of(spawned.pid)[name] == VALUE
    assert await processes.end(spawned.pid, spec.shard, 1, 0.0) == ()
