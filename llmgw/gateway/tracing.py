"""`Tracing`: what a span of a request says, and which headers its engine gets for it. It knows no SDK; see `ports.traces`.

One span a request that goes to a model, of kind SERVER, from when it was whole to when its response ended, below the span that
the client names. The engine is told of this span instead of the client's, so that its own spans stand below. Names are those
of the conventions for HTTP and for generative AI where there is one, and begin with `llmgw.` where there is none. What a
client wrote (prompt, answer, keys, the query of its URL) is in no span; the model's name is cut, since clients choose it.

A gateway without tracing has none of these objects: each request costs it one look at a `None`.
"""

from collections.abc import Mapping

from llmgw.gateway.heads import Incoming
from llmgw.gateway.outcome import Outcome
from llmgw.gateway.routes import POSTS
from llmgw.ports.traces import SpanSink, Value
from llmgw.routing.request import RequestShape, Route

NAME_SHOWN = 200
"""Characters of a model's name that are kept."""
_PARENT = b"traceparent: "
_STATE = b"tracestate: "
_TEMPLATES: Mapping[Route, str] = {
    "responses": "/v1/responses/{id}",
    "realtime": "/v1/realtime",
    "engine": "/engines/{model}/{path}",
}
_OPERATIONS: Mapping[Route, str] = {
    "chat": "chat",
    "responses": "chat",
    "messages": "chat",
    "completions": "text_completion",
    "embeddings": "embeddings",
}
"""What the conventions have a name for."""


class Tracing:
    """Begins and ends spans. Use from the gateway's event loop only."""

    def __init__(self, spans: SpanSink) -> None:
        self._spans = spans

    def begin(self, request: Incoming, route: Route) -> None:
        """Begin the span of a request, and name it to the engine in place of the client's."""
        path = request.path
        where = path.decode() if path in POSTS else _TEMPLATES.get(route, route)
        method = request.method.decode()
        started: dict[str, Value] = {"http.request.method": method, "http.route": where}
        request.span, onward = self._spans.begin(f"{method} {where}", _carrier(request.forwarded), started)
        if onward:
            kept = tuple(line for line in request.forwarded if not line.startswith((_PARENT, _STATE)))
            request.forwarded = kept + tuple(f"{name}: {value}\r\n".encode() for name, value in onward.items())

    def finished(self, shape: RequestShape, request: Incoming, endpoint: str, outcome: Outcome) -> None:
        """End the span of a request that is over, if it got as far as having one."""
        span, request.span = request.span, None
        if span is None:
            return
        failed = outcome.status >= 500  # of a server's span, what the client did wrong is no error
        error = (outcome.reason or str(outcome.status)) if failed else ""
        self._spans.end(span, _attributes(shape, request, endpoint, outcome, error), error)


def _carrier(lines: tuple[bytes, ...]) -> dict[str, str]:
    """Return the headers of a trace; two parents are none, since it would be chance which of them is meant."""
    parents = [line[len(_PARENT) : -2] for line in lines if line.startswith(_PARENT)]
    if len(parents) != 1:
        return {}
    states = [line[len(_STATE) : -2].decode("latin-1") for line in lines if line.startswith(_STATE)]
    carrier = {"traceparent": parents[0].decode("latin-1")}
    return {**carrier, "tracestate": ",".join(states)} if states else carrier


def _attributes(
    shape: RequestShape, request: Incoming, endpoint: str, outcome: Outcome, error: str
) -> dict[str, Value]:
    said: dict[str, Value] = {
        "http.response.status_code": outcome.status,
        "llmgw.route": shape.route,
        "llmgw.request_id": request.request_id.decode("latin-1"),
        "llmgw.retries": outcome.retries,
        "gen_ai.request.stream": shape.stream,
    }
    optional: dict[str, Value | None] = {
        "gen_ai.operation.name": _OPERATIONS.get(shape.route),
        "gen_ai.request.model": shape.model[:NAME_SHOWN] or None,
        "llmgw.endpoint": endpoint or None,
        "llmgw.reason": outcome.reason or None,
        "error.type": error or None,
        "llmgw.time_to_first_byte": outcome.first,
    }
    if shape.stream:
        optional["gen_ai.response.time_to_first_chunk"] = outcome.first
    tokens = outcome.tokens
    if tokens is not None:
        optional["gen_ai.usage.input_tokens"] = tokens.prompt
        optional["gen_ai.usage.output_tokens"] = tokens.completion
    return said | {name: value for name, value in optional.items() if value is not None}
