"""Which requests go to a model, and where each names it.

Most name it in a JSON body, uploads in a form's part, and the rest in the path or the query: a WebSocket (`?model=`), an
engine's own path (`/engines/MODEL/…`), and what follows up on a stored response, which names no model at all: that is asked
for at one endpoint after the other.

Whoever may use one model may not use another by a trick. So what follows up on a response is a path of plain segments, which no
upstream can read as another one of its paths; and a request that names its model twice is refused, since the upstream might
believe the other one.
"""

import re
from typing import Literal, NamedTuple
from urllib.parse import quote, unquote_to_bytes

from llmgw.gateway.heads import Incoming
from llmgw.routing.request import Route

Where = Literal["json", "form", "path", "query", "nowhere", "twice"]
"""Where a request names its model; the last is none that is answered."""


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
    b"/v1/responses/compact": Found("responses", "json"),
    b"/v1/responses/input_tokens": Found("responses", "json"),
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
_STORED = re.compile(rb"/v1/responses(?:/(?!\.{1,2}(?:/|$))[A-Za-z0-9_.~:-]+){1,3}")
"""A stored response, or something of it."""
_STORED_POST = re.compile(rb"/v1/responses/[A-Za-z0-9_.~:-]+/cancel")
"""What may be asked of one by POST; what else is posted there names its model in its body."""
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
    if method in _METHODS_STORED and _STORED.fullmatch(path):
        if method == b"POST" and not _STORED_POST.fullmatch(path):
            return Found("responses", "json")
        return _by_query("responses", query, "nowhere")
    if path == REALTIME and method == b"GET":
        return _by_query("realtime", query, "query")
    if path.startswith(_ENGINES) and method in _METHODS_ENGINE:
        model, slash, rest = path[len(_ENGINES) :].partition(b"/")
        if model and slash:
            return Found("engine", "path", _text(model), b"/" + rest + (b"?" + query if query else b""))
    return None


def _by_query(route: Route, query: bytes, otherwise: Where) -> Found:
    """Return a request of which the query may name the model; `otherwise` is where it is named if not there."""
    named = [pair.partition(b"=")[2] for pair in query.split(b"&") if _names_model(pair)]
    if len(named) > 1:
        return Found(route, "twice")
    return Found(route, "query", _text(named[0].replace(b"+", b" "))) if named else Found(route, otherwise)


def _names_model(pair: bytes) -> bool:
    key = pair.partition(b"=")[0]
    return key == b"model" or unquote_to_bytes(key.replace(b"+", b" ")) == b"model"


def _text(quoted: bytes) -> str:
    return unquote_to_bytes(quoted).decode("utf-8", "replace")


def target_for(found: Found, target: bytes, model: str) -> bytes:
    """Return what an engine is asked for that calls the model so; `target` is what the client asked for."""
    if found.target:
        return found.target
    if found.where != "query" or model == found.model:
        return target
    path, _, query = target.partition(b"?")
    pairs = [b"model=" + quote(model).encode() if _names_model(pair) else pair for pair in query.split(b"&")]
    return path + b"?" + b"&".join(pairs)
