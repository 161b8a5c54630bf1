"""Where weights come from, and under which name a node keeps them.

A source says for good which bytes are meant: a URL with their digest, or a repository of a hub at one commit. So two sources
that are equal are the same bytes, on every node and after any number of pushes to the repository.
"""

import hashlib
import re
from dataclasses import dataclass
from urllib.parse import urlsplit


@dataclass(frozen=True, slots=True)
class UrlFetch:
    """One file at a URL."""

    url: str
    sha256: str
    """64 hexadecimal digits; what does not match is not kept."""


@dataclass(frozen=True, slots=True)
class HubFetch:
    """Files of a Hugging Face repository, as they are in one commit; they are kept in a directory."""

    repo: str
    """`ORG/NAME`."""
    commit: str
    """40 hexadecimal digits."""
    files: tuple[str, ...] = ()
    """Only those whose path matches one of these, with `*` for any characters; all if empty."""


Source = UrlFetch | HubFetch


def stored_name(source: Source) -> str:
    """Return the name below a node's weights directory of what was fetched; the same bytes have the same name.

    Of a URL, the digest comes first, so that two URLs of one file share it; the end of the URL's path is kept for people, and
    for engines that look at the suffix. Of a repository, its own name comes first, and other choices of files are elsewhere.
    """
    match source:
        case UrlFetch(url, sha256):
            return f"{sha256[:16]}-{_plain(urlsplit(url).path.rpartition('/')[2]) or 'weights'}"
        case HubFetch(repo, commit, files):
            chosen = f"-{hashlib.sha256(chr(0).join(sorted(files)).encode()).hexdigest()[:8]}" if files else ""
            return f"{_plain(repo.replace('/', '--'))}-{commit[:16]}{chosen}"


def told(source: Source) -> str:
    """Return a source in words: its URL, or the repository at the commit."""
    match source:
        case UrlFetch(url):
            return url
        case HubFetch(repo, commit):
            return f"hf {repo}@{commit[:12]}"


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", name)[-100:]
