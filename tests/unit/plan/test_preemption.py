"""Who gives way to whom: idle before busy, only the less important, as few as will do, and not back into the hole."""

import pytest

from llmgw.base.ids import NodeName
from llmgw.base.time import Instant
from llmgw.fleet.report import Phase, Reason
from llmgw.fleet.usage import Active, Idle, Unknown, UsageView
from tests.builders import Desk, cluster, held, model, node, ordered, told, why
from tests.cards import CLASSES, gpus, on_cards

CLUSTER = cluster(gpu_classes=CLASSES)
NO_WORD = UsageView({}, Unknown("no gateway has reported yet"))


def needs(name: str, count: int = 8, replicas: int = 1, priority: int = 0, **fields):
    return model(name, replicas, profile=on_cards(count), priority=priority, **{"min_life": "10m", **fields})


class Full(Desk):
    """A desk whose fleet is full of running replicas, an hour old, when more is wanted."""

    @staticmethod
    def of_running(*models, nodes=("a",), count: int = 8) -> "Full":
        desk = Full.of(CLUSTER, *map(node, nodes), *models, cards={NodeName(name): gpus(name, count) for name in nodes})
        full = Full(desk.catalog, desk.views, cards=desk.cards)
        full.settle()
        full.here = (CLUSTER, *map(node, nodes), *models)
        full.now = Instant(full.now + 3600)
        full.all_report()
        return full

    def all_report(self) -> None:
        for name in self.catalog.nodes:
            self.regain(name)

    def also(self, *models) -> None:
        self.want(*self.here, *models)

    def idle(self, *replicas: str, since: float = 600.0) -> None:
        for replica in replicas:
            self.use(replica, Idle(Instant(self.now - since)))


def test_an_idle_replica_of_lower_priority_gives_way_and_the_plan_says_why() -> None:
    desk = Full.of_running(needs("low"))
    desk.idle("low-1-0")
    desk.also(needs("high", priority=5))
    decided = desk.plan()
    assert told(decided) == ["drain low-1-0 @a", "withdraw low-1-0 @a"]
    assert why(decided, "drain low-1-0 @a") == "gives way to model/high (priority 5 over 0; idle for 10m)"
    assert held(decided)["model/high: start replica 1 of 1"] == "low-1-0 to be gone, which gives way to it"
    desk.obey()
    desk.settle()
    assert ordered(desk.plan()) == {"a": ["high-1-0"]}


@pytest.mark.parametrize(
    "usage",
    [Unknown("not used since the gateway started", quiet=True), Unknown("older table"), Active(1)],
    ids=["quiet", "unknown", "active"],
)
def test_what_is_not_known_to_be_idle_does_not_give_way(usage) -> None:
    desk = Full.of_running(needs("low"))
    desk.use("low-1-0", usage)
    desk.also(needs("high", priority=5))
    assert told(desk.plan()) == []


def test_with_preempt_a_busy_one_gives_way_too() -> None:
    desk = Full.of_running(needs("low"))
    desk.use("low-1-0", Active(3))
    desk.also(needs("high", priority=5, preempt=True))
    decided = desk.plan()
    assert why(decided, "drain low-1-0 @a") == "gives way to model/high (priority 5 over 0; the model says preempt)"
    desk.obey()
    assert told(desk.plan()) == []  # three requests are still in flight


@pytest.mark.parametrize("priority", [0, -1], ids=["equal", "lower"])
def test_neither_an_equal_nor_a_higher_one_gives_way(priority) -> None:
    desk = Full.of_running(needs("m"))
    desk.idle("m-1-0")
    desk.also(needs("n", priority=priority, preempt=True))
    assert told(desk.plan()) == []


def test_idle_ones_give_way_before_busy_ones() -> None:
    desk = Full.of_running(needs("x"), needs("y"), nodes=("a", "b"))
    desk.use("x-1-0", Active(1))
    desk.idle("y-1-0")
    desk.also(needs("high", priority=5, preempt=True))
    assert "drain y-1-0 @b" in told(desk.plan())


