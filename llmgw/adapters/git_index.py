"""Reads what the next commit would hold: the blobs in git's index, never the work tree. For `llmgw validate` in a git hook.

With a partly staged file the work tree says one thing and the commit another. In a hook git points at the index of the
commit in progress with GIT_INDEX_FILE, which for `git commit -a` and `git commit FILE` is a temporary one, and in a linked
worktree at the repository with GIT_DIR. Both are believed for that repository alone: handed on to a git that looks at another
directory, they make it read, and even write, the wrong repository. So git runs without any `GIT_*` of ours but the index.

Synchronous, for commands that end. A tree with conflicts is a source that failed: no commit can be made of it.
"""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from llmgw.adapters.git_command import OURS, Git, GitFailed
from llmgw.adapters.git_objects import (
    KINDS,
    Listed,
    asked,
    blobs_of,
    contents,
    link_blobs,
    listed_entry,
    with_targets,
)
from llmgw.base.ids import Revision
from llmgw.catalog.entries import sort_out
from llmgw.catalog.source import Source, SourceFailed, SourceTree, belongs, hidden, hides

_EMPTY_BLOBS = frozenset(
    hashlib.new(name, b"blob 0\0", usedforsecurity=False).hexdigest() for name in ("sha1", "sha256")
)


def in_hook(environment: Mapping[str, str]) -> bool:
    """Whether this process runs in a git hook whose commit has to be looked at in the index.

    pre-commit (`PRE_COMMIT=1`) has taken what is not staged out of the work tree before it runs a hook.
    """
    if environment.get("PRE_COMMIT") == "1":
        return False
    return "GIT_INDEX_FILE" in environment or "GIT_DIR" in environment


def read_index(directory: Path, environment: Mapping[str, str]) -> Source:
    """Return the YAML files of a directory as they are in the index, or why they cannot be read."""
    if not directory.is_dir():
        return SourceFailed(f"there is no directory {directory}; create it, or name another one")
    try:
        return _read(_git(directory, environment))
    except _Failed as error:
        return SourceFailed(str(error))


def is_own_commit(directory: Path, environment: Mapping[str, str]) -> bool:
    """Whether a hook's commit is one of the repository that a directory is in."""
    try:
        return _hooks_index(_Git(directory, environment, None), environment) is not None
    except _Failed:
        return False


class _Failed(Exception):
    """Git failed; the message is one line that says what to do."""


@dataclass(frozen=True, slots=True)
class _Git:
    """Git in one directory, with one index; None for the repository's own."""

    directory: Path
    environment: Mapping[str, str]
    index: Path | None

    def run(self, *arguments: str, stdin: bytes = b"") -> bytes:
        """Return what git prints. Raises _Failed."""
        kept = {name: value for name, value in self.environment.items() if not name.startswith(("GIT_", OURS))}
        kept |= {"LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0"}
        if self.index is not None:
            kept["GIT_INDEX_FILE"] = str(self.index)
        try:
            return Git(self.directory, kept).run_now(*arguments, stdin=stdin)
        except GitFailed as error:
            if "not a git repository" in error.said:
                raise _Failed(
                    f"{self.directory} is not in a git repository; check its files with --no-index"
                ) from error
            raise _Failed(str(error)) from error

    def place(self) -> tuple[Path, Path]:
        """Return the repository's git directory and the top of the work tree."""
        answer = os.fsdecode(self.run("rev-parse", "--absolute-git-dir", "--show-toplevel")).split("\n")
        return Path(answer[0]).resolve(), Path(answer[1])


def _git(directory: Path, environment: Mapping[str, str]) -> _Git:
    git = _Git(directory, environment, None)
    return _Git(directory, environment, _hooks_index(git, environment))


def _hooks_index(git: _Git, environment: Mapping[str, str]) -> Path | None:
    """Return the index of the hook's commit, if it is one of the repository that the directory is in."""
    own, top = git.place()
    if environment.get("GIT_DIR"):
        hooks = Path(environment["GIT_DIR"]).resolve()
    elif environment.get("GIT_INDEX_FILE"):
        hooks = _Git(Path(), environment, None).place()[0]
    else:
        return None
    if hooks != own:
        return None
    # Relative to the top of the work tree, where git itself goes before it reads it; `/` on an absolute path keeps that.
    return (top / environment["GIT_INDEX_FILE"]) if environment.get("GIT_INDEX_FILE") else own / "index"


def _read(git: _Git) -> Source:
    listing: list[tuple[bytes, bytes, str]] = []
    for line in filter(None, git.run("ls-files", "-s", "-z").split(b"\0")):
        meta, _, name = line.partition(b"\t")
        mode, digest, stage = meta.split(b" ")
        path = name.decode("utf-8", "backslashreplace")
        if stage != b"0" and (belongs(path) or (mode in KINDS and not hidden(path))):
            return SourceFailed(f"{path} has a merge conflict; settle it and `git add` it")
        listing.append((name, mode, digest.decode()))
    sizes = _sizes(git, [digest for _, mode, digest in listing if mode != b"160000"])
    entries = [listed_entry(name, mode, digest, sizes.get(digest, 0)) for name, mode, digest in listing]
    absent = _not_in_the_commit(git, entries)
    entries = [one for one in entries if one.entry.path not in absent]
    links = link_blobs(entries)
    entries = with_targets(entries, _contents(git, links)) if links else entries
    chosen = sort_out(one.entry for one in entries)
    blobs = blobs_of(entries, chosen.files)
    if not blobs and not any(hides(path, what) for path, what in chosen.refused.items()):
        return SourceFailed(
            f"no YAML file of {git.directory} is staged or committed; `git add` them, or check the files with --no-index"
        )
    told = "".join(f"{path}\0{digest}\0" for path, digest in sorted(blobs.items()))
    revision = hashlib.sha256(told.encode()).hexdigest()[:16]
    return SourceTree(Revision(f"index-{revision}"), _contents(git, blobs), chosen.refused)


def _sizes(git: _Git, digests: list[str]) -> dict[str, int]:
    """Return the sizes of blobs in bytes; of those that the repository lacks, nothing: reading them says so."""
    wanted = "".join(f"{digest}\n" for digest in dict.fromkeys(digests)).encode()
    answer = git.run("cat-file", "--batch-check=%(objectname) %(objectsize)", stdin=wanted).decode()
    pairs = (line.split(" ") for line in answer.splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if pair[1].isdigit()}


def _not_in_the_commit(git: _Git, entries: list[Listed]) -> frozenset[str]:
    """Return the paths of `git add --intent-to-add`, which the index lists with an empty blob and no commit takes."""
    if not _EMPTY_BLOBS.intersection(one.digest for one in entries):
        return frozenset()
    names = git.run("diff-files", "-z", "--name-only", "--diff-filter=A", "--relative").split(b"\0")
    return frozenset(name.decode("utf-8", "backslashreplace") for name in names if name)


def _contents(git: _Git, blobs: Mapping[str, str]) -> dict[str, bytes]:
    try:
        return contents(blobs, git.run("cat-file", "--batch", stdin=asked(blobs)), git.directory)
    except GitFailed as error:
        raise _Failed(str(error)) from error
