"""A database and the one thread that speaks to it: what everything of `sql_store` runs in.

The event loop never waits for a disk or a network, and no await happens inside a transaction. A database that does not
answer keeps nothing waiting either: PostgreSQL is asked with limits of its own, and a connection that hangs for all that (a
server that is stopped, a network that swallows everything) is cut from outside, so that the thread comes free.
"""

import asyncio
import contextlib
import os
import socket
import sqlite3
import time
import weakref
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

import psycopg
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.dialects import sqlite as sqlite_dialect
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from llmgw.ports.sinks import StoreUnavailable

BUSY = 5.0
"""Seconds in which another process may let go of a SQLite file."""
LOOK_AGAIN = 0.01
LIMIT = 10.0
"""Seconds for one piece of work, waiting for its turn included."""
CONNECT = {
    "connect_timeout": 5,
    "tcp_user_timeout": 8000,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "application_name": "llmgw",
}
"""Of libpq: seconds, and milliseconds for the second."""
SETTINGS = "SET statement_timeout = '8s'; SET lock_timeout = '5s'; SET idle_in_transaction_session_timeout = '30s'"
HINTS = {
    "readonly": "it is read-only: name the one that can be written with --store",
    "read-only": "it is a read-only replica: name the primary with --store",
    "not a database": "the file is damaged: move it away, and a new one is made",
    "malformed": "the file is damaged: move it away, and a new one is made",
    "disk is full": "make room where it lies",
    "No space left": "make room where it lies",
    "password": "the user or the password in --store is wrong",
}
LASTING = (
    "password",
    "authentication",
    "role ",
    'database "',
    "pg_hba",
    "not a database",
    "malformed",
    "unable to open",
)
"""Words of errors at a start that do not pass by themselves."""
T = TypeVar("T")


class Run(Protocol):
    """Does a piece of work in the store's thread. Raises StoreUnavailable."""

    def __call__(self, work: Callable[[], T]) -> Awaitable[T]:
        """Return what the work returns."""
        ...


class SqlThread:
    """One thread, one pool of connections. `close` it last."""

    def __init__(self, url: str, name: str) -> None:
        """Raises StoreUnavailable for a URL that will not do."""
        self.engine = _engine(url)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._connections: weakref.WeakSet[Any] = weakref.WeakSet()
        sqlite_ = self.engine.dialect.name == "sqlite"
        sa.event.listen(self.engine, "connect", _configure_sqlite if sqlite_ else self._configure_postgresql)

    async def run(self, work: Callable[[], T], limit: float = LIMIT) -> T:
        """Do a piece of work. Raises StoreUnavailable."""
        try:
            async with asyncio.timeout(limit):
                return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except TimeoutError as error:
            self._cut()
            raise StoreUnavailable(f"it did not answer within {limit:.3g} s") from error
        except (SQLAlchemyError, sqlite3.Error, psycopg.Error, OverflowError) as error:
            raise StoreUnavailable(one_line(error)) from error

    def submit(self, work: Callable[[], None]) -> "Future[None]":
        """Have a piece of work done later."""
        return self._thread.submit(work)

    async def close(self) -> None:
        """Do what is still to be done, for a limited time, and close."""
        closing = asyncio.get_running_loop().run_in_executor(None, self._thread.shutdown)
        try:
            async with asyncio.timeout(LIMIT):
                await asyncio.shield(closing)
        except TimeoutError:
            self._cut()
            self._thread.shutdown(wait=False, cancel_futures=True)
        self.engine.dispose()

    def _cut(self) -> None:
        """End the connections to a server that does not answer: whoever waits for it in the thread gets an error."""
        for connection in list(self._connections):
            with contextlib.suppress(psycopg.Error, OSError), socket.socket(fileno=os.dup(connection.fileno())) as raw:
                raw.shutdown(socket.SHUT_RDWR)

    def _configure_postgresql(self, connection: Any, _: object) -> None:
        self._connections.add(connection)
        connection.execute(SETTINGS)
        connection.commit()


def inserting(where: sa.Engine | sa.Connection, table: sa.Table) -> Any:
    """Return an insert that can say what to do on a conflict."""
    return (sqlite_dialect if where.dialect.name == "sqlite" else postgresql).insert(table)


def one_line(error: Exception) -> str:
    """Return an error of the database in one line, with what to do where that is known."""
    cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    text = (str(cause).strip().splitlines() or [type(cause).__name__])[0]
    hint = next((hint for word, hint in HINTS.items() if word in text), "")
    return f"{text}; {hint}" if hint else text


def is_passing(error: StoreUnavailable) -> bool:
    """Whether what keeps the store from being used may pass by itself: it does not answer, or not yet."""
    return not any(word in str(error) for word in LASTING)


def _engine(url: str) -> sa.Engine:
    """Return the engine of a URL. Raises StoreUnavailable for one that will not do."""
    scheme, _, rest = url.partition("://")
    if scheme == "postgresql":
        scheme = "postgresql+psycopg"
    if scheme not in ("sqlite", "postgresql+psycopg"):
        raise StoreUnavailable(f"a store is sqlite:///FILE or postgresql://USER@HOST/DATABASE, not {scheme}://")
    try:
        if scheme == "sqlite":
            return sa.create_engine(f"{scheme}://{rest}")
        return sa.create_engine(f"{scheme}://{rest}", pool_pre_ping=True, connect_args=CONNECT)
    except (SQLAlchemyError, ValueError):
        # without the cause, which repeats what it could not read: that may be a part of the password
        raise StoreUnavailable(
            "its URL cannot be read; it is postgresql://USER:PASSWORD@HOST:PORT/DATABASE, where `@`, `:`, `/` and `%` in a "
            "password are written %40, %3A, %2F and %25"
        ) from None


def _use_wal(cursor: sqlite3.Cursor) -> None:
    """Have a file use a write-ahead log. Two that begin that at once are in each other's way, and no busy timeout helps."""
    left = round(BUSY / LOOK_AGAIN)
    while cursor.execute("PRAGMA journal_mode").fetchone() != ("wal",):
        try:
            cursor.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or not left:
                raise
            left -= 1
            time.sleep(LOOK_AGAIN)
        else:
            return  # or it cannot have one, as a database in memory


def _configure_sqlite(connection: Any, _: object) -> None:
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout={BUSY * 1000:.0f}")
    _use_wal(cursor)
    cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.close()
