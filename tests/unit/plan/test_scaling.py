"""More replicas, fewer, none, and drains: withdrawn first, then quiet, then stopped, and called off when wanted again."""

import pytest

from llmgw.base.time import Instant
from llmgw.fleet.report import Phase, Reason
from llmgw.fleet.usage import NO_USAGE, Active, Idle, Unknown, UsageView
from llmgw.plan.result import Plan
from tests.builders import QUIET, Desk, cluster, held, model, node, ordered, published, told, why

NODES = (node("a"), node("b"))


def serving(replicas: int) -> Desk:
    desk = Desk.of(*NODES, model("m", replicas))
    desk.settle()
    return desk


def scaled(desk: Desk, replicas: int) -> Plan:
    desk.want(*NODES, model("m", replicas))
    return desk.plan()


def test_scaling_up_touches_nothing_that_runs() -> None:
    desk = serving(1)
    decided = scaled(desk, 3)
    assert told(decided) == ["start m-1-1 @b", "start m-1-2 @a"]
    assert published(decided) == ["m-1-0"]


def test_a_replica_is_published_when_it_is_ready_and_not_before() -> None:
    desk = Desk.of(NODES[0], model("m"))
    desk.plan()
    for phase in (Phase.WAITING, Phase.STARTING, Phase.BACKOFF, Phase.FAILED, Phase.STOPPING):
        desk.obey(phase)
        desk.phase("m-1-0", phase)
        decided = desk.plan()
        assert (told(decided), published(decided)) == ([], []), phase
    desk.phase("m-1-0", Phase.READY)
    decided = desk.plan()
    assert told(decided) == ["publish m-1-0 @a"]
    assert why(decided, "publish m-1-0 @a") == "it is ready at a.test:20000"


def test_scaling_down_withdraws_then_drains_then_stops_the_newest() -> None:
    desk = serving(3)
    decided = scaled(desk, 1)
    assert told(decided) == ["drain m-1-2 @a", "drain m-1-1 @b", "withdraw m-1-1 @b", "withdraw m-1-2 @a"]
    assert published(decided) == ["m-1-0"]
    assert ordered(decided) == {"a": ["m-1-0", "~m-1-2"], "b": ["~m-1-1"]}
    desk.obey()
    decided = desk.plan()
    assert told(decided) == ["stop m-1-2 @a", "stop m-1-1 @b"]
    assert ordered(decided) == {"a": ["m-1-0"], "b": []}


def test_scaling_down_takes_what_serves_least() -> None:
    desk = serving(3)
    desk.phase("m-1-0", Phase.STARTING)
    desk.phase("m-1-1", Phase.FAILED)
    decided = scaled(desk, 1)
    assert [line for line in told(decided) if line.startswith("drain")] == ["drain m-1-1 @b", "drain m-1-0 @a"]
    assert published(decided) == ["m-1-2"]


@pytest.mark.parametrize(
    ("usage", "waits_for"),
    [
        (Active(2), "its requests to finish: 2 in flight"),
        (Unknown("gateway worker 7 has not reported"), "its requests to finish: gateway worker 7 has not reported"),
    ],
)
def test_nothing_is_stopped_while_requests_are_in_flight_or_nobody_knows(usage, waits_for) -> None:
    desk = serving(1)
    desk.use("m-1-0", usage)
    scaled(desk, 0)
    for _ in range(5):
        desk.obey()
        decided = desk.plan(10.0)
        assert told(decided) == []
        assert held(decided) == {"replica/m-1-0: stop": waits_for}
    desk.use("m-1-0", Idle(desk.now))
    assert told(desk.plan()) == ["stop m-1-0 @a"]


def test_without_any_word_from_a_gateway_nothing_is_stopped() -> None:
    desk = serving(1)
    desk.usage = NO_USAGE
    scaled(desk, 0)
    desk.obey()
    assert told(desk.plan()) == []
    desk.usage = QUIET
    assert told(desk.plan()) == ["stop m-1-0 @a"]


def test_what_was_quiet_in_the_round_of_its_withdrawal_waits_for_a_word_about_the_new_table() -> None:
    desk = serving(1)
    desk.use("m-1-0", Idle(Instant(900.0)))
    decided = scaled(desk, 0)
    assert "stop m-1-0 @a" not in told(decided)
    assert held(decided) == {"replica/m-1-0: stop": "node a to say that it drains"}


def test_the_drain_deadline_ends_the_wait() -> None:
    desk = Desk.of(cluster(router={"timeouts": {"drain": "60s"}}), *NODES, model("m"))
    desk.settle()
    desk.use("m-1-0", Active(1))
    desk.want(cluster(router={"timeouts": {"drain": "60s"}}), *NODES, model("m", 0))
    assert "drain m-1-0 @a" in told(desk.plan())
    desk.obey()
    assert told(desk.plan(59.0)) == []
    decided = desk.plan(1.0)
    assert why(decided, "stop m-1-0 @a") == "its drain deadline of 60s passed (1 in flight)"


