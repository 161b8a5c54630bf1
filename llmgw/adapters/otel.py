"""Spans to a collector by OTLP over HTTP, with OpenTelemetry's SDK, which the extra `llmgw[otel]` brings.

The SDK's own environment variables hold (sampler, service name, headers, batch sizes, timeouts), so an operator who knows it
knows this. What is ours: no global tracer is set, and a collector that does not answer is one line in the log and not one a
batch, for which the SDK's own logger is quietened. Spans wait in a bounded queue for the SDK's thread; what does not fit is
dropped, and no request waits.

Imported only where spans are wanted: the SDK costs 50 ms and 20 MB.
"""

import logging
import os
import threading
from collections.abc import Mapping, Sequence
from typing import cast

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from llmgw import __version__
from llmgw.ports import traces
from llmgw.ports.traces import Value

log = logging.getLogger(__name__)

PATH = "/v1/traces"
"""What OTLP appends to a collector's address, for spans."""
GOODBYE = 2.0
"""Seconds that the last spans may take at a stop."""


class OtelSpans:
    """A `SpanSink`. `close` when it is over; from the event loop's thread."""

    def __init__(self, processor: SpanProcessor) -> None:
        self._provider = TracerProvider(resource=_resource(), shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("llmgw.gateway", __version__)
        self._propagator = TraceContextTextMapPropagator()

    def begin(
        self, name: str, carrier: Mapping[str, str], attributes: Mapping[str, Value]
    ) -> tuple[traces.Span, Mapping[str, str]]:
        """Begin a span of kind SERVER. One that is not sampled is named onward all the same, as not sampled."""
        parent = self._propagator.extract(carrier, Context())
        span = self._tracer.start_span(name, parent, SpanKind.SERVER, attributes)
        onward: dict[str, str] = {}
        self._propagator.inject(onward, set_span_in_context(span, Context()))
        return span, onward

    def end(self, span: traces.Span, attributes: Mapping[str, Value], error: str) -> None:
        """End it."""
        one = cast("Span", span)
        if one.is_recording():
            one.set_attributes(attributes)
            if error:
                one.set_status(Status(StatusCode.ERROR, error))
        one.end()

    def close(self) -> None:
        """Send what waits, and wait for that a little while: a collector that is away would hold up every stop."""
        last = threading.Thread(target=self._provider.shutdown, name="last spans", daemon=True)
        last.start()
        last.join(GOODBYE)


def otlp(collector: str) -> OtelSpans:
    """Return spans that go to a collector; an empty address means that the SDK's environment variables name it."""
    base = collector.rstrip("/")
    exporter = OTLPSpanExporter(endpoint=(base if base.endswith(PATH) else base + PATH) if base else None)
    return OtelSpans(BatchSpanProcessor(OneLine(exporter)))


class OneLine(SpanExporter):
    """Another exporter, whose failing is said once until it works again. Called from the SDK's thread."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self._failing = False
        self._said = _LastWord()
        sdk = logging.getLogger("opentelemetry")
        sdk.handlers = [self._said]  # it says why it failed here only, at every batch and every try
        sdk.propagate = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Try once; what fails is dropped, as the SDK has tried as long as it makes sense."""
        try:
            result = self._exporter.export(spans)
        except Exception as error:  # noqa: BLE001 - whatever it is, requests go on without their spans
            result, self._said.text = SpanExportResult.FAILURE, repr(error)
        failed = result is not SpanExportResult.SUCCESS
        if failed and not self._failing:
            log.warning("spans are lost: the collector does not take them", extra={"why": self._said.text[:300]})
        elif self._failing and not failed:
            log.info("the collector takes spans again")
        self._failing = failed
        return result

    def shutdown(self) -> None:
        """End it."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """Send what the exporter itself keeps."""
        return self._exporter.force_flush(timeout_millis)


class _LastWord(logging.Handler):
    """Keeps what was said last, instead of saying it."""

    text = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Keep it."""
        self.text = record.getMessage()


def _resource() -> Resource:
    """Return what this process is called, unless the environment says otherwise."""
    known = os.environ.get("OTEL_SERVICE_NAME") or f"{SERVICE_NAME}=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    named = {} if known else {SERVICE_NAME: "llmgw"}
    return Resource.create({**named, SERVICE_VERSION: __version__})
