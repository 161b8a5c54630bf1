"""What survives a restart, in SQLite (default) or PostgreSQL, with one set of queries.

That is: the lease, events, what operators asked for, the last good tree, the nodes that hold something, the planner's
memory, revisions, plans that were used. It is brought up to date (`sql_schema`) before its first use, whenever that is: a
server may start while its database is away.
"""

import base64
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypeVar

import sqlalchemy as sa
from pydantic import ValidationError

from llmgw.adapters import sql_audit, sql_events, sql_keys, sql_lease, sql_plans, sql_revisions, sql_schema, sql_usage
from llmgw.adapters.sql_thread import SqlThread, inserting
from llmgw.base.ids import Epoch, NodeName, OwnerId, Revision
from llmgw.base.time import Instant
from llmgw.catalog.source import SourceTree
from llmgw.plan.snapshot import Act
from llmgw.ports.memory import Kept
from llmgw.ports.sinks import Event, Lease
from llmgw.spec.node import Node

log = logging.getLogger(__name__)

OPENING = 60.0
"""Seconds that bringing the schema up to date may take, waiting for another server that does it included."""
T = TypeVar("T")

meta = sa.MetaData()
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
        self._thread = SqlThread(url, "store")
        self._engine = self._thread.engine
        self._lease_thread = SqlThread(url, "lease")
        self._lease = sql_lease.SqlLease(self._lease_thread)
        self._events = sql_events.SqlEvents(self._thread, self._run)
        self._ready = False
        self.revisions = sql_revisions.SqlRevisions(self._engine, self._run)
        self.plans = sql_plans.SqlPlans(self._engine, self._run)
        self.keys = sql_keys.SqlKeys(self._engine, self._run)
        self.usage = sql_usage.SqlUsage(self._engine, self._run)
        self.audit = sql_audit.SqlAudit(self._thread, self._run)

    async def open(self, *, alone: bool = False) -> None:
        """Bring the schema up to date. Raises StoreUnavailable, for a newer one too.

        `alone` says that the caller holds a lock by which no other process can be using this store; a lease that is still
        held then belongs to a dead process, and is ended instead of waited for.
        """
        await self._prepare()
        if alone:
            await self._lease.end()

    async def close(self) -> None:
        """Write what is still to be written, and close."""
        self._write_waiting()
        await self._thread.close()
        await self._lease_thread.close()

    async def take(self, owner: OwnerId, seconds: float, at_least: Epoch) -> Lease:
        """Take or renew the lease in one statement."""
        await self._prepare()
        lease = await self._lease.take(owner, seconds, at_least)
        self._write_waiting()  # what waited for the store can be written now
        return lease

    async def release(self, owner: OwnerId) -> None:
        """Give the lease to nobody, if it is this owner's; whoever takes it next begins a new epoch."""
        await self._lease.release(owner)

    async def release_epoch(self, epoch: Epoch) -> bool:
        """Take the lease of this epoch away from whoever has it."""
        return await self._lease.release_epoch(epoch)

    def record(self, event: Event) -> None:
        """Keep an event."""
        self._events.record(event)

    async def events(self, limit: int, since: Instant | None = None, subject: str = "") -> list[Event]:
        """Return the newest events, newest first. Raises StoreUnavailable."""
        return await self._events.events(limit, since, subject)

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
        fresh = {"epoch": epoch, "content": content, "at": sql_lease.stores_now(self._engine)}
        statement = (
            inserting(self._engine, _memory)
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
                query = sa.select(_memory.c.content, (sql_lease.stores_now(self._engine) - _memory.c.at).label("age"))
                row = connection.execute(query).first()
            return Kept(row.content, max(0.0, row.age)) if row is not None else None

        return await self._run(read)

    def _write_waiting(self) -> None:
        self._events.flush()
        self.audit.flush()

    async def _run(self, work: Callable[[], T]) -> T:
        await self._prepare()
        return await self._thread.run(work)

    async def _prepare(self) -> None:
        """Bring the schema up to date, once; the next use tries again if it could not be."""
        if not self._ready:
            await self._thread.run(lambda: sql_schema.bring_up_to_date(self._engine), OPENING)
            self._ready = True
