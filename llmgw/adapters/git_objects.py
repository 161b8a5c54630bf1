"""Reads a directory of a commit as a `SourceTree`, from git's objects: no index, no work tree, no filters."""

from collections.abc import Mapping

from llmgw.adapters.git_command import Git, GitFailed
from llmgw.base.ids import Revision
from llmgw.catalog.source import SourceTree, belongs

KINDS = {b"120000": "symlink", b"160000": "submodule"}


async def read_commit(git: Git, commit: str, prefix: str) -> SourceTree:
    """Return the YAML files below `prefix`, a path without slashes at its ends, or empty. Raises GitFailed."""
    blobs, refused = listed(await _listing(git, commit, prefix))
    asked = "".join(f"{digest}\n" for digest in blobs.values()).encode()
    files = contents(blobs, await git.run("cat-file", "--batch", stdin=asked), git.place) if blobs else {}
    told = "--format=%an%x00%ct%x00%s%x00%(trailers:only,unfold)"
    show = await git.run("show", "-s", "--no-show-signature", told, commit)
    author, committed, subject, last = (*show.decode("utf-8", "replace").split("\0"), "", "", "", "")[:4]
    trailers = tuple(line for line in last.splitlines() if line.strip())
    seconds = float(committed) if committed.isdigit() else None
    return SourceTree(Revision(commit), files, refused, subject, author, seconds, trailers)


async def _listing(git: Git, commit: str, prefix: str) -> bytes:
    try:
        return await git.run("ls-tree", "-rz", "--full-tree", f"{commit}:{prefix}")
    except GitFailed as error:
        if prefix and ("Not a valid object name" in error.said or "not a tree object" in error.said):
            raise GitFailed(f"commit {commit[:10]} has no directory {prefix}; name another one with --path") from error
        raise


def listed(listing: bytes) -> tuple[dict[str, str], dict[str, str]]:
    """Return the blobs of YAML files (path to digest) and the entries that are no files, of `git ls-tree -rz`."""
    blobs: dict[str, str] = {}
    refused: dict[str, str] = {}
    for entry in filter(None, listing.split(b"\0")):
        meta, _, name = entry.partition(b"\t")
        mode, _, digest = meta.split(b" ")
        path = name.decode("utf-8", "backslashreplace")
        if not belongs(path):
            continue
        if mode in KINDS:
            refused[path] = KINDS[mode]
        else:
            blobs[path] = digest.decode()
    return blobs, refused


def contents(blobs: Mapping[str, str], output: bytes, place: object) -> dict[str, bytes]:
    """Return each blob's bytes, of `git cat-file --batch`. Raises GitFailed if one is missing."""
    answer = memoryview(output)
    files: dict[str, bytes] = {}
    at = 0
    for path in blobs:
        head, found, _ = bytes(answer[at : at + 200]).partition(b"\n")
        fields = head.split(b" ")
        if not found or len(fields) != 3 or not fields[2].isdigit():
            raise GitFailed(
                f"the git repository of {place} lacks the contents of {path} ({head.decode(errors='replace')}); "
                "run `git fsck` there"
            )
        size = int(fields[2])
        at += len(head) + 1
        files[path] = bytes(answer[at : at + size])
        at += size + 1
    return files
