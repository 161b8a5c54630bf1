"""`Outcome`: what became of a request, as it is counted and logged. Times in seconds."""

from dataclasses import dataclass

from llmgw.gateway.usage import Tokens


@dataclass(slots=True)
class Outcome:
    """Made when a request is over."""

    status: int = 0
    """What the client was told; 499 for one that went away before."""
    reason: str = ""
    """Why the gateway itself ended it; empty if the engine answered."""
    first: float | None = None
    """From the request's last byte to the first byte of the body; None if none came."""
    duration: float = 0.0
    pieces: int = 0
    """Reads that brought something of the body; of a stream, about its events."""
    retries: int = 0
    tokens: Tokens | None = None
    """As the engine said; None if it did not."""
    worked: bool = False
    """Whether an engine has, or may have, done something for it that it did not say the cost of."""
    length: int = 0
    """Bytes of the answer, where the engine said it at its beginning."""
