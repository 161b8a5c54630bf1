"""Prometheus text as engines write it."""

from llmgw.agent.figures import pulse, sums
from llmgw.agent.liveness import Pulse
from llmgw.engines.llamacpp import METRICS
from llmgw.engines.shard import MetricNames

VLLM = MetricNames(
    path="/metrics",
    running="vllm:num_requests_running",
    waiting="vllm:num_requests_waiting",
    prompt_tokens="vllm:prompt_tokens_total",
    generation_tokens="vllm:generation_tokens_total",
)
PAGE = b"""\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 2.0
vllm:num_requests_running{engine="1",model_name="a } b\\" {c"} 1.0
vllm:num_requests_waiting{engine="0",model_name="m"} NaN
vllm:num_requests_waiting{engine="1",model_name="m"} 4.0 1767225600000
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 100.0
# TYPE vllm:prompt_tokens counter
vllm:prompt_tokens_total{engine="0",model_name="m"} 1.5e+03
vllm:prompt_tokens_created{engine="0",model_name="m"} 1.7672256e+09
vllm:generation_tokens_total{engine="0",model_name="m"} 20.0
vllm:generation_tokens_total{engine="1",model_name="m"} +Inf
vllm:iteration_tokens_total_bucket{le="8.0"} 7.0
vllm:generation_tokens_total 5 # {trace_id="x"} 1.0
nonsense {{{ ]] 1
vllm:generation_tokens_total{engine="2"} many
vllm:generation_tokens_total{engine="3"

"""


def test_series_are_added_up_and_what_is_no_number_is_left_out() -> None:
    assert pulse(VLLM, PAGE, None) == Pulse(True, 2 + 1 + 4, 1500.0 + 20.0 + 5.0)


def test_the_plain_format_of_llama_cpp() -> None:
    page = b"# TYPE llamacpp:requests_processing gauge\nllamacpp:requests_processing 1\nllamacpp:requests_deferred 2\n"
    page += b"llamacpp:prompt_tokens_total 7\nllamacpp:tokens_predicted_total 8\n"
    found = pulse(METRICS, page, b"[{}]")
    assert (found.answered, found.in_flight, found.tokens) == (True, 3, 15.0)
    assert found.activity == pulse(METRICS, page, b"[{}]").activity != pulse(METRICS, page, b"[{ }]").activity


def test_without_the_page_that_moves_counters_that_stand_still_say_nothing() -> None:
    page = b"llamacpp:requests_processing 1\nllamacpp:prompt_tokens_total 7\n"
    assert pulse(METRICS, page, None) == Pulse(True, 1)


def test_an_unanswered_or_empty_page_is_unknown_and_not_zero() -> None:
    assert pulse(VLLM, None, None) == Pulse(True)
    assert pulse(VLLM, b"", None) == Pulse(True)
    assert pulse(VLLM, b"\xff\xfe\x00garbage\n", None) == Pulse(True)


def test_only_names_that_are_asked_for_are_read() -> None:
    assert sums("a 1\nab 2\na_total 3\na{} 4\n", frozenset({"a"})) == {"a": 5.0}
