"""`RequestShape`: what a decision may know of a request. Never its text: that is the gateway's to pass through."""

from dataclasses import dataclass
from typing import Literal

Route = Literal["chat", "completions", "embeddings", "responses", "messages", "rerank", "tokenize", "detokenize"]


@dataclass(frozen=True, slots=True)
class RequestShape:
    """One request, as far as choosing an endpoint needs it."""

    route: Route
    model: str
    """As the client named it: a model's name or one of its aliases."""
    stream: bool
    prompt_bytes: int
    """Size of the body; a cheap upper bound of the prompt."""
