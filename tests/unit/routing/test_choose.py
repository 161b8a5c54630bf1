import random
from collections import Counter
from dataclasses import replace

from llmgw.base.ids import ModelName, ReplicaId
from llmgw.fleet.table import Endpoint, EndpointTable, RoutedModel, TcpAddress
from llmgw.routing.choose import Refusal, Target, Wait, choose
from llmgw.routing.index import index_table
from llmgw.routing.load import Load
from llmgw.routing.request import RequestShape


def endpoint(number: int, model: str = "m") -> Endpoint:
    return Endpoint(ReplicaId(f"{model}-{number}"), ModelName(model), TcpAddress("10.0.0.1", 9000 + number), model)


def model(name: str = "m", *aliases: str, wanted: int = 2) -> RoutedModel:
    return RoutedModel(ModelName(name), aliases, wanted, 30)


def shape(name: str) -> RequestShape:
    return RequestShape("chat", name, False, 100)


THREE = index_table(EndpointTable(1, (model("m", "alias"),), (endpoint(0), endpoint(1), endpoint(2))))


def test_the_least_loaded_endpoint_is_chosen() -> None:
    load = Load()
    load.take(ReplicaId("m-0"))
    load.take(ReplicaId("m-2"))
    assert choose(shape("m"), THREE, load, random.Random(1)) == Target(endpoint(1))


def test_ties_are_broken_by_the_given_chance_and_by_nothing_else() -> None:
    rng = random.Random(1)
    chosen = Counter(str(choose(shape("m"), THREE, Load(), rng)) for _ in range(300))
    assert len(chosen) == 3
    assert min(chosen.values()) > 60
    again = [choose(shape("m"), THREE, Load(), random.Random(5)) for _ in range(2)]
    assert again[0] == again[1]


def test_an_alias_leads_to_its_model() -> None:
    assert isinstance(choose(shape("alias"), THREE, Load(), random.Random(1)), Target)


def test_excluded_endpoints_are_passed_over_even_if_idle() -> None:
    load = Load()
    load.take(ReplicaId("m-1"))
    excluded = {ReplicaId("m-0"), ReplicaId("m-2")}
    assert choose(shape("m"), THREE, load, random.Random(1), excluded) == Target(endpoint(1))
    excluded.add(ReplicaId("m-1"))
    refusal = choose(shape("m"), THREE, load, random.Random(1), excluded)
    assert isinstance(refusal, Refusal)
    assert refusal.code == "model_not_ready"


def test_an_unknown_model_is_refused_in_openais_words() -> None:
    refusal = choose(shape("gpt"), THREE, Load(), random.Random(1))
    message = "The model `gpt` does not exist or you do not have access to it."
    assert refusal == Refusal(404, "model_not_found", message, None)


def test_names_are_matched_exactly() -> None:
    for name in ("M", "m ", "Alias", ""):
        refusal = choose(shape(name), THREE, Load(), random.Random(1))
        assert isinstance(refusal, Refusal)
        assert refusal.status == 404


def test_a_long_name_is_not_repeated_whole() -> None:
    refusal = choose(shape("x" * 100_000), THREE, Load(), random.Random(1))
    assert isinstance(refusal, Refusal)
    assert len(refusal.message) < 400


def test_a_model_without_a_ready_endpoint_says_when_to_come_again() -> None:
    index = index_table(EndpointTable(1, (model(),), ()))
    refusal = choose(shape("m"), index, Load(), random.Random(1))
    assert isinstance(refusal, Refusal)
    assert (refusal.status, refusal.code, refusal.retry_after) == (503, "model_not_ready", 30)


def test_a_model_that_is_switched_off_promises_nothing() -> None:
    index = index_table(EndpointTable(1, (model(wanted=0),), ()))
    refusal = choose(shape("m"), index, Load(), random.Random(1))
    assert isinstance(refusal, Refusal)
    assert (refusal.status, refusal.code, refusal.retry_after) == (503, "model_switched_off", None)


def test_a_model_being_switched_off_serves_while_an_endpoint_is_left() -> None:
    index = index_table(EndpointTable(1, (model(wanted=0),), (endpoint(0),)))
    assert isinstance(choose(shape("m"), index, Load(), random.Random(1)), Target)


def busy(*counts: int) -> Load:
    load = Load()
    for number, count in enumerate(counts):
        for _ in range(count):
            load.take(ReplicaId(f"m-{number}"))
    return load


def test_a_full_endpoint_is_passed_over_and_when_all_are_a_request_waits() -> None:
    two = tuple(replace(endpoint(number), max_inflight=most) for number, most in enumerate((1, 3)))
    index = index_table(EndpointTable(1, (model(),), two))
    rng = random.Random(1)
    assert choose(shape("m"), index, busy(1, 2), rng) == Target(two[1])
    assert choose(shape("m"), index, busy(1, 3), rng) == Wait(model())
    assert choose(shape("m"), index, busy(0, 3), rng) == Target(two[0])


def test_nobody_waits_for_a_place_that_would_not_be_taken() -> None:
    two = tuple(replace(endpoint(number), max_inflight=1) for number in range(2))
    index = index_table(EndpointTable(1, (model(),), two))
    rng, load = random.Random(1), busy(1, 1)
    assert choose(shape("m"), index, load, rng, {ReplicaId("m-0")}) == Wait(model())
    tried = choose(shape("m"), index, load, rng, {ReplicaId("m-0"), ReplicaId("m-1")})
    barred = choose(shape("m"), index, load, rng, {ReplicaId("m-0")}, {ReplicaId("m-1"): 3.0})
    assert [one.code for one in (tried, barred) if isinstance(one, Refusal)] == ["model_not_ready", "model_unreachable"]


def test_a_limit_of_the_model_counts_all_of_its_endpoints() -> None:
    index = index_table(EndpointTable(1, (replace(model(), inflight=3),), (endpoint(0), endpoint(1))))
    assert isinstance(choose(shape("m"), index, busy(1, 1), random.Random(1)), Target)
    assert isinstance(choose(shape("m"), index, busy(1, 2), random.Random(1)), Wait)
