"""Where an upstream's URL leads: host, port, TLS, and what stands before `/v1` in its paths.

One reading for the command line (`--endpoint`) and for `Endpoint` objects. More than a path is refused, since gateways write
the rest of each request's target themselves: a query of the operator's would silently be lost.
"""

import re
from typing import NamedTuple
from urllib.parse import urlsplit

_HOST = re.compile(r"[A-Za-z0-9._-]+|[0-9A-Fa-f:.]+")
_PREFIX = re.compile(r"(/[A-Za-z0-9._~!$&'()*+,;:@%-]+)*")


class Place(NamedTuple):
    """What a URL says."""

    host: str
    port: int
    tls: bool
    prefix: str
    """Empty, or beginning with a slash; `/v1` itself may be written or left out."""


def place_of(url: str) -> Place:
    """Return where a URL leads. Raises ValueError, whose message begins with the URL and says what is wrong with it."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"{url} is no URL: {error}") from None
    if parts.username is not None or parts.password is not None:
        raise ValueError("its URL holds a user or a password, which every user of this host can read")
    host = parts.hostname or ""
    if parts.scheme not in ("http", "https") or not _HOST.fullmatch(host) or port == 0:
        raise ValueError(f"{url} is no http:// or https:// URL of a host")
    prefix = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
    if parts.query or parts.fragment or not _PREFIX.fullmatch(prefix):
        raise ValueError(f"{url} has more than a path behind its host")
    tls = parts.scheme == "https"
    return Place(host, port or (443 if tls else 80), tls, prefix)
