"""Framing: payloads come out whole however the bytes were cut, and a foreign protocol is told at its first four bytes."""

import pytest

from llmgw.wire.errors import ProtocolError
from llmgw.wire.frames import LIMIT, FrameDecoder, frame

PAYLOADS = [b"", b"x", b"{}", bytes(range(256)), b"y" * 70_000]
STREAM = b"".join(frame(payload) for payload in PAYLOADS[:4])


def test_bytes_may_be_cut_anywhere() -> None:
    for cut in range(len(STREAM) + 1):
        decoder = FrameDecoder()
        assert decoder.feed(STREAM[:cut]) + decoder.feed(STREAM[cut:]) == PAYLOADS[:4]


def test_bytes_may_come_one_by_one_or_all_at_once() -> None:
    one_by_one = FrameDecoder()
    got = [payload for byte in STREAM for payload in one_by_one.feed(bytes([byte]))]
    assert got == PAYLOADS[:4]
    assert FrameDecoder().feed(b"".join(map(frame, PAYLOADS))) == PAYLOADS


def test_an_unfinished_payload_waits() -> None:
    decoder = FrameDecoder()
    assert decoder.feed(frame(b"abc")[:-1]) == []
    assert decoder.feed(b"c") == [b"abc"]
    assert decoder.feed(b"") == []


def test_the_limit_holds_for_both_sides() -> None:
    assert frame(b"z" * LIMIT)[4:] == b"z" * LIMIT
    with pytest.raises(ProtocolError, match=f"of {LIMIT + 1} bytes is above the limit of {LIMIT}"):
        frame(b"z" * (LIMIT + 1))
    assert FrameDecoder().feed(LIMIT.to_bytes(4, "big")) == []
    with pytest.raises(ProtocolError, match="is it another protocol"):
        FrameDecoder().feed((LIMIT + 1).to_bytes(4, "big"))


@pytest.mark.parametrize("foreign", [b"GET / HTTP/1.1\r\n", b"SSH-2.0-OpenSSH_9\r\n", b'{"type":"hello"}'])
def test_other_protocols_are_refused_before_they_are_waited_for(foreign) -> None:
    with pytest.raises(ProtocolError, match="is it another protocol"):
        FrameDecoder().feed(foreign)


def test_what_came_before_a_bad_frame_was_given_out_already() -> None:
    decoder = FrameDecoder()
    assert decoder.feed(frame(b"good")) == [b"good"]
    with pytest.raises(ProtocolError):
        decoder.feed(b"\xff\xff\xff\xff")
