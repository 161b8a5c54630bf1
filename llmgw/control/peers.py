"""Who asks the admin API, as the server itself can tell: the user at the other end of the socket, or the key that was shown.

What a client says of itself (`by`) is kept too, since people want to read a name, but never alone: anybody can say it.
"""

import pwd
import socket
import struct

from aiohttp import web

WHO = web.RequestKey("who", str)
"""Where a request has it."""
NOBODY = "an operator"
_CREDENTIALS = struct.Struct("3i")
"""Process, user and group, as Linux returns them for SO_PEERCRED (unix(7))."""


def socket_of(request: web.Request) -> socket.socket | None:
    """Return the request's connection; None if it is gone."""
    found: socket.socket | None = request.transport.get_extra_info("socket") if request.transport is not None else None
    return found


def user_of(request: web.Request) -> str:
    """Return `user/NAME` of the process at the other end of a Unix socket; its number, if it has no name here."""
    sock = socket_of(request)
    if sock is None:
        return ""
    _, uid, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    try:
        return f"user/{pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"user/{uid}"


def by_of(request: web.Request, said: str) -> str:
    """Return who asks, in one text: what it calls itself, and as what it is known, unless that is the same."""
    who: str = request.get(WHO, "")
    if not who or who == f"user/{said.partition('@')[0]}":  # `llmgw apply` names its host, too
        return said or NOBODY
    return f"{said} ({who})" if said else who.removeprefix("user/")
