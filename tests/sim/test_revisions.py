"""What is taken up, by itself and by command, on the whole control plane in virtual time."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable

import pytest

from llmgw.base.ids import Revision
from llmgw.control.adoption import Adoption
from llmgw.control.revisions import CannotAdopt, Revisions
from llmgw.ports.revisions import How, Outcome, Record
from llmgw.runtime.supervisor import Supervisor
from llmgw.sim.loop import simulate
from llmgw.sim.world import Control, World
from tests.builders import Object, cluster, model, node, tree
from tests.fakes.revisions import FakeRevisions

A, B = node("a"), node("b")
CONTROL = {"interval": "2s", "backoff": {"base": "1s", "max": "2s", "give_up_after": 2}}


class _Ids:
    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    def new(self) -> str:
        return f"id-{next(self._numbers)}"


class Play:
    """A world whose control planes adopt by the rules, with a store that they share."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.keeper = FakeRevisions()
        self.adoption: Adoption
        self._ids = _Ids()
        self._tasks = Supervisor("adoption")

    async def start(self) -> None:
        """Start a control plane, as `app.server` does."""
        world = self.world
        control = Control(world, f"control-{next(world._numbers)}")
        self.adoption = await self.begin(control)
        world.control = control

    async def begin(self, control: Control) -> Adoption:
        """Start a further control plane."""
        world = self.world
        adoption = Adoption(
            self.keeper,
            control.catalogs,
            control.leadership,
            world.store,
            world.clock,
            self._ids,
            control.reconciler.wake,
        )
        control.reconciler.watched_by(adoption)
        last = await adoption.load()
        if last is not None:
            assert await control.catalogs.remember(last)
        await control.start()
        await adoption.take_over()
        self._tasks.loop(f"adoption of {control.name}", adoption.run())
        return adoption

    async def restart(self) -> None:
        """End the control plane as if killed, and start another one when its lease has run out."""
        assert self.world.control is not None
        await self.stop()
        await self.world.control.stop(release=True)
        await self.start()

    async def stop(self) -> None:
        """End what this started."""
        await self._tasks.stop()
        self._tasks = Supervisor("adoption")

    def commit(self, *objects: Object, trailers: tuple[str, ...] = (), subject: str = "", **rules: object) -> Revision:
        """Push a directory."""
        from dataclasses import replace

        revision = Revision(f"{next(self.world._numbers):04x}".ljust(40, "0"))
        wanted = tree(cluster(control=CONTROL, **rules), *objects, revision=revision, subject=subject)
        self.world.source.push(replace(wanted, trailers=trailers, author="Ann"))
        return revision

    def push_again(self, revision: Revision, *objects: Object, **rules: object) -> None:
        """Push a commit that was pushed before."""
        self.world.source.push(tree(cluster(control=CONTROL, **rules), *objects, revision=revision))

    @property
    def in_force(self) -> str | None:
        """The revision in force."""
        assert self.world.control is not None
        found = self.world.control.catalogs.state.value.tree
        return found.revision if found is not None else None

    @property
    def waits(self) -> str | None:
        """What the newest valid revision waits for."""
        assert self.world.control is not None
        found = self.world.control.catalogs.state.value.waiting
        return found.kind if found is not None else None

    @property
    def four(self) -> Revisions:
        """The four revisions."""
        return self.adoption.revisions

    def outcomes(self) -> list[tuple[str, str]]:
        """The history, newest first, as (revision, outcome)."""
        return [(one.revision, one.outcome.value) for one in self.adoption.records]

    def models(self) -> list[str]:
        """The replicas that run."""
        return sorted(one.spec.replica for _, one in self.world.running())


def play(story: Callable[[Play], Awaitable[None]], seed: int = 1) -> None:
    """Run a story in a fresh world of two nodes."""

    async def run() -> None:
        world = World.begin(seed, jitter=False)
        world.machine("a")
        world.machine("b")
        one = Play(world)
        try:
            await story(one)
            world.assert_safe()
        finally:
            await one.stop()
            await world.end()

    simulate(run, seed)