def test_the_fewest_give_way() -> None:
    desk = Full.of_running(*[needs(f"s{n}", 2) for n in range(4)], needs("big"), nodes=("a", "b"))
    desk.idle(*[f"s{n}-1-0" for n in range(4)], "big-1-0")
    desk.also(needs("high", priority=5))
    drained = [line for line in told(desk.plan()) if line.startswith("drain")]
    assert drained == ["drain big-1-0 @a"]


def test_what_need_not_give_way_after_all_is_spared() -> None:
    desk = Full.of_running(needs("one", 1), needs("two", 2), needs("five", 5))
    desk.idle("one-1-0", "two-1-0", "five-1-0")
    desk.also(needs("high", 4, priority=5))
    assert [line for line in told(desk.plan()) if line.startswith("drain")] == ["drain five-1-0 @a"]


def test_the_least_important_give_way_first() -> None:
    desk = Full.of_running(needs("low", 4), needs("mid", 4, priority=2))
    desk.idle("low-1-0", "mid-1-0")
    desk.also(needs("high", 4, priority=5))
    assert [line for line in told(desk.plan()) if line.startswith("drain")] == ["drain low-1-0 @a"]


def test_nothing_gives_way_that_would_not_help() -> None:
    desk = Full.of_running(needs("low", 4), needs("peer", 4, priority=5))
    desk.idle("low-1-0", "peer-1-0")
    desk.also(needs("high", 8, priority=5))
    assert told(desk.plan()) == []


def test_nothing_gives_way_inside_its_minimum_life() -> None:
    desk = Full.of_running(needs("low", min_life="61m"))
    desk.idle("low-1-0")
    desk.also(needs("high", priority=5, preempt=True))
    assert told(desk.plan()) == []
    assert "drain low-1-0 @a" in told(desk.plan(60.0))


def test_nothing_gives_way_on_a_node_that_does_not_answer() -> None:
    desk = Full.of_running(needs("low"))
    desk.idle("low-1-0")
    desk.lose("a", surviving=True)
    desk.also(needs("high", priority=5))
    assert told(desk.plan()) == []


def test_while_victims_drain_no_others_are_chosen() -> None:
    desk = Full.of_running(needs("x"), needs("y"), nodes=("a", "b"))
    desk.idle("x-1-0", "y-1-0")
    desk.also(needs("high", priority=5))
    first = [line for line in told(desk.plan()) if line.startswith("drain")]
    assert first == ["drain x-1-0 @a"]
    desk.use("x-1-0", Active(1))  # a last request was on its way
    for _ in range(3):
        desk.obey()
        decided = desk.plan()
        assert told(decided) == []
        assert held(decided)["model/high: start replica 1 of 1"] == "x-1-0 to be gone, whose place it gets"


def test_while_a_victim_ends_no_others_are_chosen() -> None:
    desk = Full.of_running(needs("x"), needs("y"), nodes=("a", "b"))
    desk.idle("x-1-0", "y-1-0")
    desk.also(needs("high", priority=5))
    desk.plan()
    desk.obey()
    assert told(desk.plan()) == ["stop x-1-0 @a"]
    for _ in range(3):  # its engine takes its time to end
        decided = desk.plan()
        assert told(decided) == []
        assert held(decided)["model/high: start replica 1 of 1"] == "x-1-0 to be gone, whose place it gets"


def test_two_missing_replicas_get_two_victims_at_once() -> None:
    desk = Full.of_running(needs("x"), needs("y"), nodes=("a", "b"))
    desk.idle("x-1-0", "y-1-0")
    desk.also(needs("high", replicas=2, priority=5))
    drained = [line for line in told(desk.plan()) if line.startswith("drain")]
    assert drained == ["drain x-1-0 @a", "drain y-1-0 @b"]


def test_one_victim_that_has_room_for_two_is_enough() -> None:
    desk = Full.of_running(needs("x"), needs("y"), nodes=("a", "b"))
    desk.idle("x-1-0", "y-1-0")
    desk.also(needs("high", 4, replicas=2, priority=5))
    assert [line for line in told(desk.plan()) if line.startswith("drain")] == ["drain x-1-0 @a"]


