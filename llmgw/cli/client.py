"""Asking a running server, by its Unix socket or its TCP address. Standard library only, since a question is one request."""

import http.client
import json
import os
import socket
from typing import Any
from urllib.parse import urlsplit

from llmgw.cli.outcomes import Failed, GuardRefused, NoServer, ServerRefused, WrongUsage

PATIENCE = 60.0
"""Seconds for an answer."""


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=PATIENCE)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(PATIENCE)
        self.sock.connect(self._path)


def ask(server: str, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the server's answer. Raises Failed with what to do if there is none."""
    where = server or default_server()
    if where.startswith("http://"):
        connection: http.client.HTTPConnection = _tcp(where)
    elif "://" in where:
        raise WrongUsage(f"--server {where} is not known; name a socket's path or http://HOST:PORT")
    elif "/" not in where and ":" in where:
        raise WrongUsage(f"--server {where} is not known; write http://{where}, or name a socket's path")
    else:
        connection = _UnixConnection(where)
    try:
        payload = json.dumps(body) if body is not None else None
        connection.request(method, path, payload, {"content-type": "application/json"})
        answer = connection.getresponse()
        data = json.loads(answer.read())
    except (FileNotFoundError, ConnectionRefusedError) as error:
        raise NoServer(
            f"no llmgw server answers at {where}; start one with `llmgw server DIR`, or name it with --server"
        ) from error
    except PermissionError as error:
        raise Failed(f"the server's socket {where} belongs to another user; run this as that user") from error
    except TimeoutError as error:
        raise NoServer(f"the llmgw server at {where} did not answer within {PATIENCE:.0f} s") from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise Failed(f"what answers at {where} is not an llmgw server: {error}") from error
    finally:
        connection.close()
    if not isinstance(data, dict):
        raise Failed(f"what answers at {where} is not an llmgw server")
    if isinstance(data.get("error"), dict):
        raise Failed(f"{where} is the gateway; the admin API is on the server's admin socket, or on its --admin-listen")
    if answer.status == 403:
        raise GuardRefused(str(data.get("error", "a guard refused it")))
    if answer.status != 200:
        raise ServerRefused(str(data.get("error", f"the server answered {answer.status}")), answer.status, data)
    return data


def _tcp(where: str) -> http.client.HTTPConnection:
    parts = urlsplit(where)
    try:
        return http.client.HTTPConnection(parts.hostname or "localhost", parts.port or 80, timeout=PATIENCE)
    except ValueError as error:
        raise WrongUsage(f"--server {where} is not an address; write http://HOST:PORT") from error


def default_server() -> str:
    """Return the admin socket of a server of this user."""
    state = os.environ.get("LLMGW_STATE_DIR")
    if state:
        return f"{state}/admin.sock"
    if os.geteuid() == 0:
        return "/var/lib/llmgw/server/admin.sock"
    base = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")  # noqa: PTH111 - one string in, one out
    return f"{base}/llmgw/server/admin.sock"
