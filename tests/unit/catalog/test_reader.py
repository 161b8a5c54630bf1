"""Every way a file can be wrong before its kind is looked at: the exact place, code and sentence of each."""

import pytest

from llmgw.catalog.document import Place
from llmgw.catalog.reader import Reading, read_document

HEAD = "apiVersion: llmgw/v1\nkind: Model\n"


def read(text: str | bytes) -> Reading:
    return read_document("x.yaml", text.encode() if isinstance(text, str) else text)


def told(reading: Reading) -> list[str]:
    return [f"{problem} [{problem.code}]".removeprefix("x.yaml:") for problem in reading.problems]


TEMPLATE = "an unrendered template; render it before it is committed, or put the text in quotes [template]"
EMPTY = "1:1 the file is empty; delete the file to remove the object [empty-file]"
TAB = "a tab; write spaces, YAML does not take tabs between its parts [tab]"
UTF16 = "1:1 the file is UTF-16 or UTF-32; save it as UTF-8 [not-utf8]"
SECOND = "a second document; one object a file: move what follows `---` to a file of its own [multiple-documents]"
NOT_A_MAPPING = (
    "1:1 the file is not a mapping; start it with `apiVersion: llmgw/v1`, `kind:` and `name:` [not-a-mapping]"
)
TOO_MANY = "more than 10000 values, each alias counted as what it stands for; no object needs that [too-many-values]"
NUMBER = "is not a number that any field takes; put it in quotes if it is text [not-finite]"

