"""Spans of requests, by OpenTelemetry's own SDK with an exporter in memory."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from llmgw.adapters.otel import OneLine, OtelSpans
from tests.fakes.engine import running_engine
from tests.unit.gateway.support import (
    CHAT,
    STREAM,
    Serving,
    gateway_before,
    serving,
    until,
)

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"traceparent: 00-{TRACE}-b7ad6b7169203331-01\r\ntracestate: v=1\r\n"


class Traced:
    """The spans of one gateway."""

    def __init__(self, s: Serving) -> None:
        self.exporter = InMemorySpanExporter()
        self.spans = OtelSpans(SimpleSpanProcessor(self.exporter))
        s.gateway.trace(self.spans)

    @property
    def all(self) -> tuple[ReadableSpan, ...]:
        return self.exporter.get_finished_spans()

    def one(self) -> tuple[ReadableSpan, dict[str, Any]]:
        """Return the only span, and its attributes; and forget it."""
        (span,) = self.all
        self.exporter.clear()
        return span, dict(span.attributes or {})


def sent(s: Serving, name: str, number: int = 0) -> list[str]:
    return [value for known, value in s.engines[number].seen.last_headers if known == name]


async def test_a_request_is_a_span_below_the_clients_and_the_engine_is_told_of_it() -> None:
    async with serving() as s:
        traced = Traced(s)
        secret = f"{PARENT}x-request-id: req-7\r\nauthorization: Bearer sk-secret\r\n"
        asked = {**CHAT, "model": "alias", "messages": [{"role": "user", "content": "the prompt"}]}
        answer = await s.ask(asked, "/v1/chat/completions?key=sk-secret", headers=secret)
        span, said = traced.one()
        assert span.name == "POST /v1/chat/completions"
        assert span.kind is SpanKind.SERVER
        assert span.context is not None
        assert span.parent is not None
        assert f"{span.context.trace_id:032x}" == TRACE
        assert f"{span.parent.span_id:016x}" == "b7ad6b7169203331"
        assert sent(s, "traceparent") == [f"00-{TRACE}-{span.context.span_id:016x}-01"]
        assert sent(s, "tracestate") == ["v=1"]
        first = said.pop("llmgw.time_to_first_byte")
        assert 0 <= first < 5
        usage = answer.json["usage"]
        assert said == {
            "http.request.method": "POST",
            "http.route": "/v1/chat/completions",
            "http.response.status_code": 200,
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": "alias",
            "gen_ai.request.stream": False,
            "gen_ai.usage.input_tokens": usage["prompt_tokens"],
            "gen_ai.usage.output_tokens": usage["completion_tokens"],
            "llmgw.route": "chat",
            "llmgw.endpoint": "m-0",
            "llmgw.request_id": "req-7",
            "llmgw.retries": 0,
        }
        shown = span.to_json()
        assert "sk-secret" not in shown
        assert "the prompt" not in shown
        assert span.resource.attributes["service.name"] == "llmgw"


async def test_a_stream_says_when_its_first_chunk_came_and_ends_with_its_last() -> None:
    async with serving(chunks=3, chunk_interval=0.02) as s:
        traced = Traced(s)
        assert (await s.ask(STREAM)).whole
        span, said = traced.one()
        assert said["gen_ai.response.time_to_first_chunk"] == said["llmgw.time_to_first_byte"]
        assert said["gen_ai.usage.output_tokens"] > 0
        assert span.end_time is not None
        assert span.start_time is not None
        assert (span.end_time - span.start_time) / 1e9 >= 0.04


async def test_without_a_parent_that_can_be_meant_a_trace_of_its_own_begins() -> None:
    two = PARENT + f"traceparent: 00-{TRACE}-b7ad6b7169203332-01\r\n"
    async with serving() as s:
        traced = Traced(s)
        for headers in ("", "traceparent: 00-1\r\ntracestate: v=1\r\n", two):
            assert (await s.ask(CHAT, headers=headers)).status == 200
            span, _ = traced.one()
            assert span.parent is None
            assert span.context is not None
            assert f"{span.context.trace_id:032x}" != TRACE
            (onward,) = sent(s, "traceparent")
            assert onward.startswith(f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-")
            assert int(onward[-2:], 16) & 1, "sampled; newer SDKs say by another bit that the id is random"
            assert sent(s, "tracestate") == []


async def test_what_the_client_does_not_sample_is_not_exported_and_goes_on_unsampled() -> None:
    async with serving() as s:
        traced = Traced(s)
        await s.ask(CHAT, headers=PARENT.replace("-01\r", "-00\r"))
        assert traced.all == ()
        (onward,) = sent(s, "traceparent")
        assert onward.startswith(f"00-{TRACE}-")
        assert onward.endswith("-00")


async def test_the_sdks_variables_choose_the_sampler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "edge")
    async with serving() as s:
        traced = Traced(s)
        await s.ask(CHAT)
        assert traced.all == ()
        await s.ask(CHAT, headers=PARENT)
        span, _ = traced.one()
        assert span.resource.attributes["service.name"] == "edge"


async def test_a_refusal_is_a_span_and_only_a_failure_is_an_error() -> None:
    async with serving(die_before_headers=True) as s:
        traced = Traced(s)
        assert (await s.ask({**CHAT, "model": "x" * 500})).status == 404
        span, said = traced.one()
        assert (said["http.response.status_code"], said["llmgw.reason"]) == (404, "model_not_found")
        assert len(said["gen_ai.request.model"]) == 200
        assert span.status.is_unset
        assert "error.type" not in said
        assert "llmgw.endpoint" not in said

        assert (await s.ask(b"{")).status == 400
        assert traced.one()[1]["http.response.status_code"] == 400

        assert (await s.ask(CHAT)).status == 502
        span, said = traced.one()
        assert (said["error.type"], span.status.description) == ("upstream_failed", "upstream_failed")
        assert not span.status.is_ok

        assert (await s.ask(CHAT, "/v1/nothing")).status == 404
        assert traced.all == (), "what goes to no model has none"


async def test_a_client_that_goes_away_and_a_second_try_are_in_it() -> None:
    async with (
        running_engine("busy", status=503) as busy,
        running_engine("free", stall_after=1) as free,
        gateway_before(busy, free) as s,
    ):
        traced = Traced(s)
        retries = 0
        while not retries:  # which of the two is asked first is chance
            client = await s.client()
            client.post(STREAM)
            await client.chunk(await client.head())
            await client.close()
            await until(lambda: traced.all)
            _, said = traced.one()
            assert (said["http.response.status_code"], said["llmgw.reason"]) == (499, "client_gone")
            assert said["llmgw.endpoint"] == "m-1"
            retries = said["llmgw.retries"]
        assert retries == 1


async def test_a_websocket_is_one_span_too() -> None:
    async with serving() as s:
        traced = Traced(s)
        client = await s.client()
        upgrade = "connection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-key: abc\r\nsec-websocket-version: 13\r\n"
        client.get("/v1/realtime?model=m", headers=upgrade + PARENT)
        assert (await client.head()).status == 101
        await client.close()
        await until(lambda: traced.all)
        span, said = traced.one()
        assert (span.name, said["llmgw.route"], said["gen_ai.request.model"]) == ("GET /v1/realtime", "realtime", "m")
        assert span.context is not None
        assert sent(s, "traceparent") == [f"00-{TRACE}-{span.context.span_id:016x}-01"]


class _Collector(SpanExporter):
    """Takes spans, or does not."""

    answers: SpanExportResult | Exception = SpanExportResult.SUCCESS

    def export(self, spans: object) -> SpanExportResult:
        logging.getLogger("opentelemetry.exporter.x").error("Failed to export: connection refused")
        if isinstance(self.answers, Exception):
            raise self.answers
        return self.answers

    def shutdown(self) -> None:
        pass


@pytest.fixture
def sdk_log() -> Iterator[None]:
    """Leaves the SDK's logger as it was."""
    sdk = logging.getLogger("opentelemetry")
    before = sdk.handlers, sdk.propagate
    yield
    sdk.handlers, sdk.propagate = before


@pytest.mark.usefixtures("sdk_log")
def test_a_collector_that_is_away_is_one_line_until_it_is_back(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    collector = _Collector()
    exporter = OneLine(collector)
    for answer in (SpanExportResult.FAILURE, SpanExportResult.FAILURE, OSError("gone")):
        collector.answers = answer
        assert exporter.export(()) is SpanExportResult.FAILURE
    (line,) = caplog.records
    assert line.getMessage() == "spans are lost: the collector does not take them"
    assert line.__dict__["why"] == "Failed to export: connection refused"
    collector.answers = SpanExportResult.SUCCESS
    assert exporter.export(()) is SpanExportResult.SUCCESS
    assert exporter.export(()) is SpanExportResult.SUCCESS
    assert [one.getMessage() for one in caplog.records[1:]] == ["the collector takes spans again"]