def test_a_commit_is_fetched_validated_attempted_and_applied() -> None:
    async def story(it: Play) -> None:
        first = it.commit(A, B, model("m"), subject="first")
        await it.start()
        await asyncio.sleep(0.3)
        assert it.four.attempted is not None
        assert it.four.attempted.revision == first
        assert it.four.applied is None, "its engine is still loading"
        await asyncio.sleep(10)
        second = it.commit(A, B, model("m", 2), subject="second")
        await asyncio.sleep(1)
        four = it.four
        assert [one and one.revision for one in (four.fetched, four.validated, four.attempted, four.applied)] == [
            second, second, second, first,
        ]  # fmt: skip
        await asyncio.sleep(10)
        assert it.four.applied is not None
        assert (it.four.applied.revision, it.four.applied.subject, it.four.applied.author) == (second, "second", "Ann")
        assert it.outcomes() == [(second, "applied"), (first, "applied")]

    play(story)


def test_what_is_not_valid_is_fetched_only_and_stands_in_the_history() -> None:
    async def story(it: Play) -> None:
        first = it.commit(A, B, model("m"))
        await it.start()
        await asyncio.sleep(10)
        bad = it.commit(A, B, model("m", profile={"engine": "nonsense"}))
        await asyncio.sleep(2)
        four = it.four
        assert [one and one.revision for one in (four.fetched, four.validated, four.attempted, four.applied)] == [
            bad, first, first, first,
        ]  # fmt: skip
        assert it.outcomes() == [(bad, "refused"), (first, "applied")]
        assert "nonsense" in it.adoption.records[0].note
        await it.restart()
        await asyncio.sleep(5)
        assert it.outcomes() == [(bad, "refused"), (first, "applied")], "said once, whatever is restarted"

    play(story)


def test_the_newest_valid_revision_supersedes_one_that_is_stuck_and_one_that_failed() -> None:
    async def story(it: Play) -> None:
        good = it.commit(A, B, model("m", 1, "--load", "1"))
        await it.start()
        await asyncio.sleep(10)
        stuck = it.commit(A, B, model("m", 1, "--load", "100000", profile={"start_timeout": "10h"}))
        await asyncio.sleep(600)
        assert it.outcomes()[0] == (stuck, "under_way")
        failing = it.commit(A, B, model("m", 1, "--crash-after", "0.5"))
        await asyncio.sleep(60)
        assert it.outcomes()[:2] == [(failing, "failed"), (stuck, "superseded")]
        assert "status 1" in it.adoption.records[0].note
        mended = it.commit(A, B, model("m", 1, "--load", "2"))
        await asyncio.sleep(30)
        assert it.outcomes() == [(mended, "applied"), (failing, "failed"), (stuck, "superseded"), (good, "applied")]

    play(story)


def test_by_hand_a_commit_waits_for_an_apply_the_first_one_too() -> None:
    async def story(it: Play) -> None:
        first = it.commit(A, B, model("m"), sync="manual")
        await it.start()
        await asyncio.sleep(20)
        assert (it.in_force, it.waits, it.models()) == (None, "manual", [])
        record = await it.adoption.apply(first[:10], "bob")
        await asyncio.sleep(10)
        assert it.adoption.record(record.id).outcome is Outcome.APPLIED
        assert it.models() == ["m-1-0"]
        second = it.commit(A, B, model("m", 2), sync="auto")
        await asyncio.sleep(20)
        assert (it.in_force, it.waits) == (first, "manual"), "what is in force decides, not what is pushed"
        await it.restart()
        await asyncio.sleep(20)
        assert (it.in_force, it.waits) == (first, "manual")
        await it.adoption.apply(second, "bob")
        third = it.commit(A, B, model("m", 1))
        await asyncio.sleep(20)
        assert it.in_force == third
        assert [(one.how, one.by) for one in it.adoption.records] == [
            (How.AUTO, "Ann"), (How.APPLY, "bob"), (How.APPLY, "bob"),
        ]  # fmt: skip

    play(story)