FATAL = {
    "nothing": (b"", EMPTY),
    "blank": ("  \n\r\n", EMPTY),
    "comments": ("# nodes/box.yaml\n  # gone\n", EMPTY),
    "a lone ---": ("---\n", EMPTY),
    "--- and a comment": ("# c\n---\n# d\n", EMPTY),
    "UTF-16": ("a: 1\n".encode("utf-16"), UTF16),
    "UTF-16 without a mark": ("a: 1\n".encode("utf-16-le"), UTF16),
    "UTF-16, big endian": ("a: 1\n".encode("utf-16-be"), UTF16),
    "UTF-32": ("a: 1\n".encode("utf-32"), UTF16),
    "Latin-1": (
        b"a: 1\r\nb: caf\xe9 cr\xe8me\n",
        "2:7 byte 0xe9 is not UTF-8, perhaps the file is Latin-1; save it as UTF-8 [not-utf8]",
    ),
    "Latin-1 behind characters of many bytes": (
        "é: ü".encode() + b"\xe9\n",
        "1:5 byte 0xe9 is not UTF-8, perhaps the file is Latin-1; save it as UTF-8 [not-utf8]",
    ),
    "NUL": (b"a: 1\nb: \x00\n", "2:4 a NUL character (U+0000); remove it [bad-character]"),
    "control": (b"a: 1\n# \x1b[0m\n", "2:3 a control character (U+001B); remove it [bad-character]"),
    "NEL": ("a: x\x85b: y\n", "1:5 an invisible line end (U+0085); write an ordinary one [bad-character]"),
    "U+2028": ("a: x\u2028\n", "1:5 an invisible line end (U+2028); write an ordinary one [bad-character]"),
    "text that runs backwards": ("a: \u202ex\n", "1:4 an invisible character (U+202E); remove it [bad-character]"),
    "byte order mark inside": (
        "a: 1\n\ufeffb: 2\n",
        "2:1 a byte order mark (U+FEFF) in the middle of the file; remove it [bad-character]",
    ),
    "LFS": (
        "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n",
        "1:1 a git-LFS pointer, not the file itself; run `git lfs pull`, or keep this file out of LFS [lfs-pointer]",
    ),
    "conflict": (
        "a: 1\n<<<<<<< HEAD\nb: 1\n=======\nb: 2\n>>>>>>> other\n",
        "2:1 a merge-conflict marker; settle the conflict and remove the `<<<<<<<` lines [merge-conflict]",
    ),
    "half a conflict": (
        "a: 1\r\n=======\r\n",
        "2:1 a merge-conflict marker; settle the conflict and remove the `=======` lines [merge-conflict]",
    ),
    "%YAML": (
        "# old\n%YAML 1.1\n---\na: yes\n",
        "2:1 a `%YAML` directive; remove the line, files are always read as YAML 1.2 [directive]",
    ),
    "%TAG": (
        "%TAG ! tag:x,2000:\n---\na: 1\n",
        "1:1 a `%TAG` directive; remove the line, files are always read as YAML 1.2 [directive]",
    ),
    "too large": (
        b"#" * (256 * 1024 + 1),
        "1:1 257 KiB, the limit is 256 KiB; is this an object's file? [file-too-large]",
    ),
    "second document": ("a: 1\n---\nb: 1\n", f"2:1 {SECOND}"),
    "trailing ---": ("---\na: 1\n---\n", f"3:1 {SECOND}"),
    "after ...": ("a: 1\n...\nb: 1\n", f"3:1 {SECOND}"),
    "text": ("hello\n", NOT_A_MAPPING),
    "list": ("- a\n", NOT_A_MAPPING),
    "number": ("5\n", NOT_A_MAPPING),
    "too deep": ("a: " + "[" * 64 + "]" * 64 + "\n", "1:67 nested more than 64 deep; no object needs that [too-deep]"),
    "far too deep": ("[" * 200_000, "1:65 nested more than 64 deep; no object needs that [too-deep]"),
    "deep blocks": ("- " * 600 + "\n", "1:129 nested more than 64 deep; no object needs that [too-deep]"),
    "deep through aliases": (
        "a: &a " + "[" * 40 + "]" * 40 + "\nb: " + "[" * 30 + "*a" + "]" * 30 + "\n",
        "2:34 nested more than 64 deep through `*a`; no object needs that [too-deep]",
    ),
    "too many": (
        "a: [" + "1," * 10_000 + "]\n",
        f"1:19999 {TOO_MANY}",
    ),
    "alias bomb": (
        f"a: &a [{'1,' * 10}]\nb: &b [{'*a,' * 10}]\nc: &c [{'*b,' * 10}]\nd: [{'*c,' * 10}]\n",
        f"4:26 {TOO_MANY}",
    ),
    "template in a block": ("{% if x %}\na: 1\n{% endif %}\n", f"1:1 {TEMPLATE}"),
    "template statement as value": ("a: {% x %}\n", f"1:4 {TEMPLATE}"),
    "template that does not parse": ("a: {{ x }}-b\n", f"1:4 {TEMPLATE}"),
    "tab for indentation": ("a:\n\tb: 1\n", f"2:1 {TAB}"),
    "tab after spaces": ("a:\n  \tb: 1\n", f"2:3 {TAB}"),
    "tab after the colon": ("a:\tb\n", f"1:3 {TAB}"),
    "no space after the colon": ("a:1\nb: 2\n", "1:2 no space after the `:`; write `key: value` [syntax]"),
    "no space after the dash": ("a:\n- b\n-c\n", "3:1 no space after the `-`; write `- item` [syntax]"),
    "a word": ("a: 1\nb\nc: 1\n", "2:1 neither `key: value` nor `- item`; write one of them [syntax]"),
    "two colons": (
        "a: b: c\n",
        "1:5 a `: ` where none can be; put a value that contains `: ` in quotes, or mend the indentation [syntax]",
    ),
    "open quote": ("a: 'b\nc: 1\n", "1:4 this quote is never closed; add the closing one [syntax]"),
    "quote around a document": (
        'a: "b\n---\n',
        "2:1 a `---` inside the quote opened on line 1; close it first [syntax]",
    ),
    "open bracket": ("a: [b,\nc: 1\n", "3:1 the `[` opened on line 1 is not closed here; add `,` or `]` [syntax]"),
    "open brace": ("a: {b: 1\nc: 1\n", "2:2 the `{` opened on line 1 is not closed here; add `,` or `}` [syntax]"),
    "stray bracket": ("a: ]\n", "1:4 a value is missing before `]`; write it, or put what is text in quotes [syntax]"),
    "at sign": ("a: @b\n", "1:4 text cannot start with `@`; put it in quotes [syntax]"),
    "after a quote": (
        "a: 'b' c\n",
        "1:8 does not belong to the value before it; put the whole value in quotes [syntax]",
    ),
    "indentation": (
        "a:\n  b: 1\n c: 1\n",
        "3:2 does not line up with what started on line 1; mend the indentation [syntax]",
    ),
    "indentation of the first line": (
        " a: 1\nb: 1\n",
        "2:1 does not line up with the lines above; mend the indentation [syntax]",
    ),
    "escape": (
        'a: "\\d"\n',
        "1:6 an unknown escape in double quotes; write `\\\\` for a backslash, or use '...' [syntax]",
    ),
    "half an escape": (
        'a: "\\xz"\n',
        "1:7 half an escape in double quotes; write `\\\\` for a backslash, or use '...' [syntax]",
    ),
    "escape beyond Unicode": (
        'a: 1\nb: "\\UFFFFFFFF"\n',
        "2:5 `\\UFFFFFFFF` is no character; the last one is `\\U0010FFFF` [syntax]",
    ),
    "escape just beyond Unicode": (
        'b: "\\U0010FFFF\\U00110000"\n',
        "1:15 `\\U00110000` is no character; the last one is `\\U0010FFFF` [syntax]",
    ),
    "star": (
        "a: *\n",
        "1:5 `*` and `&` start an alias and an anchor; put text that starts so in quotes [syntax]",
    ),
    "bar": (
        "a: |x\n",
        "1:5 after `|` or `>` comes the end of the line; put text that starts so in quotes [syntax]",
    ),
    "tag of an unknown family": (
        "a: !b!c d\n",
        "1:4 a tag; remove it, or put the value in quotes if `!` belongs to it [tag]",
    ),
    "text after a quoted file": (
        '"a" b\n',
        "1:5 does not belong to the value before it; put the whole value in quotes [syntax]",
    ),
    "after the end": ("a: 1\n... b\n", "2:5 text after `...`; one object a file [multiple-documents]"),
}


