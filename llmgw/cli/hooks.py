"""`llmgw hook pre-receive` and `llmgw init --bare`: a repository on the control plane's host that refuses a bad push.

With these `git push` over SSH is the whole deployment: no forge is needed. The hook checks the branch that HEAD names and says
nothing of a push that is good; what it refuses, it refuses with the words of `llmgw validate`, which git shows the pusher.
A hook that cannot run refuses as well.
"""

import getpass
import os
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import typer

from llmgw.adapters.git_command import GitFailed, git_environment
from llmgw.adapters.git_pushed import BareRepository, Pushed, git_dir_of, pushed
from llmgw.catalog.source import SourceFailed
from llmgw.cli.outcomes import FAILED, Failed, WrongUsage

HOOK = """\
#!/bin/sh
# Refuses a push that is not a valid cluster directory. Written by `llmgw init --bare`.
exec {command}
"""


def run_hook(name: str, branch: str | None, path: str) -> None:
    """Check a push. Raises Exit if it is refused."""
    if name != "pre-receive":
        raise WrongUsage(f"there is no hook {name}; there is: pre-receive")
    try:
        changes = pushed(sys.stdin.read())
    except ValueError as error:
        raise Failed(str(error)) from error
    repository = BareRepository(git_dir_of(os.environ), os.environ)
    try:
        followed = f"refs/heads/{branch}" if branch else repository.followed()
    except GitFailed as error:
        raise Failed(f"{error}; the push is refused, since it cannot be checked") from error
    for change in changes:
        if change.ref == followed:
            _check(repository, change, path.strip("/"))


def _check(repository: BareRepository, change: Pushed, path: str) -> None:
    branch = change.ref.removeprefix("refs/heads/")
    if change.deletes:
        raise Failed(f"{branch} is the branch that is followed here; it may not be deleted")
    tree = repository.tree(change.new, path)
    if isinstance(tree, SourceFailed):
        raise Failed(f"{tree.reason}; the push is refused")
    from llmgw.catalog.compile import Accepted, compile_tree
    from llmgw.catalog.render import render_text

    outcome = compile_tree(tree)
    if isinstance(outcome, Accepted):
        return
    print(render_text(outcome.problems).rstrip("\n"), file=sys.stderr)
    print(
        f"llmgw: {branch} would not be a valid cluster directory; the push is refused, nothing changed", file=sys.stderr
    )
    raise typer.Exit(FAILED)


def make_bare(directory: Path, branch: str, path: str) -> None:
    """Make a bare repository with the hook, or give one that is there the hook; then say how it is used."""
    place = directory.absolute()
    if place.exists() and not place.is_dir():
        raise Failed(f"{place} is not a directory; choose another name")
    if not place.exists() or not any(place.iterdir()):
        _git("init", "--quiet", "--bare", f"--initial-branch={branch}", "--", str(place))
        print(f"made   {place}, a bare repository whose branch {branch} is followed")
    elif _git("-C", str(place), "rev-parse", "--is-bare-repository", may_fail=True) != "true":
        raise Failed(f"{place} is in use and is not a bare repository; choose an empty directory")
    else:
        branch = _git("-C", str(place), "symbolic-ref", "--short", "HEAD")
        print(f"kept   {place}, a bare repository whose branch {branch} is followed")
    _install(place, path)
    where = f"{_user()}@{socket.gethostname()}:{place}" if ":" not in str(place) else str(place)
    print("\nNext, in the cluster directory:\n")
    print(f"  git remote add llmgw {shlex.quote(where)}    # or, on this machine: {shlex.quote(str(place))}")
    print(f"  git push llmgw HEAD:{branch}")
    print("\nand on this machine:\n")
    print(f"  llmgw server --cluster {shlex.quote(str(place))}{f' --path {shlex.quote(path)}' if path else ''}")


def _install(place: Path, path: str) -> None:
    command = [sys.executable, "-m", "llmgw", "hook", "pre-receive", *(["--path", path] if path else [])]
    text = HOOK.format(command=shlex.join(command))
    hook = place / "hooks/pre-receive"
    try:
        if hook.exists() and "llmgw hook pre-receive" not in hook.read_text(errors="replace").replace(
            "-m llmgw", "llmgw"
        ):
            raise Failed(
                f"{hook} is there and is not ours; call `{shlex.join(command)}` from it, with its standard input"
            )
        hook.parent.mkdir(exist_ok=True)
        hook.write_text(text)
        hook.chmod(0o755)
    except OSError as error:
        raise Failed(f"cannot write {error.filename}: {error.strerror}") from error
    print(f"wrote  {hook}, which refuses a push that is not valid")


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id that has no name here, as in a container
        return "USER"


def _git(*arguments: str, may_fail: bool = False) -> str:
    try:
        done = subprocess.run(["git", *arguments], env=git_environment(), capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise Failed("git is not installed, or not in PATH; install it (`apt-get install git`)") from error
    if done.returncode != 0 and not may_fail:
        raise Failed(f"git failed: {' '.join(done.stderr.split())[:300]}")
    return done.stdout.strip()
