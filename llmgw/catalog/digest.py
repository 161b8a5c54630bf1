"""The digest of a whole tree: two trees with the same files are the same wish, whatever their revisions are called."""

import hashlib

from llmgw.catalog.source import SourceTree, hides


def tree_digest(tree: SourceTree) -> str:
    """Return 64 hexadecimal digits over the paths and contents of everything in the tree but what is of no account."""
    digest = hashlib.sha256()
    for path in sorted(tree.files):
        name = path.encode("utf-8", "surrogateescape")
        data = tree.files[path]
        digest.update(b"file %d %d\n" % (len(name), len(data)))
        digest.update(name)
        digest.update(data)
    for path, what in sorted(tree.refused.items()):
        if not hides(path, what):
            continue
        digest.update(f"refused {len(path)} {path} {what}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()
