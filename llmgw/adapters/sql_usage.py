"""The tables of what requests cost. Part of `sql_store`, in whose thread all of it runs."""

from typing import Any

import sqlalchemy as sa

from llmgw.adapters.sql_thread import Run, inserting
from llmgw.base.time import Instant
from llmgw.fleet.spent import Spent, SpentBatch
from llmgw.ports.usage import By

SILENT = 31 * 86400.0
"""Seconds after which a source is taken for gone; it would have sent again what was not kept."""

meta = sa.MetaData()
_usage = sa.Table(
    "usage",
    meta,
    sa.Column("hour", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("tenant", sa.String(64), primary_key=True),
    sa.Column("key", sa.String(32), primary_key=True),
    sa.Column("model", sa.String(200), primary_key=True),
    *(
        sa.Column(name, sa.BigInteger, nullable=False)
        for name in ("requests", "failed", "prompt", "completion", "cached", "estimated")
    ),
)
_DAY = sa.literal_column("24", sa.Integer)
"""Not a parameter: PostgreSQL takes two of these for two expressions, and what is grouped by must be what is shown."""
_GROUPED: dict[By, tuple[str, ...]] = {
    "tenant": ("tenant",),
    "key": ("tenant", "key"),
    "model": ("model",),
    "hour": ("hour",),
    "day": ("hour",),
}
_sums = tuple(column for column in _usage.columns if not column.primary_key)
_sources = sa.Table(
    "usage_sources",
    meta,
    sa.Column("source", sa.String(64), primary_key=True),
    sa.Column("sequence", sa.BigInteger, nullable=False),
    sa.Column("at", sa.Double, nullable=False),
)


class SqlUsage:
    """A `UsageKeeper`."""

    def __init__(self, engine: sa.Engine, run: Run) -> None:
        self._engine = engine
        self._run = run

    async def keep(self, batch: SpentBatch, now: Instant) -> None:
        """Add a batch, in the transaction that notes its number: of two that write the same one, the second finds it there."""
        noted = inserting(self._engine, _sources).values(source=batch.source, sequence=batch.sequence, at=now)
        noted = noted.on_conflict_do_update(
            index_elements=[_sources.c.source],
            set_={"sequence": batch.sequence, "at": now},
            where=_sources.c.sequence < batch.sequence,
        )
        added = inserting(self._engine, _usage)
        added = added.on_conflict_do_update(
            index_elements=list(_usage.primary_key),
            set_={column.name: column + added.excluded[column.name] for column in _sums},
        )
        # in one order everywhere, so that two control planes that add to the same rows do not wait for each other in a circle
        rows = [_row(one) for one in sorted(batch.rows, key=lambda one: (one.hour, one.tenant, one.key, one.model))]

        def write() -> None:
            with self._engine.begin() as connection:
                fresh = connection.execute(noted.returning(_sources.c.sequence)).first()
                if fresh is not None and rows:
                    connection.execute(added, rows)

        await self._run(write)

    async def usage(self, by: By, since: int, until: int) -> tuple[Spent, ...]:
        """Return the sums."""
        groups: dict[By, list[sa.ColumnElement[Any]]] = {
            "tenant": [_usage.c.tenant],
            "key": [_usage.c.tenant, _usage.c.key],
            "model": [_usage.c.model],
            "hour": [_usage.c.hour],
            "day": [_usage.c.hour - _usage.c.hour % _DAY],
        }
        chosen = groups[by]
        sums = [sa.cast(sa.func.sum(column), sa.BigInteger).label(column.name) for column in _sums]
        query = (
            sa.select(*(one.label(f"by_{name}") for one, name in zip(chosen, _GROUPED[by], strict=True)), *sums)
            .where(_usage.c.hour >= since, _usage.c.hour < until)
            .group_by(*chosen)
            .order_by(*chosen)
        )

        def read() -> tuple[Spent, ...]:
            with self._engine.connect() as connection:
                rows = connection.execute(query).mappings().all()
            nothing = {"tenant": "", "key": "", "model": "", "hour": 0}
            return tuple(Spent(**{**nothing, **{name.removeprefix("by_"): row[name] for name in row}}) for row in rows)

        return await self._run(read)

    async def forget(self, hour: int, now: Instant) -> None:
        """Drop what is old."""

        def write() -> None:
            with self._engine.begin() as connection:
                connection.execute(sa.delete(_usage).where(_usage.c.hour < hour))
                connection.execute(sa.delete(_sources).where(_sources.c.at < now - SILENT))

        await self._run(write)


def _row(one: Spent) -> dict[str, object]:
    return {column.name: getattr(one, column.name) for column in _usage.columns}
