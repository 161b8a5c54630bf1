"""Which requests go to a model, and where each names it.

Most name it in a JSON body, uploads in a form's part, and the rest in the path or the query: a WebSocket (`?model=`), an
engine's own path (`/engines/MODEL/…`), and what follows up on a stored response, which names no model at all: that is asked
for at one endpoint after the other.
"""

from typing import Literal, NamedTuple
from urllib.parse import quote, unquote_to_bytes

from llmgw.gateway.heads import Incoming
from llmgw.routing.request import Route

Where = Literal["json", "form", "path", "query", "nowhere"]
"""Where a request names its model."""


class Found(NamedTuple):
    """A request that goes to a model."""

    route: Route
    where: Where
    model: str = ""
    """Where the path or the query names it."""
    target: bytes = b""
    """What the engine is asked for, where that is not what the client wrote."""


POSTS: dict[bytes, Found] = {
    b"/v1/chat/completions": Found("chat", "json"),
    b"/v1/completions": Found("completions", "json"),
    b"/v1/embeddings": Found("embeddings", "json"),
    b"/v1/responses": Found("responses", "json"),
    b"/v1/messages": Found("messages", "json"),
    b"/v1/messages/count_tokens": Found("count_tokens", "json"),
    b"/v1/rerank": Found("rerank", "json"),
    b"/v1/score": Found("score", "json"),
    b"/v1/audio/transcriptions": Found("transcriptions", "form"),
    b"/v1/audio/translations": Found("translations", "form"),
    b"/v1/audio/speech": Found("speech", "json"),
    b"/v1/images/generations": Found("images", "json"),
    b"/v1/images/edits": Found("image_edits", "form"),
    b"/tokenize": Found("tokenize", "json"),
    b"/detokenize": Found("detokenize", "json"),
}
"""Paths of requests that are posted to a model."""
REALTIME = b"/v1/realtime"
MODELS = b"/v1/models"
"""Where the gateway lists them itself."""
_STORED = b"/v1/responses/"
_ENGINES = b"/engines/"
_METHODS_STORED = frozenset({b"GET", b"POST", b"DELETE"})
_METHODS_ENGINE = frozenset({b"GET", b"POST", b"PUT", b"PATCH", b"DELETE"})
"""Not HEAD: its response has a length and no body, which only whoever knows the request can tell."""


def route_of(request: Incoming) -> Found | None:
    """Return where a request goes; None if the gateway answers it itself."""
    target, method = request.target, request.method
    if method == b"POST":
        known = POSTS.get(target)
        if known is not None:
            return known
    path, _, query = target.partition(b"?")
    if method == b"POST" and path in POSTS:
        return POSTS[path]
    if path.startswith(_STORED) and len(path) > len(_STORED) and method in _METHODS_STORED:
        named = _asked(query)
        return Found("responses", "query" if named else "nowhere", named)
    if path == REALTIME and method == b"GET":
        return Found("realtime", "query", _asked(query))
    if path.startswith(_ENGINES) and method in _METHODS_ENGINE:
        model, slash, rest = path[len(_ENGINES) :].partition(b"/")
        if model and slash:
            return Found("engine", "path", _text(model), b"/" + rest + (b"?" + query if query else b""))
    return None


def _asked(query: bytes) -> str:
    """Return the model that a query names; empty if it names none."""
    for pair in query.split(b"&"):
        key, _, value = pair.partition(b"=")
        if key == b"model":
            return _text(value.replace(b"+", b" "))
    return ""


def _text(quoted: bytes) -> str:
    return unquote_to_bytes(quoted).decode("utf-8", "replace")


def target_for(found: Found, target: bytes, model: str) -> bytes:
    """Return what an engine is asked for that calls the model so; `target` is what the client asked for."""
    if found.target:
        return found.target
    if found.where != "query" or model == found.model:
        return target
    path, _, query = target.partition(b"?")
    pairs = [b"model=" + quote(model).encode() if pair.startswith(b"model=") else pair for pair in query.split(b"&")]
    return path + b"?" + b"&".join(pairs)
