"""The request's body: what the gateway reads of it, and what it may change.

The body is parsed to learn `model` and `stream`, and sent on as the bytes that came. When the model was named by an
alias, only the bytes of that JSON string are replaced; the result is parsed again and compared, because finding the
value by pattern alone would also find a `"model"` inside a tool's schema. Asking for a stream's usage puts one more key at
the front. Rejected: writing the parsed object out anew, which changes number formats and escapes; it is the last resort, for
a key that is itself written with escapes, and for `stream_options` that a client has set otherwise.
"""

import re
import zlib
from typing import Any, NamedTuple

import orjson

from llmgw.gateway import forms
from llmgw.gateway.errors import Fault
from llmgw.gateway.routes import Found

MODEL_VALUE = re.compile(rb'"model"\s*:\s*("(?:[^"\\]|\\.)*")', re.DOTALL)
CANDIDATES = 8
"""Places called `"model"` that are tried before the body is written anew."""
ASK_USAGE = b'{"stream_options":{"include_usage":true},'
CHUNKED_ROUTES = frozenset({"chat", "completions"})
"""Routes whose streams say what they cost only if asked."""


TWICE = Fault(400, "invalid_request", "The parameter `model` is there more than once.", param="model")


class Call(NamedTuple):
    """What a request asks for."""

    model: str
    """Empty where the request names none."""
    stream: bool = False
    ask_usage: bool = False
    """Whether the stream is to say what it cost although the client did not ask."""
    options: bool = False
    """Whether the client set `stream_options` otherwise."""
    boundary: bytes = b""
    """Of a form; empty for JSON."""
    in_body: bool = True
    """Whether the body names the model."""


def read_call(found: Found, body: bytes, content_type: bytes) -> Call | Fault:
    """Return what a request asks for, or what is wrong with it."""
    match found.where:
        case "json":
            return _read_json(found, body)
        case "form":
            return _read_form(body, content_type)
        case "nowhere":
            return Call("", in_body=False)
        case "twice":
            return TWICE
        case _:
            if not found.model:
                return Fault(400, "invalid_request", "The parameter `model` is missing from the query.", param="model")
            return Call(found.model, in_body=False)


def _read_json(found: Found, body: bytes) -> Call | Fault:
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        return Fault(400, "invalid_request", f"The request body is not valid JSON: {error}")
    if not isinstance(document, dict):
        return Fault(400, "invalid_request", "The request body must be a JSON object.")
    model = document.get("model")
    if not isinstance(model, str):
        return _no_model("model" in document)
    stream = document.get("stream") is True
    if not stream or found.route not in CHUNKED_ROUTES:
        return Call(model, stream)
    options = document.get("stream_options")
    asked = isinstance(options, dict) and options.get("include_usage") is True
    set_otherwise = options is not None and not asked
    readable = options is None or isinstance(options, dict)  # else it is the engine's to refuse
    return Call(model, stream, ask_usage=not asked and readable, options=set_otherwise)


def _read_form(body: bytes, content_type: bytes) -> Call | Fault:
    boundary = forms.boundary_of(content_type)
    if boundary is None:
        return Fault(400, "invalid_request", "The request must be multipart/form-data with a boundary.")
    fields = forms.fields(body, boundary, (b"model", b"stream"))
    if fields is None:
        return Fault(400, "invalid_request", "The form has a part whose head is not whole, or too long.")
    if not fields[b"model"]:
        return _no_model(there=False)
    if len(fields[b"model"]) > 1:
        return TWICE
    start, end = fields[b"model"][0]
    stream = any(body[begin:over].strip().lower() == b"true" for begin, over in fields[b"stream"])
    return Call(body[start:end].decode("utf-8", "replace"), stream, boundary=boundary)


def _no_model(there: bool) -> Fault:
    lack = "must be a string" if there else "is missing"
    return Fault(400, "invalid_request", f"The parameter `model` {lack}.", param="model")


def body_for(call: Call, body: bytes, model: str) -> bytes:
    """Return what an engine gets that calls the model so."""
    if not call.in_body:
        return body
    if call.boundary:
        return forms.with_field(body, call.boundary, b"model", model.encode()) if model != call.model else body
    if model != call.model:
        body = with_model(body, model)
    return with_usage(body, call.options) if call.ask_usage else body


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


def with_usage(body: bytes, options: bool) -> bytes:
    """Return the body of a call that asks for the stream's usage; `options` says whether it has `stream_options`."""
    if not options:
        return ASK_USAGE + body[body.index(b"{") + 1 :]
    wanted: dict[str, Any] = orjson.loads(body)
    wanted["stream_options"] = {**wanted["stream_options"], "include_usage": True}
    return orjson.dumps(wanted)


def decoded(body: bytes, encoding: bytes, limit: int) -> bytes | Fault:
    """Return a body without its content encoding, or what is wrong with it. `limit` is in bytes, decoded."""
    if encoding in (b"", b"identity"):
        return body
    if encoding not in (b"gzip", b"x-gzip"):
        named = encoding[:40].decode("ascii", "backslashreplace")
        message = f"The content encoding `{named}` is not supported; send gzip, or the body as it is."
        return Fault(415, "unsupported_encoding", message)
    plain = b""
    while body or not plain:  # a gzip file may have several members, one behind the other
        try:
            reader = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
            plain += reader.decompress(body, limit + 1 - len(plain))
        except zlib.error as error:
            return Fault(400, "invalid_request", f"The request body is not valid gzip: {error}")
        if len(plain) > limit:
            return too_large(limit)
        if not reader.eof:
            return Fault(400, "invalid_request", "The request body is not valid gzip: it ends too early.")
        body = reader.unused_data
        if not plain and not body:
            break
    return plain


def too_large(limit: int) -> Fault:
    """Return what a client is told whose body is above the limit, in bytes."""
    shown = f"{limit >> 20} MiB" if limit >= 1 << 20 else f"{limit} bytes"
    return Fault(413, "request_too_large", f"The request's body is above the limit of {shown}.")


def _parses_to(body: bytes, wanted: dict[str, Any]) -> bool:
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        return False
    return bool(document == wanted)
