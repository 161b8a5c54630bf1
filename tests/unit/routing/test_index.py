from llmgw.base.ids import ModelName, ReplicaId
from llmgw.fleet.table import EMPTY_TABLE, Endpoint, EndpointTable, RoutedModel, TcpAddress
from llmgw.routing.index import index_table


def endpoint(model: str, number: int) -> Endpoint:
    return Endpoint(ReplicaId(f"{model}-{number}"), ModelName(model), TcpAddress("h", number), model)


def model(name: str, *aliases: str) -> RoutedModel:
    return RoutedModel(ModelName(name), aliases, 1, 5)


def test_an_empty_table_serves_nothing() -> None:
    index = index_table(EMPTY_TABLE)
    assert index.servable == ()
    assert index.models == {}


def test_a_name_beats_an_alias_and_the_earlier_alias_the_later() -> None:
    models = (model("a", "b", "shared"), model("b", "shared"))
    index = index_table(EndpointTable(1, models, (endpoint("a", 0), endpoint("b", 0))))
    assert index.models["b"].model.name == "b"
    assert index.models["shared"].model.name == "a"


def test_only_models_with_an_endpoint_can_be_served_now() -> None:
    index = index_table(EndpointTable(1, (model("a", "x"), model("b", "y")), (endpoint("b", 0),)))
    assert index.servable == ("b", "y")
    assert index.models["x"].endpoints == ()


def test_an_endpoint_of_a_model_that_is_not_listed_is_known_but_not_routed_to() -> None:
    index = index_table(EndpointTable(1, (model("a"),), (endpoint("ghost", 0),)))
    assert "ghost" not in index.models
    assert index.ids == {"ghost-0"}
