"""What a node lacks, as judged from what was seen: one fault a test, and everything after it is left alone."""

from dataclasses import replace
from typing import Any

import pytest

from llmgw import __version__
from llmgw.adapters.node_check import Seen, Stage, State, judge, needs
from llmgw.adapters.node_plan import Found
from llmgw.adapters.node_shell import Answer
from llmgw.base.ids import NodeName
from llmgw.fleet.report import Gpu, Program
from tests.builders import catalog, cluster, facts, model, node, report

CLASSES = [{"name": "l40s", "match": ["*L40S*"]}]
CATALOG = catalog(
    cluster(gpu_classes=CLASSES),
    node("far", labels={"disk": "fast"}, expect={"gpus": 1}),
    node("other", pool="spare"),
    model("m"),
    model("elsewhere", profile={"pool": "spare"}),
    model("big", profile={"engine": "vllm", "gpu": {"class": "l40s"}}, weights={"hf": "a/b"}),
)
FAR = CATALOG.nodes[NodeName("far")]
FOUND = Found(
    home="/home/x", user="llmgw", uid=1000, python="/usr/bin/python3", python_version="3.12", systemd=255, free=1 << 40,
    current="1-a", whole=("1-a",), unit_digest="x", enabled=True, active=True, lingers=True,
)  # fmt: skip
CARD = Gpu("GPU-1", 0, "NVIDIA L40S", 48 << 30, 0)
REPORT = report("far", facts=replace(facts(), driver="580.1"), gpus=(CARD,))
NEEDS = needs(CATALOG, FAR, "/weights")
WELL = Seen(
    FAR,
    CATALOG,
    ".",
    "1-a",
    "/run/llmgw/agent.sock",
    "user",
    found=FOUND,
    answer=Answer(__version__, REPORT),
    there=dict.fromkeys(NEEDS, True),
)


def _missing(seen: Seen) -> dict[str, str]:
    return {one.check: one.mend for one in judge(seen) if one.state is State.MISSING}


def _text(seen: Seen, check: str) -> str:
    return next(one.text for one in judge(seen) if one.check == check)


def test_a_node_that_has_all_of_it_is_well() -> None:
    assert {one.state for one in judge(WELL)} == {State.OK}
    assert not [one for one in judge(WELL) if one.mend]


def test_the_order_is_that_of_mending() -> None:
    assert [one.check for one in judge(WELL)] == [
        "reachable", "host key", "login", "python", "disk", "agent", "unit", "agent answers", "gpus", "engines", "weights",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("stage", "check", "mend"),
    [
        (Stage.REACHABLE, "reachable", "ssh-keyscan far.test"),
        (Stage.HOST_KEY, "host key", "ssh-keyscan -p 22 far.test"),
        (Stage.LOGIN, "login", "ssh-copy-id -p 22 llmgw@far.test"),
    ],
)
def test_nothing_is_said_of_what_lies_behind_a_broken_way(stage: Stage, check: str, mend: str) -> None:
    seen = replace(WELL, failed=stage, trouble="why", found=None, answer=None, there={})
    findings = judge(seen)
    at = [one.check for one in findings].index(check)
    assert [one.state for one in findings[:at]] == [State.OK] * at
    assert (findings[at].state, findings[at].text) == (State.MISSING, "why")
    assert mend in findings[at].mend
    assert {one.state for one in findings[at + 1 :]} == {State.NOT_LOOKED_AT}


@pytest.mark.parametrize(
    ("change", "check", "mend"),
    [
        ({"python": "", "python_trouble": "no venv"}, "python", "python3-venv"),
        ({"free": 0}, "disk", "df -h"),
        ({"current": "0-z", "whole": ("0-z",)}, "agent", "llmgw node install far"),
        ({"whole": ()}, "agent", "llmgw node install far"),
        ({"active": False}, "unit", "systemctl --user enable --now"),
        ({"enabled": False}, "unit", "systemctl --user enable --now"),
        ({"unit_digest": "", "active": False}, "unit", "llmgw node install far"),
    ],
)
def test_what_the_login_finds_is_judged_one_by_one(change: dict[str, Any], check: str, mend: str) -> None:
    missing = _missing(replace(WELL, found=replace(FOUND, **change)))
    assert list(missing) == [check]
    assert mend in missing[check]


