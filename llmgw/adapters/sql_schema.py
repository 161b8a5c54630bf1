"""The store's schema: made and brought up to date by itself, by Alembic, before anything else uses the store.

A migration is a file in `migrations/versions`, `NNNN_what.py`, whose `revision` is its number and `down_revision` the one
before. Adding the file is all: the newest number is the schema that this llmgw knows. Tables are defined for queries where
they are used; a test compares those definitions with what the migrations make.

Two servers that start at once take turns: PostgreSQL by an advisory lock, SQLite by its write lock; both run all of it in
one transaction, so a migration that fails, or whose process is killed, has changed nothing. A store that is up to date is
only read, so that one that cannot be written can still be looked at. Migrations add; what an older llmgw reads beside a
newer one keeps its meaning, and one that cannot, as told by the number in `llmgw_schema`, refuses to start.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from llmgw.ports.sinks import StoreUnavailable

MIGRATIONS = Path(__file__).parent / "migrations"
NEWEST = max(int(path.name[:4]) for path in (MIGRATIONS / "versions").glob("[0-9]*.py"))
"""The schema that this llmgw knows."""
_LOCK = 0x6C6C6D6777
"""Of the advisory lock: `llmgw`."""

_meta = sa.MetaData()
_schema = sa.Table("llmgw_schema", _meta, sa.Column("version", sa.Integer, nullable=False))


def bring_up_to_date(engine: sa.Engine) -> None:
    """Make the schema, migrate it, or find that it is the newest. Raises StoreUnavailable for a newer one."""
    with engine.connect() as connection:
        if _version(connection) == NEWEST:
            return
    with _alone(engine) as connection:
        if _version(connection) != NEWEST:
            _upgrade(connection)
            _schema.create(connection, checkfirst=True)
            connection.execute(sa.delete(_schema))
            connection.execute(sa.insert(_schema).values(version=NEWEST))


def _version(connection: sa.Connection) -> int:
    """Return the number of the store's schema; 0 if it has none. Raises StoreUnavailable if it is newer than ours."""
    if not sa.inspect(connection).has_table(_schema.name):
        return 0
    version = connection.execute(sa.select(_schema.c.version)).scalar() or 0
    if version > NEWEST:
        raise StoreUnavailable(
            f"the store has schema {version}, this llmgw knows {NEWEST}; upgrade llmgw, or use another store"
        )
    return version


@contextmanager
def _alone(engine: sa.Engine) -> Iterator[sa.Connection]:
    """Give a transaction that no other process that migrates runs beside."""
    with engine.connect() as connection:
        connection.detach()  # closed in the end, however it ends, and not used again: it is not as the others are
        if engine.dialect.name == "sqlite":
            # Python's driver begins no transaction before DDL by itself, and so would let half a migration stand
            driver: Any = connection.connection.dbapi_connection
            driver.isolation_level = None
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        else:
            connection.exec_driver_sql("SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = 0")
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
        yield connection
        connection.commit()


def _upgrade(connection: sa.Connection) -> None:
    from alembic import command  # noqa: PLC0415 - a fifth of a second, which a store that is up to date does not need
    from alembic.config import Config  # noqa: PLC0415

    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    command.upgrade(config, "head")
