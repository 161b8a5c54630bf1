"""Where spans of requests go: what the gateway knows of tracing, and all of it."""

from collections.abc import Mapping
from typing import Protocol

Value = str | int | float | bool


class Span(Protocol):
    """A span that was begun. Only its sink knows more of it."""


class SpanSink(Protocol):
    """Takes one span a request. Called from the event loop; neither method blocks, waits for a network or raises."""

    def begin(
        self, name: str, carrier: Mapping[str, str], attributes: Mapping[str, Value]
    ) -> tuple[Span, Mapping[str, str]]:
        """Begin a span below the one that `carrier` names (W3C `traceparent`, `tracestate`; anything invalid is nothing).

        Returns the span, for `end`, and the headers that name it to whoever is asked next.
        """
        ...

    def end(self, span: Span, attributes: Mapping[str, Value], error: str) -> None:
        """End a span; `error` is why it failed, empty if it did not. Once for each that was begun."""
        ...
