"""Whether git is at work on the files of a directory, as far as its files and the running processes show.

In the middle of a merge, a rebase or a checkout the files say what nobody means. And pre-commit takes away what is not
staged for as long as its hooks run, with no mark in the repository but a running `git commit`. So both are looked at:
marks in the git directory, and processes that work below the top of the work tree. A lock that is older than `STALE` while
no such process runs was left over by a crash, and holds nothing up.
"""

import os
from collections.abc import Iterator
from pathlib import Path

STALE = 30.0
"""Seconds after which an `index.lock` that no running git accounts for is taken for a left-over one."""
MARKS = ("MERGE_HEAD", "CHERRY_PICK_HEAD", "REVERT_HEAD", "rebase-merge", "rebase-apply", "BISECT_LOG")
WRITERS = frozenset(
    {"am", "apply", "checkout", "cherry-pick", "commit", "merge", "pull", "rebase", "reset", "restore", "revert", "rm", "mv",
     "clean", "stash", "switch", "bisect", "read-tree", "checkout-index"}
)  # fmt: skip
"""Subcommands of git that change the work tree, or run hooks that do."""
HOOK_RUNNERS = frozenset({"pre-commit", "prek", "lint-staged"})
VALUED = frozenset({"-C", "-c", "--git-dir", "--work-tree", "--namespace", "--exec-path", "--config-env"})
"""Options of git itself that take the next word."""


def git_at_work(directory: Path, now: float, processes: Path = Path("/proc")) -> str:
    """Return what git does there at this moment, in words; empty if nothing. `now` is Unix time, as files have it."""
    place = _repository(directory)
    if place is None:
        return ""
    top, git_dir = place
    for mark in MARKS:
        if (git_dir / mark).exists():
            return f"{mark} is there"
    running = next(_writers(top, processes), "")
    if running:
        return running
    try:
        age = now - (git_dir / "index.lock").stat().st_mtime
    except OSError:
        return ""
    return "" if age > STALE else "index.lock is there"


def stale_lock(directory: Path, now: float) -> Path | None:
    """Return an `index.lock` that was left over."""
    place = _repository(directory)
    lock = place[1] / "index.lock" if place is not None else None
    try:
        return lock if lock is not None and now - lock.stat().st_mtime > STALE else None
    except OSError:
        return None


def _repository(directory: Path) -> tuple[Path, Path] | None:
    """Return the top of the work tree and its git directory, without running git."""
    start = Path(os.path.realpath(directory))
    for top in (start, *start.parents):
        entry = top / ".git"
        if entry.is_dir():
            return top, entry
        if entry.is_file():
            try:
                text = entry.read_text(errors="surrogateescape")
            except OSError:
                return None
            return (top, top / text.removeprefix("gitdir:").strip()) if text.startswith("gitdir:") else None
    return None


def _writers(top: Path, processes: Path) -> Iterator[str]:
    """Yield the commands that change the files below `top` and run now."""
    try:
        names = [name for name in os.listdir(processes) if name.isdigit()]  # noqa: PTH208 - hundreds, each look
    except OSError:
        return
    for name in names:
        try:
            words = (processes / name / "cmdline").read_bytes()[:2000].decode("utf-8", "replace").split("\0")
            said = _writing(words)
            if said and Path(os.readlink(processes / name / "cwd")).is_relative_to(top):  # noqa: PTH115 - may be deleted
                yield f"`{said}` runs (pid {name})"
        except OSError:
            continue


def _writing(words: list[str]) -> str:
    program = words[0].rpartition("/")[2]
    if program == "git":
        rest = iter(words[1:])
        for word in rest:
            if word in VALUED:
                next(rest, None)
            elif not word.startswith("-"):
                return f"git {word}" if word in WRITERS else ""
        return ""
    return next((base for base in (word.rpartition("/")[2] for word in words[:2]) if base in HOOK_RUNNERS), "")
