"""`UpstreamKeys`: the keys by which upstreams that somebody else runs know this gateway, and the header that each is sent.

A client's own credentials never go to an engine, and these never go anywhere but to the endpoint that names them. They came
beside the table and are in no table, usage or log. An engine's own paths (`/engines/MODEL/PATH`) are asked for without them:
whoever is on this host may reach those, and must not act in the account of whoever pays for the upstream.
"""

from collections.abc import Mapping

from llmgw.fleet.table import Endpoint
from llmgw.routing.request import Route


class UpstreamKeys:
    """The values by name. Replaced whole, with each table."""

    def __init__(self) -> None:
        self._lines: dict[str, bytes] = {}
        self._before: dict[str, bytes] = {}
        """Those of the table before: a request that was given one of its endpoints may be about to be sent."""

    def replace(self, keys: Mapping[str, str]) -> None:
        """Go by these from now on."""
        self._before = self._lines
        self._lines = {name: b"authorization: Bearer %b\r\n" % value.encode() for name, value in keys.items()}

    def put_into(self, head: bytes, endpoint: Endpoint, route: Route) -> bytes:
        """Return the head of a request, which ends with an empty line, with the endpoint's key in it."""
        if route == "engine":
            return head
        line = self._lines.get(endpoint.key) or self._before.get(endpoint.key, b"")
        return head[:-2] + line + b"\r\n"
