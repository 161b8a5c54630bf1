"""What a pre-receive hook is told on its standard input."""

import pytest

from llmgw.adapters.git_pushed import Pushed, pushed

OLD, NEW = "0" * 40, "1" * 40


@pytest.mark.parametrize("name", ["main", "a\u2028b", "x\x85y", "x\x0by", "a b"])
def test_only_a_line_feed_ends_a_line(name: str) -> None:
    ref = f"refs/heads/{name}"
    assert pushed(f"{OLD} {NEW} {ref}\n{NEW} {OLD} refs/tags/v1\n") == [
        Pushed(OLD, NEW, ref), Pushed(NEW, OLD, "refs/tags/v1"),
    ]  # fmt: skip


def test_what_is_no_line_of_it_is_refused() -> None:
    with pytest.raises(ValueError, match="not a line"):
        pushed(f"{OLD} {NEW}\n")