def test_victims_are_not_started_again_in_the_hole_that_they_left() -> None:
    """Not even where the victim was its model's first replica and the preemptor's is a second one."""
    desk = Full.of_running(needs("low"), needs("high", priority=5), nodes=("a", "b"))
    desk.idle("low-1-0")
    desk.here = desk.here[:-2]
    desk.also(needs("low"), needs("high", replicas=2, priority=5))
    assert "drain low-1-0 @b" in told(desk.plan())
    desk.obey()
    desk.settle()
    assert ordered(desk.plan()) == {"a": ["high-1-0"], "b": ["high-1-1"]}
    assert "start low-1-0 @b" not in [f"{one.verb} {one.replica} @{one.node}" for one in desk.actions[3:]]


def test_what_becomes_free_is_kept_from_the_less_important() -> None:
    """Four cards are free already, four more will be: nothing small may take the free ones meanwhile."""
    desk = Full.of_running(needs("low", 4))
    desk.idle("low-1-0")
    desk.also(needs("high", 8, priority=5))
    desk.plan()
    desk.obey()
    desk.also(needs("high", 8, priority=5), needs("small", 4), needs("tiny", 1))
    decided = desk.plan()
    assert told(decided) == ["stop low-1-0 @a"]
    assert held(decided)["model/small: start replica 1 of 1"] == (
        "room: a: 0 of 8 h100 free, needs 4; 8 kept for model/high"
    )
    desk.obey()
    assert told(desk.plan()) == ["start high-1-0 @a"]


def test_what_becomes_free_is_not_kept_from_the_more_important() -> None:
    desk = Full.of_running(needs("low", 4))
    desk.idle("low-1-0")
    desk.also(needs("high", 8, priority=5))
    desk.plan()
    desk.obey()
    desk.also(needs("high", 8, priority=5), needs("higher", 2, priority=7))
    assert "start higher-1-0 @a" in told(desk.plan())


def test_a_victim_that_is_wanted_again_runs_again_when_there_is_room() -> None:
    desk = Full.of_running(needs("low"))
    desk.idle("low-1-0")
    desk.also(needs("high", priority=5))
    desk.plan()
    desk.obey()
    desk.settle()
    desk.also(needs("high", priority=5, replicas=0))
    desk.settle()
    desk.settle()
    assert ordered(desk.plan()) == {"a": ["low-1-0"]}


def test_a_gang_takes_victims_on_several_nodes_or_none() -> None:
    fabric = [node(name, fabric="ib") for name in ("a", "b")]
    cards = {NodeName(name): gpus(name) for name in ("a", "b")}
    low = [needs("x"), needs("y")]
    gang = model("g", profile=on_cards(8, nodes=2), priority=5)
    desk = Desk.of(CLUSTER, *fabric, *low, cards=cards)
    desk.settle()
    desk.now = Instant(desk.now + 3600)
    for name in ("a", "b"):
        desk.regain(name)
    desk.use("x-1-0", Idle(desk.now))
    desk.want(CLUSTER, *fabric, *low, gang)
    assert told(desk.plan()) == []
    desk.use("y-1-0", Idle(desk.now))
    assert [line for line in told(desk.plan()) if line.startswith("drain")] == ["drain x-1-0 @a", "drain y-1-0 @b"]
    desk.obey()
    desk.settle()
    assert ordered(desk.plan()) == {"a": ["g-1-0"], "b": ["g-1-0"]}


def test_one_that_gave_up_gives_its_place_to_whoever_can_use_it() -> None:
    desk = Full.of_running(needs("broken", priority=9))
    desk.phase("broken-1-0", Phase.FAILED, Reason("exited", "exited with status 1"))
    desk.also(needs("low"))
    decided = desk.plan()
    assert why(decided, "drain broken-1-0 @a") == "it gave up, and model/low can use its place"
    desk.obey()
    desk.settle()
    decided = desk.plan()
    assert ordered(decided) == {"a": ["low-1-0"]}
    assert "it gave up there" in held(decided)["model/broken: start replica 1 of 1"]
