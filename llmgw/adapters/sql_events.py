"""The table of events. Part of `sql_store`, in whose thread all of it is written and read.

Events are handed over without waiting and written in batches. While the store is away the newest `WAITING` of them wait
for it, with what was dropped counted; the renewals of the lease find out when it is back.
"""

import logging
import threading
from collections import deque

import sqlalchemy as sa

from llmgw.adapters.sql_thread import SqlThread, one_line
from llmgw.base.time import Instant
from llmgw.ports.sinks import Event

log = logging.getLogger(__name__)

KEPT_EVENTS = 10_000
WAITING = 2_000
"""Most events that wait for a store that is away."""

meta = sa.MetaData()
_events = sa.Table(
    "events",
    meta,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("at", sa.Double, nullable=False),
    sa.Column("kind", sa.String(64), nullable=False),
    sa.Column("subject", sa.Text, nullable=False),
    sa.Column("text", sa.Text, nullable=False),
    sa.Column("cause", sa.Text, nullable=False),
)


class SqlEvents:
    """An `EventSink` and an `EventSource`."""

    def __init__(self, thread: SqlThread) -> None:
        self._thread = thread
        self._lock = threading.Lock()
        self._waiting: deque[Event] = deque()
        self._dropped = 0
        self._recorded = 0
        self._due = False
        self._failing = False

    def record(self, event: Event) -> None:
        """Take an event; it is written soon. Never blocks, never raises."""
        with self._lock:
            self._waiting.append(event)
            if len(self._waiting) > WAITING:
                self._waiting.popleft()
                self._dropped += 1
        self.flush()

    @property
    def waiting(self) -> int:
        """How many events are not written yet."""
        return len(self._waiting)

    def flush(self) -> None:
        """Have what waits written soon, if anything does."""
        with self._lock:
            if not self._waiting or self._due:
                return
            self._due = True
        try:
            self._thread.submit(self._write)
        except RuntimeError:  # the store is closed
            log.warning("an event could not be kept: the store is closed")

    async def events(self, limit: int, since: Instant | None = None, subject: str = "") -> list[Event]:
        """Return the newest events, newest first. Raises StoreUnavailable."""

        def read() -> list[Event]:
            query = sa.select(_events).order_by(_events.c.id.desc()).limit(limit)
            if since is not None:
                query = query.where(_events.c.at >= since)
            if subject:
                query = query.where(_of_subject(subject))
            with self._thread.engine.connect() as connection:
                rows = connection.execute(query).all()
            return [Event(Instant(row.at), row.kind, row.subject, row.text, row.cause) for row in rows]

        return await self._thread.run(read)

    def _write(self) -> None:
        with self._lock:
            self._due = False
            batch, dropped = list(self._waiting), self._dropped
        if not batch:
            return
        rows = [
            {"at": one.at, "kind": one.kind[:64], "subject": one.subject, "text": one.text, "cause": one.cause}
            for one in batch
        ]
        try:
            with self._thread.engine.begin() as connection:
                connection.execute(sa.insert(_events), rows)
                self._recorded += len(rows)
                if self._recorded >= KEPT_EVENTS // 10 or self._recorded == len(rows):
                    self._recorded = 1
                    newest = sa.select(sa.func.max(_events.c.id)).scalar_subquery()
                    connection.execute(sa.delete(_events).where(_events.c.id <= newest - KEPT_EVENTS))
        except Exception as error:  # noqa: BLE001 - whatever it is, serving does not depend on it; it is logged and tried again
            if not self._failing:
                log.warning("events cannot be kept now: %s", one_line(error))
            self._failing = True
            return
        self._failing = False
        with self._lock:
            written = set(map(id, batch))
            while self._waiting and id(self._waiting[0]) in written:
                self._waiting.popleft()
            self._dropped -= dropped
        if dropped:
            log.error("events were dropped while the store was away", extra={"dropped": dropped})


def _of_subject(subject: str) -> sa.ColumnElement[bool]:
    """Select the events of a subject; those of a model are also its replicas', which are named `MODEL-EPOCH-N`."""
    kind, _, name = subject.partition("/")
    if kind != "model":
        return _events.c.subject == subject
    column = _events.c.subject
    dashes = sa.func.length(column) - sa.func.length(sa.func.replace(column, "-", ""))
    of_its_own = sa.and_(column.startswith(f"replica/{name}-", autoescape=True), dashes == name.count("-") + 2)
    return sa.or_(column == subject, of_its_own)
