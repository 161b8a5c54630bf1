"""Where spans go, and what is said where they cannot."""

import pytest

from llmgw.app.tracing import MissingExtra, collector_of, has_extra, spans_to

BASE = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}


def there() -> bool:
    return True


def absent() -> bool:
    return False


@pytest.mark.parametrize(
    ("url", "environment", "found"),
    [
        (None, {}, None),
        ("http://c:4318", {}, "http://c:4318"),
        ("http://c:4318", BASE, "http://c:4318"),
        (None, BASE, ""),
        (None, {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c/x"}, ""),
        (None, {"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, None),
        (None, {**BASE, "OTEL_TRACES_EXPORTER": "none"}, None),
        (None, {**BASE, "OTEL_SDK_DISABLED": "true"}, None),
        ("http://c:4318", {"OTEL_SDK_DISABLED": "TRUE"}, None),
    ],
)
def test_the_command_line_comes_first_and_the_sdks_variables_hold(
    url: str | None, environment: dict[str, str], found: str | None
) -> None:
    assert collector_of(url, environment, installed=there) == found


def test_without_the_extra_there_is_one_line_with_the_command(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(MissingExtra) as refused:
        collector_of("http://c:4318", {}, installed=absent)
    assert str(refused.value) == (
        "--otel-endpoint needs OpenTelemetry's SDK; install it with `pip install 'llmgw[otel]'`"
    )
    assert collector_of(None, BASE, installed=absent) is None
    (line,) = caplog.messages
    assert line == (
        "OTEL_EXPORTER_OTLP_ENDPOINT is set and OpenTelemetry's SDK is not there, so requests have no spans; "
        "install it with `pip install 'llmgw[otel]'`"
    )
    assert collector_of(None, {}, installed=absent) is None
    assert len(caplog.messages) == 1


def test_nothing_is_made_where_nothing_is_traced() -> None:
    assert has_extra()
    assert spans_to(None) is None