@pytest.mark.parametrize(("data", "expected"), FATAL.values(), ids=FATAL.keys())
def test_what_makes_a_file_unreadable(data: str | bytes, expected: str) -> None:
    reading = read(data)
    assert told(reading) == [expected]
    assert reading.document is None


NOTED = {
    "duplicate key": (
        "replicas: 1\npriority: 1\nreplicas: 2\n",
        ["5:1 duplicate key 'replicas', first given on line 3; keep one of them [duplicate-key]"],
    ),
    "duplicate key, quoted": (
        "a: {b: 1, 'b': 2}\n",
        ["3:11 duplicate key 'b', first given on line 3; keep one of them [duplicate-key]"],
    ),
    "tag": ("a: !!str 1\n", ["3:4 a tag, `!!str`; remove it, the type follows from how a value is written [tag]"]),
    "tag of ours": (
        "a: !secret b\n",
        ["3:4 a tag, `!secret`; remove it, the type follows from how a value is written [tag]"],
    ),
    "tag on a mapping": (
        "a: !!python/object:os.system {b: 1}\n",
        ["3:4 a tag, `!!python/object:os.system`; remove it, the type follows from how a value is written [tag]"],
    ),
    "an endless tag": (
        f"a: {'!' * 5000}b c\n",
        [f"3:4 a tag, `{'!' * 37}...`; remove it, the type follows from how a value is written [tag]"],
    ),
    "tag behind an anchor": (
        "a: &b !!str c\n",
        ["3:4 a tag, `!!str`; remove it, the type follows from how a value is written [tag]"],
    ),
    "reused anchor": (
        "a: &a 1\nb: &a 2\n",
        ["4:4 anchor `&a` is already used on line 3; give this one another name [reused-anchor]"],
    ),
    "unknown alias": (
        "a: *b\n",
        ["3:4 alias `*b` has no anchor `&b` before it in this file; quote it if it is text [unknown-alias]"],
    ),
    "alias in itself": (
        "a: &a [*a]\n",
        ["3:8 alias `*a` is inside the value it stands for; write the value out [recursive-alias]"],
    ),
    "number as key": ("1: a\n", ['3:1 a key must be text and `1` is not; write "1" in quotes [bad-key]']),
    "true as key": ("true: a\n", ['3:1 a key must be text and `true` is not; write "true" in quotes [bad-key]']),
    "null as key": ("~: a\n", ['3:1 a key must be text and `~` is not; write "~" in quotes [bad-key]']),
    "no key": (": a\n", ["3:1 a `:` without a key before it; write the key [bad-key]"]),
    "list as key": (
        "? [a]\n: b\n",
        ["3:3 a key must be text, not a list or a mapping; mend the `?` or the brackets [bad-key]"],
    ),
    "alias as key": ("a: &a b\n*a : c\n", ["4:1 an alias as a key; write the key itself [bad-key]"]),
    "unwritable key": ('"\\0": a\n', ["3:1 a key with a character that no text can hold; rename it [bad-character]"]),
    "no value": ("ssh:\n  # host: x\n", ["3:1 key 'ssh' has no value; write one or remove the key [no-value]"]),
    "null": (
        "a: null\n",
        ['3:4 `null` is no value; write one or remove it, or put "null" in quotes if it is text [no-value]'],
    ),
    "empty item": ("a:\n- b\n-\n", ["5:2 an empty list item; write a value or remove the `-` [no-value]"]),
    "key without colon in braces": ("a: {b}\n", ["3:5 key 'b' has no value; write one or remove the key [no-value]"]),
    "template": ("a: {{ b }}\n", [f"3:4 {TEMPLATE}"]),
    "template with a filter": ('a: {{ b | default "c" }}\n', [f"3:4 {TEMPLATE}"]),
    "template in text": ("a: b-{{ c }}\n", [f"3:4 {TEMPLATE}"]),
    "template as key": ("{{ a }}: b\n", [f"3:1 {TEMPLATE}"]),
    "template in a list": ("a:\n- {{ b }}\n", [f"4:3 {TEMPLATE}"]),
    "infinite": ("a: .inf\n", [f"3:4 `.inf` {NUMBER}"]),
    "not a number": ("a: [.nan]\n", [f"3:5 `.nan` {NUMBER}"]),
    "float too large": ("a: 1e999\n", [f"3:4 `1e999` {NUMBER}"]),
    "whole number too large": ("a: " + "9" * 5000 + "\n", [f"3:4 `{'9' * 37}...` {NUMBER}"]),
    "hexadecimal too large": ("a: 0x" + "f" * 5000 + "\n", [f"3:4 `0x{'f' * 35}...` {NUMBER}"]),
    "NUL by escape": (
        'a: "b\\0"\n',
        ["3:4 an escape for U+0000, which no text can hold; write the character itself [bad-character]"],
    ),
    "half a character": (
        'a: "\\uD83D\\uDE00"\n',
        ["3:4 an escape for U+D83D, which no text can hold; write the character itself [bad-character]"],
    ),
    "tab in a list": ("a: [\n\tb]\n", [f"4:1 {TAB}"]),
    "merge of text": (
        "<<: a\n",
        ["3:5 `<<` takes an alias of a mapping, as in `<<: *base`, or a list of them [bad-merge]"],
    ),
    "two merges": (
        "a: &a {b: c}\nd:\n  <<: *a\n  <<: *a\n",
        ["6:3 a second `<<`, first given on line 5; write `<<: [*a, *b]` [duplicate-key]"],
    ),
    "merge of an unknown alias": (
        "<<: *b\n",
        ["3:5 alias `*b` has no anchor `&b` before it in this file; quote it if it is text [unknown-alias]"],
    ),
    "unknown alias as key": (
        "*b : c\n",
        ["3:1 alias `*b` has no anchor `&b` before it in this file; quote it if it is text [unknown-alias]"],
    ),
    "several": (
        "a: ~\na: 1\n5: 1\n",
        [
            "4:1 duplicate key 'a', first given on line 3; keep one of them [duplicate-key]",
            '5:1 a key must be text and `5` is not; write "5" in quotes [bad-key]',
            '3:4 `~` is no value; write one or remove it, or put "~" in quotes if it is text [no-value]',
        ],
    ),
    "once, although used twice": (
        "a: &a {b: ~, b: 1, 1: 2}\nc: *a\nd: {<<: *a}\n",
        [
            "3:14 duplicate key 'b', first given on line 3; keep one of them [duplicate-key]",
            '3:20 a key must be text and `1` is not; write "1" in quotes [bad-key]',
            '3:11 `~` is no value; write one or remove it, or put "~" in quotes if it is text [no-value]',
        ],
    ),
}


