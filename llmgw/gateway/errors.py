"""Errors as clients of OpenAI's API read them, and the event that ends a broken stream.

The envelope is always `{"error": {"message", "type", "param", "code"}}`: with anything else the official client shows
"status code (no body)". A stream is ended in the words of its own family, because an Anthropic client passes over a
line that an OpenAI client would raise.
"""

from dataclasses import dataclass

import orjson

from llmgw.routing.request import Route


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


def error_body(fault: Fault) -> bytes:
    """Return the JSON envelope."""
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


def error_event(route: Route, fault: Fault) -> bytes:
    """Return the server-sent event that tells a client of this route that its stream broke."""
    match route:
        case "messages":
            data = orjson.dumps({"type": "error", "error": {"type": "api_error", "message": fault.message}})
            return b"event: error\ndata: " + data + b"\n\n"
        case "responses":
            data = orjson.dumps({"type": "error", "code": fault.code, "message": fault.message, "param": fault.param})
            return b"event: error\ndata: " + data + b"\n\n"
        case _:
            return b"data: " + error_body(fault) + b"\n\n"
