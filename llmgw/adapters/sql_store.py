"""What survives a restart, in SQLite (default) or PostgreSQL, with one set of queries.

That is: the lease, events, what operators asked for, the last good tree, the nodes that hold something.

One thread does all of it, so the event loop never waits for a disk, and no await happens inside a transaction. Events are
handed over without waiting; one that cannot be written is logged and dropped, since serving does not depend on it.
"""

import asyncio
import base64
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Literal, TypeVar

import sqlalchemy as sa
from pydantic import ValidationError
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from llmgw.adapters import sql_plans, sql_revisions, sql_schema
from llmgw.base.ids import Epoch, NodeName, OwnerId, Revision
from llmgw.base.time import Instant
from llmgw.catalog.source import SourceTree
from llmgw.plan.snapshot import Act
from llmgw.ports.memory import Kept
from llmgw.ports.sinks import Event, Lease, StoreUnavailable
from llmgw.spec.node import Node

log = logging.getLogger(__name__)

LIMIT = 10.0
"""Seconds for one piece of work, waiting for its turn included."""
KEPT_EVENTS = 10_000
T = TypeVar("T")

meta = sa.MetaData()
_lease = sa.Table(
    "lease",
    meta,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("owner", sa.String(64), nullable=False),
    sa.Column("epoch", sa.BigInteger, nullable=False),
    sa.Column("expires", sa.Double, nullable=False),
)
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
_trees = sa.Table(
    "trees",
    meta,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("revision", sa.Text, nullable=False),
    sa.Column("content", sa.Text, nullable=False),
)
_nodes = sa.Table(
    "nodes",
    meta,
    sa.Column("name", sa.String(64), primary_key=True),
    sa.Column("spec", sa.Text, nullable=False),
)

