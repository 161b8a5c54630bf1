"""Where weights come from, and under which name a node keeps them.

A source says for good which bytes are meant: a URL with their digest, or a repository of a hub at one commit. So two sources
that are equal are the same bytes, on every node and after any number of pushes to the repository.
"""

import hashlib
import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from llmgw.spec.model import Weights

COMMIT = re.compile(r"[0-9a-f]{40}")


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
    """Only those whose path matches one of these, with `*` for any characters; if empty, what the model needs."""


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


def source_of(weights: Weights) -> Source | None:
    """Return where a node fetches weights from; None for a path, and for a repository at no certain commit."""
    if weights.url is not None and weights.sha256 is not None:
        return UrlFetch(weights.url, weights.sha256)
    if weights.hf is not None and weights.revision is not None and COMMIT.fullmatch(weights.revision):
        return HubFetch(weights.hf, weights.revision, tuple(sorted(weights.files or ())))
    return None


def path_of(weights: Weights) -> str | None:
    """Return where weights lie on a node: absolute or below its weights directory; None if `unpinned`."""
    source = source_of(weights)
    if source is None:
        return weights.path
    file = named_file(weights)
    return f"{stored_name(source)}/{file}" if file else stored_name(source)


def named_file(weights: Weights) -> str:
    """Return the GGUF file of a repository that is named in full, the first of them; empty if none is."""
    return next((one for one in weights.files or () if one.endswith(".gguf") and not is_pattern(one)), "")


def is_pattern(file: str) -> bool:
    """Whether an entry of `files` may stand for several, and so for none."""
    return bool(set("*?[") & set(file))


def unpinned(weights: Weights) -> str:
    """Say what a repository lacks to be fetched; empty if nothing, and for other weights."""
    if weights.hf is None or source_of(weights) is not None:
        return ""
    branch = weights.revision or "main"
    return (
        f"branch or tag {branch} of {weights.hf} may become something else, and this version of llmgw looks up no commits; "
        f"write the commit as `revision`, which `git ls-remote https://huggingface.co/{weights.hf} {branch}` prints"
    )


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", name)[-100:]
