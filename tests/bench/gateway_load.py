"""Clients for the bench of gateways: `python -m tests.bench.gateway_load json|stream|hold PORT ...`; prints JSON.

`json` is for machines without wrk, which needs less of the core that it shares with the engine. `stream` counts events and the
CPU that the watched processes spend on them in one window, once all streams are going. `hold` opens streams, says how many have
had their first event, and keeps them open until its standard input ends.
"""

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import orjson
import uvloop
from httptools import HttpResponseParser

from tests.bench.gateway_engine import EVENTS, PACE

WARM = 0.5
"""Seconds with all connections open before anything counts."""
AT_ONCE = 64
"""Streams that `hold` opens at the same time."""
PATIENCE = 15.0
"""Seconds in which all streams of `hold` should be open."""
TICK = 1 / os.sysconf("SC_CLK_TCK")


def body_of(size: int, **more: object) -> bytes:
    """Return a chat call with so many characters of prompt."""
    text = ("The quick brown fox jumps over the lazy dog. " * (size // 45 + 1))[:size]
    system = {"role": "system", "content": "You are a helpful assistant."}
    return orjson.dumps(
        {"model": "m", "messages": [system, {"role": "user", "content": text}], "max_tokens": 64, **more}
    )


def cpu_of(pids: list[int]) -> float:
    """Return the seconds of CPU that these processes, as far as they live, have spent, all their threads together."""
    ticks = 0
    for pid in pids:
        with contextlib.suppress(FileNotFoundError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks * TICK


class Caller(asyncio.Protocol):
    """A client's connection, which makes a call, and another whenever `again` says so."""

    def __init__(self, request: bytes, counts: "Counts", again: Callable[[], bool]) -> None:
        self._request = request
        self._counts = counts
        self._again = again
        self._transport: asyncio.Transport | None = None
        self._parser = HttpResponseParser(self)
        self._start = 0.0
        self._first = True
        self.opened: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        """Whether a call was answered at all; done with the first byte of its body."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        self._call()

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._again():
            self._counts.errors += 1
        if not self.opened.done():
            self.opened.set_result(False)

    def on_body(self, body: bytes) -> None:
        if self._first:
            self._first = False
            self._counts.first.append(time.perf_counter() - self._start)
            if not self.opened.done():
                self.opened.set_result(self._parser.get_status_code() == 200)
        self._counts.events += body.count(b"\n\n")

    def on_message_complete(self) -> None:
        if self._parser.get_status_code() != 200:
            self._counts.errors += 1
        self._counts.whole.append(time.perf_counter() - self._start)
        if self._again():
            asyncio.get_running_loop().call_soon(self._call)

    def _call(self) -> None:
        assert self._transport is not None
        self._first = True
        self._start = time.perf_counter()
        self._transport.write(self._request)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


KEY, SECRET = "0123456789", "bench"
CREDENTIAL = f"sk-llmgw-{KEY}-{SECRET}"
"""What every client shows; it opens llmgw, and nobody else looks at it."""


class Counts:
    """What the callers of one run have seen; times in seconds."""

    def __init__(self) -> None:
        self.events = 0
        self.errors = 0
        self.first: list[float] = []
        self.whole: list[float] = []


def _request(port: int, body: bytes) -> bytes:
    return (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:%d\r\ncontent-type: application/json\r\n"
        b"authorization: Bearer %b\r\ncontent-length: %d\r\n\r\n%b" % (port, CREDENTIAL.encode(), len(body), body)
    )


async def _open(port: int, caller: Callable[[], Caller]) -> Caller | None:
    try:
        _, protocol = await asyncio.get_running_loop().create_connection(caller, "127.0.0.1", port)
    except OSError:
        return None
    return protocol


async def _json(options: argparse.Namespace) -> dict[str, float]:
    counts, over = Counts(), False
    request = _request(options.port, body_of(options.size))
    for _ in range(options.count):
        await _open(options.port, lambda: Caller(request, counts, lambda: not over))
    await asyncio.sleep(WARM)
    warm, start = len(counts.whole), time.perf_counter()
    await asyncio.sleep(options.seconds)
    took, done = time.perf_counter() - start, counts.whole[warm:] or [0.0]
    over = True
    total = len(counts.whole)
    return {"rate": len(done) / took, "p50": statistics.median(done), "total": total, "errors": counts.errors}


async def _stream(options: argparse.Namespace) -> dict[str, float]:
    counts, over = Counts(), False
    request = _request(options.port, body_of(options.size, stream=True))
    for _ in range(options.count):
        await _open(options.port, lambda: Caller(request, counts, lambda: not over))
        await asyncio.sleep(EVENTS * PACE / options.count)  # spread over a stream's length, so their ends are too
    await asyncio.sleep(WARM)
    counts.first.clear()
    cpu, events, start = cpu_of(options.watch), counts.events, time.perf_counter()
    await asyncio.sleep(options.seconds)
    took, events, cpu = time.perf_counter() - start, counts.events - events, cpu_of(options.watch) - cpu
    over = True
    first = sorted(counts.first) or [0.0]
    return {
        "rate": events / took,
        "cpu": cpu / max(events, 1),
        "first": statistics.median(first),
        "first99": first[len(first) * 99 // 100],
        "errors": counts.errors,
    }


async def _hold(options: argparse.Namespace) -> None:
    counts = Counts()
    request = _request(options.port, body_of(options.size, stream=True, user="hold"))
    left = iter(range(options.count))
    callers: list[Caller] = []

    async def some() -> None:
        for _ in left:
            caller = await _open(options.port, lambda: Caller(request, counts, lambda: False))
            if caller is not None and await caller.opened:
                callers.append(caller)

    loop = asyncio.get_running_loop()
    start = time.perf_counter()
    await asyncio.wait([loop.create_task(some()) for _ in range(AT_ONCE)], timeout=PATIENCE)
    print(json.dumps({"open": len(callers), "seconds": time.perf_counter() - start}), flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    for caller in callers:
        caller.abort()


def _main() -> None:
    parser = argparse.ArgumentParser(prog="tests.bench.gateway_load")
    parser.add_argument("kind", choices=["json", "stream", "hold"])
    parser.add_argument("port", type=int)
    parser.add_argument("--count", type=int, default=1, help="connections")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--size", type=int, default=800, help="characters of the prompt")
    parser.add_argument("--watch", type=int, nargs="*", default=[], help="processes whose CPU counts")
    options = parser.parse_args()
    if options.kind == "hold":
        uvloop.run(_hold(options))
    else:
        print(json.dumps(uvloop.run(_json(options) if options.kind == "json" else _stream(options))))


if __name__ == "__main__":
    _main()
