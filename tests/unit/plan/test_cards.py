"""Which cards are free, which of them a replica gets, and what becomes of replicas whose cards can no longer be used."""

from dataclasses import replace

import pytest

from llmgw.base.ids import NodeName
from llmgw.engines.shape import Layer, Shape
from llmgw.fleet.report import GpuUser
from tests.builders import Desk, cluster, facts, held, model, node, on, ordered, told, why
from tests.cards import A100, CLASSES, GIB, L40S, gpus, on_cards, stranger

CLUSTER = cluster(gpu_classes=CLASSES)
MIB = 1 << 20


def desk_of(*models, nodes=("a",), count=8, **fields) -> Desk:
    cards = {NodeName(name): gpus(name, count) for name in nodes}
    return Desk.of(CLUSTER, *map(node, nodes), *models, cards={**cards, **fields.pop("cards", {})}, **fields)


def needs(count: int = 1, name: str = "m", replicas: int = 1, gpu_class: str = "h100", **fields):
    return model(name, replicas, profile=on_cards(count, gpu_class), **fields)


def room(desk: Desk, name: str = "m", number: int = 1, replicas: int = 1) -> str:
    return held(desk.plan())[f"model/{name}: start replica {number} of {replicas}"]


# free


def test_a_replica_gets_cards_by_their_uuids_and_says_how_many_are_left() -> None:
    desk = desk_of(needs(2))
    decided = desk.plan()
    assert decided.orders["a"].shards[0].spec.gpus == ("GPU-a-0", "GPU-a-1")
    assert why(decided, "start m-1-0 @a") == "1 wanted, 0 there; tightest fit on a: 2 h100, 6 left free; port 20000"


def test_no_card_is_given_twice_and_what_is_claimed_is_not_free() -> None:
    desk = desk_of(needs(4, replicas=3))
    decided = desk.plan()
    assert on(decided, "m-1-0") == {"a": ("0", "1", "2", "3")}
    assert on(decided, "m-1-1") == {"a": ("4", "5", "6", "7")}
    assert room(desk, number=3, replicas=3) == "room: a: 0 of 8 h100 free, needs 4; 8 in use"


def test_a_card_is_claimed_until_its_shard_is_gone_whatever_the_order_says() -> None:
    desk = desk_of(needs(8))
    desk.settle()
    shard = desk.views["a"].report.shards[0]
    desk.want(CLUSTER, node("a"), needs(8, name="n"))
    desk.plan()
    desk.obey()
    assert told(desk.plan()) == ["stop m-1-0 @a"]
    desk.hear("a", shard)  # its engine takes its time to end
    assert ordered(desk.plan()) == {"a": []}
    desk.hear("a")
    assert told(desk.plan()) == ["start n-1-0 @a"]


@pytest.mark.parametrize(
    ("memory", "free"), [(512 * MIB, True), (512 * MIB + 1, False), (None, False)], ids=["small", "large", "not said"]
)
def test_a_card_that_a_stranger_uses_is_not_free_and_the_pid_is_named(memory, free) -> None:
    desk = desk_of(needs(1), count=1)
    desk.card("GPU-a-0", users=(stranger(memory=memory),))
    decided = desk.plan()
    assert told(decided) == (["start m-1-0 @a"] if free else [])
    if not free:
        assert held(decided)["model/m: start replica 1 of 1"] == (
            "room: a: 0 of 1 h100 free, needs 1; 1 held by pid 4242 (python)"
        )


def test_strangers_add_up_and_the_one_that_has_most_is_named() -> None:
    desk = desk_of(needs(1), count=1)
    desk.card("GPU-a-0", users=(stranger(7, 300 * MIB, "Xorg"), stranger(8, 400 * MIB, "sleep")))
    assert room(desk) == "room: a: 0 of 1 h100 free, needs 1; 1 held by pid 8 (sleep)"


def test_our_own_processes_are_no_strangers() -> None:
    desk = desk_of(needs(1), count=1)
    desk.settle()
    shard = desk.views["a"].report.shards[0].spec.shard
    desk.card("GPU-a-0", users=(GpuUser(100, 70 * GIB, "llama-server", shard),))
    decided = desk.plan()
    assert told(decided) == []
    assert decided.holds == ()


def test_a_stranger_that_comes_later_takes_nothing_from_the_replica_that_has_the_card() -> None:
    desk = desk_of(needs(1), count=1)
    desk.settle()
    desk.card("GPU-a-0", users=(stranger(),))
    assert told(desk.plan()) == []


def test_reserved_cards_are_the_last_ones_whether_in_use_or_not() -> None:
    desk = Desk.of(CLUSTER, node("a", reserved={"gpus": 2}), needs(1, replicas=3), cards={NodeName("a"): gpus("a", 4)})
    decided = desk.plan()
    assert on(decided, "m-1-0") | on(decided, "m-1-1") == {"a": ("1",)}
    desk.obey()
    assert room(desk, number=3, replicas=3) == "room: a: 0 of 4 h100 free, needs 1; 2 in use, 2 reserved"


