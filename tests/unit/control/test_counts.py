"""What workers count, added up over their lives, and shown to Prometheus."""

from prometheus_client.parser import text_string_to_metric_families

from llmgw.adapters.prometheus import exposition
from llmgw.control.counts import Counts
from llmgw.gateway.meter import Meter
from llmgw.gateway.outcome import Outcome
from llmgw.gateway.usage import Tokens
from llmgw.wire.messages import Sample


def requests(value: float) -> Sample:
    return Sample("llmgw_gateway_requests_total", ("chat", "m", "200", ""), value)


def test_counters_never_go_down_when_a_worker_ends_and_gauges_go_with_it() -> None:
    counts = Counts()
    in_flight = Sample("llmgw_gateway_in_flight", ("m", "m-0"), 2)
    counts.take(1, (requests(5), in_flight, Sample("llmgw_gateway_circuit_open", ("m", "m-0"), 0.5)))
    counts.take(2, (requests(7), in_flight, Sample("llmgw_gateway_circuit_open", ("m", "m-0"), 1.0)))
    shown = {one.name: one.value for one in counts.samples()}
    assert shown == {
        "llmgw_gateway_requests_total": 12,
        "llmgw_gateway_in_flight": 4,
        "llmgw_gateway_circuit_open": 1.0,
    }
    counts.ended(2)
    counts.ended(2)
    counts.take(3, (requests(1),))
    shown = {one.name: one.value for one in counts.samples()}
    assert (shown["llmgw_gateway_requests_total"], shown["llmgw_gateway_in_flight"]) == (13, 2)


def test_what_a_meter_counts_is_what_a_scrape_shows() -> None:
    meter = Meter()
    meter.count("chat", "m", Outcome(200, first=0.02, duration=1.02, pieces=11, tokens=Tokens(3, 9, 1)))
    meter.count("chat", "m", Outcome(502, "upstream_failed", duration=700.0, retries=2))
    meter.count("chat", "", Outcome(404, "model_not_found"))
    meter.late(0.5)
    body, content_type = exposition(meter.samples)()
    assert content_type.startswith("text/plain")
    families = {one.name: one for one in text_string_to_metric_families(body.decode())}
    shown = [sample for one in families.values() for sample in one.samples]

    def value(name: str, **labels: str) -> float:
        (found,) = [one.value for one in shown if one.name == name and one.labels == labels]
        return float(found)

    total = "llmgw_gateway_requests_total"
    assert value(total, route="chat", model="m", status="200", reason="") == 1
    assert value(total, route="chat", model="", status="404", reason="model_not_found") == 1
    assert value("llmgw_gateway_tokens_total", model="m", kind="completion") == 9
    assert value("llmgw_gateway_retries_total", model="m") == 2
    assert value("llmgw_gateway_inter_chunk_seconds_sum", model="m") == 0.1
    duration = "llmgw_gateway_request_duration_seconds"
    bounds = {le: value(f"{duration}_bucket", model="m", le=le) for le in ("1", "2.5", "600", "+Inf")}
    assert bounds == {"1": 0, "2.5": 1, "600": 1, "+Inf": 2}
    assert value(f"{duration}_count", model="m") == 2
    assert value("llmgw_gateway_event_loop_lag_seconds") == 0.5
