"""A git host over https that asks for a password: the files of bare repositories, and on demand what it was told."""

import base64
import contextlib
import http.server
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote


class GitHost:
    """Serves the directory `root`; `echo` makes it refuse with what it was told."""

    def __init__(self, root: Path, user: str, password: str) -> None:
        self.echo = False
        self.asked = 0
        host = self
        wanted = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()

        class Handler(http.server.SimpleHTTPRequestHandler):
            def __init__(self, *arguments: object) -> None:
                super().__init__(*arguments, directory=str(root))

            def do_GET(self) -> None:
                host.asked += 1
                given = self.headers.get("Authorization", "")
                if not given:
                    self.send_response(401)
                    self.send_header("WWW-Authenticate", 'Basic realm="git"')
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                elif host.echo or given != wanted:
                    told = base64.b64decode(given.split(" ")[-1]).decode(errors="replace")
                    text = f"you said {told} or {quote(told)} or {given}\n".encode()
                    self.send_response(403)
                    self.send_header("Content-Type", "text/plain")
                    self.send_header("Content-Length", str(len(text)))
                    self.end_headers()
                    self.wfile.write(text)
                else:
                    super().do_GET()

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.authorities = root.parent / "host.crt"
        key = root.parent / "host.key"
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1",
             "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(self.authorities)],
            check=True, capture_output=True,
        )  # fmt: skip
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.authorities, key)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign]
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@contextlib.contextmanager
def git_host(root: Path, user: str, password: str) -> Iterator[GitHost]:
    host = GitHost(root, user, password)
    try:
        yield host
    finally:
        host.close()
