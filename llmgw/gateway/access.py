"""`Door`: lets a request in, or says why not, by the newest `Access`; and what a client is told then.

Closed until there is one: a worker that starts while its control plane is away must not serve whoever comes. One that loses its
control plane goes on by its last, as it does by its last table. What is refused is logged without what was presented; the
id of a key is named only where there is such a key, since anything else is a stranger's text. What was right is remembered
until keys or models change, or it expires: most requests come with what came before.
"""

import logging
from collections.abc import Callable

from llmgw.base.time import Clock
from llmgw.fleet.access import Access
from llmgw.gateway.errors import Fault
from llmgw.gateway.heads import Incoming
from llmgw.gateway.routes import MODELS, Found
from llmgw.routing.access import ANYBODY, Caller, Failures, Keys
from llmgw.routing.choose import unknown_model
from llmgw.routing.index import TableIndex

log = logging.getLogger(__name__)

CLOSED = Fault(503, "no_keys", "This gateway has not been told yet who may use it.", retry_after=1)
MISSING = Fault(
    401, "invalid_api_key", "An API key is needed: send it as `Authorization: Bearer sk-llmgw-…`, or as `x-api-key`."
)
WRONG = Fault(401, "invalid_api_key", "This API key is not valid: it is wrong, has expired, or was revoked.")
NOT_A_CLIENT = Fault(403, "not_a_client_key", "This is an administrator's key; requests to models need a tenant's.")
NOT_AN_ADMIN = Fault(403, "not_an_admin", "An engine's own paths are open to programs on this host only.")
NO_ADMIN_KEY = Fault(403, "not_an_admin", "An engine's own paths need an administrator's key of the scope `admin`.")

REMEMBERED = 1000
"""Credentials that are remembered to be right."""


class Door:
    """One for a gateway. Use from its event loop."""

    def __init__(self, clock: Clock, index: TableIndex) -> None:
        self._clock = clock
        self._index = index
        self._access: Access | None = None
        self._keys: Keys | None = None
        self._failures = Failures()
        self._right: dict[bytes, Caller] = {}

    @property
    def closed(self) -> bool:
        """Whether nobody is let in, for want of knowing who may."""
        return self._keys is None

    def set_access(self, access: Access) -> None:
        """Go by this from now on."""
        self._access = access
        self._keys = Keys(access, self._index)
        self._right.clear()

    def set_index(self, index: TableIndex) -> None:
        """Go by these models from now on."""
        self._index = index
        if self._access is not None:
            self._keys = Keys(self._access, index)
        self._right.clear()

    def admit(self, request: Incoming, found: Found | None, address: Callable[[], str]) -> Fault | None:
        """Note who asks in the request; or return what that client is told instead of an answer.

        `found` is None for what goes to no model: of that, the list of models is all that needs a key, and never a preflight,
        which browsers send without. `address` returns where the client is.
        """
        if found is None and not (request.target.startswith(MODELS) and request.method != b"OPTIONS"):
            return None
        keys = self._keys
        if keys is None:
            return CLOSED
        if not keys.required:
            request.caller = ANYBODY
            return None
        caller = self._caller(keys, request.credential)
        if caller is None:
            return self._refused(keys, request, address())
        request.caller = caller
        if found is not None and caller.admin != (found.route == "engine"):
            return NOT_A_CLIENT if caller.admin else NO_ADMIN_KEY
        return None

    def look_again(self, request: Incoming, model: str) -> Fault | None:
        """Return what a client is told that was let in, and has waited since, if it would not be let in to this model now."""
        keys = self._keys
        if keys is None or not keys.required:
            return None
        caller = self._caller(keys, request.credential)
        if caller is None:
            return WRONG
        request.caller = caller
        return not_for(request, model)

    def _caller(self, keys: Keys, credential: bytes) -> Caller | None:
        caller, now = self._right.get(credential), self._clock.now()
        if caller is None or (caller.expires is not None and now >= caller.expires):
            caller = keys.caller(_presented(credential), now)
            if caller is not None and len(self._right) < REMEMBERED:
                self._right[credential] = caller
        return caller

    def is_shut_to(self, request: Incoming, near: Callable[[], bool]) -> bool:
        """Whether an engine's own paths are not for this client: without keys, being on this host makes an administrator.

        A web page does not: a browser on this host would ask for it, and says so by an origin.
        """
        return not request.caller.admin and (request.origin is not None or not near())

    def _refused(self, keys: Keys, request: Incoming, address: str) -> Fault:
        wait, worth_a_line = self._failures.failed(address, self._clock.now())
        if worth_a_line:
            known = keys.knows(_presented(request.credential))
            log.warning(
                "a client is refused: %s",
                "it was too often" if wait else "no valid key",
                extra={"from": address, "request": request.request_id.decode(), **({"key": known} if known else {})},
            )
        if wait is not None:
            text = "Too many requests without a valid API key came from this address."
            return Fault(429, "too_many_failures", text, retry_after=wait)
        return WRONG if request.credential else MISSING


def not_for(request: Incoming, model: str) -> Fault | None:
    """Return what a client is told of a model that is not for it: the same as of one that there is not."""
    if not model or request.caller.may_ask(model):
        return None
    refusal = unknown_model(model)
    return Fault(refusal.status, refusal.code, refusal.message, "model")


def _presented(credential: bytes) -> str:
    """Return what a client presents, with or without the scheme before it."""
    if credential[:7].lower() == b"bearer ":
        credential = credential[7:]
    return credential.strip().decode("utf-8", "surrogateescape")
