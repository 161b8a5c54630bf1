"""A TCP proxy before an sshd that cuts connections in the middle of what they carry, told apart by who made them."""

import socket
import threading
from contextlib import suppress

ASYNCSSH = b"SSH-2.0-AsyncSSH"
"""How the connection that carries reports begins; OpenSSH's client, which carries streams, says something else."""


class Cutter:
    """Listens on a port of its own. `cut_after` arms it; `cuts` counts what it did."""

    def __init__(self, port: int) -> None:
        self.cuts = 0
        self._target = port
        self._left: list[int] = []
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def cut_after(self, count: int, times: int = 1) -> None:
        """Cut a connection that carries reports after so many more bytes from the node; so also the next ones."""
        with self._lock:
            self._left = [count] * times

    def close(self) -> None:
        """Listen no more; connections end with their ends."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._accepting.join()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", self._target)) as node:
            for one in (client, node):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            first = client.recv(1 << 16)
            node.sendall(first)
            up = threading.Thread(target=self._carry, args=(client, node, False), daemon=True)
            up.start()
            self._carry(node, client, first.startswith(ASYNCSSH))
            up.join()

    def _carry(self, source: socket.socket, sink: socket.socket, reports: bool) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if reports and (allowed := self._take(len(data))) is not None:
                    sink.sendall(data[:allowed])
                    break
                sink.sendall(data)
        for one in (source, sink):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _take(self, count: int) -> int | None:
        """Return how many of so many bytes may pass before the cut; None if all may and there is none."""
        with self._lock:
            if not self._left:
                return None
            if count < self._left[0]:
                self._left[0] -= count
                return None
            self.cuts += 1
            return self._left.pop(0)
