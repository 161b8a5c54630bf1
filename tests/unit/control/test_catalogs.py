"""The source loop: what a revision has to pass, by whose rules, and what stays in force when it does not."""

import asyncio
import itertools

import pytest

from llmgw.base.ids import Revision
from llmgw.base.time import Instant
from llmgw.catalog.digest import tree_digest
from llmgw.catalog.source import SourceFailed, SourceTree, Trouble
from llmgw.control.catalogs import Candidate, Catalogs, Waiting
from llmgw.ports.sinks import Event
from llmgw.ports.trees import Passed
from llmgw.sim.source import FakeSource

CLUSTER = "apiVersion: llmgw/v1\nkind: Cluster\nname: {name}\n"
RULES = "source: {rewrite: hold}\n"
HELD = SourceFailed("the branch's history was rewritten", Trouble.REWRITTEN)


class Clock:
    def now(self) -> Instant:
        return Instant(1000.0)


class Desk:
    def __init__(self) -> None:
        self.source = FakeSource()
        self.events: list[Event] = []
        self.woken = 0
        self._numbers = itertools.count(1)
        self.catalogs = Catalogs(self.source, self, Clock(), self._wake)

    def record(self, event: Event) -> None:
        self.events.append(event)

    def _wake(self) -> None:
        self.woken += 1

    def tree(self, name: str = "c", extra: str = "") -> SourceTree:
        revision = Revision(f"{next(self._numbers):040x}")
        return SourceTree(revision, {"cluster.yaml": (CLUSTER.format(name=name) + extra).encode()})

    async def push(self, tree: SourceTree) -> SourceTree:
        self.source.push(tree)
        await self.catalogs.look()
        return tree

    @property
    def kinds(self) -> list[str]:
        return [event.kind for event in self.events]

    @property
    def in_force(self) -> str | None:
        tree = self.catalogs.state.value.tree
        return tree.revision if tree is not None else None


class Closed:
    """A gate that lets nothing in."""

    def offer(self, candidate: Candidate) -> Waiting | None:
        return Waiting("manual", "for an operator")


@pytest.fixture
def desk() -> Desk:
    return Desk()


async def test_the_first_revision_is_judged_by_its_own_rules_and_the_next_by_those_in_force(desk: Desk) -> None:
    first = await desk.push(desk.tree(extra=RULES))
    second = await desk.push(desk.tree())
    third = await desk.push(desk.tree())
    assert [(revision, since, rules.rewrite) for revision, since, rules in desk.source.vetted] == [
        (first.revision, None, "hold"),
        (second.revision, first.revision, "hold"),
        (third.revision, second.revision, "accept"),
    ]
    assert desk.source.pinned == [first.revision, second.revision, third.revision]


async def test_a_held_revision_leaves_the_last_good_in_force_until_an_operator_accepts_that_very_one(
    desk: Desk,
) -> None:
    good = await desk.push(desk.tree())
    assert desk.catalogs.permit("0" * 40) == "no revision is held; there is nothing to accept"
    desk.source.verdict = HELD
    held = await desk.push(desk.tree())
    state = desk.catalogs.state.value
    assert (desk.in_force, state.failed) == (good.revision, HELD)
    assert state.fetched == SourceTree(held.revision, {}), "what is not taken is not kept"
    assert desk.kinds[-1] == "revision_held"
    for wrong in ("", held.revision[:6], good.revision, "f" * 40):
        assert held.revision in (desk.catalogs.permit(wrong) or "")
    await desk.catalogs.look()
    assert desk.in_force == good.revision
    assert desk.catalogs.permit(held.revision) is None
    await desk.catalogs.look()
    state = desk.catalogs.state.value
    assert (desk.in_force, state.failed, state.verified_by) == (held.revision, None, "an operator (llmgw accept)")
    other = await desk.push(desk.tree())
    assert desk.in_force == held.revision != other.revision, "one word counts for one revision"


async def test_a_held_revision_is_not_even_read(desk: Desk) -> None:
    await desk.push(desk.tree())
    desk.source.verdict = HELD
    await desk.push(desk.tree(extra="nonsense: true\n"))
    assert desk.catalogs.state.value.rejected is None


async def test_the_contents_of_a_rejected_revision_are_not_kept(desk: Desk) -> None:
    await desk.push(desk.tree())
    bad = await desk.push(desk.tree(extra="nonsense: true\n"))
    state = desk.catalogs.state.value
    assert state.rejected is not None
    assert state.fetched == SourceTree(bad.revision, {})
    assert state.fetched_digest == tree_digest(bad)


async def test_a_verdict_that_git_could_not_give_is_asked_for_again(desk: Desk) -> None:
    await desk.push(desk.tree())
    desk.source.verdict = SourceFailed("git merge-base did not end")
    next_one = await desk.push(desk.tree())
    assert desk.catalogs.permit(next_one.revision) is not None, "nobody overrules what is not known"
    desk.source.verdict = Passed("alice")
    await desk.catalogs.look()
    assert (desk.in_force, desk.catalogs.state.value.verified_by) == (next_one.revision, "alice")


async def test_a_rewritten_history_that_is_accepted_is_told(desk: Desk) -> None:
    await desk.push(desk.tree())
    desk.source.verdict = Passed(rewritten=True)
    await desk.push(desk.tree())
    assert desk.kinds[-2:] == ["history_rewritten", "revision_accepted"]


