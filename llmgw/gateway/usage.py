"""How many tokens a response cost, read from what the engine says; and the usage event that a client did not ask for.

An engine says what a stream cost only if it is asked to (`stream_options.include_usage`), so it always is, and the event
that comes of it, which has no choices, is taken out again for a client that did not ask. Events are looked at by a search
for bytes; only the one that is meant is parsed. What is held back is at most one event that has not ended: a client cannot
read half of one, and half of one must not stand before an error event.
"""

import re
from typing import Any, NamedTuple

import orjson

HELD = 64 << 10
"""Bytes of an event that is not over after which it is passed on in pieces, unseen."""
TAIL = 2048
"""Bytes of a response's end in which its usage is looked for."""

_MARKS = (b'"usage":{', b'"usage": {')
_NO_CHOICES = re.compile(rb'"choices"\s*:\s*\[\s*\]')
_OBJECT = re.compile(rb'"usage"\s*:\s*(\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\})')
BACKSLASH = 0x5C
MOST = 1 << 32
"""Tokens; more than this is no count of one response, and would not fit where sums are kept."""
_DATA = re.compile(rb"^data: ?(.*)$", re.MULTILINE)


class Tokens(NamedTuple):
    """What a response cost."""

    prompt: int
    completion: int
    cached: int = 0
    """Of the prompt's, those that the engine knew already."""


class UsageTap:
    """Takes the usage event out of one stream of chat or completion chunks, and reads it."""

    __slots__ = ("_held", "_torn", "tokens")

    def __init__(self) -> None:
        self.tokens: Tokens | None = None
        self._held = b""
        self._torn = False

    def pass_on(self, data: bytes) -> bytes:
        """Return what of these bytes, and of those held back, the client gets now."""
        if self._torn:
            return self._past_the_torn(data)
        if not self._held and data.endswith(b"\n\n") and _MARKS[0] not in data and _MARKS[1] not in data:
            return data
        data = self._held + data
        end = _last_end(data)
        self._held = data[end:]
        told = b""
        if len(self._held) > HELD:
            told, self._held, self._torn = self._held, b"", True
        whole = data[:end]
        if any(mark in whole for mark in _MARKS):
            whole = b"".join(event for event in _events(whole) if not self._is_usage(event))
        return whole + told

    def _past_the_torn(self, data: bytes) -> bytes:
        """Pass on what belongs to an event that was passed on in part, and look at what follows it."""
        end = _first_end(data)
        if end < 0:
            return data
        self._torn = False
        rest = data[end:]
        return data[:end] + (self.pass_on(rest) if rest else b"")

    @property
    def torn(self) -> bool:
        """Whether the client has the beginning of an event and not its end."""
        return self._torn

    def rest(self) -> bytes:
        """Return what is held back, of a stream that is over."""
        held, self._held = self._held, b""
        return held

    def _is_usage(self, event: bytes) -> bool:
        if not any(mark in event for mark in _MARKS) or not _NO_CHOICES.search(event):
            return False
        try:
            document = orjson.loads(b"\n".join(_DATA.findall(event.replace(b"\r\n", b"\n"))))
        except orjson.JSONDecodeError:
            return False
        if not isinstance(document, dict) or document.get("choices") != []:
            return False
        tokens = _tokens(document.get("usage"))
        self.tokens = tokens or self.tokens
        return tokens is not None


def tokens_in(tail: bytes) -> Tokens | None:
    """Return the last usage that the end of a response states; None if it states none. Only that object is parsed."""
    at = len(tail)
    while (at := tail.rfind(b'"usage"', 0, at)) >= 0:
        if at == 0 or tail[at - 1] != BACKSLASH:
            match = _OBJECT.match(tail, at)
            if match is not None:
                try:
                    found = _tokens(orjson.loads(match[1]))
                except orjson.JSONDecodeError:
                    continue
                if found is not None:
                    return found
    return None


def _tokens(usage: Any) -> Tokens | None:
    """Read OpenAI's names, or Anthropic's and the Responses API's."""
    if not isinstance(usage, dict):
        return None
    said = usage.get
    prompt = _count(said("prompt_tokens"))
    if prompt is None:
        prompt = _count(said("input_tokens"))
    completion = _count(said("completion_tokens"))
    if completion is None:
        completion = _count(said("output_tokens"))
    if prompt is None and completion is None:
        return None
    details = said("prompt_tokens_details") or said("input_tokens_details")
    cached = _count(details.get("cached_tokens")) if isinstance(details, dict) else None
    if cached is None:
        cached = _count(said("cache_read_input_tokens"))
    return Tokens(prompt or 0, completion or 0, cached or 0)


def _count(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value <= MOST else None  # a bool is an int, too, and no count


def _last_end(data: bytes) -> int:
    """Return where the last event that is over ends; 0 if none is."""
    return max(
        data.rfind(b"\n\n") + 2 if b"\n\n" in data else 0, data.rfind(b"\r\n\r\n") + 4 if b"\r\n\r\n" in data else 0
    )


def _first_end(data: bytes) -> int:
    """Return where the first event that is over ends; -1 if none is."""
    ends = [data.find(mark) + len(mark) for mark in (b"\n\n", b"\r\n\r\n") if mark in data]
    return min(ends) if ends else -1


def _events(whole: bytes) -> list[bytes]:
    return re.split(rb"(?<=\n\n)|(?<=\r\n\r\n)", whole)
