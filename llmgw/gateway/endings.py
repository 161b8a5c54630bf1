"""Whether an engine's answer is whole, and whether it has been silent for too long. Pure functions of what came."""

from llmgw.fleet.table import GatewaySettings
from llmgw.gateway.heads import ResponseHead
from llmgw.routing.request import Route

TERMINALS: dict[Route, bytes] = {
    "chat": b"[DONE]",
    "completions": b"[DONE]",
    "messages": b"message_stop",
}
"""What the end of a stream must contain. The Responses API has no short last word, so its framing must do."""
OWN_ERRORS = (b'data: {"error"', b"event: error", b"event: response.failed")
"""How a stream ends that the engine itself broke off in words."""

ABORTED = b'"finish_reason":"abort"'
"""How vLLM, told to end, finishes what it runs: the stream then ends in all order, and any other answer has status 200.

No text of a model can hold these bytes, since quotes are escaped in it. An answer of many pieces may hide them, cut in two.
"""


def lacks_last_word(route: Route, head: ResponseHead | None, tail: bytes) -> bool:
    """Whether a stream that is over lacks the word by which its family says that it is whole; `tail` is what came last."""
    terminal = TERMINALS.get(route)
    if head is None or terminal is None or not head.event_stream or head.encoded or head.status != 200:
        return False
    return terminal not in tail and not any(own in tail for own in OWN_ERRORS)


def over_limit(silent: float, limits: GatewaySettings, *, answered: bool, begun: bool) -> str:
    """Return what an engine did not do in time, having been silent for so many seconds; empty if there is time yet."""
    if not answered:
        return f"did not answer within {limits.headers:g} s" if silent >= limits.headers else ""
    if not begun:
        return f"sent no byte of its answer within {limits.first_byte:g} s" if silent >= limits.first_byte else ""
    if silent >= limits.inter_chunk:
        return f"was silent for {limits.inter_chunk:g} s in the middle of its answer"
    return ""
