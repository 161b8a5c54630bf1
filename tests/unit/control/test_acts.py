"""What operators ask for by command: what is taken, what is refused and how, what outlives a restart, and when it is over."""

import pytest

from llmgw.base.time import Instant
from llmgw.control.acts import MISSING_CARD, Acts, CannotAct, over, until_of, wanted_acts, why_not_taken_back
from llmgw.fleet.report import Gpu
from llmgw.fleet.view import NeverSeen
from llmgw.plan.snapshot import Act
from llmgw.ports.sinks import StoreUnavailable
from llmgw.sim.store import FakeStore
from tests.builders import GIB, Desk, cordoned, model, node

NOW = Instant(1000.0)


class _Clock:
    def now(self) -> Instant:
        return NOW


def _acts() -> tuple[Acts, FakeStore]:
    store = FakeStore(_Clock())
    return Acts(store, store, _Clock()), store


def _desk() -> Desk:
    desk = Desk.of(node("a"), node("b"), model("m", 2))
    desk.cards["a"] = (Gpu("GPU-1", 0, "H100", 80 * GIB, 0),)
    desk.hear("a")
    desk.settle()
    return desk


def asked(**fields: object) -> list[Act]:
    desk = _desk()
    return wanted_acts(desk.snapshot(), {"reason": "new memory", **fields}, desk.now)


async def test_they_are_unknown_until_the_store_was_read_and_then_what_it_has() -> None:
    acts, store = _acts()
    store.acts = (Act("drain", "node/a", "r", NOW),)
    assert acts.current is None
    store.available = False
    with pytest.raises(StoreUnavailable):
        await acts.load()
    assert acts.current is None
    store.available = True
    await acts.load()
    assert acts.current == store.acts


async def test_one_is_in_the_store_before_it_holds_and_a_store_that_is_away_changes_nothing() -> None:
    acts, store = _acts()
    await acts.load()
    await acts.add([Act("drain", "node/a", "r", NOW)])
    assert store.acts == acts.current != ()
    store.available = False
    with pytest.raises(StoreUnavailable):
        await acts.add([Act("drain", "node/b", "r", NOW)])
    with pytest.raises(StoreUnavailable):
        await acts.remove("node/a")
    assert [act.target for act in acts.current or ()] == ["node/a"]


async def test_a_newer_one_takes_the_place_of_the_one_before_on_its_target() -> None:
    acts, store = _acts()
    await acts.add([Act("drain", "node/a", "first", NOW), Act("cordon", "node/b", "r", NOW)])
    await acts.add([Act("cordon", "node/a", "second", NOW)])
    assert [(act.kind, act.target) for act in store.acts] == [("cordon", "node/a"), ("cordon", "node/b")]


async def test_one_that_is_taken_back_is_gone_from_the_store_too_and_people_can_read_of_it() -> None:
    acts, store = _acts()
    await acts.add([Act("drain", "node/a", "r", NOW, by="ann")])
    assert await acts.remove("node/b") is None
    assert (await acts.remove("node/a") or Act("cordon", "", "", NOW)).reason == "r"
    assert store.acts == ()
    said = [(event.kind, event.subject, event.text) for event in store.recorded]
    assert said == [
        ("act_asked", "node/a", "drain of node/a (r) by ann"),
        ("act_taken_back", "node/a", "drain of node/a was taken back"),
    ]


def test_an_act_is_over_when_it_expired_or_its_target_is_gone() -> None:
    snapshot = _desk().snapshot()
    now = snapshot.now
    cases = {
        Act("drain", "node/a", "r", now): "",
        Act("drain", "node/a", "r", now, Instant(now - 1)): "it has expired",
        Act("drain", "node/a", "r", now, Instant(now + 1)): "",
        Act("drain", "node/zz", "r", now): "the node is gone",
        Act("restart", "replica/m-1-0", "r", now): "",
        Act("restart", "replica/m-1-7", "r", now): "the replica is gone",
        Act("cordon", "gpu/GPU-1", "r", Instant(now - MISSING_CARD)): "",
        Act("cordon", "gpu/GPU-9", "r", now): "",
        Act("cordon", "gpu/GPU-9", "r", Instant(now - MISSING_CARD)): "no node has had the card for 7d",
    }
    assert {act: over(act, snapshot) for act in cases} == cases


def test_nothing_is_taken_for_gone_while_a_node_has_not_spoken() -> None:
    desk = _desk()
    desk.views["b"] = NeverSeen(desk.now)
    assert over(Act("restart", "replica/m-1-7", "r", desk.now), desk.snapshot()) == ""


