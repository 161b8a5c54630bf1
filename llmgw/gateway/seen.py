"""`SeenHeads`: what heads of HTTP messages said that were parsed before. A message whose head is known is not parsed again.

Clients and engines write the same head with every message but for the body's length, and parsing the two heads, with a call
for each header, was a third of a JSON request's whole cost here. So a head is looked up by its bytes without the digits of
its length. This changes nothing of what is understood: only a head that the parser has accepted is kept, under every byte of
it; the digits that were left out are the length's alone, since a head with two lengths is refused; and a hit counts only
where the body of that length is all that came with it. Whatever is not like that goes to the parser, as everything does first.

Bounded: clients choose the heads. When it is full it is emptied, which costs no more than having to fill it again.
"""

from typing import Generic, NamedTuple, TypeVar

LONGEST = 2048
"""Bytes of a head that is looked up."""
MOST = 512
"""Heads that are kept."""
MOST_DIGITS = 9
"""Of a length that is looked up."""
_END = b"\r\n\r\n"
_UPPER, _LOWER = b"\r\nContent-Length: ", b"\r\ncontent-length: "

T = TypeVar("T")


class Cut(NamedTuple):
    """A message that came whole in one piece."""

    key: bytes
    """Its head without the digits of the length."""
    length: bytes
    """Those digits."""
    body: bytes


class SeenHeads(Generic[T]):
    """What is remembered of each head, by `Cut.key`."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[bytes, T] = {}

    def __len__(self) -> int:
        return len(self._known)

    def get(self, cut: Cut) -> T | None:
        """Return what the head said; None for one that was not kept."""
        return self._known.get(cut.key)

    def keep(self, cut: Cut, said: T) -> None:
        """Remember what the parser made of the head. The caller vouches that nothing in it but its length ever differs."""
        if len(self._known) >= MOST:
            self._known.clear()
        self._known[cut.key] = said


def cut(data: bytes) -> Cut | None:
    """Return the parts of a message with a length that is all that these bytes are; None for anything else."""
    end = data.find(_END, 0, LONGEST)
    if end < 0:
        return None
    at = data.find(_UPPER, 0, end)
    if at < 0:
        at = data.find(_LOWER, 0, end)
        if at < 0:
            return None
    start = at + len(_UPPER)
    stop = data.find(b"\r", start)
    digits = data[start:stop]
    if not digits.isdigit() or len(digits) > MOST_DIGITS or len(data) != end + len(_END) + int(digits):
        return None
    return Cut(data[:start] + data[stop:end], digits, data[end + len(_END) :])
