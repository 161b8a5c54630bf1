"""The commands that look at a cluster directory only: `validate` and `schema`."""

import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path

import typer

from llmgw.adapters.dir_source import read_directory
from llmgw.adapters.document_cache import documents_of
from llmgw.adapters.git_index import in_hook, is_own_commit, read_index
from llmgw.catalog.compile import Accepted, Compiler, Rejected
from llmgw.catalog.problems import Problem
from llmgw.catalog.source import SourceFailed, SourceTree
from llmgw.cli.outcomes import FAILED, Failed, WrongUsage


def tree_of(directory: Path) -> SourceTree:
    """Return the directory's files. Raises Failed if they cannot be read."""
    source = read_directory(directory)
    if isinstance(source, SourceFailed):
        raise Failed(source.reason)
    return source


def staged_tree(directory: Path) -> SourceTree:
    """Return the directory's files as the next commit would have them. Raises Failed if they cannot be read."""
    source = read_index(directory, os.environ)
    if isinstance(source, SourceFailed):
        raise Failed(source.reason)
    return source


def validate_directory(directory: Path, output: str, *, index: bool | None = None) -> None:
    """Print every problem of a directory: of what is staged in a git hook, else of its files; `index` says which."""
    from llmgw import __version__
    from llmgw.catalog import render

    renderers: dict[str, Callable[[Iterable[Problem]], str]] = {
        "text": render.render_text,
        "json": render.render_json,
        "github": render.render_github,
        "sarif": partial(render.render_sarif, tool_version=__version__),
    }
    if output not in renderers:
        raise WrongUsage(f"--format {output} is not known; use {', '.join(renderers)}")
    if index is None:
        index = in_hook(os.environ) and is_own_commit(directory, os.environ)
    tree = staged_tree(directory) if index else tree_of(directory)
    with documents_of(directory) as memory:
        outcome = Compiler(memory).compile(tree)
    valid = isinstance(outcome, Accepted)
    problems = outcome.problems if isinstance(outcome, Rejected) else (*outcome.warnings, *_of_weights(tree, outcome))
    if output in ("github", "sarif"):  # read from the repository's root, where CI runs
        problems = tuple(replace(one, path=_from_here(directory, one.path)) for one in problems)
    if problems or output != "text":
        print(renderers[output](problems).rstrip("\n"))
    if isinstance(outcome, Accepted) and output == "text":
        catalog = outcome.catalog
        counts = f"{len(catalog.nodes)} node(s), {len(catalog.models)} model(s)"
        print(
            f"{directory}{' (as staged)' if index else ''}: valid: cluster {catalog.cluster.name}, {counts}",
            file=sys.stderr,
        )
    if not valid:
        raise typer.Exit(FAILED)


def _of_weights(tree: SourceTree, outcome: Accepted) -> Iterable[Problem]:
    from llmgw.cli.fit import too_small_here

    return too_small_here(tree, outcome.catalog)


def _from_here(directory: Path, path: str) -> str:
    return os.path.normpath(os.path.join(os.path.relpath(directory), path)) if path else path  # noqa: PTH118


def write_schemas(directory: Path, *, check: bool) -> None:
    """Write the schemas, or say which are not up to date."""
    from llmgw.spec.schema import schema_files

    stale = [
        directory / name
        for name, text in schema_files().items()
        if not (directory / name).is_file() or (directory / name).read_text() != text
    ]
    if check:
        if stale:
            names = ", ".join(str(path) for path in stale)
            raise Failed(f"not up to date: {names}; run `llmgw schema`")
        print("schemas are up to date")
        return
    directory.mkdir(parents=True, exist_ok=True)
    for path in stale:
        path.write_text(schema_files()[path.name])
        print(f"wrote {path}")
