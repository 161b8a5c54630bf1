"""`Endpoint` objects: what stands in for which model, and what is refused because chance would settle it."""

import pytest

from llmgw.catalog.compile import Rejected, compile_tree
from llmgw.catalog.diff import diff
from llmgw.catalog.guard import guarded, refusals
from llmgw.spec.common import Impact
from tests.builders import Object, catalog, cluster, endpoint, model, tree

CHAT = model("chat", 1, aliases=["default", "org/Chat-8B"])
KEY = {"api_key": {"secret": "HUB"}}


def said(*objects: Object) -> list[str]:
    """Return what is said of endpoints, but for what nothing acts on."""
    outcome = compile_tree(tree(*objects))
    problems = outcome.problems if isinstance(outcome, Rejected) else outcome.warnings
    return [f"{one.code}: {one}" for one in problems if one.code != "not-acted-on"]


def test_a_name_or_an_alias_of_a_model_and_any_other_are_served_by_both() -> None:
    assert said(CHAT, endpoint("a", "https://h", "chat"), endpoint("b", "https://i/v1", "org/Chat-8B", "other")) == []
    assert said(endpoint("a", "https://h", "x"), endpoint("b", "https://i", "x")) == []


@pytest.mark.parametrize(
    ("models", "line"),
    [
        (("x", "x"), "duplicate-model: endpoint/e.yaml:1:97 'x' repeats what line 1 says; remove it"),
        (
            ("chat", "default"),
            "duplicate-model: endpoint/e.yaml:1:100 'default' is model 'chat', which line 1 lists already; keep one of the two",
        ),
        (
            ("Chat",),
            "case-collision: endpoint/e.yaml:1:92 'Chat' differs from model 'chat' at model/chat.yaml:1:53 in case only; "
            "write both alike",
        ),
        (
            ("org/chat-8b",),
            "case-collision: endpoint/e.yaml:1:92 'org/chat-8b' differs from model 'chat' at model/chat.yaml:1:180 in case "
            "only; write both alike",
        ),
    ],
)
def test_what_chance_would_settle_is_one_problem_with_both_places(models: tuple[str, ...], line: str) -> None:
    assert said(CHAT, endpoint("e", "https://h", *models)) == [line]


def test_two_endpoints_write_a_models_name_alike() -> None:
    found = said(endpoint("a", "https://h", "x"), endpoint("b", "https://h", "X"))
    assert len(found) == 1
    assert found[0].endswith("'X' differs from 'x' of a at endpoint/a.yaml:1:92 in case only; write both alike")


@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("https://h/v1?key=x", "https://h/v1?key=x has more than a path behind its host"),
        ("https://h:99999", "https://h:99999 is no URL: Port out of range"),
        ("http://h:0", "http://h:0 is no http:// or https:// URL of a host"),
    ],
)
def test_a_url_that_leads_nowhere_is_refused_with_what_to_write(url: str, what: str) -> None:
    (line,) = said(endpoint("e", url, "x"))
    assert what in line
    assert line.startswith("wrong-url: endpoint/e.yaml:1:")
    assert line.endswith("; write it up to what stands before `/v1`, as in https://llm.example.org")


def test_a_key_that_everybody_on_the_way_can_read_is_a_warning() -> None:
    (line,) = said(endpoint("e", "http://192.0.2.1", "x", **KEY))
    assert line.endswith("the key is sent to 192.0.2.1 unencrypted, for everybody on the way to read; use https")
    for url in ("https://192.0.2.1", "http://127.0.0.1:8000", "http://localhost", "http://[::1]:1"):
        assert said(endpoint("e", url, "x", **KEY)) == []
    assert said(endpoint("e", "http://192.0.2.1", "x")) == []


def test_what_is_acted_on_is_no_warning_and_what_is_not_is_one() -> None:
    outcome = compile_tree(tree(endpoint("e", "https://h", "x", weight=2, pool="p", **KEY)))
    assert not isinstance(outcome, Rejected)
    assert [one.message.split()[0] for one in outcome.warnings] == ["'weight'", "'pool'"]


def test_another_address_or_key_changes_routes_only() -> None:
    before = catalog(endpoint("e", "https://h", "x", **KEY))
    after = catalog(endpoint("e", "https://i", "x", "y", api_key={"secret": "OTHER"}))
    (change,) = diff(before, after)
    assert {(one.path, one.impact) for one in change.fields} == {
        ("url", Impact.ROUTE),
        ("models", Impact.ROUTE),
        ("api_key", Impact.ROUTE),
    }
    assert [(one.before, one.after) for one in change.fields if one.path == "api_key"] == [
        ('{"secret": "HUB"}', '{"secret": "OTHER"}')
    ]


def test_it_is_protected_as_other_objects_are() -> None:
    before = catalog(cluster(guard={"protect": ["endpoint/e"], "max_removed": 0}), endpoint("e", "https://h", "x"))
    after = catalog(cluster())
    assert [(one.rule, one.objects) for one in refusals(guarded(before), after)] == [
        ("protect", ("endpoint/e",)),
        ("max_removed", ("endpoint/e",)),
    ]
    assert refusals(guarded(before), after, frozenset({"endpoint/e"})) == ()