@pytest.mark.parametrize(("text", "expected"), NOTED.values(), ids=NOTED.keys())
def test_what_is_noted_while_the_rest_is_read(text: str, expected: list[str]) -> None:
    reading = read(HEAD + text)
    assert told(reading) == expected
    assert reading.document is not None
    assert reading.document.kind == "Model"


VALUES = {
    "1.2 text": ("[yes, no, on, off, y, N, 22:22, 1_000, 2024-01-01, 0b1, '5', \"true\"]",
                 ["yes", "no", "on", "off", "y", "N", "22:22", "1_000", "2024-01-01", "0b1", "5", "true"]),
    "truth": ("[true, True, TRUE, false, False, FALSE]", [True, True, True, False, False, False]),
    "numbers": ("[0, -1, +2, 0o17, 0xfF, 1.5, .5, 1., 1e3, -1.5E-1]",
                [0, -1, 2, 15, 255, 1.5, 0.5, 1.0, 1000.0, -0.15]),
    "not numbers": ("[1.2.3, '+', -, 0o8, 0xg, 1e, ., 1..2, --1]",
                    ["1.2.3", "+", "-", "0o8", "0xg", "1e", ".", "1..2", "--1"]),
    "blocks": ("|\n  b\n   c\n", "b\n c\n"),
    "folded": (">-\n  b\n  c\n", "b c"),
    "a tab in a block": ("|\n  b:\n  \tmake\n", "b:\n\tmake\n"),
    "a tab in quotes": ("\"b\n  \tc\"", "b c"),
    "a template in quotes": ("'{{ messages }}'", "{{ messages }}"),
    "a template in a block": ("|\n  {% if x %}{{ y }}{% endif %}\n", "{% if x %}{{ y }}{% endif %}\n"),
    "escapes": ('"\\e[0m\\t\\u00e9\\U0001F600"', "\x1b[0m\té😀"),
    "a flow": ("{b: [c, {d: e}], f: {}}", {"b": ["c", {"d": "e"}], "f": {}}),
}  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), VALUES.values(), ids=VALUES.keys())
def test_values(text: str, expected: object) -> None:
    reading = read(f"a: {text}\n")
    assert told(reading) == []
    assert reading.document is not None
    value = reading.document.body["a"]
    assert value == expected
    assert repr(value) == repr(expected), "of the same types too"


