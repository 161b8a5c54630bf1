"""Each worker's share of a table's limits."""

from llmgw.base.ids import ModelName, ReplicaId
from llmgw.fleet.table import Endpoint, EndpointTable, GatewaySettings, RoutedModel, TcpAddress, shared

ENDPOINT = Endpoint(ReplicaId("m-1-0"), ModelName("m"), TcpAddress("h", 1), "m", max_inflight=5)
FREE = Endpoint(ReplicaId("m-1-1"), ModelName("m"), TcpAddress("h", 2), "m")
MODEL = RoutedModel(ModelName("m"), (), 2, 1, inflight=1, queue=0)
TABLE = EndpointTable(3, (MODEL,), (ENDPOINT, FREE), GatewaySettings(waiting=7, inflight=8, queue=9.0))


def test_each_worker_gets_its_share_and_never_nothing_of_something() -> None:
    found = shared(TABLE, 3)
    assert [one.max_inflight for one in found.endpoints] == [2, None]
    assert [(one.inflight, one.queue) for one in found.models] == [(1, 0)]
    assert (found.settings.waiting, found.settings.inflight, found.settings.queue) == (3, 3, 9.0)
    assert found.version == 3


def test_one_worker_or_none_has_all_of_it() -> None:
    assert shared(TABLE, 1) is TABLE
    assert shared(TABLE, 0) is TABLE
