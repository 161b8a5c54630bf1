"""What is known of a node changes by `fold` and `lose` alone, and not hearing from it never makes it empty."""

from llmgw.base.ids import ReplicaId
from llmgw.base.time import Instant
from llmgw.fleet.table import TcpAddress
from llmgw.fleet.usage import NO_USAGE, Active, Idle, Unknown, UsageView, is_quiet
from llmgw.fleet.view import NeverSeen, Reporting, Unreachable, fold, lose, report_of, routes_of
from tests.builders import catalog, model, order, report, shard_report, spec_of

SPEC = spec_of(catalog(model("m")), "m")
ROUTES = {SPEC.shard: TcpAddress("a.test", 20000)}
OLD = report("a", shard_report(SPEC), sequence=5)
NEW = report("a", sequence=6)
T0, T1, T2 = Instant(0.0), Instant(1.0), Instant(2.0)


def test_the_first_report_makes_a_node_known() -> None:
    assert fold(NeverSeen(T0), OLD, T1, ROUTES) == Reporting(OLD, T1, ROUTES)


def test_a_newer_report_replaces_and_an_older_one_of_the_same_boot_does_not() -> None:
    known = Reporting(NEW, T1, {})
    assert fold(Reporting(OLD, T1, ROUTES), NEW, T2, {}) == Reporting(NEW, T2, {})
    assert fold(known, OLD, T2, ROUTES) is known


def test_a_report_with_the_same_number_refreshes_routes() -> None:
    assert fold(Reporting(OLD, T1, {}), OLD, T2, ROUTES) == Reporting(OLD, T2, ROUTES)


def test_another_boot_counts_from_one_again() -> None:
    restarted = report("a", boot="boot-2", sequence=1)
    assert fold(Reporting(OLD, T1, ROUTES), restarted, T2, {}) == Reporting(restarted, T2, {})


def test_a_node_that_is_back_is_believed() -> None:
    gone = Unreachable(OLD, T0, "no route", ROUTES)
    assert fold(gone, NEW, T2, {}) == Reporting(NEW, T2, {})


def test_losing_a_node_keeps_what_it_said_and_the_routes_that_survive() -> None:
    gone = lose(Reporting(OLD, T0, ROUTES), T1, "no route", {})
    assert gone == Unreachable(OLD, T1, "no route", {})
    assert (report_of(gone), routes_of(gone)) == (OLD, {})
    assert lose(Reporting(OLD, T0, ROUTES), T1, "no route", ROUTES) == Unreachable(OLD, T1, "no route", ROUTES)


def test_it_is_unreachable_since_the_first_failure_for_the_newest_reason() -> None:
    gone = lose(Unreachable(OLD, T0, "no route", ROUTES), T2, "refused", {})
    assert gone == Unreachable(OLD, T0, "refused", ROUTES)


def test_a_node_that_never_spoke_stays_unknown_and_is_not_unreachable() -> None:
    view = lose(NeverSeen(T0), T2, "refused", {})
    assert view == NeverSeen(T0, "refused")
    assert (report_of(view), routes_of(view)) == (None, {})


def test_only_an_end_or_an_agreed_silence_is_quiet() -> None:
    assert is_quiet(Idle(T0))
    assert is_quiet(Unknown("not used since the gateway started", quiet=True))
    assert not is_quiet(Unknown("a worker has not reported"))
    assert not is_quiet(Active(1))
    assert not is_quiet(NO_USAGE.of(ReplicaId("m-1-0")))


def test_an_endpoint_nobody_spoke_of_is_what_holds_for_the_rest() -> None:
    rest = Unknown("older table")
    view = UsageView({ReplicaId("m-1-0"): Active(2)}, rest)
    assert view.of(ReplicaId("m-1-0")) == Active(2)
    assert view.of(ReplicaId("m-1-1")) is rest


def test_orders_are_ranked_by_epoch_and_then_generation() -> None:
    ranks = [order("a", epoch=epoch, generation=generation).rank for epoch, generation in ((1, 9), (2, 1), (2, 2))]
    assert ranks == sorted(ranks)
    wanted = order("a", SPEC).shard(SPEC.shard)
    assert wanted is not None
    assert wanted.spec == SPEC
    assert order("a").shard(SPEC.shard) is None
    assert OLD.shard(SPEC.shard) == OLD.shards[0]
    assert NEW.shard(SPEC.shard) is None
