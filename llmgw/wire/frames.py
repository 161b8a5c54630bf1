"""Framing: four bytes of length, big endian, then so many bytes of JSON. Sans-IO: bytes in, payloads out."""

from llmgw.wire.errors import ProtocolError

LIMIT = 8 << 20
"""Largest payload in bytes. An order of 100 shards takes about 150 KB."""


def frame(payload: bytes) -> bytes:
    """Return the payload with its length before it. Raises ProtocolError above `LIMIT`."""
    if len(payload) > LIMIT:
        raise ProtocolError(f"a message of {len(payload)} bytes is above the limit of {LIMIT}")
    return len(payload).to_bytes(4, "big") + payload


class FrameDecoder:
    """Collects bytes and gives out whole payloads. One a connection; not for concurrent use."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Take bytes as they came and return the payloads they complete, in order. Raises ProtocolError."""
        self._buffer += data
        payloads: list[bytes] = []
        while len(self._buffer) >= 4:
            length = int.from_bytes(self._buffer[:4], "big")
            if length > LIMIT:
                raise ProtocolError(f"the peer announced a message of {length} bytes; is it another protocol?")
            if len(self._buffer) < 4 + length:
                break
            payloads.append(bytes(self._buffer[4 : 4 + length]))
            del self._buffer[: 4 + length]
        return payloads
