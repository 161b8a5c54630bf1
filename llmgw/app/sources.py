"""Where a server reads its cluster directory: a remote repository, a local one, or a working tree."""

from collections.abc import Callable

from llmgw.adapters.dir_source import DirSource
from llmgw.adapters.git_mirror import GitMirror
from llmgw.adapters.git_source import GitSource
from llmgw.app.places import ServerSettings
from llmgw.base.time import Clock
from llmgw.ports.trees import TreeSource


def source_of(settings: ServerSettings, clock: Clock, secret: Callable[[str], str | None]) -> TreeSource:
    """Return the source that the command line names; `secret` returns the value of a secret."""
    if settings.remote is not None:
        return GitMirror(settings.remote, settings.state_dir / "git", clock, secret)
    if settings.worktree:
        return DirSource(settings.cluster, clock)
    return GitSource(settings.cluster, clock, settings.path)
