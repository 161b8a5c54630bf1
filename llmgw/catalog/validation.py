"""One document against its kind: pydantic decides, and its errors are told again with a place and in the words of YAML.

Pydantic's own messages speak Python ("Input should be a valid dictionary"), name no line, and know no neighbours to
suggest. What is not listed here keeps pydantic's words: a new type in `spec/` needs nothing to be shown, only to be
shown well.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, get_args

from pydantic import StringConstraints, ValidationError
from pydantic_core import ErrorDetails

from llmgw.catalog.document import LONGEST_WORD, Document, Path
from llmgw.catalog.problems import Problem
from llmgw.catalog.scalars import has_leading_zero
from llmgw.catalog.shapes import fields_at
from llmgw.catalog.wording import (
    duration_hint,
    found,
    leading_zero_hint,
    list_hint,
    listing,
    mapping_hint,
    quoted,
    size_hint,
    subject,
    suggestion,
    text_hint,
    truth_hint,
    whole_number_hint,
)
from llmgw.spec.common import (
    ALIAS_PATTERN,
    API_VERSION,
    ENV_PATTERN,
    LABEL_PATTERN,
    NAME_PATTERN,
    AbsolutePath,
    Cron,
    Glob,
    HttpUrl,
    Image,
    Instant,
    Repository,
    SecretName,
    Sha256,
    SpecModel,
)
from llmgw.spec.node import HostKey

Hint = Callable[[object, str | None], str]

_NO_HINT: Hint = lambda value, plain: ""  # noqa: E731, ARG005

_TYPES: Mapping[str, tuple[str, Hint]] = {
    "string_type": ("text", text_hint),
    "int_type": ("a whole number", whole_number_hint),
    "int_from_float": ("a whole number", whole_number_hint),
    "int_parsing": ("a whole number", whole_number_hint),
    "float_type": ("a number", _NO_HINT),
    "bool_type": ("true or false", truth_hint),
    "list_type": ("a list", list_hint),
    "tuple_type": ("a list", list_hint),
    "dict_type": ("a mapping", mapping_hint),
    "model_type": ("a mapping", mapping_hint),
    "model_attributes_type": ("a mapping", mapping_hint),
    "duration": ("a duration with a unit, as in 500ms, 30s, 5m or 1h", duration_hint),
    "size": ("a size with a binary unit, as in 512MiB or 16GiB", size_hint),
}
"""Pydantic's error type: what was wanted, and the hint for what is often found instead."""


def _pattern(annotated: Any) -> str:
    constraints = next(each for each in get_args(annotated) if isinstance(each, StringConstraints))
    return str(constraints.pattern)


_ENDS = "with a letter or digit at both ends"
_PATTERNS: Mapping[str, tuple[str, str]] = {
    NAME_PATTERN: ("a name", f"use up to 63 lower-case letters, digits, `.`, `_`, `-`, {_ENDS}"),
    ALIAS_PATTERN: ("an alias", f"use up to 127 letters, digits, `.`, `_`, `:`, `/`, `@`, `-`, {_ENDS}"),
    LABEL_PATTERN: ("a label", f"use up to 63 letters, digits, `.`, `_`, `/`, `-`, {_ENDS}"),
    ENV_PATTERN: ("the name of an environment variable", "use letters, digits and `_`, no digit first"),
    _pattern(AbsolutePath): ("an absolute path", "start it with `/`"),
    _pattern(HttpUrl): (
        "a URL",
        "write http://HOST or https://HOST; a user or a password in it would be a secret in git",
    ),
    _pattern(Image): ("a container image", "write it as `docker pull` takes it, as in vllm/vllm-openai:v0.16.0"),
    _pattern(Sha256): (
        "a SHA-256 digest",
        "write its 64 hexadecimal digits in lower case, as `sha256sum FILE` prints them",
    ),
    _pattern(Glob): ("a pattern of names", "use letters, digits, `.`, `_`, `:`, `/`, `@`, `-`, and `*` for any text"),
    _pattern(Instant): ("a moment", "write it in UTC, as in 2026-12-24T18:00Z"),
    _pattern(Repository): ("a repository", "write ORG/NAME, as the hub does"),
    _pattern(Cron): ("a cron expression", "write minute, hour, day, month and weekday, as in `0 8 * * 1-5`"),
    _pattern(SecretName): (
        "the name of a secret",
        "use capital letters, digits and `_`, a letter first, as in HF_TOKEN",
    ),
    _pattern(HostKey): (
        "a public host key",
        "write `TYPE BASE64`, as `ssh-keyscan HOST` prints it after the host's name",
    ),
}
"""Pattern in `spec/`: what such a text is, and what it may be made of."""


