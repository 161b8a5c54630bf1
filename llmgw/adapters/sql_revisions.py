"""The tables of revisions: records, kept trees, and the one row that says what is in force.

A tree is a list of paths with the digests of their contents; contents are compressed and kept once, however many trees have
them: twenty revisions of a large directory differ in a few files. Part of `sql_store`, in whose thread all of it runs.
"""

import hashlib
import json
import logging
import zlib
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from pydantic import TypeAdapter, ValidationError

from llmgw.adapters.sql_thread import Run, inserting
from llmgw.base.ids import Revision
from llmgw.catalog.digest import tree_digest
from llmgw.catalog.source import SourceTree
from llmgw.ports.revisions import KEPT_RECORDS, KEPT_TREES, Outcome, Record, Standing

log = logging.getLogger(__name__)


meta = sa.MetaData()
_standing = sa.Table(
    "standing",
    meta,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("serial", sa.BigInteger, nullable=False),
    sa.Column("content", sa.Text, nullable=False),
)
_records = sa.Table(
    "revisions",
    meta,
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("id", sa.String(64), nullable=False, unique=True),
    sa.Column("revision", sa.Text, nullable=False),
    sa.Column("digest", sa.String(64), nullable=False),
    sa.Column("subject", sa.Text, nullable=False),
    sa.Column("author", sa.Text, nullable=False),
    sa.Column("at", sa.Double, nullable=False),
    sa.Column("by", sa.Text, nullable=False),
    sa.Column("how", sa.String(16), nullable=False),
    sa.Column("outcome", sa.String(16), nullable=False),
    sa.Column("note", sa.Text, nullable=False),
    sa.Column("ended", sa.Double, nullable=True),
    sa.Column("applied", sa.Double, nullable=True),
    sa.Column("committed", sa.Double, nullable=True),
)
_trees = sa.Table(
    "revision_trees",
    meta,
    sa.Column("digest", sa.String(64), primary_key=True),
    sa.Column("content", sa.LargeBinary, nullable=False),
)
_blobs = sa.Table(
    "blobs",
    meta,
    sa.Column("digest", sa.String(64), primary_key=True),
    sa.Column("content", sa.LargeBinary, nullable=False),
)
_STANDING: TypeAdapter[Standing] = TypeAdapter(Standing)
_RECORD: TypeAdapter[Record] = TypeAdapter(Record)


class SqlRevisions:
    """A `RevisionKeeper`."""

    def __init__(self, engine: sa.Engine, run: Run) -> None:
        self._engine = engine
        self._run = run

    async def keep(self, standing: Standing, records: Sequence[Record], tree: SourceTree | None) -> bool:
        """Write all of it or nothing."""

        def write() -> bool:
            with self._engine.begin() as connection:
                if not self._keep_standing(connection, standing):
                    return False
                for record in records:
                    _keep_record(connection, record)
                if tree is not None:
                    self._keep_tree(connection, tree)
                _prune(connection, standing, trees=tree is not None)
            return True

        return await self._run(write)

    async def standing(self) -> Standing | None:
        """Return what was written last, or None."""

        def read() -> Standing | None:
            with self._engine.connect() as connection:
                row = connection.execute(sa.select(_standing)).first()
            return _read(row.content, row.serial) if row is not None else None

        return await self._run(read)

    async def records(self, limit: int) -> list[Record]:
        """Return the newest records, newest first; those of an outcome that this version does not know are left out."""

        def read() -> list[Record]:
            query = sa.select(_records).order_by(_records.c.number.desc()).limit(limit)
            with self._engine.connect() as connection:
                rows = connection.execute(query).mappings().all()
            return [record for row in rows if (record := _record(dict(row))) is not None]

        return await self._run(read)

    async def tree(self, digest: str) -> SourceTree | None:
        """Return a kept tree, or None."""

        def read() -> SourceTree | None:
            with self._engine.connect() as connection:
                content = connection.execute(sa.select(_trees.c.content).where(_trees.c.digest == digest)).scalar()
                if content is None:
                    return None
                try:
                    return _tree_of(connection, content)
                except (zlib.error, ValueError, KeyError, TypeError, AttributeError) as error:
                    log.warning("a kept revision cannot be read", extra={"digest": digest, "reason": repr(error)})
                    return None

        return await self._run(read)

    def _keep_standing(self, connection: sa.Connection, standing: Standing) -> bool:
        content = _STANDING.dump_json(standing).decode()
        there = connection.execute(sa.select(_standing.c.serial).with_for_update()).scalar()
        if (there or 0) != standing.serial - 1:
            return False
        if there is None:
            fresh = inserting(self._engine, _standing).values(id=1, serial=standing.serial, content=content)
            made = connection.execute(fresh.on_conflict_do_nothing().returning(_standing.c.id))
        else:
            newer = sa.update(_standing).where(_standing.c.serial == there)
            made = connection.execute(newer.values(serial=standing.serial, content=content).returning(_standing.c.id))
        return made.first() is not None  # of an insert, a driver need not know how many rows it made

    def _keep_tree(self, connection: sa.Connection, tree: SourceTree) -> None:
        digests = {path: hashlib.sha256(data).hexdigest() for path, data in tree.files.items()}
        contents = {digests[path]: data for path, data in tree.files.items()}
        known = {row.digest for row in _in_parts(connection, set(contents), _blobs.c.digest)}
        rows = [{"digest": key, "content": zlib.compress(data)} for key, data in contents.items() if key not in known]
        if rows:
            connection.execute(inserting(self._engine, _blobs).on_conflict_do_nothing(), rows)
        listed = {
            "revision": tree.revision,
            "files": digests,
            "refused": dict(tree.refused),
            "subject": tree.subject,
            "author": tree.author,
            "committed": tree.committed,
            "trailers": list(tree.trailers),
        }
        digest = tree_digest(tree)
        connection.execute(sa.delete(_trees).where(_trees.c.digest == digest))
        connection.execute(sa.insert(_trees).values(digest=digest, content=zlib.compress(json.dumps(listed).encode())))


