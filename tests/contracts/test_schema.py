"""The schema of the store: made and migrated by itself, on each backend, and the same as the queries expect it."""

import asyncio
import multiprocessing
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa

from llmgw.adapters import (
    sql_audit,
    sql_events,
    sql_keys,
    sql_lease,
    sql_plans,
    sql_revisions,
    sql_schema,
    sql_store,
    sql_usage,
)
from llmgw.adapters.sql_store import SqlStore
from llmgw.adapters.sql_thread import _configure_sqlite
from llmgw.base.ids import Epoch, OwnerId, Revision
from llmgw.base.time import Instant
from llmgw.catalog.digest import tree_digest
from llmgw.catalog.source import SourceTree
from llmgw.plan.snapshot import Act
from llmgw.ports.revisions import Record, Standing
from llmgw.ports.sinks import Event, StoreUnavailable

OLD = Path(__file__).parent / "schema_1.sql"
PARTS = (sql_store, sql_lease, sql_events, sql_revisions, sql_plans, sql_keys, sql_usage, sql_audit)
METADATA = tuple(part.meta for part in PARTS)


def _engine(url: str) -> sa.Engine:
    return sa.create_engine(url.replace("postgresql://", "postgresql+psycopg://"), poolclass=sa.NullPool)


def _run(url: str, *statements: str) -> None:
    with _engine(url).begin() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)


def _old(url: str) -> None:
    _run(url, *OLD.read_text().partition("\n")[2].split(";\n")[:-1], "insert into llmgw_schema values (1)")


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'store.sqlite'}"


async def test_what_the_migrations_make_is_what_the_queries_expect(sql_url: str) -> None:
    store = SqlStore(sql_url)
    await store.open()
    await store.close()
    inspector = sa.inspect(_engine(sql_url))
    made = {
        name: {(column["name"], column["nullable"]) for column in inspector.get_columns(name)}
        for name in inspector.get_table_names()
    }
    tables = [table for meta in METADATA for table in meta.sorted_tables]
    wanted = {table.name: {(column.name, bool(column.nullable)) for column in table.columns} for table in tables}
    for table in tables:
        assert made[table.name] == wanted[table.name]
        assert inspector.get_pk_constraint(table.name)["constrained_columns"] == [one.name for one in table.primary_key]
    assert set(made) - set(wanted) == {"alembic_version", "llmgw_schema"}


async def test_a_store_of_the_first_version_is_migrated_and_loses_nothing(sqlite_url: str) -> None:
    _old(sqlite_url)
    tree = SourceTree(Revision("r1"), {"a.yaml": b"a: 1\n"}, {}, "a subject", "Ann", 12.5)
    record = Record("id-1", Revision("r1"), tree_digest(tree), "a subject", "Ann", Instant(1.0), "Bob")
    standing = Standing(1, tree_digest(tree), "id-1")
    act, event = (
        Act("drain", "node/a", "works", Instant(5.0)),
        Event(Instant(2.0), "start", "replica/m-1-0", "why", "r1#1"),
    )
    before = SqlStore(sqlite_url)
    before._ready = True  # writes what the first version wrote: those tables have not changed
    assert (await before.take(OwnerId("old"), 60, Epoch(7))).epoch == 7
    before.record(event)
    await before.keep_acts([act])
    await before.keep_tree(tree)
    assert await before.revisions.keep(standing, [record], tree)
    assert await before.plans.use_plan("plan", Instant(1.0), Instant(9e9))
    await before.close()

    after = SqlStore(sqlite_url)
    await after.open()
    assert await after.events(10) == [event]
    assert await after.last_acts() == (act,)
    assert await after.last_tree() == replace(tree, refused={})
    assert (await after.revisions.standing(), await after.revisions.records(5)) == (standing, [record])
    assert await after.revisions.tree(tree_digest(tree)) == tree
    assert await after.plans.used_plans() == {"plan"}
    lease = await after.take(OwnerId("new"), 60, Epoch(1))
    assert (lease.owner, lease.epoch) == ("old", 7)
    await after.close()
    with _engine(sqlite_url).connect() as connection:
        assert connection.exec_driver_sql("select version from llmgw_schema").scalar() == sql_schema.NEWEST


async def test_a_newer_schema_is_refused_in_one_line_and_left_alone(sql_url: str) -> None:
    store = SqlStore(sql_url)
    await store.open()
    await store.close()
    _run(sql_url, "update llmgw_schema set version = 99")
    newer = SqlStore(sql_url)
    with pytest.raises(
        StoreUnavailable, match=r"has schema 99, this llmgw knows \d+; upgrade llmgw, or use another store"
    ):
        await newer.open()
    await newer.close()
    with _engine(sql_url).connect() as connection:
        assert connection.exec_driver_sql("select version from llmgw_schema").scalar() == 99


def _open(url: str, barrier: "multiprocessing.synchronize.Barrier", told: "multiprocessing.Queue[str]") -> None:
    async def once() -> str:
        store = SqlStore(url)
        try:
            await store.open()
            await store.take(OwnerId("x"), 0.0, Epoch(1))
        except Exception as error:  # noqa: BLE001 - told to the test
            return repr(error)
        finally:
            await store.close()
        return "well"

    barrier.wait()
    told.put(asyncio.run(once()))


def test_servers_that_start_at_once_do_not_get_in_each_others_way(sql_url: str) -> None:
    context = multiprocessing.get_context("spawn")
    barrier, told = context.Barrier(3), context.Queue()
    processes = [context.Process(target=_open, args=(sql_url, barrier, told)) for _ in range(3)]
    for process in processes:
        process.start()
    answers = [told.get(timeout=60) for _ in processes]
    for process in processes:
        process.join()
    assert answers == ["well"] * 3


def test_a_file_that_another_begins_to_use_at_the_same_time_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    another, ours = sqlite3.connect(path, isolation_level=None), sqlite3.connect(path)
    another.execute("begin immediate")
    tried: list[str] = []

    def let_go(statement: str) -> None:
        tried.append(statement)
        if tried.count("PRAGMA journal_mode=WAL") == 3:
            another.execute("rollback")

    ours.set_trace_callback(let_go)
    _configure_sqlite(ours, None)
    ours.set_trace_callback(None)
    assert ours.execute("pragma journal_mode").fetchone() == ("wal",)
    another.close()
    ours.close()


async def test_a_migration_that_fails_changes_nothing_and_can_be_run_again(sql_url: str) -> None:
    _run(sql_url, "create view memory as select 1 as one")
    broken = SqlStore(sql_url)
    with pytest.raises(StoreUnavailable):
        await broken.open()
    await broken.close()
    names = sa.inspect(_engine(sql_url)).get_table_names()
    assert names == []
    _run(sql_url, "drop view memory")
    mended = SqlStore(sql_url)
    await mended.open()
    assert await mended.plans.used_plans() == frozenset()
    await mended.close()


async def test_a_store_that_is_up_to_date_is_only_read(sqlite_url: str, tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    seen = []
    for _ in range(2):
        store = SqlStore(sqlite_url)
        await store.open()
        await store.close()
        seen.append(path.read_bytes())
    assert seen[0] == seen[1]
