"""Rows that are handed over without waiting and written in batches. Part of `sql_store`, in whose thread they are written.

While the store is away the newest `WAITING` of each kind wait for it, with what was dropped counted; the renewals of the
lease find out when it is back.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

import sqlalchemy as sa

from llmgw.adapters.sql_thread import SqlThread, one_line

log = logging.getLogger(__name__)

WAITING = 2_000
"""Most rows that wait for a store that is away."""
T = TypeVar("T")


class Backlog(Generic[T]):
    """What waits to be written. `what` names it in the log; `write` writes a batch in a transaction."""

    def __init__(self, thread: SqlThread, what: str, write: Callable[[sa.Connection, list[T]], None]) -> None:
        self._thread = thread
        self._what = what
        self._rows = write
        self._lock = threading.Lock()
        self._waiting: deque[T] = deque()
        self._dropped = 0
        self._due = False
        self._failing = False

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, row: T) -> None:
        """Take a row; it is written soon. Never blocks, never raises."""
        with self._lock:
            self._waiting.append(row)
            if len(self._waiting) > WAITING:
                self._waiting.popleft()
                self._dropped += 1
        self.flush()

    def flush(self) -> None:
        """Have what waits written soon, if anything does."""
        with self._lock:
            if not self._waiting or self._due:
                return
            self._due = True
        try:
            self._thread.submit(self._write)
        except RuntimeError:  # the store is closed
            log.warning("%s could not be kept: the store is closed", self._what)

    def _write(self) -> None:
        with self._lock:
            self._due = False
            batch, dropped = list(self._waiting), self._dropped
        if not batch:
            return
        try:
            with self._thread.engine.begin() as connection:
                self._rows(connection, batch)
        except Exception as error:  # noqa: BLE001 - whatever it is, serving does not depend on it; it is logged and tried again
            if not self._failing:
                log.warning("%s cannot be kept now: %s", self._what, one_line(error))
            self._failing = True
            return
        self._failing = False
        with self._lock:
            written = set(map(id, batch))
            while self._waiting and id(self._waiting[0]) in written:
                self._waiting.popleft()
            self._dropped -= dropped
        if dropped:
            log.error("%s were dropped while the store was away", self._what, extra={"dropped": dropped})
