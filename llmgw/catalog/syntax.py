"""What ruamel.yaml's scanner and parser complain of, in words for the person who wrote the file.

Their own messages speak of tokens and block ends. The most common mistakes get a sentence of their own; the rest keep
the library's words, with the place where it gave up.
"""

import re

from ruamel.yaml.error import MarkedYAMLError

from llmgw.catalog.document import Place, SourceText
from llmgw.catalog.problems import Problem

TEMPLATE = "an unrendered template; render it before it is committed, or put the text in quotes"

_TEMPLATE_MARK = re.compile(r"\{\{|\{%")
_NO_SPACE = re.compile(r"\s*(?:- )?[\w.-]+:[^\s/:]")
_DASH = re.compile(r"\s*-[^\s-]")
_BIG_ESCAPE = re.compile(r"\\U([0-9a-fA-F]{8})")


def explain(source: SourceText, error: MarkedYAMLError) -> Problem:
    """Return the problem that a syntax error is."""
    mark = error.problem_mark or error.context_mark
    place = Place(mark.line + 1, mark.column + 1) if mark is not None else Place(1, 1)
    opened = Place(error.context_mark.line + 1, error.context_mark.column + 1) if error.context_mark else place
    tab = _tab(source, place)
    if tab is not None:
        return tab
    template = _TEMPLATE_MARK.search(source.line(place.line))
    if template is not None:
        return source.problem(Place(place.line, template.start() + 1), "template", TEMPLATE)
    problem = str(error.problem or error.context or "no reason given")
    return (
        _known(source, problem, place, opened)
        or _misplaced(source, problem, place, opened)
        or source.problem(place, "syntax", f"cannot be read as YAML: {problem}")
    )


def _tab(source: SourceText, place: Place) -> Problem | None:
    text = source.line(place.line)
    if text[place.column - 1 : place.column] == "\t":
        return source.problem(Place(place.line, place.column, place.column + 1), "tab", TAB)
    return indent_tab(source, place.line)


TAB = "a tab; write spaces, YAML does not take tabs between its parts"


def indent_tab(source: SourceText, line: int) -> Problem | None:
    """Return the problem of a tab in a line's indentation, if there is one."""
    text = source.line(line)
    column = len(text) - len(text.lstrip(" ")) + 1
    if text[column - 1 : column] != "\t":
        return None
    return source.problem(Place(line, column, column + 1), "tab", TAB)


def _known(source: SourceText, problem: str, place: Place, opened: Place) -> Problem | None:
    for fragment, code, message in _SENTENCES:
        if fragment in problem:
            character = source.line(place.line)[place.column - 1 : place.column]
            character = f"`{character}`" if character else "the end"
            # A quote that is never closed is mended where it opens, not at the end of the file.
            where = opened if fragment == _UNCLOSED else place
            return source.problem(where, code, message.format(opened=opened.line, character=character))
    return None


def _misplaced(source: SourceText, problem: str, place: Place, opened: Place) -> Problem | None:
    """Explain a token where none can be: a missing space, a stray word, or indentation."""
    if "mapping values are not allowed" in problem or _NO_COLON in problem:
        for number in sorted({place.line, place.line - 1, opened.line}):
            for pattern, sign, form in ((_NO_SPACE, ":", "key: value"), (_DASH, "-", "- item")):
                match = pattern.match(source.line(number))
                if match is not None:
                    where = Place(number, match.end() - 1, match.end())
                    return source.problem(where, "syntax", f"no space after the `{sign}`; write `{form}`")
    if _NO_COLON in problem:
        return source.problem(opened, "syntax", "neither `key: value` nor `- item`; write one of them")
    if "mapping values are not allowed" in problem:
        message = "a `: ` where none can be; put a value that contains `: ` in quotes, or mend the indentation"
        return source.problem(place, "syntax", message)
    if "<block end>" in problem or "<document start>" in problem:
        if source.line(place.line)[: place.column - 1].strip(" -"):
            message = "does not belong to the value before it; put the whole value in quotes"
        else:
            above = f"what started on line {opened.line}" if opened.line < place.line else "the lines above"
            message = f"does not line up with {above}; mend the indentation"
        return source.problem(place, "syntax", message)
    return None


_NO_COLON = "could not find expected ':'"
_UNCLOSED = "found unexpected end of stream"
_SENTENCES: tuple[tuple[str, str, str], ...] = (
    (_UNCLOSED, "syntax", "this quote is never closed; add the closing one"),
    (
        "found unexpected document separator",
        "syntax",
        "a `---` inside the quote opened on line {opened}; close it first",
    ),
    ("found undefined tag handle", "tag", "a tag; remove it, or put the value in quotes if `!` belongs to it"),
    ("that cannot start any token", "syntax", "text cannot start with {character}; put it in quotes"),
    (
        "found unknown escape",
        "syntax",
        "an unknown escape in double quotes; write `\\\\` for a backslash, or use '...'",
    ),
    (
        "expected escape sequence",
        "syntax",
        "half an escape in double quotes; write `\\\\` for a backslash, or use '...'",
    ),
    ("expected ',' or ']'", "syntax", "the `[` opened on line {opened} is not closed here; add `,` or `]`"),
    ("expected ',' or '}'", "syntax", "the `{{` opened on line {opened} is not closed here; add `,` or `}}`"),
    (
        "expected the node content",
        "syntax",
        "a value is missing before {character}; write it, or put what is text in quotes",
    ),
    ("after document end marker", "multiple-documents", "text after `...`; one object a file"),
    ("alphabetic or numeric", "syntax", "`*` and `&` start an alias and an anchor; put text that starts so in quotes"),
    (
        "chomping or indentation",
        "syntax",
        "after `|` or `>` comes the end of the line; put text that starts so in quotes",
    ),
)


def bad_escape(source: SourceText) -> Problem:
    """Return the problem of an escape that names no character."""
    for number, line in enumerate(source.lines, 1):
        for match in _BIG_ESCAPE.finditer(line):
            if int(match[1], 16) > 0x10FFFF:
                place = Place(number, match.start() + 1, match.end() + 1)
                return source.problem(place, "syntax", f"`{match[0]}` is no character; the last one is `\\U0010FFFF`")
    return source.problem(
        Place(1, 1), "syntax", "an escape in double quotes names no character; write the character itself"
    )
