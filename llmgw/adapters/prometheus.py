"""The control plane's metrics in Prometheus' text format, made from the status at each scrape; nothing is counted twice."""

from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector


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


def exposition(status: Callable[[], dict[str, Any]]) -> Callable[[], tuple[bytes, str]]:
    """Return a function that gives (body, content type) of a scrape."""
    registry = CollectorRegistry()
    registry.register(StatusCollector(status))
    return lambda: (generate_latest(registry), CONTENT_TYPE_LATEST)
