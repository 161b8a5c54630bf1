"""Keys of upstreams: looked up beside the table, sent to this host's workers alone, and shown nowhere."""

from pathlib import Path
from typing import Any

from llmgw.base.ids import ModelName, ReplicaId
from llmgw.base.time import Instant
from llmgw.control.gateways import Gateways
from llmgw.control.routers import reachable
from llmgw.control.workers import Workers, not_kept
from llmgw.fleet.static import static_endpoints
from llmgw.fleet.table import Endpoint, EndpointTable, RoutedModel, TcpAddress
from llmgw.wire.messages import Table, decode, encode

VALUE = "sk-hunter2"
KEYED = Endpoint(ReplicaId("box/m"), ModelName("m"), TcpAddress("h", 443, tls=True), "m", key="HUB")
OPEN = Endpoint(ReplicaId("m-1-0"), ModelName("m"), TcpAddress("192.0.2.1", 1), "m")
TABLE = EndpointTable(3, (RoutedModel(ModelName("m"), (), 1, 9),), (OPEN, KEYED))


class _Clock:
    def now(self) -> Instant:
        return Instant(0.0)


class _Secrets:
    def __init__(self, value: str | None) -> None:
        self.value = value

    def get(self, name: str) -> str | None:
        return self.value if name == "HUB" else None


class _Routers:
    """Keeps what it is given."""

    table: EndpointTable | None = None

    def publish(self, table: EndpointTable, *, settled: bool) -> None:
        self.table = table

    def words(self) -> list[Any]:
        return []


def gateways(value: str | None, *static: str) -> Gateways:
    workers = Workers([], 0, Path("/nowhere"), _Clock(), lambda: None, list, not_kept)
    return Gateways(workers, _Routers(), _Clock(), static_endpoints(static), _Secrets(value))  # type: ignore[arg-type]


def sent(place: Gateways) -> Table:
    newest = place.workers._newest.value
    assert newest is not None
    return newest.message()


def test_a_worker_is_sent_the_key_beside_the_table_and_nobody_else_is() -> None:
    place = gateways(VALUE)
    place.publish(TABLE, settled=True)
    message = sent(place)
    assert (message.table, message.keys) == (TABLE, {"HUB": VALUE})
    assert decode(encode(message)) == message
    for shown in (repr(message), repr(place), repr(place.workers), repr(TABLE)):
        assert VALUE not in shown
    assert place.alarms == ()
    assert place.routers.table == TABLE  # type: ignore[attr-defined]
    assert [one.id for one in reachable(TABLE, same_host=True).endpoints] == ["m-1-0"], "a router has no key for it"


def test_a_key_that_changed_is_sent_and_one_that_did_not_is_not_sent_again() -> None:
    place = gateways(VALUE)
    place.publish(TABLE, settled=True)
    version = place.workers._newest.version
    place.publish(TABLE, settled=True)
    assert place.workers._newest.version == version
    place.secrets.value = "sk-2"  # type: ignore[attr-defined]
    place.publish(TABLE, settled=True)
    assert place.workers._newest.version == version + 1
    assert sent(place).keys == {"HUB": "sk-2"}
    assert place.workers.version == 3, "counts go by the version of the table, which is the same"


def test_without_a_usable_value_it_is_not_routed_to_and_that_is_said() -> None:
    for value, why in (
        (None, "there is no such secret; set LLMGW_SECRET_HUB, or put a file HUB (mode 0600) into --secrets-dir"),
        ("", "the secret is empty; correct it"),
        ("a\nb", "the secret has a space, a line end or another character that no header takes; correct it"),
    ):
        place = gateways(value)
        place.publish(TABLE, settled=True)
        assert [one.id for one in sent(place).table.endpoints] == ["m-1-0"]
        assert sent(place).keys == {}
        (alarm,) = place.alarms
        assert alarm == f"endpoints whose api_key is HUB are not routed to: {why}"


def test_a_name_of_the_command_line_that_the_directory_has_too_is_said() -> None:
    place = gateways(VALUE, "box=http://i=m,n", "other=http://i=m")
    place.publish(TABLE, settled=True)
    listed = [(one.id, str(one.address)) for one in sent(place).table.endpoints if one.id != "m-1-0"]
    assert listed == [("box/m", "h:443"), ("box/n", "i:80"), ("other/m", "i:80")]
    assert place.alarms == ("--endpoint box: an Endpoint of the cluster directory has that name; rename one",)
