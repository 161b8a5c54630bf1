"""Rows that are handed over without waiting and written in batches. Part of `sql_store`, in whose thread they are written.

While the store is away the newest `WAITING` of each kind wait for it; the renewals of the lease find out when it is back. A row
that is given up, because more wait or because the store will never take it, is logged with all it says. One of the latter
holds nothing up: when a batch is refused for what is in it, its rows are written one by one.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import DataError

from llmgw.adapters.sql_thread import SqlThread, one_line

log = logging.getLogger(__name__)

WAITING = 2_000
"""Most rows that wait for a store that is away."""
UNFIT = (DataError, ValueError, OverflowError)
"""What is raised for a row that no store of the kind would take: a NUL, a text too long, a number too large."""
T = TypeVar("T")


class Backlog(Generic[T]):
    """What waits to be written. `what` names a row of it in the log; `write` writes a batch in a transaction."""

    def __init__(self, thread: SqlThread, what: str, write: Callable[[sa.Connection, list[T]], None]) -> None:
        self._thread = thread
        self._what = what
        self._rows = write
        self._lock = threading.Lock()
        self._waiting: deque[T] = deque()
        self._due = False
        self._failing = False

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, row: T) -> None:
        """Take a row; it is written soon. Never blocks, never raises."""
        with self._lock:
            self._waiting.append(row)
            dropped = self._waiting.popleft() if len(self._waiting) > WAITING else None
        if dropped is not None:
            self._give_up(dropped, f"{WAITING} newer ones wait for the store")
        self.flush()

    def flush(self) -> None:
        """Have what waits written soon, if anything does."""
        with self._lock:
            if not self._waiting or self._due:
                return
            self._due = True
        try:
            self._thread.submit(self._write)
        except RuntimeError:
            with self._lock:
                left = list(self._waiting)
                self._waiting.clear()
            for row in left:
                self._give_up(row, "the store is closed")

    def _write(self) -> None:
        with self._lock:
            self._due = False
            batch = list(self._waiting)
        if not batch:
            return
        try:
            self._in_one(batch)
        except UNFIT:
            for row in batch:
                try:
                    written = self._in_one([row])
                except UNFIT as error:
                    self._forget([row])
                    self._give_up(row, one_line(error))
                else:
                    if not written:
                        return

    def _in_one(self, rows: list[T]) -> bool:
        """Write some in one transaction; False if the store is away. Raises one of `UNFIT`."""
        try:
            with self._thread.engine.begin() as connection:
                self._rows(connection, rows)
        except UNFIT:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, serving does not depend on it; it is logged and tried again
            if not self._failing:
                log.warning("%s cannot be kept now: %s", self._what, one_line(error))
            self._failing = True
            return False
        self._failing = False
        self._forget(rows)
        return True

    def _forget(self, rows: list[T]) -> None:
        gone = set(map(id, rows))
        with self._lock:
            while self._waiting and id(self._waiting[0]) in gone:
                self._waiting.popleft()

    def _give_up(self, row: T, why: str) -> None:
        log.error("%s could not be kept: %s: %s", self._what, why, row)
