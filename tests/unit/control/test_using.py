"""What a control plane tells agents of its gateways: of a new table only once every gateway goes by it."""

from dataclasses import dataclass, field

from llmgw.base.ids import Epoch, Generation, ModelName, NodeName, ReplicaId
from llmgw.base.time import Instant
from llmgw.control.book import FleetBook
from llmgw.control.using import UseTeller
from llmgw.fleet.report import Use, User
from llmgw.fleet.table import Endpoint, EndpointTable, TcpAddress
from llmgw.fleet.usage import Active, Idle, Unknown, UsageView
from llmgw.fleet.users import SILENT
from tests.builders import QUIET, catalog, cluster, model, node, report, shard_report, spec_of

SPEC = spec_of(catalog(cluster(), node("a"), model("m")), "m")
M, A = ReplicaId("m-1-0"), NodeName("a")
WITH = EndpointTable(1, (), (Endpoint(M, ModelName("m"), TcpAddress("127.0.0.1", 20000), "m"),))
WITHOUT = EndpointTable(2, (), ())


@dataclass
class Desk:
    """A teller, and what it is told."""

    usage_now: UsageView = QUIET
    at: float = 1000.0
    generation: int = 0
    book: FleetBook = field(init=False)
    teller: UseTeller = field(init=False)

    def __post_init__(self) -> None:
        self.book = FleetBook(self, lambda: None)
        self.book.expect(A)
        self.teller = UseTeller("mine", self, self.book, self)

    def now(self) -> Instant:
        self.at += 1.0
        return Instant(self.at)

    def usage(self) -> UsageView:
        return self.usage_now

    def hear(self) -> None:
        self.generation += 1
        said = report("a", shard_report(SPEC), epoch=Epoch(1), generation=Generation(self.generation))
        self.book.heard(A, self.book.connecting(A), said, {})


def test_nothing_is_said_of_a_node_that_never_spoke_or_without_gateways() -> None:
    desk = Desk()
    assert desk.teller.using(A) is None
    desk.hear()
    assert desk.teller.using(A) is not None
    desk.usage_now = UsageView({}, Unknown("no gateway worker runs"), present=False)
    assert desk.teller.using(A) is None


def test_a_withdrawal_is_said_once_every_gateway_goes_by_the_table_without_it() -> None:
    desk = Desk()
    desk.hear()
    desk.teller.published(WITH)
    desk.usage_now = UsageView({M: Active(2)}, QUIET.otherwise, current=True)
    said = desk.teller.using(A)
    assert said is not None
    assert (said.generation, said.uses) == (1, (Use(M, 2, None, routed=True),))
    desk.hear()
    desk.teller.published(WITHOUT)
    desk.usage_now = UsageView({M: Active(1)}, Unknown("gateway worker 7 goes by an older table"))
    said = desk.teller.using(A)
    assert said is not None
    assert (said.generation, said.uses) == (1, (Use(M, 1, None, routed=True),)), "one gateway may still send to it"
    desk.usage_now = UsageView({}, Unknown("gateway worker 7 goes by an older table"))
    said = desk.teller.using(A)
    assert said is not None
    assert said.uses == (Use(M, None, None, routed=True),)
    desk.usage_now = UsageView({M: Idle(Instant(desk.at))}, QUIET.otherwise, current=True)
    said = desk.teller.using(A)
    assert said is not None
    assert (said.generation, [one.routed for one in said.uses]) == (2, [False])
    desk.usage_now = QUIET
    said = desk.teller.using(A)
    assert said is not None
    assert said.uses == (), "it has nothing to do with it"


class Routers:
    """Which routers there are, and which were let go."""

    connected = ("edge",)

    def __init__(self) -> None:
        self.gone: frozenset[str] = frozenset()

    def moved(self, names: frozenset[str]) -> None:
        self.gone |= names


def test_a_router_that_another_control_plane_hears_is_let_go_here() -> None:
    desk, routers = Desk(), Routers()
    teller = UseTeller("mine", desk, desk.book, desk, routers)
    theirs, mine = (
        User("theirs", 0.0, Epoch(1), Generation(1), (), ("far",)),
        User("mine", 0.0, Epoch(1), Generation(1), (), ("edge",)),
    )
    silent = User("silent", SILENT + 1, Epoch(1), Generation(1), (), ("lost",))
    desk.book.heard(A, desk.book.connecting(A), report("a", users=(theirs, mine, silent)), {})
    teller.hear()
    assert routers.gone == {"far"}
    said = teller.using(A)
    assert said is not None
    assert said.routers == ("edge",)
