"""The table of events. Part of `sql_store`, in whose thread all of it is written and read."""

import sqlalchemy as sa

from llmgw.adapters.sql_backlog import Backlog
from llmgw.adapters.sql_thread import Run, SqlThread
from llmgw.base.time import Instant
from llmgw.ports.sinks import Event

KEPT_EVENTS = 10_000
KEPT_STARTS = 100_000
"""Starts and publications are kept among so many of the newest: a model's last cold start is told by them."""
LASTING = ("start", "publish")

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

    def __init__(self, thread: SqlThread, run: Run) -> None:
        self._thread = thread
        self._run = run
        self._backlog: Backlog[Event] = Backlog(thread, "an event", self._write)
        self._recorded = 0

    def record(self, event: Event) -> None:
        """Take an event; it is written soon. Never blocks, never raises."""
        self._backlog.put(event)

    @property
    def waiting(self) -> int:
        """How many events are not written yet."""
        return len(self._backlog)

    def flush(self) -> None:
        """Have what waits written soon, if anything does."""
        self._backlog.flush()

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

        return await self._run(read)

    def _write(self, connection: sa.Connection, batch: list[Event]) -> None:
        rows = [
            {"at": one.at, "kind": one.kind[:64], "subject": one.subject, "text": one.text, "cause": one.cause}
            for one in batch
        ]
        connection.execute(sa.insert(_events), rows)
        self._recorded += len(rows)
        if self._recorded >= KEPT_EVENTS // 10 or self._recorded == len(rows):
            self._recorded = 1
            newest = sa.select(sa.func.max(_events.c.id)).scalar_subquery()
            old, lasting = _events.c.id <= newest - KEPT_EVENTS, _events.c.kind.in_(LASTING)
            connection.execute(sa.delete(_events).where(old, ~lasting))
            connection.execute(sa.delete(_events).where(_events.c.id <= newest - KEPT_STARTS))


def _of_subject(subject: str) -> sa.ColumnElement[bool]:
    """Select the events of a subject; those of a model are also its replicas', which are named `MODEL-EPOCH-N`."""
    kind, _, name = subject.partition("/")
    if kind != "model":
        return _events.c.subject == subject
    column = _events.c.subject
    dashes = sa.func.length(column) - sa.func.length(sa.func.replace(column, "-", ""))
    of_its_own = sa.and_(column.startswith(f"replica/{name}-", autoescape=True), dashes == name.count("-") + 2)
    return sa.or_(column == subject, of_its_own)
