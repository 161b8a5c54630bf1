"""`AccessLog`: a line of JSON for every request that is over; no bodies, no keys.

The event loop makes the line and puts it into a queue; a thread writes. If the file cannot take lines, or not as fast as they
come, lines are dropped and their number is said in the next one that is written: no request ever waits for a log.
"""

import logging
import os
import sys
import threading
from collections import deque
from pathlib import Path

import orjson

from llmgw.base.time import Clock
from llmgw.gateway.heads import Incoming
from llmgw.gateway.outcome import Outcome
from llmgw.routing.request import RequestShape

log = logging.getLogger(__name__)

MOST = 20_000
"""Lines that wait for the thread, at most."""


class AccessLog:
    """One file, or standard output for `-`. `record` from the event loop; `close` when it is over."""

    def __init__(self, path: str, clock: Clock) -> None:
        """Raises OSError if the file cannot be opened."""
        self._file = (
            sys.stdout.fileno() if path == "-" else os.open(Path(path), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640)
        )
        self._clock = clock
        self._lines: deque[bytes] = deque()
        self._there = threading.Event()
        self._over = False
        self._dropped = 0
        """Lines that were not written and not told of; the event loop's alone."""
        self._lost: deque[int] = deque()
        """What the thread could not write, for the event loop to add up."""
        self._cut = False
        self._failing = False
        self._thread = threading.Thread(target=self._write_all, name="access-log", daemon=True)
        self._thread.start()

    def record(self, shape: RequestShape, request: Incoming, endpoint: str, outcome: Outcome) -> None:
        """Have a line written."""
        while self._lost:
            self._dropped += self._lost.popleft()
        if len(self._lines) >= MOST:
            self._dropped += 1
            return
        tokens = outcome.tokens
        line: dict[str, object] = {
            "time": round(self._clock.now(), 3),
            "request_id": request.request_id.decode(),
            "method": request.method.decode("ascii", "replace"),
            "route": shape.route,
            "model": shape.model[:200],
            "stream": shape.stream,
            "endpoint": endpoint or None,
            "tenant": request.caller.tenant or None,
            "key": request.caller.key or None,
            "status": outcome.status,
            "reason": outcome.reason or None,
            "seconds": round(outcome.duration, 4),
            "first_byte": round(outcome.first, 4) if outcome.first is not None else None,
            "retries": outcome.retries,
            "prompt_tokens": tokens.prompt if tokens is not None else None,
            "completion_tokens": tokens.completion if tokens is not None else None,
        }
        if self._dropped:
            line["dropped_before"], self._dropped = self._dropped, 0
        self._lines.append(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
        self._there.set()

    def close(self) -> None:
        """Write what waits, and end the thread."""
        self._over = True
        self._there.set()
        self._thread.join(timeout=2.0)

    def _write_all(self) -> None:
        while True:
            self._there.wait()
            self._there.clear()
            while self._lines:
                batch: list[bytes] = []
                while self._lines and len(batch) < 500:
                    batch.append(self._lines.popleft())
                self._write(b"".join(batch))
            if self._over and not self._lines:
                return

    def _write(self, data: bytes) -> None:
        if self._cut:
            data = b"\n" + data  # the line before was not written to its end
        try:
            while data:
                data = data[os.write(self._file, data) :]
                self._cut = bool(data)
            self._failing = False
        except OSError as error:
            self._lost.append(data.count(b"\n"))
            if not self._failing:
                self._failing = True
                log.warning("the access log cannot be written: %s", error.strerror)
