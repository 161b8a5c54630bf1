"""Whose word on what may be removed counts: that of the commit which is taken up, and of nobody's commit when going back."""

import asyncio
from dataclasses import replace

import pytest

from llmgw.base.ids import Revision
from llmgw.catalog.source import SourceTree
from llmgw.control.revisions import CannotAdopt
from tests.builders import Object, cluster, model, tree
from tests.sim.test_revisions import CONTROL, A, B, Play, play

GUARD = {"max_removed": 0}
SAID = ("LLMGW-Allow-Remove: model/n",)


def _tree(revision: Revision, *objects: Object, trailers: tuple[str, ...] = (), **rules: object) -> SourceTree:
    return replace(tree(cluster(control=CONTROL, **rules), *objects, revision=revision), trailers=trailers)


@pytest.mark.parametrize(("own", "later"), [(SAID, ()), ((), SAID)], ids=["own", "only-later"])
def test_a_commit_is_judged_by_its_own_message_and_not_by_a_later_one_with_the_same_tree(
    own: tuple[str, ...], later: tuple[str, ...]
) -> None:
    async def story(it: Play) -> None:
        it.commit(A, B, model("m"), model("n"), guard=GUARD, sync="manual")
        await it.start()
        await asyncio.sleep(5)
        await it.adoption.apply(it.adoption.revisions.fetched.revision, "bob")  # type: ignore[union-attr]
        await asyncio.sleep(10)
        named = it.commit(A, B, model("m"), trailers=own, guard=GUARD, sync="manual")
        await asyncio.sleep(2)
        it.commit(A, B, model("m"), trailers=later, guard=GUARD, sync="manual")
        await asyncio.sleep(2)
        wanted = _tree(named, A, B, model("m"), trailers=own, guard=GUARD, sync="manual")
        if own:
            await it.adoption.apply(wanted, "bob")
            await asyncio.sleep(10)
            assert it.models() == ["m-1-0"]
            return
        with pytest.raises(CannotAdopt) as refused:
            await it.adoption.apply(wanted, "bob")
        assert refused.value.status == 403

    play(story)


def test_going_back_does_not_honour_what_the_commit_said_when_it_was_new() -> None:
    async def story(it: Play) -> None:
        it.commit(A, B, model("m"), model("n"), guard=GUARD)
        await it.start()
        await asyncio.sleep(10)
        without = it.commit(A, B, model("m"), trailers=SAID, guard=GUARD)
        await asyncio.sleep(10)
        back = it.commit(A, B, model("m", priority=3), model("n"), guard=GUARD)
        await asyncio.sleep(10)
        with pytest.raises(CannotAdopt, match="--allow-remove model/n") as refused:
            await it.adoption.rollback(without, "bob")
        assert (refused.value.status, it.in_force) == (403, back)
        await it.adoption.rollback(without, "bob", frozenset({"model/n"}))
        assert it.in_force == without

    play(story)


def test_what_is_in_force_is_told_with_its_revision() -> None:
    async def story(it: Play) -> None:
        first = it.commit(A, B, model("m"))
        await it.start()
        await asyncio.sleep(10)
        second = it.commit(A, B, model("m"), model("n"))
        await asyncio.sleep(10)
        told = [one.text for one in it.world.store.recorded if one.kind == "revision_in_force"]
        assert told == [f"revision {first[:10]} is taken up after a start", f"revision {second[:10]} is in force"]

    play(story)


def test_going_back_to_the_same_contents_says_just_that() -> None:
    async def story(it: Play) -> None:
        first = it.commit(A, B, model("m"))
        await it.start()
        await asyncio.sleep(10)
        it.commit(A, B, model("m"), model("n"))
        await asyncio.sleep(10)
        it.commit(A, B, model("m"))
        await asyncio.sleep(10)
        with pytest.raises(CannotAdopt, match=r"has the same contents as .* nothing to go back from"):
            await it.adoption.rollback(first, "bob")

    play(story)
