"""`llmgw set` and `llmgw show`: one object of a cluster directory, edited in place or shown as it is in effect.

An edit is checked with the whole directory around it before a byte is written, and the file is replaced in one step. With
`--commit` that one file is committed through GitPython, which suits a process as short as this one; a commit that git or
a hook refuses leaves the file as it was.
"""

import difflib
import json
import os
import shutil
import sys
import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from llmgw.catalog.addresses import BadAddress, Found, NoSuchObject, locate
from llmgw.catalog.compile import Accepted, Rejected, compile_tree
from llmgw.catalog.diff import diff
from llmgw.catalog.edit import edit
from llmgw.catalog.edit_paths import BadChange, Change, parse_change, parse_removal
from llmgw.catalog.effective import Branch, InCluster, effective, leaves, render_yaml, values
from llmgw.catalog.problems import Problem
from llmgw.catalog.render import render_text
from llmgw.catalog.source import SourceTree
from llmgw.catalog.validation import validate
from llmgw.cli.directory import tree_of
from llmgw.cli.outcomes import Failed, WrongUsage
from llmgw.spec.cluster import Cluster
from llmgw.spec.kinds import KINDS

if TYPE_CHECKING:
    from git import Repo

_KEPT = ("GIT_AUTHOR_", "GIT_COMMITTER_", "GIT_CONFIG", "GIT_SSH")
"""What of git's environment is the user's own wish; the rest may come from a hook and name another repository."""


def set_in_file(
    directory: Path, address: str, set_: list[str], unset: list[str], *, dry_run: bool, commit: bool, message: str
) -> None:
    """Change fields of an object's file. Raises Failed, with nothing written, if that cannot be or would not be valid."""
    changes = _parsed(set_, unset)
    tree = tree_of(directory)
    found = _located(tree, address)
    after = found.data
    for change in changes:
        edited = edit(found.path, after, change)
        if isinstance(edited, Problem):
            raise Failed(str(edited))
        after = edited
    if after == found.data:
        print(f"{found.path}: nothing to change")
        return
    outcome = _valid(tree, found.path, after)
    if dry_run:
        print(_unified(found.path, found.data, after), end="")
        return
    repository = _repository(directory, found.path) if commit else None
    file = directory / found.path
    _write(file, found.data, after)
    print(f"{found.path}: changed")
    _tell_changes(tree, outcome)
    if repository is not None:
        said = message or f"Set {address}: {', '.join(change.text for change in changes)}"
        _commit(repository, file, said, found.data, after)


def _parsed(set_: list[str], unset: list[str]) -> list[Change]:
    try:
        changes = [parse_change(text) for text in set_] + [parse_removal(text) for text in unset]
    except BadChange as error:
        raise WrongUsage(str(error)) from error
    if not changes:
        raise WrongUsage("nothing to change was named; write PATH=VALUE, or --unset PATH")
    return changes


def _located(tree: SourceTree, address: str) -> Found:
    try:
        return locate(tree, address)
    except BadAddress as error:
        raise WrongUsage(str(error)) from error
    except NoSuchObject as error:
        raise Failed(str(error)) from error


def _valid(tree: SourceTree, path: str, data: bytes) -> Accepted:
    """Return the directory with one file changed. Raises Failed, after telling all problems, if it is not valid."""
    outcome = compile_tree(replace(tree, files={**tree.files, path: data}))
    if isinstance(outcome, Accepted):
        return outcome
    print(render_text(outcome.problems), end="")
    before = compile_tree(tree)
    known = {(problem.path, problem.message) for problem in before.problems} if isinstance(before, Rejected) else set()
    new = [each for each in outcome.problems if each.severity == "error" and (each.path, each.message) not in known]
    if new:
        raise Failed(f"with this change the directory would not be valid, {path} is left as it was")
    raise Failed(f"the directory is not valid apart from this change; mend it first, {path} is left as it was")


def _tell_changes(tree: SourceTree, after: Accepted) -> None:
    """Print each field that is another now, with what that costs, and warnings that were not there before."""
    before = compile_tree(tree)
    if not isinstance(before, Accepted):
        return
    for change in diff(before.catalog, after.catalog):
        for field in change.fields:
            old, new = field.before or "(not set)", field.after or "(not set)"
            print(f"    {field.path}: {old} -> {new} [{field.impact}]")
    known = {(each.path, each.message) for each in before.warnings}
    new_warnings = [each for each in after.warnings if (each.path, each.message) not in known]
    print(render_text(new_warnings), end="", file=sys.stderr)


def _unified(path: str, before: bytes, after: bytes) -> str:
    return "".join(difflib.unified_diff(_diffable(before), _diffable(after), f"a/{path}", f"b/{path}"))


def _diffable(data: bytes) -> list[str]:
    """Return lines as `diff` has them. They end at a line feed alone: a carriage return belongs to its line."""
    *lines, last = data.decode().split("\n")
    return [f"{line}\n" for line in lines] + ([f"{last}\n\\ No newline at end of file\n"] if last else [])