def test_a_node_that_does_not_answer_keeps_its_claims() -> None:
    desk = desk_of(needs(8), nodes=("a", "b"))
    desk.settle()
    desk.lose("a", surviving=True)
    desk.want(CLUSTER, node("a"), node("b"), needs(8), needs(8, name="n"))
    assert told(desk.plan()) == ["start n-1-0 @b"]
    desk.regain("a")
    decided = desk.plan()
    assert told(decided) == []
    assert on(decided, "m-1-0") == {"a": tuple("01234567")}


def test_ports_cards_cpus_and_memory_are_all_needed() -> None:
    desk = desk_of(model("m", 2, profile=on_cards(1, cpus=5)))
    desk.plan()
    assert room(desk, number=2, replicas=2) == "room: a: 3 of 8 cpus free, needs 5"


# classes


def test_cards_are_of_the_class_whose_globs_their_name_matches() -> None:
    desk = desk_of(
        needs(1, "x", gpu_class="l40s"),
        needs(1, "y", gpu_class="a100"),
        nodes=("a", "b", "c"),
        cards={"b": gpus("b", 2, L40S), "c": gpus("c", 2, A100.replace("A100", "A800"))},
    )
    assert ordered(desk.plan()) == {"a": [], "b": ["x-1-0"], "c": ["y-1-0"]}


def test_a_node_with_other_cards_says_which_it_has() -> None:
    desk = desk_of(needs(1, gpu_class="l40s"), cards={"a": (*gpus("a", 2), *gpus("z", 1, "Quadro K620"))})
    assert room(desk) == "room: a: has no l40s (has 1 of no class, 2 h100)"


def test_a_node_may_have_cards_of_two_classes() -> None:
    mixed = (*gpus("a", 2), *gpus("z", 2, L40S))
    desk = desk_of(needs(2), needs(2, "n", gpu_class="l40s"), cards={"a": mixed})
    decided = desk.plan()
    assert {one.spec.model: one.spec.gpus for one in decided.orders["a"].shards} == {
        "m": ("GPU-a-0", "GPU-a-1"),
        "n": ("GPU-z-0", "GPU-z-1"),
    }


def test_the_first_profile_that_fits_now_is_taken_in_order_of_priority() -> None:
    ways = {"profiles": [
        {"name": "slow", "engine": "llamacpp", "priority": 2},
        {"name": "small", "engine": "llamacpp", **on_cards(2, "l40s"), "priority": 1},
        {"name": "best", "engine": "llamacpp", **on_cards(4)},
    ]}  # fmt: skip
    desk = desk_of(model("m", 3, **ways), count=4, nodes=("a", "b"), cards={"b": gpus("b", 2, L40S)})
    decided = desk.plan()
    assert {one.spec.profile: name for name, order in decided.orders.items() for one in order.shards} == {
        "best": "a",
        "small": "b",
        "slow": "a",
    }


# best fit


def test_the_tightest_fit_is_taken_so_that_large_holes_stay_large() -> None:
    desk = desk_of(needs(2), nodes=("a", "b", "c"), cards={"b": gpus("b", 2), "c": gpus("c", 4)})
    assert ordered(desk.plan())["b"] == ["m-1-0"]


def test_small_replicas_of_many_models_leave_a_whole_node_for_a_large_one() -> None:
    small = [needs(1, f"s{n}") for n in range(8)]
    desk = desk_of(*small, nodes=("a", "b"))
    desk.settle()
    desk.want(CLUSTER, node("a"), node("b"), *small, needs(8, "large"))
    assert told(desk.plan()) == ["start large-1-0 @b"]


def test_replicas_of_one_model_keep_apart_unless_it_says_pack() -> None:
    apart = desk_of(needs(1, replicas=2), nodes=("a", "b"))
    assert ordered(apart.plan()) == {"a": ["m-1-0"], "b": ["m-1-1"]}
    together = desk_of(needs(1, replicas=2, placement="pack"), nodes=("a", "b"))
    assert ordered(together.plan()) == {"a": ["m-1-0", "m-1-1"], "b": []}


def test_when_all_fits_the_largest_is_placed_first_and_nothing_is_in_its_way() -> None:
    desk = desk_of(needs(1, "a1"), needs(1, "a2"), needs(8, "z"), nodes=("a", "b"), cards={"b": gpus("b", 2)})
    assert ordered(desk.plan()) == {"a": ["z-1-0"], "b": ["a1-1-0", "a2-1-0"]}