def validate(document: Document, model: type[SpecModel]) -> tuple[SpecModel | None, list[Problem]]:
    """Return the document as its kind, or None with what is wrong."""
    problems = []
    spec: SpecModel | None = None
    try:
        spec = model.model_validate(document.body)
    except ValidationError as error:
        problems = _tell(document, model, error)
    told = {(problem.line, problem.column) for problem in problems}
    for path, mark in document.marks.items():
        if mark.plain is not None and has_leading_zero(mark.plain) and path not in document.flawed:
            message = f"{subject(path)} is `{mark.plain}`; {leading_zero_hint(mark.plain)}"
            problem = document.problem(path, "leading-zero", message)
            problems += () if (problem.line, problem.column) in told else (problem,)
    return spec, problems


def _tell(document: Document, model: type[SpecModel], error: ValidationError) -> list[Problem]:
    direct: dict[tuple[int, int, str], Problem] = {}
    aliased: dict[str, Problem] = {}
    located = [(*_locate(document, details), details) for details in error.errors(include_url=False)]
    texts = {path for path, _, details in located if details["type"] == "string_type"}
    for path, in_key, details in located:
        if _said_already(document, path, details) or _is_other_branch(path, details, texts):
            continue
        problem = _problem(document, model, details, path, in_key=in_key)
        if document.is_aliased(path):
            aliased.setdefault(problem.message, problem)
        else:
            direct.setdefault((problem.line, problem.column, problem.message), problem)
    said = {problem.message for problem in direct.values()}
    return [*direct.values(), *(problem for message, problem in aliased.items() if message not in said)]


def _is_other_branch(path: Path, details: ErrorDetails, texts: set[Path]) -> bool:
    """Whether an error is about the half of "a text, or a mapping" that was plainly not meant.

    Pydantic tries both and reports both: a mapping with a slip in it as no text, and a number as no mapping.
    """
    if details["type"] in ("model_type", "model_attributes_type"):
        return path in texts
    return details["type"] == "string_type" and isinstance(details["input"], dict) and details["loc"][-1] == "str"


def _locate(document: Document, details: ErrorDetails) -> tuple[Path, bool]:
    """Return the path in the file of an error, and whether it is the key there that is wrong.

    Pydantic's trail also names the branches of unions and validators, which are in no file: what the body does not have
    is left out.
    """
    here: object = document.body
    path: list[str | int] = []
    for part in details["loc"]:
        match here:
            case dict() if part in here:
                here = here[part]
            case list() if isinstance(part, int) and part < len(here):
                here = here[part]
            case _:
                continue
        path.append(part)
    return tuple(path), bool(details["loc"]) and details["loc"][-1] == "[key]"


def _said_already(document: Document, path: Path, details: ErrorDetails) -> bool:
    kind = details["type"]
    if any(path[:length] in document.flawed for length in range(len(path) + 1)):
        return True
    if kind == "missing":
        return path in document.incomplete
    # A rule of an object over its fields, when one of them could not be read and stands in the body as nothing.
    over_fields = isinstance(details["input"], dict) and kind not in _TYPES and kind != "extra_forbidden"
    return over_fields and any(flawed[: len(path)] == path for flawed in document.flawed)


def _problem(document: Document, model: type[SpecModel], details: ErrorDetails, path: Path, *, in_key: bool) -> Problem:
    match details["type"]:
        case "extra_forbidden":
            problem = _unknown_key(document, model, path)
        case "missing":
            problem = _missing_key(document, model, path, str(details["loc"][-1]))
        case "union_tag_not_found":
            problem = _missing_key(document, model, path, details["ctx"]["discriminator"].strip("'"))
        case "union_tag_invalid":
            key = details["ctx"]["discriminator"].strip("'")
            problem = _unlisted(document, (*path, key), details["ctx"]["tag"], details["ctx"]["expected_tags"])
        case "literal_error" | "enum":
            problem = _unknown_word(document, path, details)
        case kind if kind in _TYPES:
            problem = _wrong_type(document, path, details)
        case "string_pattern_mismatch":
            problem = _mismatch(document, path, details, in_key=in_key)
        case kind if kind in _LIMITS:
            code = "wrong-value" if kind.startswith("string") else "out-of-range"
            problem = document.problem(path, code, _limit(details, subject(path)))
        case kind:
            problem = _rule(document, path, kind, details["msg"], in_key=in_key)
    return problem


def _unknown_key(document: Document, model: type[SpecModel], path: Path) -> Problem:
    fields = fields_at(model, path[:-1])
    key = str(path[-1])
    close = suggestion(key, fields)
    known = f"; known here: {', '.join(fields)}" if fields and not close else ""
    return document.key_problem(path, "unknown-key", f"unknown key {quoted(key)}{close or known}")