def _write(file: Path, expected: bytes, data: bytes) -> None:
    """Replace a file in one step, so that nobody sees half of it."""
    try:
        if file.read_bytes() != expected:
            raise Failed(f"{file} was changed by somebody else in this moment; run the command again")
        handle, name = tempfile.mkstemp(prefix=f".{file.name}-", dir=file.parent)
        temporary = Path(name)
        try:
            with os.fdopen(handle, "wb") as output:
                output.write(data)
            shutil.copymode(file, temporary)
            temporary.replace(file)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise Failed(f"cannot write {file}: {error.strerror}; nothing is changed") from error


# the commit


def _repository(directory: Path, path: str) -> "Repo":
    """Return the repository to commit to. Raises Failed if the file has other changes or nobody would be the author."""
    for name in [name for name in os.environ if name.startswith("GIT_") and not name.startswith(_KEPT)]:
        del os.environ[name]
    try:
        import git
    except ImportError as error:  # what GitPython raises without the program
        raise Failed("git is not installed, or not in PATH; install it (`apt-get install git`)") from error
    try:
        repository = git.Repo(directory, search_parent_directories=True)
        top = repository.working_tree_dir
        if top is None:
            raise Failed(f"{directory} has no work tree to commit from; leave out --commit")
        name = _pathspec(directory / path)
        shown = repository.git.status("--porcelain", "--untracked-files=all", "--", name)
        if shown:
            raise Failed(f"{path} has changes that are not committed; commit or undo them first, or leave out --commit")
        if not repository.git.ls_files("--", name):
            raise Failed(f"{path} is not in the git repository, perhaps it is ignored; `git add` and commit it first")
        for who in ("GIT_AUTHOR_IDENT", "GIT_COMMITTER_IDENT"):
            _identity(repository, who)
    except (git.InvalidGitRepositoryError, git.NoSuchPathError) as error:
        raise Failed(f"{directory} is not in a git repository; run `git init` there, or leave out --commit") from error
    except git.GitCommandError as error:
        raise Failed(f"git cannot be asked about {path}: {_said(error)}") from error
    return repository


def _identity(repository: "Repo", who: str) -> None:
    import git

    try:
        # Without this, git makes up an address from the host's name where none is configured.
        repository.git(c="user.useConfigOnly=true").var(who)
    except git.GitCommandError as error:
        raise Failed(
            "git does not know who you are; run `git config user.name NAME` and `git config user.email ADDRESS`, "
            "or leave out --commit"
        ) from error


def _commit(repository: "Repo", file: Path, message: str, before: bytes, after: bytes) -> None:
    import git

    try:
        repository.git.commit("--quiet", "--only", "-m", message, "--", _pathspec(file))
    except git.GitCommandError as error:
        with suppress(Failed):  # a hook may have written to the file: then it stays as the hook left it
            _write(file, after, before)
        left = "is as it was" if file.read_bytes() == before else "is changed but not committed"
        raise Failed(f"git did not commit, the file {left}: {_said(error)}") from error
    print(f"committed {repository.head.commit.hexsha[:10]}: {message.splitlines()[0]}")


def _pathspec(file: Path) -> str:
    """Return what makes git take a file's name as it is, whatever characters are in it."""
    return f":(literal){file.resolve()}"


def _said(error: Exception) -> str:
    """Return the words of git itself, in one line."""
    text = "\n".join(str(getattr(error, part, "")) for part in ("stdout", "stderr"))
    lines = [line.strip().removeprefix("stderr: ").removeprefix("stdout: ").strip(" '") for line in text.splitlines()]
    return "; ".join(line for line in lines if line)[:500] or "no message"


# show


def show_object(directory: Path, address: str, *, impacts: bool, as_json: bool) -> None:
    """Print an object as it is in effect. The rest of the directory need not be valid."""
    tree = tree_of(directory)
    found = _located(tree, address)
    spec, problems = validate(found.document, KINDS[found.document.kind])
    if spec is None or problems:
        print(render_text(sorted(problems)), end="")
        raise Failed(f"{address} is not valid; mend {found.path}")
    shown = effective(found.document, spec, _cluster(tree))
    print(_json(found, shown) if as_json else render_yaml(shown, impacts=impacts), end="")


def _cluster(tree: SourceTree) -> InCluster | None:
    try:
        found = locate(tree, "cluster")
    except NoSuchObject:
        return None
    spec, problems = validate(found.document, Cluster)
    return InCluster(found.document, spec) if isinstance(spec, Cluster) and not problems else None


def _json(found: Found, shown: Branch) -> str:
    fields = [
        {
            "path": path,
            "value": values(leaf),
            "origin": {"file": leaf.origin.file, "line": leaf.origin.line} if leaf.origin.file else None,
            "impact": leaf.impact,
        }
        for path, leaf in leaves(shown)
    ]
    told = {"kind": found.document.kind, "name": found.document.name, "path": found.path}
    return json.dumps({**told, "object": values(shown), "fields": fields}, indent=2, ensure_ascii=False) + "\n"
