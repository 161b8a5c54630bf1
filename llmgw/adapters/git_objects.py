"""Reads a directory of a commit as a `SourceTree`, from git's objects: no index, no work tree, no filters.

Sizes are compared before anything is read: a push of a few KB can name one blob of zeros a hundred times.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from llmgw.adapters.git_command import Git, GitFailed
from llmgw.base.ids import Revision
from llmgw.base.printable import printable
from llmgw.catalog.entries import Entry, Kind, sort_out
from llmgw.catalog.source import SourceTree, hidden

KINDS = {b"120000": Kind.LINK, b"160000": Kind.REPOSITORY}
LONGEST_TARGET = 4096
"""Bytes of a symlink's target; Linux takes no more."""
MOST_LISTED = 16 << 20
"""Bytes of a listing: 150,000 entries. A tree that names itself ten times, ten levels deep, has more than there is memory."""
LONGEST_TIME = 11
"""Digits of a time in seconds since 1970; a commit may claim any, and no calendar shows more."""
LISTING = ("ls-tree", "-r", "-l", "-z", "--full-tree")
"""What `listed` reads the answer of; the commit and the path follow."""


@dataclass(frozen=True, slots=True)
class Listed:
    """One entry and the blob that it names."""

    entry: Entry
    digest: str


async def read_commit(git: Git, commit: str, prefix: str) -> SourceTree:
    """Return the YAML files below `prefix`, a path without slashes at its ends, or empty. Raises GitFailed."""
    entries = listed(await _listing(git, commit, prefix))
    links = link_blobs(entries)
    if links:
        entries = with_targets(entries, await _contents(git, links))
    chosen = sort_out(one.entry for one in entries)
    blobs = blobs_of(entries, chosen.files)
    files = await _contents(git, blobs) if blobs else {}
    told = "--format=%an%x00%ct%x00%s%x00%(trailers:only,unfold)"
    show = await git.run("show", "-s", "--no-show-signature", told, commit)
    author, committed, subject, last = (*show.decode("utf-8", "replace").split("\0"), "", "", "", "")[:4]
    trailers = tuple(printable(line) for line in last.split("\n") if line.strip())
    seconds = float(committed) if committed.isdigit() and len(committed) <= LONGEST_TIME else None
    return SourceTree(Revision(commit), files, chosen.refused, printable(subject), printable(author), seconds, trailers)


async def _listing(git: Git, commit: str, prefix: str) -> bytes:
    try:
        return await git.run(*LISTING, f"{commit}:{prefix}", most=MOST_LISTED)
    except GitFailed as error:
        if prefix and ("Not a valid object name" in error.said or "not a tree object" in error.said):
            raise GitFailed(f"commit {commit[:10]} has no directory {prefix}; name another one with --path") from error
        raise


async def _contents(git: Git, blobs: Mapping[str, str]) -> dict[str, bytes]:
    return contents(blobs, await git.run("cat-file", "--batch", stdin=asked(blobs)), git.place)


def listed(listing: bytes) -> list[Listed]:
    """Return the entries of `git ls-tree` with the options of `LISTING`; of links, without their targets."""
    found = []
    for line in filter(None, listing.split(b"\0")):
        meta, _, name = line.partition(b"\t")
        mode, _, digest, size = meta.split()
        # of a blob that the repository lacks the size is no number; reading it says so
        found.append(listed_entry(name, mode, digest.decode(), int(size) if size.isdigit() else 0))
    return found


def listed_entry(name: bytes, mode: bytes, digest: str, size: int) -> Listed:
    """Return one entry of a listing of git's."""
    path = name.decode("utf-8", "backslashreplace")
    return Listed(Entry(path, KINDS.get(mode, Kind.FILE), size), digest)


def link_blobs(entries: Iterable[Listed]) -> dict[str, str]:
    """Return the blobs that have the targets of symlinks, by path, but those of hidden ones and of absurd length."""
    return {
        one.entry.path: one.digest
        for one in entries
        if one.entry.kind is Kind.LINK and one.entry.size <= LONGEST_TARGET and not hidden(one.entry.path)
    }


def with_targets(entries: Iterable[Listed], targets: Mapping[str, bytes]) -> list[Listed]:
    """Return the entries with what their links lead to."""
    return [
        replace(one, entry=replace(one.entry, target=targets[one.entry.path].decode("utf-8", "backslashreplace")))
        if one.entry.kind is Kind.LINK and one.entry.path in targets
        else one
        for one in entries
    ]


def blobs_of(entries: Iterable[Listed], paths: Iterable[str]) -> dict[str, str]:
    """Return the digests of some files, by path."""
    digests = {one.entry.path: one.digest for one in entries}
    return {path: digests[path] for path in paths}


def asked(blobs: Mapping[str, str]) -> bytes:
    """Return what `git cat-file --batch` is to be asked: each blob once, however many names it has."""
    return "".join(f"{digest}\n" for digest in dict.fromkeys(blobs.values())).encode()


def contents(blobs: Mapping[str, str], output: bytes, place: object) -> dict[str, bytes]:
    """Return each path's bytes, of the answer to what `asked` returns. Raises GitFailed if one is missing."""
    answer = memoryview(output)
    paths = {digest: path for path, digest in reversed(list(blobs.items()))}
    found: dict[str, bytes] = {}
    at = 0
    for digest in dict.fromkeys(blobs.values()):
        head, ended, _ = bytes(answer[at : at + 200]).partition(b"\n")
        fields = head.split(b" ")
        if not ended or len(fields) != 3 or not fields[2].isdigit():
            raise GitFailed(
                f"the git repository of {place} lacks the contents of {paths[digest]} "
                f"({head.decode(errors='replace')}); run `git fsck` there"
            )
        size = int(fields[2])
        at += len(head) + 1
        found[digest] = bytes(answer[at : at + size])
        at += size + 1
    return {path: found[digest] for path, digest in blobs.items()}
