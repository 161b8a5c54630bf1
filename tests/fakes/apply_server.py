"""A small HTTP server that answers as the admin API does, with what a test says; and one that answers as a forge does.

For commands that run as processes of their own. Each keeps what it was asked.
"""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit


@dataclass
class Fake:
    """What it answers: for each `METHOD /path`, one (status, data) after another, the last again and again."""

    answers: dict[str, list[tuple[int, Any]]]
    asked: list[tuple[str, Any, dict[str, str]]] = field(default_factory=list)
    """Route, body, headers."""
    url: str = ""
    seen: threading.Event = field(default_factory=threading.Event)
    """Set as soon as anything was asked with GET."""

    def routes(self) -> list[str]:
        """Return what was asked, in order."""
        return [route for route, _, _ in self.asked]

    def bodies(self, route: str) -> list[Any]:
        """Return the bodies of a route's requests."""
        return [body for asked, body, _ in self.asked if asked == route]


@contextmanager
def serving(answers: dict[str, list[tuple[int, Any]]]) -> Iterator[Fake]:
    """Serve on a free port of loopback."""
    fake = Fake(answers)

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            size = int(self.headers.get("content-length", "0"))
            raw = self.rfile.read(size).decode()
            form = "urlencoded" in self.headers.get("content-type", "") and not raw.startswith("{")
            body = {key: values[0] for key, values in parse_qs(raw).items()} if form else json.loads(raw or "null")
            route = f"{self.command} {urlsplit(self.path).path}"
            fake.asked.append((route, body, dict(self.headers)))
            if self.command == "GET":
                fake.seen.set()
            left = fake.answers.get(route, [(404, {"error": f"no {route} here"})])
            status, data = left.pop(0) if len(left) > 1 else left[0]
            said = json.dumps(data).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        do_GET = do_POST = do_PATCH = do_PUT = _answer  # noqa: N815 - the names that the library calls

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    fake.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