def test_one_apply_at_a_time_unless_it_says_that_it_takes_the_others_place() -> None:
    async def story(it: Play) -> None:
        first = it.commit(A, B, model("m", 1, "--load", "50"), sync="manual")
        await it.start()
        await asyncio.sleep(2)
        one = await it.adoption.apply(first, "bob")
        assert (await it.adoption.apply(first, "bob")).id == one.id, "the same again is the same apply"
        second = it.commit(A, B, model("m", 1, "--load", "1"), sync="manual")
        await asyncio.sleep(2)
        with pytest.raises(CannotAdopt, match=f"apply {one.id} of revision {first[:10]} by bob is under way"):
            await it.adoption.apply(second, "eve")
        assert it.in_force == first
        other = await it.adoption.apply(second, "eve", supersede=True)
        await asyncio.sleep(20)
        assert it.outcomes() == [(second, "applied"), (first, "superseded")]
        assert it.adoption.record(other.id).by == "eve"
        both = await asyncio.gather(
            it.adoption.apply(first, "x"), it.adoption.apply(second, "y"), return_exceptions=True
        )
        assert sum(isinstance(each, Record) for each in both) == 1, both

    play(story)


def test_an_apply_of_a_directory_stays_until_the_source_moves() -> None:
    async def story(it: Play) -> None:
        head = it.commit(A, B, model("m"))
        await it.start()
        await asyncio.sleep(10)
        mine = tree(cluster(control=CONTROL), A, B, model("m", 2), revision="worktree-1234")
        await it.adoption.apply(mine, "bob")
        await it.restart()
        await asyncio.sleep(20)
        assert (it.in_force, it.waits) == ("worktree-1234", "passed over")
        await it.adoption.apply(head, "bob")
        await asyncio.sleep(10)
        assert (it.in_force, it.waits) == (head, None)
        await it.adoption.apply(mine, "bob")
        following = it.commit(A, B, model("m", 1, "--x"))
        await asyncio.sleep(20)
        assert it.in_force == following
        it.push_again(head, A, B, model("m"))
        await asyncio.sleep(20)
        assert (it.in_force, it.waits) == (head, None), "it was passed over once, not for ever"

    play(story)


def test_a_guard_keeps_the_last_good_one_until_the_commit_or_the_operator_names_what_goes() -> None:
    async def story(it: Play) -> None:
        first = it.commit(A, B, model("m", protect=True), model("n"), guard={"max_removed": 0})
        await it.start()
        await asyncio.sleep(10)
        refused = it.commit(A, B, model("n"))
        await asyncio.sleep(5)
        assert (it.in_force, it.waits) == (first, "guard")
        assert it.outcomes()[0] == (refused, "refused")
        assert "LLMGW-Allow-Remove: model/m" in it.adoption.records[0].note
        with pytest.raises(CannotAdopt, match="--allow-remove model/m") as caught:
            await it.adoption.apply(refused, "bob", frozenset({"model/n"}))
        assert caught.value.status == 403
        await it.restart()
        await asyncio.sleep(5)
        assert (it.in_force, it.waits) == (first, "guard"), "over a restart, too"
        named = it.commit(A, B, model("n"), trailers=("LLMGW-Allow-Remove: model/m",), guard={"max_removed": 0})
        await asyncio.sleep(20)
        assert (it.in_force, it.waits, it.models()) == (named, None, ["n-1-0"])
        last = it.commit(A, B)
        await asyncio.sleep(5)
        assert it.waits == "guard"
        await it.adoption.apply(last, "bob", frozenset({"model/n"}))
        await asyncio.sleep(20)
        assert (it.in_force, it.models()) == (last, [])

    play(story)


def test_a_rollback_holds_against_the_bad_commit_however_often_it_is_pushed() -> None:
    async def story(it: Play) -> None:
        good = it.commit(A, B, model("m", 1, "--good"))
        await it.start()
        await asyncio.sleep(10)
        bad = it.commit(A, B, model("m", 1, "--bad"))
        await asyncio.sleep(20)
        done = await it.adoption.rollback("", "bob")
        assert done.left == bad
        assert done.revert == f"git revert --no-edit {good[:12]}..{bad[:12]}"
        await asyncio.sleep(20)
        assert (it.in_force, it.waits) == (good, "held")
        assert it.outcomes() == [(good, "applied"), (bad, "rolled_back"), (good, "applied")]
        await it.restart()
        await asyncio.sleep(20)
        assert (it.in_force, it.waits) == (good, "held"), "over a restart, too"
        after = it.commit(A, B, model("m", 1, "--better"))
        await asyncio.sleep(20)
        assert (it.in_force, it.waits) == (after, None)
        it.push_again(bad, A, B, model("m", 1, "--bad"))
        await asyncio.sleep(20)
        assert (it.in_force, it.waits) == (after, "held"), "pushed again, it is still the bad one"
        await it.adoption.apply(bad, "bob")
        await asyncio.sleep(20)
        assert (it.in_force, it.waits) == (bad, None), "unless an operator names it"

    play(story)


