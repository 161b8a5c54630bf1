"""Spans that leave a real gateway worker by OTLP, to a collector that is there, and then is not."""

import contextlib
import http.server
import json
import threading
from collections.abc import Iterator

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.live.lab import Lab
from tests.live.test_router import Router, engine, post, quiet_lab

__all__ = ["quiet_lab"]


class Collector:
    """Takes spans by OTLP over HTTP."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.paths: set[str] = set()
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                collector.paths.add(self.path)
                said = ExportTraceServiceRequest.FromString(body)
                collector.spans += [
                    span for one in said.resource_spans for scope in one.scope_spans for span in scope.spans
                ]
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05})
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def collector() -> Iterator[Collector]:
    with contextlib.closing(Collector()) as one:
        yield one


def traceparent_sent(port: int) -> str:
    with contextlib.closing(post(port, {"model": "m"}, None)) as response:
        assert response.status == 200
        return {name.lower(): value for name, value in json.loads(response.read())["headers"]}["traceparent"]


def test_a_span_leaves_by_otlp_and_a_collector_that_is_gone_costs_one_line(
    quiet_lab: Lab,
    collector: Collector,
) -> None:
    lab = quiet_lab
    url, _ = engine(lab, "m", "--echo-headers")
    quick = {"OTEL_BSP_SCHEDULE_DELAY": "50", "OTEL_EXPORTER_OTLP_TIMEOUT": "1"}
    router = Router(lab, "--endpoint", f"e={url}=m", "--otel-endpoint", collector.url, **quick)
    sent = traceparent_sent(router.port)
    lab.until(lambda: collector.spans, "the span")
    (span,) = collector.spans
    assert collector.paths == {"/v1/traces"}
    assert sent.startswith(f"00-{span.trace_id.hex()}-{span.span_id.hex()}-")
    said = {one.key: one.value for one in span.attributes}
    assert said["llmgw.endpoint"].string_value == "e/m"
    assert said["http.response.status_code"].int_value == 200

    collector.close()
    for _ in range(3):
        traceparent_sent(router.port)
    lab.until(lambda: router.said("spans are lost"), "a word on the collector")
    before = len(lab.log("r.log"))
    for _ in range(20):
        traceparent_sent(router.port)
    router.process.terminate()
    assert router.process.wait(6) == 0, (
        "less than its workers have before they are killed: nobody waits for the collector"
    )
    log = lab.log("r.log")
    assert log.count("spans are lost: the collector does not take them") == 1
    assert "Traceback" not in log
    assert "opentelemetry" not in log[before:]


def test_a_collector_that_is_no_url_is_refused(quiet_lab: Lab) -> None:
    done = quiet_lab.llmgw("router", "--endpoint", "a=http://127.0.0.1:1=m", "--otel-endpoint", "collector:4318")
    assert (done.returncode, done.stderr.count("\n")) == (64, 1)
    assert "--otel-endpoint collector:4318 is not understood; write http://HOST:4318" in done.stderr
