"""A fake engine for the bench of gateways: `python -m tests.bench.gateway_engine PORT...`.

It answers a call with the same JSON each time, or with a stream of 64 events 20 ms apart; a stream of the user `hold` gets one
event and then stays open. The events of all streams are spread evenly over the 20 ms, as those of engines that know nothing of
each other; streams left to the moment of their start would gather, and a gateway be measured by how it takes bursts. Where
nginx is installed the bench has it answer JSON instead (`nginx_engine`), because this engine would be the limit of what it
measures.
"""

import asyncio
import sys
from itertools import cycle
from pathlib import Path

import orjson
import uvloop
from httptools import HttpRequestParser

EVENTS = 64
PACE = 0.020
"""Seconds between two events of a stream."""
SLOT = 0.001
SLOTS = round(PACE / SLOT)

LOREM = (
    "Lorem ipsum dolor sit amet, consectetur adipiscing elit, sed do eiusmod tempor incididunt ut labore et dolore. "
    * 2
)
COMPLETION = orjson.dumps({
    "id": "chatcmpl-1", "object": "chat.completion", "created": 1700000000, "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": LOREM}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 40, "completion_tokens": 50, "total_tokens": 90},
})  # fmt: skip
MODELS = orjson.dumps(
    {"object": "list", "data": [{"id": "m", "object": "model", "created": 1700000000, "owned_by": "vllm"}]}
)
EVENT = b"data: %b\n\n" % orjson.dumps({
    "id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1700000000, "model": "m",
    "choices": [{"index": 0, "delta": {"content": " token"}, "logprobs": None, "finish_reason": None}],
})  # fmt: skip
CHUNK = b"%x\r\n%b\r\n" % (len(EVENT), EVENT)
LAST_EVENTS = EVENT + b"data: [DONE]\n\n"
LAST_CHUNKS = b"%x\r\n%b\r\n0\r\n\r\n" % (len(LAST_EVENTS), LAST_EVENTS)
STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"


def _whole(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


ANSWER = _whole(COMPLETION)
ASIDE = {b"/health": _whole(b"OK"), b"/v1/models": _whole(MODELS)}
"""What routers ask before they trust a worker; everything else gets an empty object."""


class Wheel:
    """Writes the next event of every open stream, a slot of the pace at a time; late, it makes up for what it missed."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._slots: list[dict[Connection, int]] = [{} for _ in range(SLOTS)]
        self._turns = cycle(range(SLOTS))
        self._at = 0
        self._due = self._loop.time()
        self.turn()

    def begin(self, stream: "Connection") -> None:
        """Write the first event now, and the rest from the slot on whose turn it is to get a stream."""
        stream.write(STREAM_HEAD + CHUNK)
        self._slots[next(self._turns)][stream] = EVENTS - 1

    def turn(self) -> None:
        """Write what is due."""
        now = self._loop.time()
        while self._due <= now:
            slot = self._slots[self._at]
            for stream, left in list(slot.items()):
                if left == 1 or stream.gone:
                    del slot[stream]
                    stream.write(LAST_CHUNKS)
                else:
                    slot[stream] = left - 1
                    stream.write(CHUNK)
            self._at = (self._at + 1) % SLOTS
            self._due += SLOT
        self._loop.call_at(self._due, self.turn)


class Connection(asyncio.Protocol):
    """One connection of a gateway, which may carry many calls."""

    def __init__(self, wheel: Wheel) -> None:
        self._wheel = wheel
        self._transport: asyncio.Transport | None = None
        self._body: list[bytes] = []
        self._url = b""
        self.on_body = self._body.append
        self._parser = HttpRequestParser(self)  # which looks for its callbacks now
        self.gone = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone = True

    def on_url(self, url: bytes) -> None:
        self._url = url

    def on_message_complete(self) -> None:
        body = b"".join(self._body)
        self._body.clear()
        if not self._url.startswith(b"/v1/chat/completions"):
            self.write(ASIDE.get(self._url, _whole(b"{}")))
            return
        call = orjson.loads(body)
        if not call.get("stream"):
            self.write(ANSWER)
        elif call.get("user") == "hold":
            self.write(STREAM_HEAD + CHUNK)
        else:
            self._wheel.begin(self)

    def write(self, data: bytes) -> None:
        if not self.gone:
            assert self._transport is not None
            self._transport.write(data)


def nginx_engine(directory: Path, ports: list[int]) -> list[str]:
    """Return the command of an nginx that answers as this engine does where nothing is streamed."""
    listen = " ".join(f"listen 127.0.0.1:{port} backlog=4096;" for port in ports)
    config = directory / "engine.conf"
    config.write_text(f"""
        worker_processes 1; daemon off; pid engine.pid; error_log engine.log crit;
        events {{ worker_connections 4096; }}
        http {{
            access_log off; keepalive_requests 1000000000; keepalive_timeout 600s;
            client_max_body_size 0; client_body_buffer_size 1m;
            server {{
                {listen} default_type application/json;
                location /v1/chat/completions {{ return 200 '{COMPLETION.decode()}'; }}
                location /v1/models {{ return 200 '{MODELS.decode()}'; }}
                location /health {{ return 200 'OK'; }}
                location / {{ return 200 '{{}}'; }}
            }}
        }}
    """)
    return ["nginx", "-p", str(directory), "-e", "engine.log", "-c", str(config)]


async def _main(ports: list[int]) -> None:
    wheel = Wheel()
    loop = asyncio.get_running_loop()
    for port in ports:
        await loop.create_server(lambda: Connection(wheel), "127.0.0.1", port, backlog=4096)
    await loop.create_future()


if __name__ == "__main__":
    uvloop.run(_main([int(port) for port in sys.argv[1:]]))
