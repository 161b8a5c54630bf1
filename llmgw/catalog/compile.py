"""A whole source tree becomes a `Catalog`, or problems: all of them, in one run.

A pure function of the tree. Either everything is valid and there is a catalog, or there is none: what reconciles never
sees half a directory, and a file that cannot be read is never taken for an object that was removed.
"""

import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeVar

from pydantic import ValidationError

from llmgw.base.ids import ModelName, NodeName, Revision
from llmgw.catalog.catalog import Catalog
from llmgw.catalog.document import Document
from llmgw.catalog.memory import Memory, NoMemory, digest_of, from_entry, to_entry
from llmgw.catalog.problems import Problem
from llmgw.catalog.read import Read, of_kind
from llmgw.catalog.reader import read_document
from llmgw.catalog.rules import cross_check
from llmgw.catalog.source import BEYOND, LINK, TOO_LARGE, TWO_NAMES, SourceTree, belongs, hidden, hides
from llmgw.catalog.validation import validate
from llmgw.catalog.wording import listing, quoted, suggestion
from llmgw.spec.cluster import Cluster
from llmgw.spec.common import API_VERSION
from llmgw.spec.endpoint import Endpoint
from llmgw.spec.kinds import KINDS
from llmgw.spec.model import Model
from llmgw.spec.node import Node
from llmgw.spec.tenant import Tenant

MOST_PROBLEMS = 100
"""Problems shown of one file; the rest are counted. A file of the wrong kind altogether has thousands."""

Named = TypeVar("Named", Model, Node, Endpoint, Tenant)


@dataclass(frozen=True, slots=True)
class Accepted:
    """A valid directory. Warnings stop nothing."""

    catalog: Catalog
    warnings: tuple[Problem, ...] = ()


@dataclass(frozen=True, slots=True)
class Rejected:
    """A directory with at least one error; warnings are among the problems. Sorted by file, line and column."""

    revision: Revision
    problems: tuple[Problem, ...]


def compile_tree(tree: SourceTree) -> Accepted | Rejected:
    """Compile every `*.yaml` and `*.yml` that is not below a name that starts with a dot. Never raises."""
    return Compiler().compile(tree)


class Compiler:
    """Compiles one tree after another; a file whose bytes did not change is not read again.

    Nearly all the time goes into scanning YAML (2 ms a file), and a push changes few files of many. The answer is the
    same as from `compile_tree`: what is kept depends on one file's path and bytes alone. For one caller at a time.
    """

    def __init__(self, memory: Memory | None = None) -> None:
        self._files: dict[str, _File] = {}
        self._memory = memory or NoMemory()

    def compile(self, tree: SourceTree) -> Accepted | Rejected:
        """Compile a tree, and keep what was read of its files until the next."""
        paths = sorted(path for path in tree.files if is_object_file(path))
        problems = [*_refused(tree), *_colliding(paths), *_misnamed(tree)]
        if not paths and not problems:
            message = f"no YAML file in this directory; add one with `apiVersion: {API_VERSION}` and `kind: Cluster`"
            return Rejected(tree.revision, (Problem("", 0, 0, message, "no-files"),))
        before, self._files = self._files, {}
        for path in paths:
            data, known = tree.files[path], before.get(path)
            self._files[path] = known if known is not None and known.data == data else self._read(path, data)
        files = self._files.values()
        problems += (problem for file in files for problem in file.problems)
        objects = [file.read for file in files if file.read is not None]
        told = {(problem.path, problem.line, problem.column) for problem in problems if problem.line}
        between = cross_check(objects, all_readable=len(objects) == len(paths) and not _incomplete(tree))
        problems += (problem for problem in between if (problem.path, problem.line, problem.column) not in told)
        problems.sort()
        if any(problem.severity == "error" for problem in problems):
            return Rejected(tree.revision, tuple(problems))
        return Accepted(_catalog(tree.revision, objects), tuple(problems))

    def _read(self, path: str, data: bytes) -> "_File":
        digest = digest_of(path, data)
        known = _remembered(self._memory.get(digest), path, data)
        if known is not None:
            return known
        file = _read(path, data)
        if file.read is not None and file.read.spec is not None and not file.problems:
            self._memory.put(digest, to_entry(file.read.document))
        return file


@dataclass(frozen=True, slots=True)
class _File:
    """All that one file says, by itself."""

    data: bytes
    read: Read | None
    problems: tuple[Problem, ...]


def is_object_file(path: str) -> bool:
    """Whether a path of the tree is read as an object."""
    return path.endswith((".yaml", ".yml")) and not hidden(path)


def _read(path: str, data: bytes) -> _File:
    reading = read_document(path, data)
    document = reading.document
    if document is None:
        return _File(data, None, reading.problems)
    stop = _unknown_language(document) or _unknown_kind(document)
    if stop or document.kind not in KINDS:
        return _File(data, None, (*reading.problems, *stop))
    spec, found = validate(document, KINDS[document.kind])
    problems = [*reading.problems, *found]
    return _File(data, Read(document, None if problems else spec), tuple(_first(path, problems)))