def test_a_rollback_names_what_there_is_to_go_back_to() -> None:
    async def story(it: Play) -> None:
        first = it.commit(A, B, model("m"))
        await it.start()
        await asyncio.sleep(10)
        with pytest.raises(CannotAdopt, match="no other revision was applied here"):
            await it.adoption.rollback("", "bob")
        second = it.commit(A, B, model("m", 2))
        await asyncio.sleep(20)
        third = it.commit(A, B, model("m", 1, "--x"))
        await asyncio.sleep(20)
        with pytest.raises(CannotAdopt, match="f00dcafe was not applied here; one can go back to"):
            await it.adoption.rollback("f00dcafe", "bob")
        with pytest.raises(CannotAdopt, match="in force already"):
            await it.adoption.rollback(third, "bob")
        await it.adoption.rollback(first, "bob")
        await asyncio.sleep(20)
        assert it.in_force == first
        await it.adoption.rollback("", "bob")
        await asyncio.sleep(20)
        assert it.in_force == second, "the newest applied one that was not rolled back"

    play(story)


def test_a_rollback_of_what_added_a_protected_model_is_refused_until_it_is_named() -> None:
    async def story(it: Play) -> None:
        good = it.commit(A, B, model("m"))
        await it.start()
        await asyncio.sleep(10)
        bad = it.commit(A, B, model("m"), model("n", protect=True))
        await asyncio.sleep(10)
        with pytest.raises(CannotAdopt, match=f"llmgw rollback {good[:10]} --allow-remove model/n"):
            await it.adoption.rollback("", "bob")
        assert it.in_force == bad
        await it.adoption.rollback("", "bob", frozenset({"model/n"}))
        await asyncio.sleep(20)
        assert it.in_force == good

    play(story)


def test_while_suspended_nothing_is_taken_up_or_changed_and_it_ends_by_itself() -> None:
    async def story(it: Play) -> None:
        first = it.commit(A, B, model("m"))
        await it.start()
        await asyncio.sleep(10)
        await it.adoption.suspend("new switch", "10m", "bob")
        second = it.commit(A, B, model("n"))
        await asyncio.sleep(30)
        assert (it.in_force, it.waits, it.models()) == (first, "suspended", ["m-1-0"])
        machine, engine = it.world.engine("m-1-0")
        machine.end(engine)
        await asyncio.sleep(20)
        assert it.models() == ["m-1-0"], "a crashed engine is its agent's business"
        await it.restart()
        await asyncio.sleep(60)
        assert (it.in_force, it.waits, it.models()) == (first, "suspended", ["m-1-0"]), "over a restart, too"
        for refused in (it.adoption.apply(second, "eve"), it.adoption.rollback("", "eve")):
            with pytest.raises(
                CannotAdopt, match=r"suspended by bob, until .* \(new switch\); run `llmgw resume` first"
            ):
                await refused
        await asyncio.sleep(600)
        assert (it.in_force, it.waits, it.models()) == (second, None, ["n-2-0"])
        assert it.adoption.standing.suspension is None

    play(story)


def test_while_suspended_what_was_lost_is_not_replaced_and_resume_ends_it_at_once() -> None:
    async def story(it: Play) -> None:
        it.commit(A, B, model("m"))
        await it.start()
        await asyncio.sleep(10)
        await it.adoption.suspend("wait", "24h", "bob")
        machine, _ = it.world.engine("m-1-0")
        it.world.lose(machine.name)
        await asyncio.sleep(400)
        assert it.models() == ["m-1-0"]
        newer = it.commit(A, B, model("m", 1), model("n"))
        await asyncio.sleep(60)
        assert it.models() == ["m-1-0"]
        await it.adoption.resume("eve")
        await asyncio.sleep(60)
        assert (it.in_force, it.models()) == (newer, ["m-1-0", "m-1-1", "n-1-0"])
        with pytest.raises(CannotAdopt, match="nothing is suspended"):
            await it.adoption.resume("eve")

    play(story)


