"""What `llmgw doctor` says of this machine: judged from what was seen, and looked at for real where that is quick."""

import json
import os
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer

from llmgw.adapters.node_check import State
from llmgw.cli.doctor import Here, examine, judge, look

STATUS: dict[str, Any] = {
    "control": {"version": "0.1.0", "listen": "http://127.0.0.1:8080/v1", "alarms": []},
    "nodes": [{"name": "far", "state": "reporting", "why": None}],
}
WELL = Here(
    directory=Path("c"),
    python=(3, 12),
    git="git version 2.39.5",
    ssh="/usr/bin/ssh",
    catalog="cluster lab, 1 node(s), 1 model(s)",
    catalog_trouble="",
    by_ssh=True,
    state_dir=Path("/var/lib/llmgw/server"),
    state_trouble="",
    free=1 << 40,
    listen=("127.0.0.1", 8080),
    listen_trouble="",
    watches=65536,
    instances=128,
    files=65536,
    server="/var/lib/llmgw/server/admin.sock",
    status=STATUS,
    status_trouble="",
)


def _missing(here: Here) -> list[str]:
    return [one.check for one in judge(here) if one.state is State.MISSING]


def test_a_machine_that_has_all_of_it_is_well() -> None:
    assert {one.state for one in judge(WELL)} == {State.OK}


@pytest.mark.parametrize(
    ("change", "check", "mend"),
    [
        ({"python": (3, 10)}, "python", "python3.12"),
        ({"git": ""}, "git", "apt-get install git"),
        ({"ssh": ""}, "ssh", "openssh-client"),
        ({"catalog_trouble": "not valid"}, "directory", "llmgw validate c"),
        ({"state_trouble": "cannot be written"}, "state", "mkdir -p"),
        ({"free": 0}, "state", "df -h"),
        ({"state_dir": Path("/" + "x" * 94)}, "sockets", "--state-dir"),
        ({"files": 256}, "open files", "ulimit -n"),
        ({"watches": 100}, "inotify", "sysctl -w fs.inotify.max_user_watches"),
        ({"instances": 1}, "inotify", "sysctl -w fs.inotify.max_user_instances"),
        ({"listen_trouble": "taken", "status": None}, "listen", "ss -ltnp"),
        ({"listen_trouble": "taken", "listen": ("127.0.0.1", 8081)}, "listen", "ss -ltnp"),
    ],
)
def test_each_fault_is_said_alone_and_with_what_mends_it(change: dict[str, Any], check: str, mend: str) -> None:
    here = replace(WELL, **change)
    assert _missing(here) == [check]
    assert mend in next(one.mend for one in judge(here) if one.check == check)


def test_a_port_that_our_server_holds_is_well_and_no_server_is_no_fault() -> None:
    assert _missing(replace(WELL, listen_trouble="Address already in use")) == []
    assert _missing(replace(WELL, status=None, status_trouble="no llmgw server answers at x")) == []
    assert _missing(replace(WELL, ssh="", by_ssh=False)) == []


def test_a_running_server_is_asked_what_troubles_it() -> None:
    nodes = [{"name": "far", "state": "unreachable", "why": "no answer"}, *STATUS["nodes"]]
    status = {"control": {**STATUS["control"], "alarms": ["the store is full"]}, "nodes": nodes}
    found = [one for one in judge(replace(WELL, status=status)) if one.state is State.MISSING]
    assert [(one.check, one.text) for one in found] == [
        ("alarm", "the store is full"),
        ("node", "far is unreachable: no answer"),
    ]
    assert found[1].mend == "llmgw node check far --dir c"


def test_looking_changes_nothing_and_finds_a_taken_port(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        here = look(tmp_path, taken.getsockname(), tmp_path / "s/t", str(tmp_path / "none.sock"))
    assert here.listen_trouble == os.strerror(98)
    assert here.state_trouble == ""
    assert here.free > 0
    assert here.status is None
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    assert "not a directory" in look(tmp_path, ("127.0.0.1", 0), tmp_path / "file/s", "x").state_trouble


def test_json_and_the_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as ended:
        examine(tmp_path, "127.0.0.1:0", tmp_path / "s", str(tmp_path / "none.sock"), as_json=True)
    assert ended.value.exit_code == 1
    shown = json.loads(capsys.readouterr().out)
    assert shown["well"] is False
    assert [one["check"] for one in shown["checks"] if one["state"] == "missing"] == ["directory"]
