"""What the bodies of admin requests may hold."""

import pytest

from llmgw.control.requests import LONGEST, BadRequest, line_from, names_from, revision_from, seconds_from, tree_from


def test_a_tree_comes_with_all_that_is_known_of_it() -> None:
    body = {
        "revision": "r1", "files": {"a.yaml": "eA=="}, "refused": {"l.yaml": "symlink"}, "subject": "s", "author": "ann",
        "committed": 5, "trailers": ["LLMGW-Allow-Remove: model/a"],
    }  # fmt: skip
    tree = tree_from(body)
    assert tree is not None
    assert (tree.revision, dict(tree.files), dict(tree.refused)) == ("r1", {"a.yaml": b"x"}, {"l.yaml": "symlink"})
    assert (tree.subject, tree.author, tree.committed) == ("s", "ann", 5.0)
    assert tree.trailers == ("LLMGW-Allow-Remove: model/a",)


@pytest.mark.parametrize(
    "body",
    [
        None, [], {}, {"files": []}, {"files": {"a": 1}}, {"files": {"a": "no base64!"}}, {"files": {}, "refused": []},
        {"files": {}, "trailers": "x"},
    ],
)  # fmt: skip
def test_what_is_no_tree_is_none(body: object) -> None:
    assert tree_from(body) is None


@pytest.mark.parametrize(
    ("value", "line"),
    [
        (" a\n b\x1b[31m\ud83d \n", "a\ufffd b\ufffd[31m\ufffd"),
        (None, "nobody"),
        (3, "nobody"),
        ("", "nobody"),
        ("x" * 9999, "x" * LONGEST),
    ],
)
def test_a_line_is_one_line_without_control_characters(value: object, line: str) -> None:
    assert line_from({"by": value}, "by", "nobody") == line


def test_names_are_a_list_of_texts() -> None:
    assert names_from({"allow_remove": ["model/a", 3, None, "node/b"]}, "allow_remove") == {"model/a", "node/b"}
    assert names_from({"allow_remove": "model/a"}, "allow_remove") == frozenset()
    assert names_from([], "allow_remove") == frozenset()


@pytest.mark.parametrize(
    "change",
    [
        {"revision": "r\ud83d"}, {"revision": "r\n2"}, {"revision": "x" * (LONGEST + 1)},
        {"committed": 10**400}, {"committed": 1e300}, {"committed": float("nan")}, {"committed": float("inf")},
        {"files": {"\ud83d.yaml": "eA=="}}, {"refused": {"\ud83d.yaml": "symlink"}}, {"refused": {"a": "\ud83d"}},
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_and_not_left_out(change: dict[str, object]) -> None:
    with pytest.raises(BadRequest) as refused:
        tree_from({"revision": "r1", "files": {"a.yaml": "eA=="}, **change})
    assert str(refused.value).isprintable()


def test_texts_of_strangers_are_made_fit_to_be_shown() -> None:
    tree = tree_from({"files": {}, "subject": "a\x1b[2J", "author": "\x1b]0;b\x07", "trailers": ["C: d\x1be"]})
    assert tree is not None
    assert (tree.revision, tree.subject, tree.author, tree.trailers) == (
        "worktree", "a\ufffd[2J", "\ufffd]0;b\ufffd", ("C: d\ufffde",),
    )  # fmt: skip
    assert names_from({"allow_remove": ["model/a\n"]}, "allow_remove") == {"model/a\ufffd"}


def test_a_revision_is_optional_and_seconds_are_numbers() -> None:
    assert (revision_from({"revision": " r1 "}), revision_from({}), revision_from(None)) == ("r1", "", "")
    given = {"a": 5, "b": 0.5, "c": "5", "d": True}
    assert [seconds_from(given, key) for key in "abcde"] == [5.0, 0.5, None, None, None]
