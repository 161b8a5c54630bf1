"""Metrics in Prometheus' text format: the control plane's from the status at each scrape, the gateway's as its workers count.

Nothing is counted twice, and every label has a bounded number of values: names from the catalog, routes, statuses, reasons.
"""

from collections.abc import Callable, Iterator
from typing import Any

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from llmgw.wire.messages import Sample


class StatusCollector(Collector):
    """Reads one status a scrape. Label values are names from the catalog, so their number is bounded."""

    def __init__(self, status: Callable[[], dict[str, Any]]) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        """Yield every metric family."""
        status = self._status()
        leading = GaugeMetricFamily("llmgw_leading", "1 if this control plane decides.")
        leading.add_metric([], float(status["control"]["leading"]))
        yield leading
        yield from _of_lease(status["control"].get("leader") or {})
        refused = GaugeMetricFamily("llmgw_revision_refused", "1 while the newest revision is not valid.")
        refused.add_metric([], float(status["source"]["refused"] is not None))
        yield refused
        suspended = GaugeMetricFamily("llmgw_suspended", "1 while an operator has suspended all changes.")
        suspended.add_metric([], float(status.get("suspended") is not None))
        yield suspended
        alarms = GaugeMetricFamily("llmgw_alarms", "Plans that were not carried out and other alarms, now.")
        alarms.add_metric([], float(len(status["control"]["alarms"])))
        yield alarms
        nodes = GaugeMetricFamily("llmgw_node_reporting", "1 if the node answers.", labels=["node"])
        for node in status["nodes"]:
            nodes.add_metric([node["name"]], float(node["state"] == "reporting"))
        yield nodes
        orders = CounterMetricFamily(
            "llmgw_node_refused_orders", "Orders that an agent refused as older, since it started.", labels=["node"]
        )
        adoptions = CounterMetricFamily(
            "llmgw_node_adoptions", "What an agent made of what it found at its start.", labels=["node", "outcome"]
        )
        for node in status["nodes"]:
            if node["refused_orders"] is not None:
                orders.add_metric([node["name"]], float(node["refused_orders"]))
            for outcome, count in (node["adoptions"] or {}).items():
                adoptions.add_metric([node["name"], outcome], float(count))
        yield orders
        yield adoptions
        wanted = GaugeMetricFamily("llmgw_model_replicas_wanted", "Replicas that should run.", labels=["model"])
        ready = GaugeMetricFamily("llmgw_model_replicas_ready", "Replicas that are published.", labels=["model"])
        for model in status["models"]:
            wanted.add_metric([model["name"]], float(model["wanted"]))
            ready.add_metric([model["name"]], float(model["ready"]))
        yield wanted
        yield ready
        phases = GaugeMetricFamily("llmgw_replicas", "Replicas by model and phase.", labels=["model", "phase"])
        counts: dict[tuple[str, str], int] = {}
        for replica in status["replicas"]:
            key = (replica["model"], replica["phase"])
            counts[key] = counts.get(key, 0) + 1
        for (model_name, phase), count in sorted(counts.items()):
            phases.add_metric([model_name, phase], float(count))
        yield phases
        ends = GaugeMetricFamily(
            "llmgw_replicas_last_end", "Replicas by how their last attempt ended.", labels=["model", "code"]
        )
        codes: dict[tuple[str, str], int] = {}
        for replica in status["replicas"]:
            if replica["last_end"] is not None:
                key = (replica["model"], replica["last_end"]["code"])
                codes[key] = codes.get(key, 0) + 1
        for (model_name, code), count in sorted(codes.items()):
            ends.add_metric([model_name, code], float(count))
        yield ends


def _of_lease(leader: dict[str, Any]) -> Iterator[Metric]:
    if not leader:
        return
    epoch = GaugeMetricFamily("llmgw_leader_epoch", "Epoch of the leader, as far as this control plane knows.")
    epoch.add_metric([], float(leader["epoch"] or 0))
    yield epoch
    changes = CounterMetricFamily("llmgw_leader_changes", "How often the lead went from one control plane to another.")
    changes.add_metric([], float(leader["changes"]))
    yield changes
    store = GaugeMetricFamily("llmgw_store_usable", "1 while the store can be used.")
    store.add_metric([], float(leader["store"] == "ok"))
    yield store


