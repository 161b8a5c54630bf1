"""What the audit trail says of an act, and which scope each route needs."""

import pytest

from llmgw.control.scopes import is_act, is_enough, scope_needed
from llmgw.control.trail import described

ROW = {"id": "ab", "tenant": "t", "scope": None}


@pytest.mark.parametrize(
    ("method", "pattern", "body", "answer", "said"),
    [
        (
            "POST",
            "/v1/acts",
            {"kind": "drain", "target": "node/a", "reason": " new  memory "},
            {},
            ("drain", "node/a", "new memory", ""),
        ),
        ("POST", "/v1/forget", {"node": "a", "reason": "burnt"}, {}, ("forget", "node/a", "burnt", "")),
        ("POST", "/v1/routers/forget", {"router": "a", "reason": "burnt"}, {}, ("forget", "router/a", "burnt", "")),
        (
            "POST",
            "/v1/apply",
            {"revision": "r1", "allow_remove": ["model/m"], "supersede": True},
            {"id": "x7"},
            ("apply", "r1", "may remove model/m; supersedes", "x7"),
        ),
        ("POST", "/v1/apply", {"tree": {"revision": "r2"}}, {}, ("apply", "r2", "", "")),
        ("POST", "/v1/rollback", {}, {"revision": "r0"}, ("rollback", "r0", "", "")),
        ("POST", "/v1/suspend", {"reason": "switch", "until": "4h"}, {}, ("suspend", "", "switch; until 4h", "")),
        ("POST", "/v1/source/accept", {"revision": "r3"}, {}, ("accept", "r3", "", "")),
        (
            "POST",
            "/v1/keys",
            {"tenant": "t", "note": "ci"},
            {"keys": [ROW], "credential": "sk-llmgw-ab-S"},
            ("keys create", "tenant/t", "key ab; ci", ""),
        ),
        (
            "POST",
            "/v1/keys",
            {"scope": "read"},
            {"keys": [{**ROW, "tenant": None}]},
            ("keys create", "administrator", "key ab; scope read", ""),
        ),
        (
            "POST",
            "/v1/keys/rotate",
            {"key": "t"},
            {"keys": [ROW], "old": "aa", "credential": "S"},
            ("keys rotate", "tenant/t", "key ab; in place of aa", ""),
        ),
        ("POST", "/v1/keys/revoke", {"key": "nobody"}, {"error": "no"}, ("keys revoke", "nobody", "", "")),
        ("POST", "/v1/lease/release", {"epoch": 3, "reason": "hangs"}, {}, ("lease release", "epoch/3", "hangs", "")),
        ("POST", "/v1/lease/release", {"epoch": "3\n"}, {}, ("lease release", "", "", "")),
        ("POST", "/v1/of/tomorrow", {"reason": "why"}, {}, ("POST /v1/of/tomorrow", "", "why", "")),
    ],
)
def test_an_act_is_told_by_its_request(
    method: str, pattern: str, body: dict[str, object], answer: dict[str, object], said: tuple[str, ...]
) -> None:
    assert described(method, pattern, {}, body, answer) == said


def test_what_was_taken_back_is_named_in_the_query() -> None:
    assert described("DELETE", "/v1/acts", {"target": "node/a"}, {}, {})[:2] == ("uncordon", "node/a")


@pytest.mark.parametrize(
    ("method", "pattern", "scope", "act"),
    [
        ("GET", "/v1/status", "read", False),
        ("HEAD", "/v1/usage", "read", False),
        ("POST", "/v1/plan", "read", False),
        ("POST", "/v1/plan/verify", "read", False),
        ("GET", "/v1/keys", "admin", False),
        ("POST", "/v1/apply", "apply", True),
        ("DELETE", "/v1/acts", "apply", True),
        ("POST", "/v1/keys", "admin", True),
        ("POST", "/v1/forget", "admin", True),
        ("POST", "/v1/lease/release", "admin", True),
        ("GET", "/v1/leader", "read", False),
        ("POST", "/v1/of/tomorrow", "admin", True),
        ("POST", "/hooks/{forge}", "admin", False),
        ("GET", "", "admin", False),
    ],
)
def test_what_is_not_listed_needs_the_most_and_is_in_the_trail(
    method: str, pattern: str, scope: str, act: bool
) -> None:
    assert (scope_needed(method, pattern), is_act(method, pattern)) == (scope, act)


def test_each_scope_includes_those_before_it() -> None:
    assert [is_enough("apply", needed) for needed in ("read", "apply", "admin")] == [True, True, False]
    assert not is_enough(None, "read")