def _remembered(entry: object, path: str, data: bytes) -> _File | None:
    """Return a file that was faultless before. Its object is made anew: an entry is values, not a verdict."""
    document = from_entry(entry, path, data)
    if document is None or document.kind not in KINDS:
        return None
    try:
        spec = KINDS[document.kind].model_validate(document.body)
    except ValidationError:
        return None
    return _File(data, Read(document, spec), ())


def _unknown_language(document: Document) -> tuple[Problem, ...]:
    """Another version is another language: nothing else in the file can be judged."""
    path = ("apiVersion",)
    version = document.body.get("apiVersion", API_VERSION)
    if version == API_VERSION or path in document.flawed:
        return ()
    message = f"unknown apiVersion {quoted(version)}; write {API_VERSION}"
    return (document.problem(path, "unknown-api-version", message),)


def _unknown_kind(document: Document) -> tuple[Problem, ...]:
    kind = document.body.get("kind")
    if document.kind in KINDS or ("kind",) in document.flawed:
        return ()
    if "kind" not in document.body:
        message = f"missing key 'kind': one of {listing(KINDS)}"
        return () if () in document.incomplete else (document.problem((), "missing-key", message),)
    advice = suggestion(document.kind, KINDS) or f"; write {listing(KINDS)}"
    return (document.problem(("kind",), "unknown-kind", f"unknown kind {quoted(kind)}{advice}"),)


def _first(path: str, problems: list[Problem]) -> list[Problem]:
    if len(problems) <= MOST_PROBLEMS:
        return problems
    shown = sorted(problems)[:MOST_PROBLEMS]
    more = f"{len(problems) - MOST_PROBLEMS} more problems in this file; mend those above first"
    # One column further than the last that is shown, so that sorting leaves it behind it.
    return [*shown, Problem(path, shown[-1].line, shown[-1].column + 1, more, "too-many-problems")]


def _refused(tree: SourceTree) -> Iterator[Problem]:
    beyond = [path for path, what in sorted(tree.refused.items()) if what == BEYOND and hides(path, what)]
    for path in beyond[:1]:
        more = f" (and {len(beyond) - 1} more)" if beyond[1:] else ""
        yield Problem(
            path, 0, 0, f"a {BEYOND}, which is not read{more}; is this a cluster directory?", "tree-too-large"
        )
    for path, what in sorted(tree.refused.items()):
        if what != BEYOND and hides(path, what):
            yield Problem(path, 0, 0, *_why_refused(path, what))


def _why_refused(path: str, what: str) -> tuple[str, str]:
    """Return what is wrong with an entry that may hide objects, and the problem's code."""
    if what == TOO_LARGE:
        return f"a {what}, which is not read; is this an object's file?", "file-too-large"
    if what == TWO_NAMES:
        return f"a {what}, which is not UTF-8; rename them", "not-a-file"
    if belongs(path):
        return f"a {what}, which is not read; put the file itself here", "not-a-file"
    text = f"a {what}, which is not read: objects in it would not be seen; put the files themselves here"
    if what == LINK:
        text += f", or give the name an ending, as in {path.rpartition('/')[2]}.md, if it leads to no directory"
    return text, "not-a-file"


def _incomplete(tree: SourceTree) -> bool:
    return any(hides(path, what) for path, what in tree.refused.items())


def _misnamed(tree: SourceTree) -> Iterator[Problem]:
    """A renamed file whose object silently vanished would be taken for a removed one."""
    for path in sorted(tree.files):
        if not is_object_file(path) and is_object_file(path.lower()):
            stem = path.rpartition(".")[0]
            yield Problem(path, 0, 0, f"is not read, for its ending; rename it to {stem}.yaml", "misnamed-file")


def _colliding(paths: list[str]) -> Iterator[Problem]:
    """Names that are one file on a Mac or on Windows: a checkout there silently loses one of the two."""
    first: dict[str, str] = {}
    for path in paths:
        folded = unicodedata.normalize("NFC", path).casefold()
        if folded in first:
            message = f"differs from {first[folded]} in case only, which some file systems ignore; rename one of them"
            yield Problem(path, 0, 0, message, "case-collision")
        first.setdefault(folded, path)


def _catalog(revision: Revision, objects: list[Read]) -> Catalog:
    _, cluster = next(of_kind(objects, Cluster))
    paths = sorted(((each.document.kind, each.document.name), each.document.path) for each in objects)
    return Catalog(
        revision=revision,
        cluster=cluster,
        nodes=MappingProxyType({NodeName(name): node for name, node in _by_name(objects, Node)}),
        models=MappingProxyType({ModelName(name): model for name, model in _by_name(objects, Model)}),
        endpoints=MappingProxyType(dict(_by_name(objects, Endpoint))),
        tenants=MappingProxyType(dict(_by_name(objects, Tenant))),
        paths=MappingProxyType(dict(paths)),
    )


def _by_name(objects: list[Read], kind: type[Named]) -> list[tuple[str, Named]]:
    return sorted(((spec.name, spec) for _, spec in of_kind(objects, kind)), key=lambda pair: pair[0])