COUNTERS = {
    "llmgw_gateway_requests": (
        "Requests that are over, by what the client was told; `reason` is the gateway's own, empty if an engine answered.",
        ("route", "model", "status", "reason"),
    ),
    "llmgw_gateway_tokens": (
        "Tokens, as engines say: prompt, completion, and those of prompts cached.",
        ("model", "kind"),
    ),
    "llmgw_gateway_retries": ("Endpoints that were asked in vain, and another one after them.", ("model",)),
}
GAUGES = {
    "llmgw_gateway_in_flight": ("Requests in flight.", ("model", "endpoint")),
    "llmgw_gateway_queued": ("Requests that wait for a place.", ("model",)),
    "llmgw_gateway_circuit_open": ("1 while an endpoint is left alone, 0.5 while it is tried.", ("model", "endpoint")),
    "llmgw_gateway_event_loop_lag_seconds": ("How late a worker's event loop is, at worst.", ()),
}
HISTOGRAMS = {
    "llmgw_gateway_time_to_first_byte_seconds": "From a request's last byte to the first one of the answer's body.",
    "llmgw_gateway_request_duration_seconds": "From a request's last byte to the answer's last one.",
    "llmgw_gateway_inter_chunk_seconds": "Mean time between two pieces of an answer's body.",
}


class GatewayCollector(Collector):
    """Shows what gateway workers have counted."""

    def __init__(self, samples: Callable[[], list[Sample]]) -> None:
        self._samples = samples

    def collect(self) -> Iterator[Metric]:
        """Yield every metric family."""
        found: dict[str, list[Sample]] = {}
        for one in self._samples():
            found.setdefault(one.name, []).append(one)
        for name, (text, labels) in COUNTERS.items():
            counter = CounterMetricFamily(name, text, labels=labels)
            for one in found.get(f"{name}_total", []):
                counter.add_metric(one.labels, one.value)
            yield counter
        for name, (text, labels) in GAUGES.items():
            gauge = GaugeMetricFamily(name, text, labels=labels)
            for one in found.get(name, []):
                gauge.add_metric(one.labels, one.value)
            yield gauge
        for name, text in HISTOGRAMS.items():
            histogram = HistogramMetricFamily(name, text, labels=("model",))
            buckets: dict[str, list[tuple[str, float]]] = {}
            for one in found.get(f"{name}_bucket", []):
                buckets.setdefault(one.labels[0], []).append((one.labels[1], one.value))
            sums = {one.labels[0]: one.value for one in found.get(f"{name}_sum", [])}
            for model, pairs in buckets.items():
                pairs.sort(key=lambda pair: float(pair[0]))
                histogram.add_metric([model], pairs, sums.get(model, 0.0))
            yield histogram


def exposition(
    samples: Callable[[], list[Sample]], status: Callable[[], dict[str, Any]] | None = None
) -> Callable[[], tuple[bytes, str]]:
    """Return a function that gives (body, content type) of a scrape; of a router, which has no status, without one."""
    registry = CollectorRegistry()
    registry.register(GatewayCollector(samples))
    if status is not None:
        registry.register(StatusCollector(status))
    return lambda: (generate_latest(registry), CONTENT_TYPE_LATEST)


async def serve_metrics(expose: Callable[[], tuple[bytes, str]], listen: tuple[str, int]) -> web.AppRunner:
    """Answer `GET /metrics` and `GET /health` there until the runner is cleaned up. Raises OSError."""

    async def metrics(_: web.Request) -> web.Response:
        body, content_type = expose()
        return web.Response(body=body, headers={"content-type": content_type})

    async def health(_: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    app.router.add_get("/health", health)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    await web.TCPSite(runner, *listen).start()
    return runner
