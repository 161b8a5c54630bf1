"""What the bodies of admin requests may hold."""

import pytest

from llmgw.control.requests import LONGEST, line_from, names_from, tree_from


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
    [(" a\n b\x1b[31m ", "a b [31m"), (None, "nobody"), (3, "nobody"), ("", "nobody"), ("x" * 9999, "x" * LONGEST)],
)
def test_a_line_is_one_line_without_control_characters(value: object, line: str) -> None:
    assert line_from({"by": value}, "by", "nobody") == line


def test_names_are_a_list_of_texts() -> None:
    assert names_from({"allow_remove": ["model/a", 3, None, "node/b"]}, "allow_remove") == {"model/a", "node/b"}
    assert names_from({"allow_remove": "model/a"}, "allow_remove") == frozenset()
    assert names_from([], "allow_remove") == frozenset()