_acts = sa.Table(
    "acts",
    meta,
    sa.Column("target", sa.String(300), primary_key=True),
    sa.Column("kind", sa.String(16), nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("at", sa.Double, nullable=False),
    sa.Column("until", sa.Double, nullable=True),
    sa.Column("by", sa.Text, nullable=False),
)
_memory = sa.Table(
    "memory",
    meta,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("epoch", sa.BigInteger, nullable=False),
    sa.Column("content", sa.Text, nullable=False),
    sa.Column("at", sa.Double, nullable=False),
)
_KINDS: dict[str, Literal["cordon", "drain", "restart"]] = {
    "cordon": "cordon",
    "drain": "drain",
    "restart": "restart",
}


class SqlStore:
    """Implements `LeaseKeeper`, `EventSink`, `EventSource`, `ActKeeper`, `MemoryKeeper`. Call `open` first and `close` last."""

    def __init__(self, url: str) -> None:
        self._engine = _engine(url)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store")
        self._recorded = 0
        self.revisions = sql_revisions.SqlRevisions(self._engine, self._run)
        self.plans = sql_plans.SqlPlans(self._engine, self._run)
        if self._engine.dialect.name == "sqlite":
            sa.event.listen(self._engine, "connect", _configure_sqlite)

    async def open(self, *, alone: bool = False) -> None:
        """Bring the schema up to date. Raises StoreUnavailable, for a newer one too.

        `alone` says that the caller holds a lock by which no other process can be using this store; a lease that is still
        held then belongs to a dead process, and is ended instead of waited for.
        """
        await self._run(lambda: self._prepare(alone=alone))

    async def close(self) -> None:
        """Write what is still to be written, and close."""
        await asyncio.to_thread(self._thread.shutdown, wait=True)
        self._engine.dispose()

    async def take(self, owner: OwnerId, seconds: float, at_least: Epoch) -> Lease:
        """Take or renew the lease in one statement."""
        return await self._run(lambda: self._take(owner, seconds, at_least))

    async def release(self, owner: OwnerId) -> None:
        """Give the lease to nobody, if it is this owner's; whoever takes it next begins a new epoch."""

        def release() -> None:
            with self._engine.begin() as connection:
                connection.execute(sa.update(_lease).where(_lease.c.owner == owner).values(owner="", expires=0.0))

        await self._run(release)

    def record(self, event: Event) -> None:
        """Keep an event."""
        self._thread.submit(self._record, event).add_done_callback(_log_failure)

    async def events(self, limit: int, since: Instant | None = None, subject: str = "") -> list[Event]:
        """Return the newest events, newest first. Raises StoreUnavailable."""

        def read() -> list[Event]:
            query = sa.select(_events).order_by(_events.c.id.desc()).limit(limit)
            if since is not None:
                query = query.where(_events.c.at >= since)
            if subject:
                query = query.where(_of_subject(subject))
            with self._engine.connect() as connection:
                rows = connection.execute(query).all()
            return [Event(Instant(row.at), row.kind, row.subject, row.text, row.cause) for row in rows]

        return await self._run(read)

    async def keep_acts(self, acts: Sequence[Act]) -> None:
        """Keep what operators asked for, in place of what was kept before. Raises StoreUnavailable."""
        rows = [
            {
                "target": one.target,
                "kind": one.kind,
                "reason": one.reason,
                "at": one.at,
                "until": one.until,
                "by": one.by,
            }
            for one in acts
        ]

        def write() -> None:
            with self._engine.begin() as connection:
                connection.execute(sa.delete(_acts))
                if rows:
                    connection.execute(sa.insert(_acts), rows)

        await self._run(write)

    async def last_acts(self) -> tuple[Act, ...]:
        """Return what operators asked for; kinds that this version does not know are left out. Raises StoreUnavailable."""

        def read() -> tuple[Act, ...]:
            with self._engine.connect() as connection:
                rows = connection.execute(sa.select(_acts).order_by(_acts.c.target)).all()
            return tuple(
                Act(_KINDS[row.kind], row.target, row.reason, Instant(row.at), row.until, row.by)
                for row in rows
                if row.kind in _KINDS
            )

        return await self._run(read)

    async def keep_tree(self, tree: SourceTree) -> None:
        """Keep the newest good tree in place of the one before. Raises StoreUnavailable."""
        content = json.dumps(
            {
                "files": {path: base64.b64encode(data).decode() for path, data in tree.files.items()},
                "subject": tree.subject,
                "author": tree.author,
                "committed": tree.committed,
            }
        )

        def write() -> None:
            with self._engine.begin() as connection:
                connection.execute(sa.delete(_trees))
                connection.execute(sa.insert(_trees).values(id=1, revision=tree.revision, content=content))

        await self._run(write)

    async def last_tree(self) -> SourceTree | None:
        """Return the newest good tree, or None. Raises StoreUnavailable."""

        def read() -> SourceTree | None:
            with self._engine.connect() as connection:
                row = connection.execute(sa.select(_trees)).first()
            if row is None:
                return None
            try:
                content = json.loads(row.content)
                files = {path: base64.b64decode(data) for path, data in content["files"].items()}
                return SourceTree(
                    Revision(row.revision), files, {}, content["subject"], content["author"], content["committed"]
                )
            except (ValueError, KeyError, AttributeError, TypeError):
                log.warning("the last good revision in the store cannot be read")
                return None

        return await self._run(read)

    async def keep_nodes(self, nodes: Mapping[NodeName, Node]) -> None:
        """Keep how to reach the nodes that have something to run, in place of those before. Raises StoreUnavailable."""
        rows = [{"name": name, "spec": node.model_dump_json(exclude_unset=True)} for name, node in nodes.items()]

        def write() -> None:
            with self._engine.begin() as connection:
                connection.execute(sa.delete(_nodes))
                if rows:
                    connection.execute(sa.insert(_nodes), rows)

        await self._run(write)

    async def last_nodes(self) -> dict[NodeName, Node]:
        """Return the kept nodes; one that this version cannot read is left out. Raises StoreUnavailable."""

        def read() -> dict[NodeName, Node]:
            found: dict[NodeName, Node] = {}
            with self._engine.connect() as connection:
                for row in connection.execute(sa.select(_nodes)):
                    try:
                        found[NodeName(row.name)] = Node.model_validate_json(row.spec)
                    except ValidationError:
                        log.warning("a node in the store cannot be read", extra={"node": row.name})
            return found

        return await self._run(read)

    async def keep_memory(self, epoch: Epoch, content: str) -> bool:
        """Keep this in place of what was kept, in one statement: a leader of the past changes nothing."""
        fresh = {"epoch": epoch, "content": content, "at": self._now()}
        statement = (
            self._insert(_memory)
            .values(id=1, **fresh)
            .on_conflict_do_update(index_elements=[_memory.c.id], set_=fresh, where=_memory.c.epoch <= epoch)
            .returning(_memory.c.id)
        )

        def write() -> bool:
            with self._engine.begin() as connection:
                return connection.execute(statement).first() is not None

        return await self._run(write)

    async def last_memory(self) -> Kept | None:
        """Return what was kept last, or None. Raises StoreUnavailable."""

        def read() -> Kept | None:
            with self._engine.connect() as connection:
                query = sa.select(_memory.c.content, (self._now() - _memory.c.at).label("age"))
                row = connection.execute(query).first()
            return Kept(row.content, max(0.0, row.age)) if row is not None else None

        return await self._run(read)

    async def _run(self, work: Callable[[], T]) -> T:
        try:
            async with asyncio.timeout(LIMIT):
                return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except TimeoutError as error:
            raise StoreUnavailable(f"it did not answer within {LIMIT:.0f} s") from error
        except SQLAlchemyError as error:
            raise StoreUnavailable(_one_line(error)) from error

    def _prepare(self, *, alone: bool) -> None:
        sql_schema.bring_up_to_date(self._engine)
        if alone:
            with self._engine.begin() as connection:
                connection.execute(sa.update(_lease).values(expires=0.0))

    def _now(self) -> sa.ColumnElement[float]:
        """The store's own clock, in Unix seconds. SQLite before 3.42 has no unixepoch('subsec'), hence julian days."""
        if self._engine.dialect.name == "sqlite":
            return (sa.func.julianday("now", type_=sa.Double) - 2440587.5) * 86400.0
        return sa.cast(sa.extract("epoch", sa.func.clock_timestamp()), sa.Double)

    def _insert(self, table: sa.Table) -> Any:
        return (sqlite if self._engine.dialect.name == "sqlite" else postgresql).insert(table)

    def _take(self, owner: OwnerId, seconds: float, at_least: Epoch) -> Lease:
        now = self._now()
        kept = sa.and_(_lease.c.owner == owner, _lease.c.epoch >= at_least)
        grown = sa.case((_lease.c.epoch + 1 >= at_least, _lease.c.epoch + 1), else_=at_least)
        statement = (
            self._insert(_lease)
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

    def _record(self, event: Event) -> None:
        with self._engine.begin() as connection:
            connection.execute(
                sa.insert(_events).values(
                    at=event.at, kind=event.kind, subject=event.subject, text=event.text, cause=event.cause
                )
            )
            self._recorded += 1
            if self._recorded % 1000 == 1:
                newest = sa.select(sa.func.max(_events.c.id)).scalar_subquery()
                connection.execute(sa.delete(_events).where(_events.c.id <= newest - KEPT_EVENTS))


def _of_subject(subject: str) -> sa.ColumnElement[bool]:
    """Select the events of a subject; those of a model are also its replicas', which are named `MODEL-EPOCH-N`."""
    kind, _, name = subject.partition("/")
    if kind != "model":
        return _events.c.subject == subject
    column = _events.c.subject
    dashes = sa.func.length(column) - sa.func.length(sa.func.replace(column, "-", ""))
    of_its_own = sa.and_(column.startswith(f"replica/{name}-", autoescape=True), dashes == name.count("-") + 2)
    return sa.or_(column == subject, of_its_own)


def _engine(url: str) -> sa.Engine:
    """Return the engine of a URL. Raises StoreUnavailable for one that will not do."""
    scheme, _, rest = url.partition("://")
    if scheme == "postgresql":
        scheme = "postgresql+psycopg"
    if scheme not in ("sqlite", "postgresql+psycopg"):
        raise StoreUnavailable(f"a store is sqlite:///FILE or postgresql://USER@HOST/DATABASE, not {scheme}://")
    try:
        return sa.create_engine(f"{scheme}://{rest}", pool_pre_ping=scheme != "sqlite")
    except SQLAlchemyError as error:
        raise StoreUnavailable(f"its URL cannot be read: {_one_line(error)}") from error


def _configure_sqlite(connection: Any, _: object) -> None:
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA busy_timeout=5000")
    cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.close()


def _log_failure(done: Future[None]) -> None:
    error = done.exception()
    if error is not None:
        log.error("an event could not be kept: %s", error)


def _one_line(error: SQLAlchemyError) -> str:
    cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    return str(cause).strip().splitlines()[0]
