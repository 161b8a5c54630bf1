"""A web server with one file, and a switch for each way a download goes wrong."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class FileServer:
    """What is served at /file.gguf, and how. `asked` has each request's Range."""

    content: bytes
    url: str = ""
    status: int = 200
    ranges: bool = True
    cut_after: int | None = None
    """Ends the connection after so many bytes of a body."""
    without_length: bool = False
    pace: float = 0.0
    """Seconds to wait after each 64 KiB."""
    redirect: str = ""
    asked: list[str] = field(default_factory=list)


@contextmanager
def serving_file(content: bytes) -> Iterator[FileServer]:
    """Serve a file on loopback until the end of the block."""
    files = FileServer(content)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            files.asked.append(self.headers.get("Range", ""))
            if files.redirect and self.path != "/moved.gguf":
                self.send_response(302)
                self.send_header("Location", files.redirect)
                self.end_headers()
                return
            if files.status != 200:
                self.send_error(files.status)
                return
            start = 0
            wanted = self.headers.get("Range", "")
            if wanted and files.ranges:
                start = int(wanted.removeprefix("bytes=").partition("-")[0])
                if start >= len(files.content):
                    self.send_error(416)
                    return
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {start}-{len(files.content) - 1}/{len(files.content)}")
            else:
                self.send_response(200)
            body = files.content[start:]
            if not files.without_length:
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            for at in range(0, len(body), 65536):
                piece = body[at : at + 65536]
                if files.cut_after is not None and at + len(piece) > files.cut_after:
                    self.wfile.write(body[at : files.cut_after])
                    return
                self.wfile.write(piece)
                time.sleep(files.pace)

        def handle(self) -> None:
            try:
                super().handle()
            except (BrokenPipeError, ConnectionResetError):
                return  # the client was ended

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    files.url = f"http://127.0.0.1:{server.server_address[1]}/file.gguf"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield files
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
