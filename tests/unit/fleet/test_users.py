"""Gateways of other control planes: counted exactly, unknown when silent, and never asked less than the order wants to know."""

from dataclasses import replace

from llmgw.agent.users import FORGOTTEN_AFTER, MOST, Users
from llmgw.base.ids import Epoch, Generation, NodeName, ReplicaId
from llmgw.base.time import Instant
from llmgw.fleet.report import Use, User
from llmgw.fleet.usage import Active, Idle, Unknown, UsageView, is_quiet
from llmgw.fleet.users import SILENT, with_users
from llmgw.fleet.view import Reporting
from llmgw.wire.messages import Using
from tests.builders import QUIET, catalog, cluster, model, node, order, report, shard_report, spec_of

WANTED = catalog(cluster(), node("a"), model("m"))
SPEC = spec_of(WANTED, "m")
M = ReplicaId("m-1-0")
NOW = Instant(1000.0)
DRAIN = 30.0


def seen(*users: User, own: UsageView = QUIET, generation: int = 2, after: float = 0.0) -> UsageView:
    """Return what is known of usage at `after` seconds after the node spoke; its order has this generation."""
    said = report("a", shard_report(SPEC), users=users, epoch=Epoch(1), generation=Generation(2))
    views = {NodeName("a"): Reporting(said, NOW, {})}
    orders = {NodeName("a"): order("a", SPEC, generation=generation)}
    return with_users(own, views, orders, "mine", DRAIN, Instant(NOW + after))


def user(
    in_flight: int | None = 0,
    ended_ago: float | None = None,
    *,
    routed: bool = False,
    age: float = 0.0,
    generation: int = 2,
    gateways: str = "theirs",
) -> User:
    return User(gateways, age, Epoch(1), Generation(generation), (Use(M, in_flight, ended_ago, routed),))


def test_flights_add_up_and_idle_counts_from_the_latest_end() -> None:
    own = replace(QUIET, endpoints={M: Active(2)})
    assert seen(user(3), own=own).of(M) == Active(5)
    assert seen(user(3)).of(M) == Active(3)
    assert seen(user(0, 5.0), own=own).of(M) == Active(2)
    assert seen(user(0, 5.0)).of(M) == Idle(Instant(NOW - 5.0))
    assert seen(user(0, 5.0), user(0, 2.0, gateways="third")).of(M) == Idle(Instant(NOW - 2.0))
    assert seen(user(0, 5.0), own=replace(QUIET, endpoints={M: Idle(Instant(NOW - 60))})).of(M) == Idle(Instant(995.0))


def test_not_knowing_is_never_idle() -> None:
    assert not is_quiet(seen(user(None)).of(M))
    silent = seen(user(0, 5.0, age=SILENT - 1), after=2.0)
    assert not is_quiet(silent.of(M))
    assert "theirs" in str(silent.of(M))
    behind = UsageView({}, Unknown("a worker goes by an older table"))
    assert not is_quiet(seen(user(0, 5.0), own=behind).of(M)), "one's own not knowing stays"


def test_what_may_still_get_requests_elsewhere_is_said() -> None:
    assert seen(user(0, routed=True)).routed == {M}
    assert seen(user(0)).routed == frozenset()
    assert seen(user(0, generation=1)).routed == {M}, "it has not heard of the order that may drain it"
    assert seen(User("theirs", 0.0, Epoch(1), Generation(1), ())).routed == {M}
    assert seen(User("theirs", 0.0, Epoch(1), Generation(2), ())).routed == frozenset(), "it does not use it"
    assert seen(user(0), generation=3).routed == {M}, "the newest order is what counts, not what was reported"


def test_ones_own_gateways_are_not_counted_twice() -> None:
    assert seen(user(3, routed=True, gateways="mine")) == QUIET


def test_one_that_is_silent_for_longer_than_a_drain_may_take_is_gone() -> None:
    assert seen(user(3, routed=True), after=SILENT + DRAIN - 1).routed == {M}
    assert seen(user(3, routed=True), after=SILENT + DRAIN + 1) == QUIET


def using(*uses: Use, gateways: str = "theirs", generation: int = 2, leaving: bool = False) -> Using:
    return Using(gateways, Epoch(1), Generation(generation), uses, leaving)


def test_an_agent_passes_on_what_it_was_told_with_its_age() -> None:
    users = Users()
    use = Use(M, 3, None, routed=True)
    assert users.take(using(use), Instant(10.0))
    assert users.said(Instant(14.0)) == (User("theirs", 4.0, Epoch(1), Generation(2), (use,)),)
    assert not users.take(using(Use(M, 4, None, routed=True)), Instant(15.0)), "how many is no news"
    assert users.take(using(Use(M, 0, 0.1, routed=True)), Instant(16.0)), "that none is left is"
    assert users.take(using(Use(M, 0, 1.1, routed=False)), Instant(17.0))
    assert users.take(using(Use(M, 0, 1.1, routed=False), generation=3), Instant(18.0))
    assert users.take(using(leaving=True), Instant(19.0))
    assert users.said(Instant(19.0)) == ()


def test_an_agents_memory_of_users_is_bounded() -> None:
    users = Users()
    for number in range(100):
        users.take(using(gateways=f"g{number}"), Instant(float(number)))
    assert len(users.said(Instant(100.0))) == MOST
    assert users.said(Instant(100.0 + FORGOTTEN_AFTER)) == ()
