"""The tables of keys. Part of `sql_store`, in whose thread all of it runs."""

from collections.abc import Mapping

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from llmgw.adapters.sql_thread import Run, inserting
from llmgw.base.time import Instant
from llmgw.ports.keys import SCOPES, KeptKeys, Key, Scope

meta = sa.MetaData()
_keys = sa.Table(
    "keys",
    meta,
    sa.Column("id", sa.String(32), primary_key=True),
    sa.Column("tenant", sa.String(64), nullable=False),
    sa.Column("scope", sa.String(16), nullable=True),
    sa.Column("note", sa.Text, nullable=False),
    sa.Column("hash", sa.String(64), nullable=False),
    sa.Column("created", sa.Double, nullable=False),
    sa.Column("by", sa.Text, nullable=False),
    sa.Column("expires", sa.Double, nullable=True),
    sa.Column("revoked", sa.Double, nullable=True),
    sa.Column("last_used", sa.Double, nullable=True),
)
_version = sa.Table(
    "keys_version",
    meta,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("version", sa.BigInteger, nullable=False),
)


class _Undone(Exception):
    """Takes a transaction back."""


class SqlKeys:
    """A `KeyKeeper`."""

    def __init__(self, engine: sa.Engine, run: Run) -> None:
        self._engine = engine
        self._run = run

    async def version(self) -> int:
        """Return the present version."""

        def read() -> int:
            with self._engine.connect() as connection:
                return int(connection.execute(sa.select(_version.c.version)).scalar() or 0)

        return await self._run(read)

    async def keys(self) -> KeptKeys:
        """Return all of them. The version is read first: a write in between is read again then, and never missed."""

        def read() -> KeptKeys:
            order = (_keys.c.tenant, _keys.c.created, _keys.c.id)
            with self._engine.connect() as connection:
                version = int(connection.execute(sa.select(_version.c.version)).scalar() or 0)
                rows = connection.execute(sa.select(_keys).order_by(*order)).all()
            return KeptKeys(version, tuple(_key(row) for row in rows))

        return await self._run(read)

    async def add(self, key: Key, old: str = "", old_expires: Instant | None = None) -> bool:
        """Keep a new key, and have an old one expire."""

        def write() -> bool:
            try:
                with self._engine.begin() as connection:
                    if old:
                        _shorten(connection, old, old_expires)
                    connection.execute(sa.insert(_keys).values(_row(key)))
                    _grow(connection)
            except (IntegrityError, _Undone):
                return False
            return True

        return await self._run(write)

    async def revoke(self, key: str, now: Instant) -> bool:
        """Revoke a key."""

        def write() -> bool:
            with self._engine.begin() as connection:
                there = sa.and_(_keys.c.id == key, _keys.c.revoked.is_(None))
                done = connection.execute(sa.update(_keys).where(there).values(revoked=now))
                if done.rowcount:
                    _grow(connection)
                return bool(done.rowcount)

        return await self._run(write)

    async def note_used(self, used: Mapping[str, Instant]) -> None:
        """Keep when keys were used."""
        rows = [{"key": key, "at": at} for key, at in sorted(used.items())]

        def write() -> None:
            at = sa.bindparam("at", type_=sa.Double)
            later = sa.or_(_keys.c.last_used.is_(None), _keys.c.last_used < at)
            statement = sa.update(_keys).where(_keys.c.id == sa.bindparam("key"), later).values(last_used=at)
            if rows:
                with self._engine.begin() as connection:
                    connection.execute(statement, rows)

        await self._run(write)

    async def forget(self, before: Instant) -> None:
        """Drop what is over for long."""

        def write() -> None:
            with self._engine.begin() as connection:
                done = connection.execute(
                    sa.delete(_keys).where(sa.or_(_keys.c.revoked < before, _keys.c.expires < before))
                )
                if done.rowcount:
                    _grow(connection)

        await self._run(write)


def _shorten(connection: sa.Connection, key: str, expires: Instant | None) -> None:
    """Have a key expire then, if not earlier. Raises _Undone if it is not there or revoked."""
    later = sa.or_(_keys.c.expires.is_(None), _keys.c.expires > expires)
    sooner = sa.case((later, expires), else_=_keys.c.expires)
    there = sa.and_(_keys.c.id == key, _keys.c.revoked.is_(None))
    if not connection.execute(sa.update(_keys).where(there).values(expires=sooner)).rowcount:
        raise _Undone


def _grow(connection: sa.Connection) -> None:
    """Let the version grow, in the transaction of what it tells of."""
    insert = inserting(connection, _version)
    grown = {"version": _version.c.version + 1}
    connection.execute(insert.values(id=1, version=1).on_conflict_do_update(index_elements=["id"], set_=grown))


def _row(key: Key) -> dict[str, object]:
    return {column.name: getattr(key, column.name) for column in _keys.columns}


def _key(row: sa.Row[tuple[object, ...]]) -> Key:
    return Key(
        row.id, row.tenant, _scope(row.scope), row.note, row.hash, Instant(row.created), row.by,
        row.expires, row.revoked, row.last_used,
    )  # fmt: skip


def _scope(text: str | None) -> Scope | None:
    """Return the scope; one that this version does not know is the least of all."""
    return None if text is None else next((one for one in SCOPES if one == text), "read")
