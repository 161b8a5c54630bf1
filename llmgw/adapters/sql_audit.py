"""The table of the audit trail. Part of `sql_store`, in whose thread all of it runs."""

import sqlalchemy as sa

from llmgw.adapters.sql_backlog import Backlog
from llmgw.adapters.sql_thread import Run, SqlThread
from llmgw.base.time import Instant
from llmgw.ports.audit import Entry

meta = sa.MetaData()
_audit = sa.Table(
    "audit",
    meta,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("at", sa.Double, nullable=False, index=True),
    sa.Column("who", sa.Text, nullable=False),
    sa.Column("said", sa.Text, nullable=False),
    sa.Column("act", sa.String(64), nullable=False),
    sa.Column("subject", sa.Text, nullable=False),
    sa.Column("text", sa.Text, nullable=False),
    sa.Column("outcome", sa.Text, nullable=False),
    sa.Column("cause", sa.Text, nullable=False),
)


class SqlAudit:
    """An `AuditKeeper`."""

    def __init__(self, thread: SqlThread, run: Run) -> None:
        self._thread = thread
        self._run = run
        self._backlog: Backlog[Entry] = Backlog(thread, "a line of the audit trail", _write)

    def record(self, entry: Entry) -> None:
        """Take a line; it is written soon. Never blocks, never raises."""
        self._backlog.put(entry)

    def flush(self) -> None:
        """Have what waits written soon, if anything does."""
        self._backlog.flush()

    async def entries(self, limit: int, since: Instant | None = None) -> list[Entry]:
        """Return the newest."""

        def read() -> list[Entry]:
            query = sa.select(*(column for column in _audit.columns if column.name != "id"))
            query = query.order_by(_audit.c.id.desc()).limit(limit)
            if since is not None:
                query = query.where(_audit.c.at >= since)
            with self._thread.engine.connect() as connection:
                return [Entry(**row) for row in connection.execute(query).mappings()]

        return await self._run(read)

    async def forget(self, before: Instant) -> None:
        """Drop what is older."""

        def write() -> None:
            with self._thread.engine.begin() as connection:
                connection.execute(sa.delete(_audit).where(_audit.c.at < before))

        await self._run(write)


def _write(connection: sa.Connection, batch: list[Entry]) -> None:
    connection.execute(sa.insert(_audit), [_row(entry) for entry in batch])


def _row(entry: Entry) -> dict[str, object]:
    return {column.name: getattr(entry, column.name) for column in _audit.columns if column.name != "id"}
