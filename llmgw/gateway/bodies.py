"""The request's body: what the gateway reads of it, and the one value that it may change.

The body is parsed to learn `model` and `stream`, and sent on as the bytes that came. When the model was named by an
alias, only the bytes of that JSON string are replaced; the result is parsed again and compared, because finding the
value by pattern alone would also find a `"model"` inside a tool's schema. Rejected: writing the parsed object out anew,
which changes number formats and escapes; it is the last resort, for a key that is itself written with escapes.
"""

import re
from dataclasses import dataclass
from typing import Any

import orjson

from llmgw.gateway.errors import Fault

MODEL_VALUE = re.compile(rb'"model"\s*:\s*("(?:[^"\\]|\\.)*")', re.DOTALL)
CANDIDATES = 8
"""Places called `"model"` that are tried before the body is written anew."""


@dataclass(frozen=True, slots=True)
class Call:
    """What a body asks for."""

    model: str
    stream: bool


def read_call(body: bytes) -> Call | Fault:
    """Return what the body asks for, or what is wrong with it."""
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        return Fault(400, "invalid_request", f"The request body is not valid JSON: {error}")
    if not isinstance(document, dict):
        return Fault(400, "invalid_request", "The request body must be a JSON object.")
    model = document.get("model")
    if not isinstance(model, str):
        lack = "is missing" if "model" not in document else "must be a string"
        return Fault(400, "invalid_request", f"The parameter `model` {lack}.", param="model")
    return Call(model, document.get("stream") is True)


def with_model(body: bytes, model: str) -> bytes:
    """Return the body of a call with another model name in it and, where possible, every other byte as it was."""
    wanted: dict[str, Any] = orjson.loads(body)
    wanted["model"] = model
    name = orjson.dumps(model)
    for tried, match in enumerate(MODEL_VALUE.finditer(body)):
        if tried == CANDIDATES:
            break
        start, end = match.span(1)
        changed = body[:start] + name + body[end:]
        if _parses_to(changed, wanted):
            return changed
    return orjson.dumps(wanted)


def _parses_to(body: bytes, wanted: dict[str, Any]) -> bool:
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        return False
    return bool(document == wanted)
