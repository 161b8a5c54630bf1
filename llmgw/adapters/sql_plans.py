"""The table of used plans. Part of `sql_store`, in whose thread all of it runs."""

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from llmgw.adapters.sql_thread import Run
from llmgw.base.time import Instant

meta = sa.MetaData()
_used = sa.Table(
    "used_plans",
    meta,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("at", sa.Double, nullable=False),
    sa.Column("expires", sa.Double, nullable=False),
)


class SqlPlans:
    """A `PlanKeeper`."""

    def __init__(self, engine: sa.Engine, run: Run) -> None:
        self._engine = engine
        self._run = run

    async def use_plan(self, plan: str, now: Instant, expires: Instant) -> bool:
        """Take a plan for used, by the primary key: of two at once, one finds it there."""

        def write() -> bool:
            try:
                with self._engine.begin() as connection:
                    connection.execute(sa.delete(_used).where(_used.c.expires < now, _used.c.id != plan))
                    connection.execute(sa.insert(_used).values(id=plan, at=now, expires=expires))
            except IntegrityError:
                return False
            return True

        return await self._run(write)

    async def used_plans(self) -> frozenset[str]:
        """Return the ids of used plans."""

        def read() -> frozenset[str]:
            with self._engine.connect() as connection:
                return frozenset(connection.execute(sa.select(_used.c.id)).scalars())

        return await self._run(read)
