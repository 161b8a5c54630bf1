"""`RequestShape`: what a decision may know of a request. Never its text: that is the gateway's to pass through."""

from typing import Literal, NamedTuple

Route = Literal[
    "chat",
    "completions",
    "embeddings",
    "responses",
    "messages",
    "count_tokens",
    "rerank",
    "score",
    "transcriptions",
    "translations",
    "speech",
    "images",
    "image_edits",
    "tokenize",
    "detokenize",
    "realtime",
    "engine",
]


class RequestShape(NamedTuple):
    """One request, as far as choosing an endpoint needs it. A tuple, since every request makes one: a third of the cost."""

    route: Route
    model: str
    """As the client named it: a model's name or one of its aliases."""
    stream: bool
    prompt_bytes: int
    """Size of the body; a cheap upper bound of the prompt."""
    within: frozenset[str] | None = None
    """Models that the client may ask for; None for all. It matters where a request names none."""
