"""What an installation decides from what it found, and the unit that it writes."""

from dataclasses import replace
from itertools import product

import pytest

from llmgw.adapters.node_plan import (
    LEAST_SPACE,
    Build,
    Enable,
    Found,
    Linger,
    Restart,
    Switch,
    Tidy,
    Upload,
    Wanted,
    WriteUnit,
    by_hand,
    line,
    refusal,
    steps,
    unit_text,
)

BARE = Found(
    home="/home/x", user="x", uid=1000, python="/usr/bin/python3", python_version="3.12", systemd=255, free=LEAST_SPACE
)
WANTED = Wanted(
    node="far",
    release="2-b",
    manager="user",
    prefix="/home/x/.local/share/llmgw",
    socket="/run/user/1000/llmgw/agent.sock",
    state_dir="/home/x/.local/state/llmgw/agent",
    unit_path="/home/x/.config/systemd/user/llmgw-agent.service",
    unit="[Service]\n",
)
DONE = replace(
    BARE,
    current="2-b",
    whole=("2-b",),
    unit_digest=WANTED.unit_digest,
    enabled=True,
    active=True,
    lingers=True,
    applied=WANTED.applied,
)


def test_a_bare_node_gets_all_of_it_in_order() -> None:
    assert steps(BARE, WANTED) == (Upload(), Build(False), Switch("2-b"), Linger(), WriteUnit(), Enable(), Restart(""))


def test_nothing_is_done_where_all_is_as_it_should_be() -> None:
    assert steps(DONE, WANTED) == ()
    assert steps(replace(DONE, whole=("1-a", "2-b")), WANTED) == (), "an old release alone is no reason to act"


def test_an_upgrade_restarts_and_keeps_the_release_before_it() -> None:
    found = replace(DONE, current="1-a", whole=("0-z", "1-a"), others=("2-b", "9-y"), applied="1-a x")
    assert steps(found, WANTED) == (
        Upload(),
        Build(True),
        Switch("2-b"),
        Restart("1-a"),
        Tidy(("0-z", "9-y")),
    )


def test_a_run_that_broke_after_any_step_is_carried_on() -> None:
    """Whatever subset of the facts is already true, the steps make the rest true and none twice."""
    for whole, current, unit, enabled, active, lingers, applied in product((False, True), repeat=7):
        found = replace(
            DONE,
            whole=("1-a", *(["2-b"] if whole else [])),
            current="2-b" if current else "1-a",
            unit_digest=WANTED.unit_digest if unit else "",
            enabled=enabled,
            active=active,
            lingers=lingers,
            applied=WANTED.applied if applied else "",
        )
        kinds = [type(step) for step in steps(found, WANTED)]
        assert (Build in kinds, Upload in kinds) == (not whole, not whole)
        assert (Switch in kinds) == (not current)
        assert (WriteUnit in kinds) == (not unit)
        assert (Enable in kinds) == (not enabled)
        assert (Linger in kinds) == (not lingers)
        assert (Restart in kinds) == (not (active and applied))
        if Switch in kinds and Build in kinds:
            assert kinds.index(Build) < kinds.index(Switch), "never in use before it is whole"
        if Restart in kinds:
            assert [one for one in kinds if one is not Tidy][-1] is Restart


def test_another_unit_of_the_same_release_restarts_the_agent() -> None:
    assert steps(DONE, replace(WANTED, unit="[Service]\nNice=1\n")) == (WriteUnit(), Restart(""))


def test_without_a_unit_nothing_of_systemd_is_touched() -> None:
    assert steps(BARE, replace(WANTED, manager="none")) == (Upload(), Build(False), Switch("2-b"))
    assert refusal(replace(BARE, systemd=None), replace(WANTED, manager="none")) == ""


@pytest.mark.parametrize(
    ("found", "manager", "said"),
    [
        (replace(BARE, python="", python_trouble="/usr/bin/python3 has no ensurepip"), "user", "python3-venv"),
        (replace(BARE, systemd=None), "user", "--no-unit"),
        (BARE, "system", "NOPASSWD"),
        (replace(BARE, free=LEAST_SPACE - 1), "user", "--prefix"),
    ],
)
def test_what_cannot_be_is_refused_with_what_to_do(found: Found, manager: str, said: str) -> None:
    reason = refusal(found, replace(WANTED, manager=manager))
    assert said in reason
    assert reason.startswith("node far")
    assert "\n" not in reason


def test_what_can_be_is_not_refused() -> None:
    assert refusal(BARE, WANTED) == ""
    assert refusal(replace(BARE, sudo=True), replace(WANTED, manager="system")) == ""
    assert refusal(replace(DONE, free=0), WANTED) == "", "nothing more is written"


def test_every_step_is_said_in_one_line() -> None:
    for step in (*steps(BARE, WANTED), Tidy(("0-z",)), Build(True)):
        assert line(step, WANTED)
        assert "\n" not in line(step, WANTED)


def test_the_unit_leaves_engines_and_secrets_alone() -> None:
    for manager in ("user", "system"):
        lines = unit_text(replace(WANTED, manager=manager), BARE).splitlines()
        for setting in ("KillMode=process", "Restart=always", "OOMPolicy=continue", "RuntimeDirectoryPreserve=yes"):
            assert setting in lines
        assert not [one for one in lines if one.startswith("OOMScoreAdjust")], "engines would inherit it"
    assert "User=x" in lines
    assert "User=root" not in unit_text(replace(WANTED, manager="system"), replace(BARE, uid=0, user="root"))


def test_odd_paths_survive_the_unit_and_the_shell() -> None:
    wanted = replace(WANTED, prefix="/a b/50%", socket='/x/"y"$z\\.sock')
    text = unit_text(wanted, BARE)
    assert 'ExecStart="/a b/50%%/current/bin/python" -m llmgw.app.node' in text
    assert '--socket "/x/\\"y\\"$$z\\\\.sock"' in text
    assert by_hand(wanted).startswith("'/a b/50%/current/bin/python' -m")
