"""`Pace`: whether a request's body comes fast enough over the whole of it.

A limit between two pieces alone (nginx, uvicorn) lets one byte a minute keep a connection and its buffers for days. Apache
asks for 500 bytes a second after 20 s (`RequestReadTimeout body=20,MinRate=500`), Kestrel for 240 after 5 s. Here it is
Kestrel's rate, after as long as a silence may last: the slowest link that can chat at all is ten times as fast.
"""

GRACE = 60.0
"""Seconds before the rate counts."""
LEAST = 240.0
"""Bytes a second, from the first look at a body on."""


class Pace:
    """One a connection. It is told how far a body is whenever somebody looks; time is an argument."""

    __slots__ = ("_number", "_since")

    def __init__(self) -> None:
        self._number = 0
        self._since = 0.0

    def is_too_slow(self, number: int, received: int, now: float) -> bool:
        """Whether the body of request `number` (0 for none), of which so many bytes are there, comes too slowly."""
        if number != self._number:
            self._number, self._since = number, now
        took = now - self._since
        return bool(number) and took >= GRACE and received < LEAST * took
