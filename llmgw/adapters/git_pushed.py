"""Reads what a push would put on a branch, in a `pre-receive` hook: its objects are in quarantine, and no ref names them yet.

Git says where by `GIT_OBJECT_DIRECTORY`, `GIT_ALTERNATE_OBJECT_DIRECTORIES` and `GIT_QUARANTINE_PATH`, so those are handed
on, as nothing else of `GIT_*` is. Synchronous, for a command that ends.
"""

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from llmgw.adapters.git_command import GitFailed
from llmgw.adapters.git_objects import contents, listed
from llmgw.base.ids import Revision
from llmgw.catalog.source import Source, SourceFailed, SourceTree

LIMIT = 20.0
"""Seconds for one git command."""
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
    for line in lines.splitlines():
        words = line.split(" ", 2)
        if len(words) != 3:
            raise ValueError(f"not a line of a pre-receive hook: {line!r}")
        found.append(Pushed(*words))
    return found


class BareRepository:
    """The repository that a hook runs in. Raises GitFailed where git fails."""

    def __init__(self, git_dir: Path, environment: Mapping[str, str]) -> None:
        self._git_dir = git_dir
        kept = {name: value for name, value in environment.items() if not name.startswith("GIT_")}
        kept |= {name: environment[name] for name in HANDED_ON if name in environment}
        self._environment = {**kept, "LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0", "GIT_NO_REPLACE_OBJECTS": "1"}

    def followed(self) -> str:
        """Return the full name of the branch that HEAD names."""
        return self._run("symbolic-ref", "HEAD").decode(errors="replace").strip()

    def tree(self, commit: str, path: str) -> Source:
        """Return the YAML files of a directory of a commit, or why they cannot be read."""
        try:
            blobs, refused = listed(self._run("ls-tree", "-rz", "--full-tree", f"{commit}:{path}"))
            asked = "".join(f"{digest}\n" for digest in blobs.values()).encode()
            files = contents(blobs, self._run("cat-file", "--batch", stdin=asked), self._git_dir) if blobs else {}
        except GitFailed as error:
            if path and ("Not a valid object name" in error.said or "not a tree object" in error.said):
                return SourceFailed(f"the commit has no directory {path}, which is followed here")
            return SourceFailed(str(error))
        return SourceTree(Revision(commit), files, refused)

    def _run(self, *arguments: str, stdin: bytes = b"") -> bytes:
        try:
            done = subprocess.run(
                ["git", f"--git-dir={self._git_dir}", *arguments],
                env=self._environment, input=stdin, capture_output=True, timeout=LIMIT, check=False,
            )  # fmt: skip
        except FileNotFoundError as error:
            raise GitFailed("git is not installed, or not in PATH") from error
        except subprocess.TimeoutExpired as error:
            raise GitFailed(f"git {arguments[0]} did not end within {LIMIT:.0f} s") from error
        if done.returncode != 0:
            said = done.stderr.decode("utf-8", "replace")
            raise GitFailed(f"git {arguments[0]} failed: {' '.join(said.split())[:300]}", done.returncode, said)
        return done.stdout


def git_dir_of(environment: Mapping[str, str]) -> Path:
    """Return the repository that git runs a hook in."""
    return Path(environment.get("GIT_DIR") or os.curdir).absolute()
