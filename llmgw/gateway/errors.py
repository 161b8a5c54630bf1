"""Errors as clients of OpenAI's and Anthropic's APIs read them, and the event that ends a broken stream.

The envelope is always `{"error": {"message", "type", "param", "code"}}`: with anything else the official client shows
"status code (no body)". Anthropic's has a type of its own around it and names of its own in it. A stream is ended in the
words of its own family, because an Anthropic client passes over a line that an OpenAI client would raise.
"""

from dataclasses import dataclass

import orjson

from llmgw.routing.request import Route

ANTHROPIC: frozenset[Route] = frozenset({"messages", "count_tokens"})
"""Routes that answer in Anthropic's words."""
_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong, in the form that a client gets."""

    status: int
    code: str
    message: str
    param: str | None = None
    retry_after: int | None = None
    """Seconds."""


def _kind(status: int) -> str:
    return "server_error" if status >= 500 else "invalid_request_error"


def _anthropic(fault: Fault) -> bytes:
    kind = _ANTHROPIC_TYPES.get(fault.status, "api_error" if fault.status >= 500 else "invalid_request_error")
    return orjson.dumps({"type": "error", "error": {"type": kind, "message": fault.message}})


def error_body(fault: Fault, route: Route | None = None) -> bytes:
    """Return the JSON envelope that clients of a route read."""
    if route in ANTHROPIC:
        return _anthropic(fault)
    return orjson.dumps(
        {
            "error": {
                "message": fault.message,
                "type": _kind(fault.status),
                "param": fault.param,
                "code": fault.code,
            }
        }
    )


def message_in(body: bytes) -> str:
    """Return what the body of an engine's error says, for a client that was promised a stream already."""
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        return body.decode("utf-8", "replace").strip() or "The replica refused the request without a reason."
    error = document.get("error", document) if isinstance(document, dict) else document
    said = error.get("message", error) if isinstance(error, dict) else error
    return said if isinstance(said, str) else orjson.dumps(said).decode()


def error_event(route: Route, fault: Fault) -> bytes:
    """Return the server-sent event that tells a client of this route that its stream broke."""
    match route:
        case "messages":
            data = orjson.dumps({"type": "error", "error": {"type": "api_error", "message": fault.message}})
            return b"event: error\ndata: " + data + b"\n\n"
        case "responses":
            error = {"code": "server_error", "message": fault.message}
            response = {"object": "response", "status": "failed", "error": error}
            data = orjson.dumps({"type": "response.failed", "response": response})
            return b"event: response.failed\ndata: " + data + b"\n\n"
        case _:
            return b"data: " + error_body(fault) + b"\n\n"
