"""Asking a running server, by its Unix socket or its TCP address. Standard library only, since a question is one request.

Over TCP it is asked with the administrator's key that `LLMGW_TOKEN` holds: not an option, since every user of a host reads the
arguments of all programs.
"""

import http.client
import json
import os
import socket
import ssl
from typing import Any
from urllib.parse import urlsplit

from llmgw.cli.outcomes import ConnectionLost, Failed, GuardRefused, NoServer, ServerRefused, WrongUsage
from llmgw.control.requests import MAX_REQUEST

PATIENCE = 60.0
"""Seconds for an answer."""
_WHERE_LOGS_ARE = "its log says why (its standard error, or `journalctl -u` and its unit)"


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
    payload = json.dumps(body).encode() if body is not None else None
    if payload is not None and len(payload) > MAX_REQUEST:
        raise Failed(
            f"what is to be sent has {len(payload) >> 20} MiB, and the server takes {MAX_REQUEST >> 20} MiB; "
            "is this a cluster directory?"
        )
    status, answer = _exchange(where, method, path, payload)
    data = _object(where, status, answer)
    if isinstance(data.get("error"), dict):
        raise Failed(f"{where} is the gateway; the admin API is on the server's admin socket")
    if status == http.client.FORBIDDEN and not data.get("denied"):
        raise GuardRefused(str(data.get("error", "a guard refused it")), tuple(data.get("guard", ())))
    if status == http.client.BAD_REQUEST:
        raise WrongUsage(str(data.get("error", "the server does not understand it")))
    if status != http.client.OK:
        raise ServerRefused(str(data.get("error", f"the server answered {status}")), status, data)
    return data


def _exchange(where: str, method: str, path: str, payload: bytes | None) -> tuple[int, bytes]:
    """Return the status and the body of the answer. Raises Failed."""
    connection = _connection(where)
    try:
        connection.request(method, path, payload, {"content-type": "application/json", **_token(where)})
        answer = connection.getresponse()
        return answer.status, answer.read()
    except (FileNotFoundError, ConnectionRefusedError) as error:
        raise NoServer(
            f"no llmgw server answers at {where}; start one with `llmgw server DIR`, or name it with --server"
        ) from error
    except ssl.SSLCertVerificationError as error:
        raise Failed(
            f"the certificate of {where} is not trusted: {error.verify_message}; name its authority with SSL_CERT_FILE"
        ) from error
    except PermissionError as error:
        raise Failed(f"the server's socket {where} belongs to another user; run this as that user") from error
    except TimeoutError as error:
        raise ConnectionLost(
            f"the llmgw server at {where} did not answer within {PATIENCE:.0f} s{_perhaps(method, path)}"
        ) from error
    except (ConnectionResetError, BrokenPipeError, http.client.IncompleteRead) as error:
        # as when the server is killed; RemoteDisconnected is one of the first
        raise ConnectionLost(f"the llmgw server at {where} broke the connection off{_perhaps(method, path)}") from error
    except (OSError, http.client.HTTPException) as error:
        raise Failed(f"what answers at {where} is not an llmgw server: {error}") from error
    finally:
        connection.close()


def _perhaps(method: str, path: str) -> str:
    """Say what may have happened although no answer came."""
    if method == "GET" or path.startswith("/v1/plan"):
        return ""
    return "; what was asked for may have been taken up all the same: `llmgw history` and `llmgw status` show it"


def _object(where: str, status: int, answer: bytes) -> dict[str, Any]:
    try:
        data = json.loads(answer)
    except (ValueError, RecursionError) as error:
        if status >= http.client.INTERNAL_SERVER_ERROR:
            raise ServerRefused(
                f"the server at {where} failed over this request (HTTP {status}); {_WHERE_LOGS_ARE}", status, {}
            ) from error
        if status == http.client.REQUEST_ENTITY_TOO_LARGE:
            raise ServerRefused(
                f"what was sent is more than the server at {where} takes; is this a cluster directory?", status, {}
            ) from error
        raise Failed(f"what answers at {where} is not an llmgw server: {error}") from error
    if not isinstance(data, dict):
        raise Failed(f"what answers at {where} is not an llmgw server")
    return data


def _connection(where: str) -> http.client.HTTPConnection:
    if where.startswith(("http://", "https://")):
        return _tcp(where)
    if "://" in where:
        raise WrongUsage(f"--server {where} is not known; name a socket's path, http://HOST:PORT or https://HOST:PORT")
    if "/" not in where and ":" in where:
        raise WrongUsage(f"--server {where} is not known; write http://{where}, or name a socket's path")
    return _UnixConnection(where)


def _token(where: str) -> dict[str, str]:
    """Return the header that shows this user's key; a socket needs none. Raises WrongUsage."""
    token = os.environ.get("LLMGW_TOKEN", "").strip()
    if not token or not where.startswith(("http://", "https://")):
        return {}
    if not (token.isascii() and token.isprintable()):
        raise WrongUsage("LLMGW_TOKEN is no key: it has more than printable ASCII in it")
    return {"authorization": f"Bearer {token}"}


def _tcp(where: str) -> http.client.HTTPConnection:
    parts = urlsplit(where)
    try:
        if parts.scheme == "https":
            return http.client.HTTPSConnection(parts.hostname or "localhost", parts.port or 443, timeout=PATIENCE)
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
