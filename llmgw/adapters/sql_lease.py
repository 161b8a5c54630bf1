"""The lease row. Part of `sql_store`, but with a thread and connections of its own: renewing waits for no other work.

Taking and renewing are one statement, so they cannot disagree and two processes racing cannot both win. The owner of a
lease that nobody holds is empty. Expiry is by the database's clock.
"""

import sqlalchemy as sa

from llmgw.adapters.sql_thread import LIMIT, SqlThread, inserting
from llmgw.base.ids import Epoch, OwnerId
from llmgw.ports.sinks import Lease

meta = sa.MetaData()
lease_table = sa.Table(
    "lease",
    meta,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("owner", sa.String(64), nullable=False),
    sa.Column("epoch", sa.BigInteger, nullable=False),
    sa.Column("expires", sa.Double, nullable=False),
)
_lease = lease_table


def stores_now(engine: sa.Engine) -> sa.ColumnElement[float]:
    """The store's own clock, in Unix seconds. SQLite before 3.42 has no unixepoch('subsec'), hence julian days."""
    if engine.dialect.name == "sqlite":
        return (sa.func.julianday("now", type_=sa.Double) - 2440587.5) * 86400.0
    return sa.cast(sa.extract("epoch", sa.func.clock_timestamp()), sa.Double)


class SqlLease:
    """A `LeaseKeeper`."""

    def __init__(self, thread: SqlThread) -> None:
        self._thread = thread
        self._engine = thread.engine

    async def take(self, owner: OwnerId, seconds: float, at_least: Epoch) -> Lease:
        """Take or renew the lease in one statement. An answer that comes later than half the lease is none."""
        return await self._thread.run(lambda: self._take(owner, seconds, at_least), min(LIMIT, max(0.5, seconds / 2)))

    async def release(self, owner: OwnerId) -> None:
        """Give the lease to nobody, if it is this owner's; whoever takes it next begins a new epoch."""
        await self._thread.run(lambda: self._free(_lease.c.owner == owner))

    async def release_epoch(self, epoch: Epoch) -> bool:
        """Take the lease of this epoch away from whoever has it."""
        return await self._thread.run(lambda: self._free(sa.and_(_lease.c.epoch == epoch, _lease.c.owner != "")))

    async def end(self) -> None:
        """Let the lease run out now, whoever has it."""

        def end() -> None:
            with self._engine.begin() as connection:
                connection.execute(sa.update(_lease).values(expires=0.0))

        await self._thread.run(end)

    def _free(self, held: sa.ColumnElement[bool]) -> bool:
        freed = sa.update(_lease).where(held).values(owner="", expires=0.0).returning(_lease.c.id)
        with self._engine.begin() as connection:
            return connection.execute(freed).first() is not None

    def _take(self, owner: OwnerId, seconds: float, at_least: Epoch) -> Lease:
        now = stores_now(self._engine)
        kept = sa.and_(_lease.c.owner == owner, _lease.c.epoch >= at_least)
        grown = sa.case((_lease.c.epoch + 1 >= at_least, _lease.c.epoch + 1), else_=at_least)
        statement = (
            inserting(self._engine, _lease)
            .values(id=1, owner=owner, epoch=max(1, at_least), expires=now + seconds)
            .on_conflict_do_update(
                index_elements=[_lease.c.id],
                set_={
                    "owner": owner,
                    "epoch": sa.case((kept, _lease.c.epoch), else_=grown),
                    "expires": now + seconds,
                },
                where=sa.or_(_lease.c.owner == owner, _lease.c.expires <= now),
            )
            .returning(_lease.c.owner, _lease.c.epoch)
        )
        with self._engine.begin() as connection:
            row = connection.execute(statement).first()
            if row is None:
                row = connection.execute(sa.select(_lease.c.owner, _lease.c.epoch)).one()
        return Lease(OwnerId(row.owner), Epoch(row.epoch), mine=row.owner == owner)
