"""The table of the audit trail. Part of `sql_store`, in whose thread all of it runs."""

from collections.abc import Callable

import sqlalchemy as sa

from llmgw.adapters.sql_thread import Run
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
    """An `AuditKeeper`. `soon` has work done in the store's thread, and logs as what it could not be kept."""

    def __init__(self, engine: sa.Engine, run: Run, soon: Callable[[Callable[[], None], str], None]) -> None:
        self._engine = engine
        self._run = run
        self._soon = soon

    def record(self, entry: Entry) -> None:
        """Take a line."""

        def write() -> None:
            with self._engine.begin() as connection:
                connection.execute(sa.insert(_audit).values(_row(entry)))

        self._soon(write, f"a line of the audit trail ({entry})")

    async def entries(self, limit: int, since: Instant | None = None) -> list[Entry]:
        """Return the newest."""

        def read() -> list[Entry]:
            query = sa.select(*(column for column in _audit.columns if column.name != "id"))
            query = query.order_by(_audit.c.id.desc()).limit(limit)
            if since is not None:
                query = query.where(_audit.c.at >= since)
            with self._engine.connect() as connection:
                return [Entry(**row) for row in connection.execute(query).mappings()]

        return await self._run(read)

    async def forget(self, before: Instant) -> None:
        """Drop what is older."""

        def write() -> None:
            with self._engine.begin() as connection:
                connection.execute(sa.delete(_audit).where(_audit.c.at < before))

        await self._run(write)


def _row(entry: Entry) -> dict[str, object]:
    return {column.name: getattr(entry, column.name) for column in _audit.columns if column.name != "id"}
