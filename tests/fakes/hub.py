"""A server that speaks as much of the Hugging Face hub's API as listing a commit and getting its files needs.

The list is that of `/api/models/{repo}/tree/{commit}`, in pages that a `Link` header joins. Files come from `/{repo}/resolve/
{commit}/{path}`: small ones as they are, large ones (LFS) by a redirect to another address, which no token may reach.
"""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

LARGE = 4096
"""Bytes from which a file is kept as a large one."""


@dataclass
class Hub:
    """One repository at one commit, and a switch for each way it goes wrong."""

    repo: str
    commit: str
    files: dict[str, bytes]
    url: str = ""
    token: str = ""
    """What a client must show; empty for none."""
    gated: bool = False
    status: int = 200
    """What the list is answered with."""
    file_status: int = 200
    page: int = 2
    """Entries of the list in one page."""
    cut_after: int | None = None
    """Ends the connection of a large file after so many bytes, once."""
    spoilt: str = ""
    """A file whose bytes are not what the list says."""
    asked: list[tuple[str, str, str]] = field(default_factory=list)
    """Path, Range and Authorization of every request."""

    def served(self, path: str) -> bytes:
        """Return the bytes that are sent for a file."""
        content = self.files[path]
        return content[:-1] + bytes([content[-1] ^ 1]) if path == self.spoilt else content

    def bytes_asked(self, path: str) -> list[str]:
        """Return the Range of each request for a file's bytes."""
        return [span for asked, span, _ in self.asked if asked.endswith(f"/{path}")]

    def entry(self, path: str) -> dict[str, object]:
        """Return what the list says of a file."""
        content = self.files[path]
        object_id = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
        entry: dict[str, object] = {"type": "file", "path": path, "size": len(content), "oid": object_id}
        if len(content) >= LARGE:
            digest = hashlib.sha256(content).hexdigest()
            entry["lfs"] = {"oid": digest, "size": len(content), "pointerSize": 134}
        return entry


class _Handler(BaseHTTPRequestHandler):
    hub: Hub

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        path, shown = unquote(url.path), self.headers.get("Authorization", "")
        self.hub.asked.append((path, self.headers.get("Range", ""), shown))
        if path.startswith("/store/"):
            self._file(self.hub.served(path.removeprefix("/store/")), cut=True)
            return
        if self.hub.gated:
            self._refuse(403, "GatedRepo")
        elif self.hub.token and shown != f"Bearer {self.hub.token}":
            self._refuse(401, "RepoNotFound")
        elif path.startswith(f"/api/models/{self.hub.repo}/tree/"):
            self._tree(path.rpartition("/")[2], int(parse_qs(url.query).get("cursor", ["0"])[0]))
        elif path.startswith(f"/{self.hub.repo}/resolve/{self.hub.commit}/"):
            self._resolve(path.removeprefix(f"/{self.hub.repo}/resolve/{self.hub.commit}/"))
        else:
            self._refuse(404, "RepoNotFound")

    def _tree(self, commit: str, start: int) -> None:
        if self.hub.status != 200:
            self._refuse(self.hub.status, "")
            return
        if commit != self.hub.commit:
            self._refuse(404, "RevisionNotFound")
            return
        names = sorted(self.hub.files)
        found = [{"type": "directory", "path": "sub", "oid": "0" * 40}] if start == 0 else []
        found += [self.hub.entry(name) for name in names[start : start + self.hub.page]]
        body = json.dumps(found).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if start + self.hub.page < len(names):
            more = (
                f"{self.hub.url}/api/models/{self.hub.repo}/tree/{commit}?recursive=true&cursor={start + self.hub.page}"
            )
            self.send_header("Link", f'<{more}>; rel="next"')
        self.end_headers()
        self.wfile.write(body)

    def _resolve(self, path: str) -> None:
        if self.hub.file_status != 200:
            self._refuse(self.hub.file_status, "")
        elif path not in self.hub.files:
            self._refuse(404, "EntryNotFound")
        elif len(self.hub.files[path]) >= LARGE:
            self.send_response(302)
            self.send_header("Location", f"{self.hub.url.replace('127.0.0.1', 'localhost')}/store/{path}")
            self.send_header("Content-Length", "0")
            self.end_headers()
        else:
            self._file(self.hub.served(path), cut=False)

    def _file(self, content: bytes, *, cut: bool) -> None:
        span = self.headers.get("Range", "")
        start = int(span.removeprefix("bytes=").partition("-")[0]) if span else 0
        if span and start >= len(content):
            self._refuse(416, "")
            return
        self.send_response(206 if span else 200)
        if span:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        body = content[start:]
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if cut and self.hub.cut_after is not None:
            body, self.hub.cut_after = body[: self.hub.cut_after], None
        self.wfile.write(body)

    def _refuse(self, status: int, code: str) -> None:
        self.send_response(status)
        if code:
            self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving_hub(hub: Hub) -> Iterator[Hub]:
    """Serve on loopback until the end of the block."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
