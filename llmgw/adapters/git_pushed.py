"""Reads what a push would put on a branch, in a `pre-receive` hook: its objects are in quarantine, and no ref names them yet.

Git says where by `GIT_OBJECT_DIRECTORY`, `GIT_ALTERNATE_OBJECT_DIRECTORIES` and `GIT_QUARANTINE_PATH`, so those are handed
on, as nothing else of `GIT_*` is. Synchronous, for a command that ends.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from llmgw.adapters.git_command import OURS, Git, GitFailed
from llmgw.adapters.git_objects import LISTING, MOST_LISTED, asked, blobs_of, contents, link_blobs, listed, with_targets
from llmgw.base.ids import Revision
from llmgw.catalog.entries import sort_out
from llmgw.catalog.source import Source, SourceFailed, SourceTree

HANDED_ON = ("GIT_QUARANTINE_PATH", "GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES")


@dataclass(frozen=True, slots=True)
class Pushed:
    """One ref that a push changes."""

    old: str
    new: str
    ref: str

    @property
    def deletes(self) -> bool:
        """Whether the ref would be gone."""
        return not self.new.strip("0")


def pushed(lines: str) -> list[Pushed]:
    """Return what git says on a hook's standard input. Raises ValueError for a line that is not `OLD NEW REF`."""
    found = []
    for line in filter(None, lines.split("\n")):  # a ref may hold any other line end
        words = line.split(" ", 2)
        if len(words) != 3:
            raise ValueError(f"not a line of a pre-receive hook: {line!r}")
        found.append(Pushed(*words))
    return found


class BareRepository:
    """The repository that a hook runs in. Raises GitFailed where git fails."""

    def __init__(self, git_dir: Path, environment: Mapping[str, str]) -> None:
        self._git_dir = git_dir
        kept = {name: value for name, value in environment.items() if not name.startswith(("GIT_", OURS))}
        kept |= {name: environment[name] for name in HANDED_ON if name in environment}
        kept |= {"LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0", "GIT_NO_REPLACE_OBJECTS": "1"}
        self._git = Git(git_dir, kept, bare=True)

    def followed(self) -> str:
        """Return the full name of the branch that HEAD names."""
        return self._git.run_now("symbolic-ref", "HEAD").decode(errors="replace").strip()

    def tree(self, commit: str, path: str) -> Source:
        """Return the YAML files of a directory of a commit, or why they cannot be read."""
        try:
            entries = listed(self._git.run_now(*LISTING, f"{commit}:{path}", most=MOST_LISTED))
            entries = with_targets(entries, self._contents(link_blobs(entries)))
            chosen = sort_out(one.entry for one in entries)
            files = self._contents(blobs_of(entries, chosen.files))
        except GitFailed as error:
            if path and ("Not a valid object name" in error.said or "not a tree object" in error.said):
                return SourceFailed(f"the commit has no directory {path}, which is followed here")
            return SourceFailed(str(error))
        return SourceTree(Revision(commit), files, chosen.refused)

    def _contents(self, blobs: Mapping[str, str]) -> dict[str, bytes]:
        if not blobs:
            return {}
        return contents(blobs, self._git.run_now("cat-file", "--batch", stdin=asked(blobs)), self._git_dir)


def git_dir_of(environment: Mapping[str, str]) -> Path:
    """Return the repository that git runs a hook in."""
    return Path(environment.get("GIT_DIR") or os.curdir).absolute()
