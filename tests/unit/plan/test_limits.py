"""What the gateway is told of how many requests a replica, a model and the gateway itself may have."""

from llmgw.fleet.report import Phase
from tests.builders import Desk, cluster, model, node


def test_limits_are_in_the_table_and_change_without_a_restart() -> None:
    desk = Desk.of(node("a"), model("m", 1, profile={"max_inflight": 4}, limits={"queue": 2, "inflight": 3}))
    desk.settle()
    table = desk.decided.table
    assert [one.max_inflight for one in table.endpoints] == [4]
    assert [(one.queue, one.inflight) for one in table.models] == [(2, 3)]
    assert (table.settings.waiting, table.settings.inflight, table.settings.queue) == (1000, None, 60.0)
    router = {"admission": {"queue": 5, "inflight": 6}, "timeouts": {"queue": "7s"}}
    desk.want(cluster(router=router), node("a"), model("m", 1, profile={"max_inflight": 8}))
    decided = desk.plan()
    assert decided.actions == ()
    assert [one.max_inflight for one in decided.table.endpoints] == [8]
    assert [(one.queue, one.inflight) for one in decided.table.models] == [(None, None)]
    settings = decided.table.settings
    assert (settings.waiting, settings.inflight, settings.queue) == (5, 6, 7.0)


def test_a_replica_of_a_profile_that_is_gone_is_given_as_many_as_the_most_of_its_model() -> None:
    desk = Desk.of(node("a"), model("m", 1, profile={"max_inflight": 4}))
    desk.settle()
    desk.want(node("a"), model("m", 1, "--new", profile={"max_inflight": 2}))
    desk.plan()
    desk.obey(Phase.STARTING)
    assert [(one.id, one.max_inflight) for one in desk.plan().table.endpoints] == [("m-1-0", 2)]
    desk.want(node("a"), model("m", 1, "--new"))
    assert [(one.id, one.max_inflight) for one in desk.plan().table.endpoints] == [("m-1-0", None)]
