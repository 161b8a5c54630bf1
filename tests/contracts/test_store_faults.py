"""A store that is damaged, full, away, frozen or read-only: one clear line, bounded memory, and catching up."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from llmgw.adapters.sql_backlog import WAITING
from llmgw.adapters.sql_store import SqlStore
from llmgw.adapters.sql_thread import is_passing
from llmgw.base.ids import Epoch, OwnerId
from llmgw.base.time import Instant
from llmgw.ports.audit import Entry
from llmgw.ports.sinks import Event, StoreUnavailable
from tests.postgres import Postgres

A = OwnerId("a")
ANY = Epoch(1)


def event(number: int) -> Event:
    return Event(Instant(float(number)), "start", "replica/m-1-0", f"event {number}", "r1#1")


@pytest.fixture
async def own() -> AsyncIterator[Postgres]:
    """A PostgreSQL that the test may stop."""
    server = Postgres()
    server.start()
    yield server
    server.close()


async def _why(store: SqlStore) -> str:
    with pytest.raises(StoreUnavailable) as raised:
        await store.take(A, 60, ANY)
    text = str(raised.value)
    assert "\n" not in text
    return text


async def test_postgresql_that_is_restarted_is_used_again_and_what_happened_meanwhile_is_written(own: Postgres) -> None:
    store = SqlStore(own.database())
    await store.open()
    first = await store.take(A, 60, ANY)
    own.stop()
    for number in range(5):
        store.record(event(number))
    line = Entry(Instant(1.0), "user/ann", "ann", "drain", "node/a", "works", "done", "")
    store.audit.record(line)
    why = await _why(store)
    assert "refused" in why or "terminat" in why
    own.start()
    again = await store.take(A, 60, ANY)
    assert again == first, "the lease outlived the restart"
    assert [one.text for one in await store.events(10)] == [f"event {number}" for number in range(4, -1, -1)]
    assert await store.audit.entries(10) == [line]
    await store.close()


async def test_while_it_is_away_no_more_than_a_number_of_events_wait_and_the_newest_are_kept(own: Postgres) -> None:
    store = SqlStore(own.database())
    await store.open()
    own.stop()
    for number in range(WAITING + 500):
        store.record(event(number))
        if number % 50 == 0:
            await asyncio.sleep(0)
    await _why(store)
    assert store._events.waiting == WAITING
    assert store._thread._thread._work_queue.qsize() <= 1, "what waits does not pile up as work"
    own.start()
    await store.take(A, 60, ANY)
    found = await store.events(10_000)
    assert [one.text for one in (found[0], found[-1])] == [f"event {WAITING + 499}", "event 500"]
    assert store._events.waiting == 0
    await store.close()


async def test_a_server_can_begin_while_it_is_away_and_the_schema_is_made_when_it_is_there(own: Postgres) -> None:
    url = own.database()
    own.stop()
    store = SqlStore(url)
    with pytest.raises(StoreUnavailable) as raised:
        await store.open()
    assert is_passing(raised.value)
    await _why(store)
    own.start()
    assert (await store.take(A, 60, ANY)).mine
    await store.close()


async def test_one_that_is_frozen_holds_nothing_up_for_longer_than_its_limit(own: Postgres) -> None:
    store = SqlStore(own.database())
    await store.open()
    await store.take(A, 1.0, ANY)
    own.freeze()
    loop = asyncio.get_running_loop()
    begun = loop.time()
    with pytest.raises(StoreUnavailable, match=r"did not answer within 0\.5 s"):
        await store.take(A, 1.0, ANY)
    assert loop.time() - begun < 3.0
    own.thaw()
    assert (await store.take(A, 60, ANY)).mine, "the thread that waited is free again"
    await store.close()


async def test_a_replica_that_cannot_be_written_says_what_to_name_instead(own: Postgres) -> None:
    url = own.database()
    store = SqlStore(url)
    await store.open()
    await store.take(A, 60, ANY)
    own.execute(url, f"alter database {url.rpartition('/')[2]} set default_transaction_read_only = on")
    await store.close()
    store = SqlStore(url)
    await store.open()  # the schema is the newest, so it is only read
    assert "read-only replica: name the primary with --store" in await _why(store)
    assert await store.last_acts() == (), "it can be read"
    await store.close()


async def test_a_wrong_password_is_said_and_does_not_pass_by_itself(own: Postgres) -> None:
    url = own.database()
    own.execute(url, "create role ann login password 'right'")
    own.demand_passwords()
    store = SqlStore(url.replace("postgres@", "ann:wrong@"))
    why = await _why(store)
    assert "wrong" in why
    assert "ann:wrong" not in why
    assert not is_passing(StoreUnavailable(why))
    await store.close()


@pytest.mark.parametrize("url", ["postgresql://ann:s3cr@t:hunter2@db/x", "postgresql://ann:hunter2@db:port/x"])
async def test_a_url_that_cannot_be_read_is_said_without_its_password(url: str) -> None:
    with pytest.raises(StoreUnavailable, match="written %40, %3A") as raised:
        SqlStore(url)
    assert "hunter2" not in str(raised.value)
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__


async def test_a_file_that_is_no_database_says_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    path.write_bytes(b"this is no database" * 100)
    store = SqlStore(f"sqlite:///{path}")
    with pytest.raises(StoreUnavailable, match="the file is damaged: move it away") as raised:
        await store.open()
    assert not is_passing(raised.value)
    await store.close()


async def test_a_file_that_is_damaged_while_it_is_used_is_said_and_nothing_else_happens(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    store = SqlStore(f"sqlite:///{path}")
    await store.open()
    await store.take(A, 60, ANY)
    await store.close()
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(os.urandom(path.stat().st_size - 4096))
    store = SqlStore(f"sqlite:///{path}")
    assert "damaged: move it away" in await _why(store)
    store.record(event(1))
    await store.close()


async def test_a_disk_that_is_full_is_said_and_what_waited_is_written_when_there_is_room(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    store = SqlStore(f"sqlite:///{path}")
    await store.open()
    first = await store.take(A, 60, ANY)

    def limit(pages: str) -> None:
        """Let the database grow no further, as on a full disk."""
        for thread in (store._thread, store._lease_thread):
            with thread.engine.connect() as connection:
                connection.exec_driver_sql(f"pragma max_page_count = {pages}")

    limit("1")  # SQLite takes it for the present size
    for number in range(200):
        store.record(Event(Instant(1.0), "start", "replica/m-1-0", f"{number}" + "x" * 2000, ""))
    with pytest.raises(StoreUnavailable, match=r"full; make room where it lies"):
        await store.keep_memory(ANY, "x" * 1_000_000)
    assert store._events.waiting > 0
    assert (await store.take(A, 60, ANY)) == first, "what needs no room goes on"
    limit("1000000")
    await store.take(A, 60, ANY)
    assert len(await store.events(500)) == 200
    await store.close()


async def test_a_state_directory_that_cannot_be_written_to_is_said(tmp_path: Path) -> None:
    store = SqlStore(f"sqlite:///{tmp_path}/none/store.sqlite")
    with pytest.raises(StoreUnavailable) as raised:
        await store.open()
    assert not is_passing(raised.value)
    await store.close()
