"""The contract of `RevisionKeeper`, on the SQL store and on the fake."""

import sqlite3
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from llmgw.adapters.sql_store import SqlStore
from llmgw.base.ids import Revision
from llmgw.base.time import Instant
from llmgw.catalog.digest import tree_digest
from llmgw.catalog.guard import Guarded, GuardedObject
from llmgw.catalog.source import SourceTree
from llmgw.plan.snapshot import Suspension
from llmgw.ports.revisions import KEPT_RECORDS, KEPT_TREES, How, Outcome, Record, RevisionKeeper, Standing
from tests.fakes.revisions import FakeRevisions

SAME = b"the same in every revision\n" * 100


@pytest.fixture
async def keeper(url: str) -> AsyncIterator[RevisionKeeper]:
    if not url:
        yield FakeRevisions()
        return
    store = SqlStore(url)
    await store.open()
    yield store.revisions
    await store.close()


def _tree(number: int) -> SourceTree:
    files = {"same.yaml": SAME, "d/n.yaml": b"n: %d\n" % number}
    revision = Revision(f"r{number}")
    return SourceTree(
        revision, files, {"l.yaml": "symlink"}, "a subject", "Ann", 12.5, ("LLMGW-Allow-Remove: model/a",)
    )


def _record(number: int, outcome: Outcome = Outcome.UNDER_WAY) -> Record:
    applied = Instant(number + 0.5) if outcome is Outcome.APPLIED else None
    digest = tree_digest(_tree(number))
    return Record(
        f"id-{number}", Revision(f"r{number}"), digest, "a subject", "Ann", Instant(number), "Bob", How.APPLY,
        outcome, "why", applied, applied, 12.5,
    )  # fmt: skip


async def test_there_is_nothing_at_first(keeper: RevisionKeeper) -> None:
    assert await keeper.standing() is None
    assert await keeper.records(10) == []
    assert await keeper.tree("none") is None


async def test_all_of_it_comes_back_as_it_was(keeper: RevisionKeeper) -> None:
    tree = _tree(1)
    standing = Standing(
        1, tree_digest(tree), "id-1", True,
        Guarded((GuardedObject("model/a", "protect: true"), GuardedObject("node/n")), 3, 0.25),
        (Revision("bad"),), Revision("newer"), "Bob said so",
        Suspension("works", "Bob", Instant(1.0), Instant(2.0)),
    )  # fmt: skip
    assert await keeper.keep(standing, [_record(1)], tree)
    assert await keeper.standing() == standing
    assert await keeper.records(10) == [_record(1)]
    assert await keeper.tree(tree_digest(tree)) == tree


async def test_of_two_writers_the_second_changes_nothing(keeper: RevisionKeeper) -> None:
    assert await keeper.keep(Standing(1, attempted="mine"), [_record(1)], None)
    assert not await keeper.keep(Standing(1, attempted="theirs"), [_record(2)], _tree(2))
    assert not await keeper.keep(Standing(3, attempted="theirs"), [_record(2)], _tree(2))
    kept = await keeper.standing()
    assert kept is not None
    assert kept.attempted == "mine"
    assert await keeper.records(10) == [_record(1)]
    assert await keeper.tree(tree_digest(_tree(2))) is None


async def test_a_record_is_replaced_by_its_id_and_keeps_its_place(keeper: RevisionKeeper) -> None:
    await keeper.keep(Standing(1), [_record(1), _record(2)], None)
    changed = replace(_record(1), outcome=Outcome.ROLLED_BACK, note="to r0")
    await keeper.keep(Standing(2), [changed], None)
    assert await keeper.records(10) == [_record(2), changed]
    assert await keeper.records(1) == [_record(2)]


async def test_old_records_are_dropped(keeper: RevisionKeeper) -> None:
    await keeper.keep(Standing(1), [_record(number) for number in range(KEPT_RECORDS + 5)], None)
    records = await keeper.records(KEPT_RECORDS + 5)
    assert len(records) == KEPT_RECORDS
    assert records[-1] == _record(5)


async def test_the_trees_of_the_newest_applied_and_of_what_is_in_force_are_kept(keeper: RevisionKeeper) -> None:
    first = tree_digest(_tree(0))
    await keeper.keep(Standing(1, first), [_record(0, Outcome.FAILED)], _tree(0))
    for number in range(1, KEPT_TREES + 4):
        record = _record(number, Outcome.APPLIED if number != 5 else Outcome.SUPERSEDED)
        await keeper.keep(Standing(number + 1, first), [record], _tree(number))
    left = [number for number in range(KEPT_TREES + 4) if await keeper.tree(tree_digest(_tree(number))) is not None]
    assert left == [0, *range(3, 5), *range(6, KEPT_TREES + 4)]
    assert await keeper.tree(first) == _tree(0)


async def test_contents_are_kept_once_and_go_with_the_last_tree_that_has_them(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    store = SqlStore(f"sqlite:///{path}")
    await store.open()
    for number in range(1, 4):
        await store.revisions.keep(Standing(number, tree_digest(_tree(number))), [], _tree(number))
    await store.close()
    with sqlite3.connect(path) as raw:
        sizes = [size for (size,) in raw.execute("select length(content) from blobs")]
        trees = raw.execute("select count(*) from revision_trees").fetchone()
    raw.close()
    assert trees == (1,)
    assert len(sizes) == 2
    assert sum(sizes) < len(SAME), "compressed"


async def test_a_standing_that_cannot_be_read_does_not_keep_others_from_writing(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    store = SqlStore(f"sqlite:///{path}")
    await store.open()
    await store.revisions.keep(Standing(1, "x"), [], None)
    with sqlite3.connect(path) as raw:
        raw.execute("update standing set content = 'from the future'")
    raw.close()
    found = await store.revisions.standing()
    assert found == Standing(1)
    assert await store.revisions.keep(Standing(2), [], None)
    await store.close()