def test_a_leading_byte_order_mark_and_every_line_end_are_accepted() -> None:
    for end in ("\n", "\r\n", "\r"):
        reading = read(f"\ufeffa: 1{end}b: [2]{end}")
        assert reading.problems == ()
        assert reading.document is not None
        assert reading.document.body == {"a": 1, "b": [2]}
        assert reading.document.key_place(("b",)) == Place(2, 1, 2)
        assert reading.document.value_place(("b", 0)) == Place(2, 5, 6)


def test_places_are_in_characters() -> None:
    document = read("'é😀': {名: x}\n").document
    assert document is not None
    assert document.key_place(("é😀",)) == Place(1, 1, 5)
    assert document.key_place(("é😀", "名")) == Place(1, 8, 9)
    assert document.value_place(("é😀", "名")) == Place(1, 11, 12)


def test_places_of_what_was_not_written_are_those_around_it() -> None:
    document = read("a:\n  b: 1\n").document
    assert document is not None
    assert document.value_place(("a", "c", 3)) == Place(2, 3)
    assert document.value_place(()) == Place(1, 1)
    assert document.where(("a", "b")) == "x.yaml:2:6"


def test_aliases_and_merges() -> None:
    text = "a: &a {x: 1, y: [2]}\nb: &b {y: 3, z: 4}\nc: *a\nd:\n  z: 5\n  <<: [*a, *b]\ne:\n  <<: {<<: *b, w: 6}\n"
    document = read(text).document
    assert document is not None
    assert document.body["c"] == {"x": 1, "y": [2]}
    assert document.body["d"] == {"z": 5, "x": 1, "y": [2]}, "own keys first, then the first alias's"
    assert document.body["e"] == {"w": 6, "y": 3, "z": 4}
    assert document.value_place(("c", "y", 0)) == Place(3, 4, 6), "the alias's"
    assert document.key_place(("d", "y")) == Place(6, 8, 10)
    assert document.key_place(("d", "z")) == Place(5, 3, 4)
    assert document.is_aliased(("d", "y"))
    assert not document.is_aliased(("d", "z"))


def test_plain_text_is_kept_for_hints() -> None:
    document = read("a: 1.10\nb: '1.10'\n").document
    assert document is not None
    assert document.marks[("a",)].plain == "1.10"
    assert document.marks[("b",)].plain is None


def test_problems_carry_the_line_and_the_end() -> None:
    (problem,) = read("a: 1\nbcd: 2\r\nbcd: 3 # x\n").problems
    assert (problem.snippet, problem.column, problem.end_column) == ("bcd: 3 # x", 1, 4)


def test_an_endless_line_is_not_repeated_in_every_problem() -> None:
    (problem,) = read("a: [~, " + "b, " * 200 + "]\n").problems
    assert problem.column == 5
    assert problem.snippet == ""