def test_what_asks_for_other_cards_does_not_compete() -> None:
    """A class that is short of cards must not keep another from being packed with the largest first."""
    desk = desk_of(
        needs(1, "a1", replicas=2), needs(8, "z", replicas=2), needs(1, "x", replicas=9, gpu_class="l40s"),
        nodes=("a", "b", "c", "d"), cards={"c": gpus("c", 2), "d": gpus("d", 4, L40S)},
    )  # fmt: skip
    decided = desk.plan()
    assert sum(line.startswith("start z") for line in told(decided)) == 2
    assert sum(line.startswith("start a1") for line in told(decided)) == 2


# which cards


def test_cards_that_are_linked_to_each_other_are_taken_together() -> None:
    pairs = gpus("a", 4, linked=[(0, 2), (1, 3)], numa=lambda _: 0)
    desk = desk_of(needs(2), cards={"a": pairs})
    assert on(desk.plan(), "m-1-0") == {"a": ("0", "2")}


def test_the_smallest_linked_group_that_suffices_is_broken_up() -> None:
    groups = gpus("a", 6, linked=[(0, 1, 2, 3), (4, 5)], numa=lambda _: 0)
    assert on(desk_of(needs(2), cards={"a": groups}).plan(), "m-1-0") == {"a": ("4", "5")}


def test_without_links_cards_of_one_numa_node_are_taken() -> None:
    cards = gpus("a", 4, linked=[], numa=lambda index: (0, 1, 0, 1)[index])
    desk = desk_of(needs(1, "first"), needs(2), cards={"a": cards})
    assert on(desk.plan(), "m-1-0") == {"a": ("0", "2")}


def test_of_two_nodes_that_fit_alike_the_better_linked_is_taken() -> None:
    desk = desk_of(
        needs(2), nodes=("a", "b"), cards={"a": gpus("a", 2, linked=[], numa=lambda i: i), "b": gpus("b", 2)}
    )
    assert ordered(desk.plan())["b"] == ["m-1-0"]


def test_weights_that_are_there_already_break_a_tie_before_links_do() -> None:
    there = replace(facts(), weights={"/weights/m.gguf": 7})
    desk = desk_of(needs(1), nodes=("a", "b"), facts={"b": there})
    assert ordered(desk.plan())["b"] == ["m-1-0"]


# cards that may not be used any more


def test_an_unhealthy_card_gets_nothing_and_the_rest_of_the_node_is_used() -> None:
    desk = desk_of(needs(1, replicas=2), count=2)
    desk.card("GPU-a-0", unhealthy="XID 79")
    decided = desk.plan()
    assert on(decided, "m-1-0") == {"a": ("1",)}
    assert held(decided)["model/m: start replica 2 of 2"] == (
        "room: a: 0 of 2 h100 free, needs 1; 1 in use, 1 unhealthy (XID 79)"
    )


def test_both_reasons_of_a_node_are_told_at_once() -> None:
    desk = desk_of(needs(4), nodes=("gpu-a3",), count=4)
    desk.card("GPU-gpu-a3-0", users=(stranger(),))
    desk.card("GPU-gpu-a3-1", unhealthy="XID 79")
    assert room(desk) == ("room: gpu-a3: 2 of 4 h100 free, needs 4; 1 held by pid 4242 (python), 1 unhealthy (XID 79)")


def test_the_replica_on_a_condemned_card_moves_away_replacement_first() -> None:
    desk = desk_of(needs(1), count=2)
    desk.settle()
    desk.card("GPU-a-0", unhealthy="XID 79")
    decided = desk.plan()
    assert told(decided) == ["start m-1-1 @a"]
    assert on(decided, "m-1-1") == {"a": ("1",)}
    assert held(decided)["replica/m-1-0: drain (outdated)"] == "1 more to serve first"
    desk.obey()
    desk.settle()
    assert ordered(desk.plan()) == {"a": ["m-1-1"]}
    drained = next(one for one in desk.actions if one.verb == "drain")
    assert drained.why == "card GPU-a-0 is unhealthy (XID 79) and 1 others serve"


def test_a_condemned_card_without_room_elsewhere_keeps_its_replica_while_that_serves() -> None:
    desk = desk_of(needs(1), count=1)
    desk.settle()
    desk.card("GPU-a-0", unhealthy="XID 79")
    decided = desk.plan()
    assert told(decided) == []
    assert held(decided)["model/m: start replica 1 of 1"] == (
        "room: a: 0 of 1 h100 free, needs 1; 1 unhealthy (XID 79)"
    )


def test_a_cordoned_card_keeps_what_it_has_and_gets_nothing_new() -> None:
    desk = desk_of(needs(1, replicas=2), count=2)
    desk.ask("cordon", "gpu/GPU-a-1")
    desk.settle()
    assert ordered(desk.plan()) == {"a": ["m-1-0"]}
    assert room(desk, number=2, replicas=2) == (
        "room: a: 0 of 2 h100 free, needs 1; 1 in use, 1 cordoned (memory errors)"
    )
    desk.acts = ()
    desk.settle()
    desk.ask("cordon", "gpu/GPU-a-1")
    assert told(desk.plan()) == []