async def test_what_is_over_is_dropped_at_once_and_from_the_store_by_the_loop() -> None:
    acts, store = _acts()
    await acts.add([Act("drain", "node/zz", "r", NOW), Act("drain", "node/a", "r", NOW)])
    acts.tidy(_desk().snapshot())
    assert [act.target for act in acts.current or ()] == ["node/a"]
    await acts.load()
    assert [act.target for act in acts.current or ()] == ["node/a"], (
        "what was dropped does not come back from the store"
    )
    assert store.recorded[-1].kind == "act_asked", "it is over once the store has learned of it"
    await acts.step()
    assert [act.target for act in store.acts] == ["node/a"]
    assert store.recorded[-1].text == "drain of node/zz is over: the node is gone"


async def test_one_is_over_once_also_over_a_restart_and_with_a_store_that_is_away() -> None:
    acts, store = _acts()
    await acts.add([Act("drain", "node/a", "r", NOW, Instant(NOW + 1))])
    desk = _desk()
    desk.now = Instant(NOW + 500)

    def told() -> int:
        return sum(event.kind == "act_over" for event in store.recorded)

    store.available = False
    acts.tidy(desk.snapshot())
    with pytest.raises(StoreUnavailable):
        await acts.step()
    store.available = True
    killed = Acts(store, store, _Clock())
    await killed.load()
    killed.tidy(desk.snapshot())
    assert told() == 0
    await killed.step()
    after = Acts(store, store, _Clock())
    await after.load()
    after.tidy(desk.snapshot())
    await after.step()
    assert (told(), store.acts) == (1, ())


def test_a_restart_of_a_model_is_one_of_the_replicas_that_it_has_now() -> None:
    assert [act.target for act in asked(kind="restart", target="model/m")] == ["replica/m-1-0", "replica/m-1-1"]
    assert [act.target for act in asked(kind="restart", target="replica/m-1-1")] == ["replica/m-1-1"]


@pytest.mark.parametrize(
    ("fields", "status", "text"),
    [
        ({"kind": "drain", "target": "node/zz"}, 404, "there is no node 'zz'; there are: a, b"),
        ({"kind": "drain", "target": "gpu/9"}, 404, "there is no gpu '9'; there are: GPU-1"),
        ({"kind": "drain", "target": "a"}, 400, "'a' is no target; write node/NAME, gpu/UUID or replica/ID"),
        (
            {"kind": "drain", "target": "node/a", "reason": ""},
            400,
            "say why, for whoever reads it later: llmgw drain node/a --reason TEXT",
        ),
        (
            {"kind": "cordon", "target": "replica/m-1-0"},
            400,
            "a replica has no room to close; `llmgw drain replica/m-1-0` has another take its place",
        ),
        ({"kind": "restart", "target": "model/x"}, 404, "there is no model 'x'; there are: m"),
        ({"kind": "restart", "target": "node/a"}, 400, "'node/a' cannot be restarted; write model/NAME or replica/ID"),
        ({"kind": "melt", "target": "node/a"}, 400, "there is no act 'melt'; there are cordon, drain and restart"),
        (
            {"kind": "drain", "target": "node/a", "until": "soon"},
            400,
            "--until 'soon' is not understood; write 2h, or 2026-12-24T18:00Z",
        ),
        (
            {"kind": "drain", "target": "node/a", "until": "1970-01-01T00:00Z"},
            400,
            "--until 1970-01-01T00:00Z is over already; name a later time, or leave it out",
        ),
    ],
)
def test_what_cannot_be_done_is_refused_in_one_line_that_says_what_to_do(fields, status, text) -> None:
    with pytest.raises(CannotAct) as refused:
        asked(**fields)
    assert (refused.value.status, str(refused.value)) == (status, text)


def test_a_model_without_replicas_has_none_to_restart() -> None:
    desk = Desk.of(node("a"), model("m", 0))
    with pytest.raises(CannotAct, match="`llmgw explain model/m` says why"):
        wanted_acts(desk.snapshot(), {"kind": "restart", "target": "model/m"}, desk.now)


def test_an_end_is_a_duration_or_an_instant() -> None:
    assert until_of("2h", NOW) == 8200.0
    assert until_of("1970-01-01T00:30Z", NOW) == 1800.0


def test_a_node_that_its_file_cordons_is_not_uncordoned_by_command() -> None:
    snapshot = Desk.of(cordoned("a"), node("b")).snapshot()
    assert why_not_taken_back(snapshot, "node/a") == (
        "node/a is cordoned by its file (new memory); remove `cordoned:` there and commit"
    )
    assert why_not_taken_back(snapshot, "node/b").startswith("nothing was asked for of 'node/b'")
