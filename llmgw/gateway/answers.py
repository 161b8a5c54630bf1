"""What the gateway answers itself: its own health, the list of models, preflights, and every error before an engine.

`/ready` says whether requests can be routed, `/health` whether the process lives; a service manager that restarts a
gateway because its control plane is away would take down what still serves.
"""

from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

import orjson

from llmgw.gateway.access import CLOSED
from llmgw.gateway.errors import Fault, error_body
from llmgw.gateway.heads import Header, Incoming, own_response
from llmgw.gateway.plane import Plane
from llmgw.gateway.routes import MODELS, POSTS
from llmgw.routing.choose import NAME_SHOWN
from llmgw.routing.request import Route

JSON: Header = (b"content-type", b"application/json")
TEXT: Header = (b"content-type", b"text/plain; charset=utf-8")
_ASKED = b"authorization, content-type, x-api-key, x-request-id"


@dataclass(frozen=True, slots=True)
class Answer:
    """A response of the gateway's own."""

    status: int
    body: bytes
    headers: tuple[Header, ...] = (JSON,)


def fault_answer(fault: Fault, route: Route | None = None) -> Answer:
    """Return the answer that tells a client of a route of a fault."""
    headers: tuple[Header, ...] = (JSON,)
    if fault.retry_after is not None:
        headers = (JSON, (b"retry-after", b"%d" % fault.retry_after))
    elif fault.status == 401:
        headers = (JSON, (b"www-authenticate", b"Bearer"))
    return Answer(fault.status, error_body(fault, route), headers)


def render(answer: Answer, request: Incoming, keep_alive: bool) -> bytes:
    """Return the bytes of an answer."""
    return own_response(answer.status, answer.headers, answer.body, request, keep_alive)


def own_answer(plane: Plane, request: Incoming) -> Answer:
    """Return the answer to a request that does not go to a model."""
    path = request.path
    if request.method == b"OPTIONS":
        return _preflight(request)
    if path in POSTS:
        return _wrong_method(b"POST")
    if path not in {b"/health", b"/ready", MODELS} and not path.startswith(MODELS + b"/"):
        shown = path[:NAME_SHOWN].decode("ascii", "backslashreplace")
        return fault_answer(Fault(404, "unknown_url", f"Unknown request URL: {shown}."))
    if request.method not in {b"GET", b"HEAD"}:
        return _wrong_method(b"GET, HEAD")
    if path == b"/health":
        return Answer(200, b"alive\n", (TEXT,))
    if path == b"/ready":
        return _readiness(plane)
    return _models(plane, request) if path == MODELS else _model(plane, request, path[len(MODELS) + 1 :])


def _preflight(request: Incoming) -> Answer:
    headers: tuple[Header, ...] = (
        (b"access-control-allow-methods", b"GET, HEAD, POST, DELETE, OPTIONS"),
        (b"access-control-allow-headers", request.asked_headers or _ASKED),
        (b"access-control-max-age", b"86400"),
    )
    if request.origin is None:
        headers = ((b"access-control-allow-origin", b"*"), *headers)
    return Answer(204, b"", headers)


def _wrong_method(allowed: bytes) -> Answer:
    fault = Fault(405, "method_not_allowed", f"This URL answers to {allowed.decode()} only.")
    return Answer(405, error_body(fault), (JSON, (b"allow", allowed + b", OPTIONS")))


def _readiness(plane: Plane) -> Answer:
    if plane.ready and not plane.door.closed:
        return Answer(200, b"ready\n", (TEXT,))
    if plane.stopping:
        return fault_answer(Fault(503, "shutting_down", "This gateway is shutting down."))
    if plane.ready:
        return fault_answer(CLOSED)
    return fault_answer(Fault(503, "no_table", "No endpoint table was taken yet.", retry_after=1))


def _entry(plane: Plane, name: str) -> dict[str, str | int]:
    entry: dict[str, str | int] = {"id": name, "object": "model", "created": plane.started, "owned_by": "llmgw"}
    length = plane.index.models[name].model.max_model_len
    return entry if length is None else {**entry, "max_model_len": length}


def _models(plane: Plane, request: Incoming) -> Answer:
    entries = [_entry(plane, name) for name in plane.index.servable if request.caller.may_ask(name)]
    return Answer(200, orjson.dumps({"object": "list", "data": entries}))


def _model(plane: Plane, request: Incoming, quoted: bytes) -> Answer:
    name = unquote_to_bytes(quoted).decode("utf-8", "replace")
    indexed = plane.index.models.get(name)
    if indexed is None or not indexed.endpoints or not request.caller.may_ask(name):
        return fault_answer(Fault(404, "model_not_found", f"The model `{name[:NAME_SHOWN]}` does not exist."))
    return Answer(200, orjson.dumps(_entry(plane, name)))
