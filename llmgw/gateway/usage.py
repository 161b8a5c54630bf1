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
_OBJECT = re.compile(rb'"usage"\s*:\s*\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}')
_NUMBERS = re.compile(
    rb'"(prompt_tokens|completion_tokens|input_tokens|output_tokens|cached_tokens|cache_read_input_tokens)"\s*:\s*(\d{1,15})\b'
)
LONGEST = 1000
"""Bytes from a usage's beginning in which its numbers are."""
BACKSLASH = 0x5C
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
    """Return the last usage that the end of a response states; None if it states none.

    Its numbers are found by their names, which no two of its objects share: parsing would cost three times as much.
    """
    at = len(tail)
    while (at := tail.rfind(b'"usage"', 0, at)) >= 0:
        if (at == 0 or tail[at - 1] != BACKSLASH) and _OBJECT.match(tail, at):
            found = dict(_NUMBERS.findall(tail, at, at + LONGEST))
            prompt = found.get(b"prompt_tokens") or found.get(b"input_tokens")
            completion = found.get(b"completion_tokens") or found.get(b"output_tokens")
            if prompt is not None or completion is not None:
                cached = found.get(b"cached_tokens") or found.get(b"cache_read_input_tokens")
                return Tokens(int(prompt or 0), int(completion or 0), int(cached or 0))
    return None


def _tokens(usage: Any) -> Tokens | None:
    """Read OpenAI's names, or Anthropic's and the Responses API's."""
    if not isinstance(usage, dict):
        return None
    prompt = _count(usage, "prompt_tokens", "input_tokens")
    completion = _count(usage, "completion_tokens", "output_tokens")
    if prompt is None and completion is None:
        return None
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details")
    cached = _count(details, "cached_tokens") if isinstance(details, dict) else None
    if cached is None and "cache_read_input_tokens" in usage:
        cached = _count(usage, "cache_read_input_tokens")
    return Tokens(prompt or 0, completion or 0, cached or 0)


def _count(usage: dict[str, Any], *names: str) -> int | None:
    for name in names:
        value = usage.get(name)
        if type(value) is int and value >= 0:  # a bool is an int, too, and no count
            return value
    return None


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