def _missing_key(document: Document, model: type[SpecModel], path: Path, key: str) -> Problem:
    field = fields_at(model, path).get(key)
    about = (field.description or "").rstrip(".") if field is not None else ""
    message = f"missing key {quoted(key)}" + (f": {about[0].lower()}{about[1:]}" if about else "")
    return document.problem(path, "missing-key", message)


def _unknown_word(document: Document, path: Path, details: ErrorDetails) -> Problem:
    value, expected = details["input"], str(details.get("ctx", {}).get("expected", ""))
    if path == ("apiVersion",):
        return document.problem(path, "unknown-api-version", f"unknown apiVersion {quoted(value)}; write {API_VERSION}")
    if not isinstance(value, str):
        wanted = listing(_QUOTED.findall(expected) or [expected])
        return document.problem(path, "wrong-type", f"{subject(path)} expects {wanted}, found {found(value, None)}")
    return _unlisted(document, path, value, expected)


def _unlisted(document: Document, path: Path, value: str, expected: str) -> Problem:
    """Return the problem of a word that is not among those allowed, which pydantic lists in single quotes."""
    words = _QUOTED.findall(expected) or [expected]
    close = suggestion(value, words)
    message = f"{subject(path)} cannot be {quoted(value)}{close or '; write ' + listing(words)}"
    return document.problem(path, "unknown-value", message)


def _wrong_type(document: Document, path: Path, details: ErrorDetails) -> Problem:
    wanted, hint = _TYPES[details["type"]]
    value, plain = details["input"], document.marks[path].plain if path in document.marks else None
    message = f"{subject(path)} expects {wanted}, found {found(value, plain)}"
    if plain is not None and has_leading_zero(plain) and wanted != "text":
        return document.problem(path, "wrong-type", f"{message}; {leading_zero_hint(plain)}")
    advice = "" if isinstance(value, str) and len(value) > LONGEST_WORD else hint(value, plain)
    return document.problem(path, "wrong-type", f"{message}; {advice}" if advice else message)


def _mismatch(document: Document, path: Path, details: ErrorDetails, *, in_key: bool) -> Problem:
    pattern = str(details.get("ctx", {}).get("pattern", ""))
    what, rule = _PATTERNS.get(pattern, ("what it must be", f"it must match {pattern}"))
    value = str(details["input"])
    fixed = re.sub(r"[^a-z0-9._-]+", "-", value.lower()).strip("._-")
    if pattern == NAME_PATTERN and fixed != value and re.fullmatch(NAME_PATTERN, fixed):
        rule += f", as in {quoted(fixed)}"
    shown = re.sub(r"//[^/@]*@", "//…@", value)  # whoever reads a log need not learn the password
    message = f"{quoted(shown)} is not {what}; {rule}"
    if in_key:
        return document.key_problem(path, "wrong-value", message)
    return document.problem(path, "wrong-value", message)


_QUOTED = re.compile("'([^']*)'")
_BOUNDS: Mapping[str, str] = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}
_LIMITS = frozenset({"greater_than_equal", "greater_than", "less_than_equal", "less_than"}) | frozenset(
    {"too_short", "too_long", "string_too_short", "string_too_long"}
)


def _limit(details: ErrorDetails, name: str) -> str:
    ctx, value = details.get("ctx", {}), details["input"]
    size = len(value) if isinstance(value, str) else ctx.get("actual_length", 0)
    match details["type"]:
        case "too_short":
            return f"{name} needs {_items(ctx['min_length'])} or more, found {size}"
        case "too_long":
            return f"{name} takes {_items(ctx['max_length'])} at most, found {size}"
        case "string_too_short" if ctx["min_length"] == 1:
            return f"{name} must not be empty; write a value or remove it"
        case "string_too_short":
            return f"{name} needs {ctx['min_length']} characters or more, found {size}"
        case "string_too_long":
            return f"{name} takes {ctx['max_length']} characters at most, found {size}"
        case _:
            (word, limit), *_ = ((_BOUNDS[key], bound) for key, bound in ctx.items() if key in _BOUNDS)
            shown = int(limit) if isinstance(limit, float) and limit.is_integer() else limit
            return f"{name} must be {word} {shown}, found {value}"


def _rule(document: Document, path: Path, kind: str, text: str, *, in_key: bool) -> Problem:
    """Return what a rule of a model in `spec/` says; one that is called after a field is shown at that field."""
    code = kind.replace("_", "-")
    message = text[:1].lower() + text[1:].rstrip(".")
    if (*path, kind) in document.marks:
        return document.key_problem((*path, kind), code, message)
    return document.key_problem(path, code, message) if in_key else document.problem(path, code, message)


def _items(count: int) -> str:
    return "1 item" if count == 1 else f"{count} items"
