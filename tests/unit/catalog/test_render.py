"""The four forms of the same problems, whole."""

import json

from llmgw.catalog.problems import Problem
from llmgw.catalog.render import render_github, render_json, render_sarif, render_text

KEY = Problem("models/a.yaml", 7, 3, "unknown key 'x'", "unknown-key", "error", "  x: 1", 4)
POOL = Problem("models/b.yaml", 9, 9, "no node is in pool 'gpu'", "empty-pool", "warning", "  pool: gpu", 12)
WHOLE = Problem("", 0, 0, "no Cluster object; add one", "no-cluster")
FILE = Problem("l.yaml", 0, 0, "a symlink", "not-a-file")


def pointed(snippet: str, column: int, end_column: int = 0) -> list[str]:
    return render_text([Problem("a", 1, column, "m", "c", "error", snippet, end_column)]).splitlines()[1:3]


def test_text() -> None:
    assert render_text([WHOLE, FILE, KEY, POOL]) == (
        "no Cluster object; add one\n"
        "l.yaml a symlink\n"
        "models/a.yaml:7:3 unknown key 'x'\n"
        "      x: 1\n"
        "      ^\n"
        "models/b.yaml:9:9 warning: no node is in pool 'gpu'\n"
        "      pool: gpu\n"
        "            ^^^\n"
        "3 errors, 1 warning in 3 files\n"
    )


def test_text_counts() -> None:
    assert render_text([]) == ""
    assert render_text([KEY]).splitlines()[-1] == "1 error in 1 file"
    assert render_text([POOL, POOL]).splitlines()[-1] == "2 warnings in 1 file"
    assert render_text([WHOLE]).splitlines()[-1] == "1 error"


def test_the_caret_stands_under_the_text() -> None:
    assert pointed("\ta:\tbc", 5, 7) == ["    \ta:\tbc", "    \t  \t^^"]
    assert pointed("名前: x", 5) == ["    名前: x", "          ^"], "wide characters take two columns"
    assert pointed("名: x", 1, 2) == ["    名: x", "    ^^"]
    assert pointed("e\u0301: x", 5) == ["    e\u0301: x", "       ^"], "combining ones none"
    assert pointed("ab", 3) == ["    ab", "      ^"], "just after the end"
    assert pointed("abc", 2, 99) == ["    abc", "     ^^"]


def test_of_a_long_line_the_part_that_matters_is_shown() -> None:
    line, caret = pointed("a" * 200 + "XYZ" + "b" * 200, 201, 204)
    assert len(line) == 124
    assert line[caret.index("^") : caret.rindex("^") + 1] == "XYZ"
    line, caret = pointed("a" * 200 + "X", 201)
    assert line[caret.index("^")] == "X"


def test_nothing_in_a_file_commands_the_terminal() -> None:
    evil = Problem("a\n::error::\x1b[2J.yaml", 1, 1, "m", "c", "error", "\x1b]0;x\x07\u202e", 0)
    text = render_text([evil])
    assert text.splitlines()[0] == "a\ufffd::error::\ufffd[2J.yaml:1:1 m"
    assert not any(character in text for character in "\x1b\x07\u202e")


def test_json_is_opentofus_shape() -> None:
    report = json.loads(render_json([WHOLE, KEY, POOL]))
    diagnostics = report.pop("diagnostics")
    assert report == {"format_version": "1.0", "valid": False, "error_count": 2, "warning_count": 1}
    assert diagnostics[0] == {"severity": "error", "summary": WHOLE.message, "detail": "", "code": "no-cluster"}
    assert diagnostics[1] == {
        "severity": "error",
        "summary": "unknown key 'x'",
        "detail": "",
        "code": "unknown-key",
        "range": {
            "filename": "models/a.yaml",
            "start": {"line": 7, "column": 3},
            "end": {"line": 7, "column": 4},
        },
        "snippet": {
            "context": None,
            "code": "  x: 1",
            "start_line": 7,
            "highlight_start_offset": 2,
            "highlight_end_offset": 3,
            "values": [],
        },
    }
    assert json.loads(render_json([POOL]))["valid"] is True
    assert json.loads(render_json([]))["diagnostics"] == []


def test_github_commands() -> None:
    odd = Problem("a,b:c%.yaml", 2, 3, "50% of\r\n::it", "x:y", "error", "", 3)
    assert render_github([KEY, POOL, WHOLE, FILE, odd]) == (
        "::error file=models/a.yaml,line=7,col=3,endColumn=4,title=unknown-key::unknown key 'x'\n"
        "::warning file=models/b.yaml,line=9,col=9,endColumn=12,title=empty-pool::no node is in pool 'gpu'\n"
        "::error title=no-cluster::no Cluster object; add one\n"
        "::error file=l.yaml,title=not-a-file::a symlink\n"
        "::error file=a%2Cb%3Ac%25.yaml,line=2,col=3,title=x%3Ay::50%25 of%0D%0A::it\n"
    )


def test_sarif() -> None:
    log = json.loads(render_sarif([WHOLE, FILE, KEY, Problem("a b/é.yaml", 1, 1, "m", "unknown-key")], "1.2.3"))
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    driver = run["tool"]["driver"]
    assert (driver["name"], driver["version"]) == ("llmgw", "1.2.3")
    assert driver["rules"] == [{"id": "no-cluster"}, {"id": "not-a-file"}, {"id": "unknown-key"}]
    assert run["columnKind"] == "unicodeCodePoints"
    whole, file, key, last = run["results"]
    assert whole == {
        "ruleId": "no-cluster",
        "ruleIndex": 0,
        "level": "error",
        "message": {"text": "no Cluster object; add one"},
    }
    assert file["locations"] == [{"physicalLocation": {"artifactLocation": {"uri": "l.yaml"}}}]
    assert key["locations"][0]["physicalLocation"]["region"] == {
        "startLine": 7,
        "startColumn": 3,
        "endColumn": 4,
        "snippet": {"text": "  x: 1"},
    }
    assert last["locations"][0]["physicalLocation"]["artifactLocation"] == {"uri": "a%20b/%C3%A9.yaml"}
    assert last["ruleIndex"] == 2


def test_a_name_that_is_not_utf8_breaks_nothing() -> None:
    odd = Problem("\udce9.yaml", 1, 1, "m", "c", "error", "x", 2)
    for text in (render_text([odd]), render_json([odd]), render_github([odd]), render_sarif([odd], "1")):
        assert text.encode()
    assert '"uri": "%E9.yaml"' in render_sarif([odd], "1")
