"""Static endpoints: what a command line may say, and what becomes of it in a table."""

import re

import pytest

from llmgw.base.ids import ModelName, ReplicaId
from llmgw.fleet.static import StaticEndpoint, static_endpoints, static_table, with_static
from llmgw.fleet.table import Endpoint, EndpointTable, RoutedModel, TcpAddress, UnixAddress
from llmgw.routing.index import index_table


@pytest.mark.parametrize(
    ("text", "address", "prefix", "models"),
    [
        ("a=http://h:8000=m", TcpAddress("h", 8000), "", ("m",)),
        ("a=http://h=m", TcpAddress("h", 80), "", ("m",)),
        ("a=https://api.example/openai/v1/=m,org/n:4b", TcpAddress("api.example", 443, tls=True), "/openai", ("m", "org/n:4b")),
        ("a.b_c-1=https://[2001:db8::1]:8443/v1=m", TcpAddress("2001:db8::1", 8443, tls=True), "", ("m",)),
        ("a=http://192.0.2.7:1/x/v1/y=m", TcpAddress("192.0.2.7", 1), "/x/v1/y", ("m",)),
    ],
)  # fmt: skip
def test_what_is_understood(text: str, address: TcpAddress, prefix: str, models: tuple[str, ...]) -> None:
    (one,) = static_endpoints([text])
    assert (one.address, one.prefix, one.models) == (address, prefix, models)


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["x"], "does not name an endpoint and its models"),
        (["x=http://h"], "does not name an endpoint and its models"),
        (["=http://h=m"], "'' is no id"),
        (["a/b=http://h=m"], "'a/b' is no id"),
        (["a=h:80=m"], "no http:// or https:// URL"),
        (["a=ftp://h=m"], "no http:// or https:// URL"),
        (["a=http://=m"], "no http:// or https:// URL"),
        (["a=http://h:0=m"], "no http:// or https:// URL"),
        (["a=http://h h=m"], "no http:// or https:// URL"),
        (["a=http://h:99999=m"], "no URL: Port out of range"),
        (["a=http://[::1=m"], "no URL"),
        (["a=http://me:secret@h=m"], "holds a user or a password"),
        (["a=http://h/v1?key=x=m"], "more than a path"),
        (["a=http://h/a b=m"], "more than a path"),
        (["a=http://h="], "a model's name is empty"),
        (["a=http://h=m,"], "a model's name is empty"),
        (["a=http://h=m n"], "'m n' is no name of a model"),
        (["a=http://h=m,m"], "lists a model twice"),
        (["a=http://h=m", "a=http://i=m"], "two endpoints are called 'a'"),
    ],
)
def test_what_is_refused_with_what_to_do(texts: list[str], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)) as refused:
        static_endpoints(texts)
    assert "\n" not in str(refused.value)


def test_alone_they_are_a_table_with_a_version() -> None:
    table = static_table(static_endpoints(["a=http://h=m,n", "b=https://i/x=m"]))
    assert table.version == 1
    assert [model.name for model in table.models] == ["m", "n"]
    assert [(one.id, one.model, one.served_name, one.prefix) for one in table.endpoints] == [
        ("a/m", "m", "m", ""),
        ("a/n", "n", "n", ""),
        ("b/m", "m", "m", "/x"),
    ]


def test_a_model_of_the_catalog_is_served_by_both_and_an_alias_stays_with_its_model() -> None:
    own = Endpoint(ReplicaId("m-1-0"), ModelName("m"), UnixAddress("/s"), "m")
    model = RoutedModel(ModelName("m"), ("best",), 1, 9)
    before = EndpointTable(7, (model,), (own,))
    assert with_static(before, ()) is before
    index = index_table(with_static(before, static_endpoints(["a=http://h=m", "b=http://i=best,other"])))
    assert index.version == 7
    assert [one.id for one in index.models["m"].endpoints] == ["m-1-0", "a/m", "b/best"]
    assert index.models["best"] == index.models["m"]
    assert index.models["m"].model == model
    assert [one.served_name for one in index.models["best"].endpoints] == ["m", "m", "best"]
    assert [one.id for one in index.models["other"].endpoints] == ["b/other"]


def test_no_id_can_be_a_replicas() -> None:
    one = StaticEndpoint("m-1-0", TcpAddress("h", 80), "", ("m",))
    own = Endpoint(ReplicaId("m-1-0"), ModelName("m"), UnixAddress("/s"), "m")
    table = with_static(EndpointTable(1, (RoutedModel(ModelName("m"), (), 1, 9),), (own,)), (one,))
    assert len({each.id for each in table.endpoints}) == 2
