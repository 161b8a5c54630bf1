"""What people read of revisions."""

from typing import Any

from llmgw.cli.revising import history_text, revision_lines, revision_troubles, rollback_text

STAGE = {"revision": "abcdef0123456789", "subject": "a change", "author": "Ann", "age": 90.0}


def _record(**fields: Any) -> dict[str, Any]:
    base = {
        "revision": "abcdef0123456789",
        "outcome": "applied",
        "age": 90.0,
        "by": "Ann",
        "how": "auto",
        "subject": "x",
    }
    return {**base, "note": "", **fields}


def test_the_history_is_a_table_newest_first() -> None:
    shown = {"revisions": [_record(outcome="rolled_back", note="to 123, by bob"), _record(how="apply", by="ci@host")]}
    assert history_text(shown).splitlines() == [
        "REVISION    OUTCOME      AGE  BY       HOW    SUBJECT",
        "abcdef0123  rolled back  90s  Ann      auto   x: to 123, by bob",
        "abcdef0123  applied      90s  ci@host  apply  x",
    ]
    assert history_text({"revisions": []}) == "No revision was taken up yet."


def test_a_rollback_says_what_ends_it_and_what_makes_it_permanent() -> None:
    shown = {"revision": "a" * 40, "left": "b" * 40, "revert": "git revert --no-edit a..b"}
    assert rollback_text(shown).splitlines() == [
        "Revision aaaaaaaaaa is in force again, instead of bbbbbbbbbb.",
        "bbbbbbbbbb stays out, even if it is pushed again; the next commit after it ends that.",
        "To make it permanent, in the cluster directory: git revert --no-edit a..b && git push",
    ]
    assert len(rollback_text({**shown, "revert": None}).splitlines()) == 2


def test_the_four_are_always_shown() -> None:
    four = {"fetched": STAGE, "validated": STAGE, "attempted": STAGE, "applied": None}
    assert revision_lines({"revisions": four}) == [
        "fetched    abcdef0123   90s ago  a change (Ann)",
        "validated  abcdef0123   90s ago  a change (Ann)",
        "attempted  abcdef0123   90s ago  a change (Ann)",
        "applied    none yet",
    ]
    assert revision_lines({}) == []


def test_what_stands_against_the_newest_one_comes_first() -> None:
    shown: dict[str, Any] = {
        "revisions": {"validated": STAGE},
        "suspended": {"text": "bob, until 2026-12-24T18:00Z (works)"},
        "by_operator": "bob rolled back from x to y",
        "waiting": {"kind": "manual", "text": "it waits for `llmgw apply` (sync: manual)"},
        "attempt": _record(outcome="failed", note="model/m: ended with status 1"),
    }
    assert revision_troubles(shown) == [
        "! suspended by bob, until 2026-12-24T18:00Z (works): nothing is changed; `llmgw resume` ends it",
        "! bob rolled back from x to y",
        "! revision abcdef0123 waits: it waits for `llmgw apply` (sync: manual)",
        "! revision abcdef0123 failed: model/m: ended with status 1",
    ]
    assert revision_troubles({"revisions": {"validated": STAGE}, "waiting": {"kind": "leader", "text": "x"}}) == []
    assert revision_troubles({}) == []
