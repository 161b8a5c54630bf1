"""What is remembered of revisions, when the store is away and when another control plane writes, too."""

from dataclasses import replace

import pytest

from llmgw.base.ids import Revision
from llmgw.base.time import Instant
from llmgw.catalog.digest import tree_digest
from llmgw.control.revision_book import RevisionBook
from llmgw.ports.revisions import Outcome, Record
from llmgw.ports.sinks import StoreUnavailable
from tests.builders import tree
from tests.fakes.revisions import FakeRevisions

ONE = Record("one", Revision("r1"), "d1", "s", "ann", Instant(1.0), "ann")
TWO = replace(ONE, id="two", revision=Revision("r2"))


async def test_what_happens_by_itself_holds_at_once_and_is_written_when_the_store_is_back() -> None:
    store = FakeRevisions(available=False)
    book = RevisionBook(store)
    wanted = tree(revision="r1")
    book.hold_true(replace(book.standing, attempted="one", in_force=tree_digest(wanted)), [ONE], wanted)
    assert book.attempted == ONE
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            await book.flush()
    store.available = True
    assert await book.flush()
    assert (store.history, len(store.trees)) == ([ONE], 1)
    store.available = False
    assert await book.flush(), "there is nothing left to write"


async def test_what_is_written_first_does_not_hold_if_it_cannot_be() -> None:
    store = FakeRevisions(available=False)
    book = RevisionBook(store)
    with pytest.raises(StoreUnavailable):
        await book.write(replace(book.standing, attempted="one"), [ONE], None)
    assert book.attempted is None
    assert book.records == ()


async def test_a_write_that_was_done_and_not_confirmed_is_found_before_the_next_one() -> None:
    store = FakeRevisions(silent=True)
    book = RevisionBook(store)
    with pytest.raises(StoreUnavailable):
        await book.write(replace(book.standing, attempted="one"), [ONE], None)
    assert book.attempted is None
    store.silent = False
    assert not await book.flush(), "there is something newer: what this one wrote"
    assert await book.newer()
    assert book.attempted == ONE
    assert await book.flush()
    assert await book.write(replace(book.standing, attempted="two"), [TWO], None)
    assert book.attempted == TWO


async def test_what_happens_by_itself_is_not_written_twice_when_it_was_not_confirmed() -> None:
    store = FakeRevisions(silent=True)
    book = RevisionBook(store)
    book.hold_true(replace(book.standing, attempted="one"), [ONE], None)
    with pytest.raises(StoreUnavailable):
        await book.flush()
    store.silent = False
    assert not await book.flush()
    assert await book.newer()
    assert (book.attempted, store.history) == (ONE, [ONE])
    assert await book.flush()


async def test_of_two_the_second_is_refused_and_takes_over_what_the_first_wrote() -> None:
    store = FakeRevisions()
    first, second = RevisionBook(store), RevisionBook(store)
    assert await first.write(replace(first.standing, attempted="one"), [ONE], None)
    second.hold_true(replace(second.standing, attempted="two"), [TWO], None)
    assert not await second.flush()
    assert not await second.write(second.standing, [TWO], None)
    assert await second.newer()
    assert (second.attempted, second.records) == (ONE, (ONE,))
    assert await second.flush()
    assert store.history == [ONE], "what was decided without knowing is dropped"
    assert not await second.newer()


async def test_records_are_newest_first_and_replaced_by_their_id() -> None:
    book = RevisionBook(FakeRevisions())
    book.hold_true(book.standing, [ONE], None)
    book.hold_true(book.standing, [TWO, replace(ONE, outcome=Outcome.SUPERSEDED)], None)
    assert [(one.id, one.outcome.value) for one in book.records] == [("two", "under_way"), ("one", "superseded")]
    assert book.record("three") is None
