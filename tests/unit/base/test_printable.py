"""Text of strangers, made fit to be shown."""

import pytest

from llmgw.base.printable import printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, \u00fc, \u65e5\u672c", "plain, \u00fc, \u65e5\u672c"),
        ("a\x1b[31mb", "a\ufffd[31mb"),
        ("a\nb\rc\x85d\u2028e", "a\ufffdb\ufffdc\ufffdd\ufffde"),
        ("a\udcffb\ud83d", "a\ufffdb\ufffd"),
        ("a\u202eb\x00c\x7f", "a\ufffdb\ufffdc\ufffd"),
        ("a\tb\u00a0c\u3000d", "a b c d"),
        ("", ""),
    ],
)
def test_what_has_no_shape_is_replaced(text: str, shown: str) -> None:
    assert printable(text) == shown
    assert printable(shown) == shown
    assert printable(text).encode().decode() == shown, "no UTF-8 holds a surrogate"