def _keep_record(connection: sa.Connection, record: Record) -> None:
    values = _RECORD.dump_python(record, mode="json")
    done = connection.execute(sa.update(_records).where(_records.c.id == record.id).values(**values))
    if done.rowcount == 0:
        connection.execute(sa.insert(_records).values(**values))


def _prune(connection: sa.Connection, standing: Standing, *, trees: bool) -> None:
    newest = sa.select(_records.c.number).order_by(_records.c.number.desc()).limit(KEPT_RECORDS).scalar_subquery()
    connection.execute(sa.delete(_records).where(_records.c.number.not_in(newest)))
    if not trees:
        return
    applied = sa.select(_records.c.digest).where(_records.c.applied.is_not(None)).order_by(_records.c.number.desc())
    kept: list[str] = []
    for digest in connection.execute(applied).scalars():
        if digest not in kept and len(kept) < KEPT_TREES:
            kept.append(digest)
    under_way = sa.select(_records.c.digest).where(_records.c.outcome == Outcome.UNDER_WAY.value)
    kept += [standing.in_force, *connection.execute(under_way).scalars()]
    gone = connection.execute(sa.delete(_trees).where(_trees.c.digest.not_in(kept)))
    if gone.rowcount:
        used: set[str] = set()
        for content in connection.execute(sa.select(_trees.c.content)).scalars():
            used.update(json.loads(zlib.decompress(content))["files"].values())
        unused = [key for key in connection.execute(sa.select(_blobs.c.digest)).scalars() if key not in used]
        for start in range(0, len(unused), _PART):
            connection.execute(sa.delete(_blobs).where(_blobs.c.digest.in_(unused[start : start + _PART])))


_PART = 500
"""Values in one query; SQLite allows some thousands."""


def _in_parts(connection: sa.Connection, wanted: set[str], *columns: sa.ColumnElement[Any]) -> list[Any]:
    digests = sorted(wanted)
    rows: list[Any] = []
    for start in range(0, len(digests), _PART):
        part = digests[start : start + _PART]
        rows += connection.execute(sa.select(*(columns or (_blobs,))).where(_blobs.c.digest.in_(part))).all()
    return rows


def _read(content: str, serial: int) -> Standing:
    try:
        return _STANDING.validate_json(content)
    except ValidationError:
        log.warning("what is in force cannot be read from the store")
        return Standing(serial)


def _record(row: dict[str, Any]) -> Record | None:
    del row["number"]
    try:
        return _RECORD.validate_python(row)
    except ValidationError:
        log.warning("a revision in the store cannot be read", extra={"revision": row.get("revision")})
        return None


def _tree_of(connection: sa.Connection, content: bytes) -> SourceTree:
    """Return the tree that was kept so. Raises KeyError if contents are missing, and others if it is damaged."""
    listed = json.loads(zlib.decompress(content))
    blobs = {row.digest: zlib.decompress(row.content) for row in _in_parts(connection, set(listed["files"].values()))}
    return SourceTree(
        Revision(listed["revision"]),
        {path: blobs[key] for path, key in listed["files"].items()},
        listed["refused"],
        listed["subject"],
        listed["author"],
        listed["committed"],
        tuple(listed["trailers"]),
    )