def test_a_drain_is_called_off_when_the_replica_is_wanted_again() -> None:
    desk = serving(2)
    desk.use("m-1-0", Active(1))
    desk.use("m-1-1", Active(1))
    assert "drain m-1-1 @b" in told(scaled(desk, 1))
    desk.obey()
    decided = scaled(desk, 2)
    assert told(decided) == ["keep m-1-1 @b", "publish m-1-1 @b"]
    assert ordered(decided) == {"a": ["m-1-0"], "b": ["m-1-1"]}
    assert decided.draining == {}
    assert published(decided) == ["m-1-0", "m-1-1"], "its node still reports it as draining"
    desk.obey()
    assert told(desk.plan()) == []


def test_a_second_drain_gets_a_deadline_of_its_own() -> None:
    desk = serving(2)
    desk.use("m-1-0", Active(1))
    desk.use("m-1-1", Active(1))
    scaled(desk, 1)
    desk.obey()
    scaled(desk, 2)
    desk.obey()
    desk.plan(250.0)
    decided = scaled(desk, 1)
    assert decided.draining == {"m-1-1": desk.now}
    desk.obey()
    assert told(desk.plan(200.0)) == []


def test_replicas_0_switches_a_model_off_and_keeps_it_known() -> None:
    desk = serving(2)
    scaled(desk, 0)
    desk.obey()
    decided = desk.settle()
    assert ordered(decided) == {"a": [], "b": []}
    assert [(one.name, one.wanted) for one in decided.table.models] == [("m", 0)]
    assert told(scaled(desk, 1)) == ["start m-1-0 @a"]


def test_a_model_that_left_the_catalog_is_drained_and_stopped() -> None:
    desk = Desk.of(*NODES, model("m"), model("n"))
    desk.settle()
    desk.use("m-1-0", Active(1))
    desk.want(*NODES, model("n"))
    decided = desk.plan()
    assert told(decided) == ["drain m-1-0 @a", "withdraw m-1-0 @a"]
    assert why(decided, "drain m-1-0 @a") == "model/m is no longer in the catalog"
    assert [one.name for one in decided.table.models] == ["n"]
    desk.obey()
    assert told(desk.plan()) == []
    desk.use("m-1-0", Idle(desk.now))
    assert told(desk.plan()) == ["stop m-1-0 @a"]
    desk.obey()
    assert ordered(desk.plan()) == {"a": [], "b": ["n-1-0"]}


def test_a_model_that_is_taken_out_and_put_back_keeps_its_draining_replica() -> None:
    desk = serving(1)
    desk.use("m-1-0", Active(1))
    desk.want(*NODES)
    desk.plan()
    desk.obey()
    assert told(scaled(desk, 1)) == ["keep m-1-0 @a", "publish m-1-0 @a"]


def test_a_draining_replica_that_never_came_up_is_stopped_at_once() -> None:
    desk = serving(1)
    scaled(desk, 2)
    desk.obey(Phase.BACKOFF)
    decided = scaled(desk, 1)
    assert told(decided) == ["drain m-1-1 @b"]
    desk.obey()
    decided = desk.plan()
    assert told(decided) == ["stop m-1-1 @b"]
    assert why(decided, "stop m-1-1 @b") == "it has no process"


def test_a_replica_that_gave_up_is_tried_on_other_nodes_and_not_there_again() -> None:
    nodes = (*NODES, node("c"))
    desk = Desk.of(*nodes, model("m"))
    desk.settle()
    for _ in range(3):
        replica = next(one for shards in ordered(desk.plan()).values() for one in shards)
        desk.phase(replica, Phase.FAILED, Reason("exited", "exited with status 1"))
        decided = desk.plan()
        desk.obey()
        desk.settle()
    decided = desk.plan()
    assert not any(line.startswith("start") for line in told(decided))
    assert held(decided)["model/m: start replica 1 of 1"] == (
        "room: a, b, c: not tried: it gave up on a, b, c (exited with status 1)"
    )
    assert why_started(desk) == ["m-1-0 gave up on a", "m-1-1 gave up on b"]
    desk.want(*nodes, model("m", 1, "--mended"))
    assert "start" in told(desk.plan())[0], "what is known of the old spec says nothing of the new one"


def why_started(desk: Desk) -> list[str]:
    """Return why each but the first was started."""
    return [action.why.partition(";")[0] for action in desk.actions if action.verb == "start"][1:]


def test_usage_of_a_replica_nobody_spoke_of_is_what_the_view_says_of_the_rest() -> None:
    desk = serving(1)
    desk.usage = UsageView({}, Unknown("gateway worker 7 goes by an older table"))
    scaled(desk, 0)
    desk.obey()
    assert told(desk.plan()) == []
