"""Whether there is tracing, and where its spans go: the command line first, then the SDK's own environment variables."""

import importlib.util
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llmgw.adapters.otel import OtelSpans

log = logging.getLogger(__name__)

NAMES = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
MEND = "install it with `pip install 'llmgw[otel]'`"


class MissingExtra(Exception):
    """Spans are asked for, and what sends them is not installed; the message says how to get it."""


def collector_of(url: str | None, environment: Mapping[str, str], *, installed: Callable[[], bool]) -> str | None:
    """Return where spans go: a URL, empty if the environment says it, None if there is no tracing.

    Raises MissingExtra if they are asked for by the command line and cannot be sent. A variable may be meant for all programs
    of a host, so there it is a warning. `installed` tells whether they can be sent.
    """
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    if url is not None:
        if not installed():
            raise MissingExtra(f"--otel-endpoint needs OpenTelemetry's SDK; {MEND}")
        return url
    named = next((name for name in NAMES if environment.get(name)), None)
    if named is None or environment.get("OTEL_TRACES_EXPORTER", "otlp").strip() == "none":
        return None
    if not installed():
        log.warning("%s is set and OpenTelemetry's SDK is not there, so requests have no spans; %s", named, MEND)
        return None
    return ""


def has_extra() -> bool:
    """Whether what sends spans is installed."""
    try:
        return importlib.util.find_spec("opentelemetry.exporter.otlp.proto.http.trace_exporter") is not None
    except ModuleNotFoundError:
        return False


def spans_to(collector: str | None) -> "OtelSpans | None":
    """Return what sends spans there; None if there is no tracing."""
    if collector is None:
        return None
    from llmgw.adapters.otel import otlp  # noqa: PLC0415 - 20 MB that a worker without tracing does not need

    return otlp(collector)