@pytest.mark.parametrize("trouble", list(Trouble))
async def test_no_trouble_is_an_empty_catalog_and_the_same_revision_after_it_is_no_news(
    desk: Desk, trouble: Trouble
) -> None:
    good = await desk.push(desk.tree())
    desk.source._newest = SourceFailed("why", trouble)
    await desk.catalogs.look()
    state = desk.catalogs.state.value
    assert (desk.in_force, state.catalog is not None) == (good.revision, True)
    assert state.failed is not None
    assert state.failed.trouble is trouble
    events, woken = len(desk.events), desk.woken
    await desk.push(good)
    assert desk.catalogs.state.value.failed is None
    readable = [] if trouble in (Trouble.REWRITTEN, Trouble.UNVERIFIED) else ["source_readable"]
    assert (desk.kinds[events:], desk.woken) == (readable, woken)


async def test_going_back_to_the_revision_in_force_ends_a_refusal(desk: Desk) -> None:
    good = await desk.push(desk.tree())
    await desk.push(desk.tree(extra="nonsense: true\n"))
    assert desk.catalogs.state.value.rejected is not None
    await desk.push(good)
    assert desk.catalogs.state.value.rejected is None


async def test_after_a_restart_the_rules_of_before_judge_the_first_look(desk: Desk) -> None:
    before = desk.tree(extra=RULES)
    assert await desk.catalogs.remember(before)
    desk.source.verdict = HELD
    await desk.push(desk.tree())
    assert desk.source.vetted[0][1:] == (before.revision, desk.source.vetted[0][2])
    assert desk.source.vetted[0][2].rewrite == "hold"
    assert desk.in_force == before.revision
    assert not await Desk().catalogs.remember(desk.tree(extra="nonsense: true\n"))


async def test_after_a_restart_who_signed_the_revision_in_force_is_asked_again(desk: Desk) -> None:
    signed = desk.tree(extra="source: {verify: {mode: head, ssh_signers: ['a ssh-ed25519 AAAA']}}\n")
    await desk.catalogs.remember(signed)
    desk.source.verdict = Passed("alice")
    await desk.push(signed)
    assert desk.catalogs.state.value.verified_by == "alice"
    assert desk.events == []


async def test_a_look_that_was_cut_short_has_seen_nothing(desk: Desk) -> None:
    await desk.push(desk.tree())
    desk.source.slow = asyncio.Event()
    newest = desk.tree("d")
    desk.source.push(newest)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await desk.catalogs.look()
    desk.source.slow = None
    await desk.catalogs.look()
    assert desk.in_force == newest.revision


async def test_what_an_operator_put_in_force_while_a_signature_was_looked_up_stays(desk: Desk) -> None:
    signed = desk.tree(extra="source: {verify: {mode: head, ssh_signers: ['a ssh-ed25519 AAAA']}}\n")
    await desk.catalogs.remember(signed)
    desk.source.verdict, desk.source.slow = Passed("alice"), asyncio.Event()
    desk.source.push(signed)
    look = asyncio.get_running_loop().create_task(desk.catalogs.look())
    while not desk.source.vetted:  # noqa: ASYNC110 - there is nothing to wait for but turns of the loop
        await asyncio.sleep(0)
    other = desk.tree("other")
    chosen = await desk.catalogs.candidate_of(other)
    assert isinstance(chosen, Candidate)
    desk.catalogs.adopt(chosen)
    desk.source.slow.set()
    await look
    assert desk.in_force == other.revision
    assert desk.catalogs.state.value.catalog is chosen.accepted.catalog


async def test_who_signed_one_revision_did_not_sign_another_that_is_taken_over(desk: Desk) -> None:
    rules = "source: {verify: {mode: head, ssh_signers: ['a ssh-ed25519 AAAA']}}\n"
    await desk.push(desk.tree(extra=rules))
    desk.source.verdict = Passed("alice")
    await desk.push(desk.tree("d", extra=rules))
    assert desk.catalogs.state.value.verified_by == "alice"
    desk.catalogs.guarded_by(Closed())
    await desk.catalogs.remember(desk.tree("e", extra=rules))
    assert desk.catalogs.state.value.verified_by == ""


async def test_a_hint_reaches_the_source(desk: Desk) -> None:
    desk.catalogs.hint()
    assert desk.source.hints == 1


async def test_a_source_that_can_be_read_again_is_told_as_its_failure_was(desk: Desk) -> None:
    tree = await desk.push(desk.tree())
    for again in (tree, desk.tree(), desk.tree(extra="nonsense: true\n")):
        desk.events.clear()
        desk.source.fail("the network is down")
        await desk.catalogs.look()
        await desk.catalogs.look()
        await desk.push(again)
        await desk.catalogs.look()
        told = [kind for kind in desk.kinds if kind.startswith("source_")]
        assert told == ["source_failed", "source_readable"]
    desk.events.clear()
    desk.source.fail("the network is down")
    await desk.catalogs.look()
    desk.source.verdict = HELD
    await desk.push(desk.tree())
    assert desk.kinds == ["source_failed", "source_readable", "revision_held"]
    desk.source.verdict = Passed()
    await desk.push(desk.tree())
    assert "source_readable" not in desk.kinds[3:], "a revision that was held could be read"