def test_an_agent_that_was_started_by_other_means_is_well() -> None:
    bare = replace(FOUND, current="", whole=(), unit_digest="", enabled=False, active=False)
    assert _missing(replace(WELL, found=bare)) == {}
    assert "agent" in _missing(replace(WELL, found=bare, answer=Answer("0.0.1", REPORT)))


def test_a_silent_agent_hides_what_it_would_have_said() -> None:
    seen = replace(WELL, answer=None, silence="no agent listens", there={})
    assert list(_missing(seen)) == ["agent answers"]
    assert {one.state for one in judge(seen)[-3:]} == {State.NOT_LOOKED_AT}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"gpus": ()}, "0 of 1 expected"),
        ({"gpus": (replace(CARD, unhealthy="fell off the bus"),)}, "fell off the bus"),
        ({"facts": replace(facts(), gpu_trouble="the driver does not answer")}, "the driver does not answer"),
    ],
)
def test_cards_that_are_ill_or_gone_are_said(change: dict[str, Any], text: str) -> None:
    seen = replace(WELL, answer=Answer(__version__, replace(REPORT, **change)))
    assert list(_missing(seen)) == ["gpus"]
    assert text in _text(seen, "gpus")


def test_a_node_without_cards_is_well_if_others_can_serve() -> None:
    objects = (cluster(gpu_classes=CLASSES), model("big", profile={"engine": "vllm", "gpu": {"class": "l40s"}}))
    for nodes, missing in (((node("far"),), ["gpus"]), ((node("far"), node("other")), [])):
        wanted = catalog(*objects, *nodes)
        answer = Answer(__version__, report("far"))
        assert (
            list(_missing(replace(WELL, catalog=wanted, node=wanted.nodes[NodeName("far")], answer=answer))) == missing
        )


def test_only_what_may_be_placed_there_is_needed() -> None:
    assert [(one.model, one.kind, one.path) for one in NEEDS] == [
        ("big", "engine", "vllm"),
        ("m", "engine", "llama-server"),
        ("m", "weights", "/weights/m.gguf"),
    ]


def test_lacking_programs_and_files_are_named_with_the_model() -> None:
    lacking = replace(WELL, there=dict.fromkeys(NEEDS, False))
    assert "llama-server, which m needs" in _text(lacking, "engines")
    assert _missing(lacking)["weights"] == "scp -P 22 FILE llmgw@far.test:/weights/m.gguf"
    found = replace(facts(), driver="1", programs=(Program("vllm", "1", "/x"), Program("llamacpp", "1", "/y")))
    known = replace(lacking, answer=Answer(__version__, replace(REPORT, facts=found)))
    assert list(_missing(known)) == ["weights"], "what the agent found need not be in the login's PATH"


def test_relative_weights_need_a_directory() -> None:
    wanted = catalog(cluster(), node("far"), model("m", weights={"path": "m.gguf"}))
    far = wanted.nodes[NodeName("far")]
    assert [one.path for one in needs(wanted, far, "/w") if one.kind == "weights"] == ["/w/m.gguf"]
    there = {one: one.kind == "engine" for one in needs(wanted, far, None)}
    seen = replace(WELL, catalog=wanted, node=far, there=there)
    assert _missing(seen)["weights"] == "llmgw set node/far weights_dir=/DIRECTORY/ON/IT"


def test_this_machine_is_not_reached_by_ssh() -> None:
    wanted = catalog(cluster(), node("here", local=True))
    seen = replace(WELL, catalog=wanted, node=wanted.nodes[NodeName("here")], found=None, answer=None, silence="none")
    assert [one.check for one in judge(seen)] == ["agent answers", "gpus", "engines", "weights"]
    assert _missing(seen)["agent answers"] == "llmgw agent (here)"