def test_a_drained_card_gives_its_replica_up_until_the_act_expires() -> None:
    desk = desk_of(needs(1), count=2)
    desk.settle()
    desk.ask("drain", "gpu/GPU-a-0", until=desk.now + 500)
    desk.settle()
    assert on(desk.plan(), "m-1-1") == {"a": ("1",)}
    desk.want(CLUSTER, node("a"), needs(1, replicas=2))
    assert room(desk, number=2, replicas=2) == (
        "room: a: 0 of 2 h100 free, needs 1; 1 in use, 1 cordoned (memory errors)"
    )
    desk.now += 500
    assert told(desk.plan()) == ["start m-1-0 @a"]


@pytest.mark.parametrize("target", ["node/a", "replica/m-1-0"])
def test_nodes_and_replicas_are_drained_replacement_first(target) -> None:
    desk = desk_of(needs(1), nodes=("a", "b"), count=1)
    desk.settle()
    desk.ask("drain", target)
    decided = desk.plan()
    assert told(decided) == ["start m-1-1 @b"]
    desk.obey()
    desk.settle()
    assert ordered(desk.plan()) == {"a": [], "b": ["m-1-1"]}


def test_a_replica_whose_card_fell_off_the_bus_stays_while_it_serves() -> None:
    desk = desk_of(needs(1), count=2)
    desk.settle()
    desk.cards["a"] = gpus("a", 2)[1:]
    desk.regain("a")
    assert told(desk.plan()) == []


def test_cards_that_cannot_hold_their_share_of_the_weights_are_a_reason_and_no_crash_loop() -> None:
    def big(count: int, **more):
        profile = {**on_cards(count), "engine": "vllm", "tensor_parallel": count, **more}
        return model("big", 1, profile=profile, weights={"path": "big"})

    desk = Desk.of(CLUSTER, node("a"), big(1), cards={NodeName("a"): gpus("a", 4)})
    desk.facts[NodeName("a")] = replace(facts(), weights={"big": 320 * GIB})
    desk.regain("a")
    small = "room: a: a card of 80GiB is too small: its share of the weights alone is 160GiB"
    assert held(desk.plan())["model/big: start replica 1 of 1"] == small
    desk.want(CLUSTER, node("a"), big(1, args=["--cpu-offload-gb", "300"]))
    assert told(desk.plan()) == ["start big-1-0 @a"]
    desk = Desk.of(CLUSTER, node("a"), big(4), cards={NodeName("a"): gpus("a", 4)})
    desk.facts[NodeName("a")] = replace(facts(), weights={"big": 320 * GIB})
    desk.regain("a")
    assert told(desk.plan()) == ["start big-1-0 @a"]


def test_headers_that_a_node_has_read_say_what_one_request_of_full_length_takes() -> None:
    """Llama 3.1 8B: 15 GiB of weights, and 16 GiB of cache for 128k tokens, of 0.92 of a card."""
    shape = Shape(16060522496, "headers", (Layer(8, 256, count=32),), 131072, 4096, 14336)
    seen = replace(facts(), weights={"big": 16_100_000_000}, shapes={"big": shape})

    def plan(card: int, engine: str, *args: str) -> list[str] | str:
        profile = {**on_cards(1), "engine": engine, "args": list(args)}
        wanted = model("big", 1, profile=profile, weights={"path": "big"})
        cards = tuple(replace(one, memory=card * GIB) for one in gpus("a", 1))
        desk = Desk.of(CLUSTER, node("a"), wanted, cards={NodeName("a"): cards})
        desk.facts[NodeName("a")] = seen
        desk.regain("a")
        decided = desk.plan()
        return told(decided) or held(decided)["model/big: start replica 1 of 1"]

    start = ["start big-1-0 @a"]
    assert plan(24, "vllm") == (
        "room: a: a card of 24.0 GiB is too small: its weights take 15.0 GiB of the 22.1 GiB that the engine may have, "
        "and a request of full length 16.0 GiB (see `llmgw fit`)"
    )
    assert plan(24, "vllm", "--max-model-len", "32768") == start
    assert plan(24, "vllm", "--max-model-len=65536") != start
    assert plan(24, "vllm", "--max-model-len", "32k") == start, "what cannot be read is left to the engine"
    assert plan(34, "vllm") == start
    assert plan(34, "vllm", "--gpu-memory-utilization", "0.8") != start
    assert plan(24, "sglang") == start, "it takes what context there is room for"
    assert plan(14, "sglang") == "room: a: a card of 14GiB is too small: its share of the weights alone is 15316MiB"
    assert plan(14, "vllm", "--quantization", "fp8", "--max-model-len", "64") == start