def test_a_standby_that_takes_the_lead_decides_nothing_before_it_has_read_what_the_leader_did_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("llmgw.control.adoption.FOLLOW", 1000.0)  # the leader dies before the standby looks

    async def story(it: Play) -> None:
        good = it.commit(A, B, model("m", 1, "--good"))
        await it.start()
        leader, adoption = it.world.control, it.adoption
        assert leader is not None
        await asyncio.sleep(10)
        bad = it.commit(A, B, model("m", 1, "--bad"))
        await asyncio.sleep(10)
        standby = Control(it.world, "standby")
        theirs = await it.begin(standby)
        it.world.ghosts.append(standby)
        await asyncio.sleep(5)
        assert standby.catalogs.state.value.tree.revision == bad
        await adoption.rollback("", "bob")
        await leader.stop(release=True)
        before = len(it.world.store.recorded)
        await asyncio.sleep(20)
        it.world.control, it.adoption = standby, theirs
        it.world.ghosts.clear()
        assert standby.leadership.epoch is not None
        told = [one.cause for one in it.world.store.recorded[before:] if one.kind == "revision_in_force"]
        assert [cause.split("#")[0] for cause in told] == [good[:10]]
        assert standby.reconciler.applied == good
        starts = [one for one in it.world.store.recorded[before:] if one.kind == "start"]
        assert all("replaces an outdated one" in one.text for one in starts)
        assert len(starts) <= 1

    play(story)


def test_a_store_that_is_away_keeps_no_fix_out_and_no_word_is_given_that_it_does_not_keep() -> None:
    async def story(it: Play) -> None:
        it.commit(A, B, model("m"))
        await it.start()
        await asyncio.sleep(10)
        it.keeper.available = False
        fix = it.commit(A, B, model("m", 2))
        await asyncio.sleep(20)
        assert it.in_force == fix
        with pytest.raises(CannotAdopt, match="nothing was changed") as caught:
            await it.adoption.suspend("x", "1h", "bob")
        assert caught.value.status == 503
        assert it.adoption.suspension is None
        it.keeper.available = True
        await asyncio.sleep(5)
        assert it.keeper.history[-1].revision == fix
        assert it.keeper.history[-1].outcome is Outcome.APPLIED
        await it.restart()
        assert it.in_force == fix

    play(story)


def test_a_standby_takes_nothing_up_shows_what_the_leader_did_and_goes_on_with_it() -> None:
    async def story(it: Play) -> None:
        first = it.commit(A, B, model("m", 1, "--good"))
        await it.start()
        leader, adoption = it.world.control, it.adoption
        assert leader is not None
        await asyncio.sleep(10)
        standby = Control(it.world, "standby")
        theirs = await it.begin(standby)
        it.world.ghosts.append(standby)
        it.commit(A, B, model("m", 1, "--bad"))
        await asyncio.sleep(20)
        await adoption.rollback("", "bob")
        with pytest.raises(CannotAdopt, match="this server does not lead; ask the one that does"):
            await theirs.apply(first, "eve")
        await asyncio.sleep(10)
        assert standby.catalogs.state.value.tree.revision == first
        assert [one.revision for one in theirs.records] == [one.revision for one in adoption.records]
        await leader.stop(release=True)
        await asyncio.sleep(20)
        assert standby.leadership.epoch is not None
        assert standby.catalogs.state.value.tree.revision == first, "the rollback holds"
        waiting = standby.catalogs.state.value.waiting
        assert waiting is not None
        assert waiting.kind == "held"
        it.world.control, it.adoption = standby, theirs
        it.world.ghosts.clear()
        assert (await theirs.apply(first, "eve")).outcome is Outcome.UNDER_WAY

    play(story)
