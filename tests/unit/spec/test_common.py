"""Durations and sizes: written with a unit, read back as written, and nothing that leaves the reader guessing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from llmgw.spec.common import Duration, Impact, Size, duration_text, impact_of, size_text
from llmgw.spec.kinds import KINDS
from llmgw.spec.model import Model, Profile

DURATION: TypeAdapter[float] = TypeAdapter(Duration)
SIZE: TypeAdapter[int] = TypeAdapter(Size)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("0s", 0.0), ("30s", 30.0), ("1.5s", 1.5), ("5m", 300.0), ("1h", 3600.0), ("2d", 172800.0)],
)
def test_durations(text, seconds) -> None:
    assert DURATION.validate_python(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "30", 30, 30.0, True, None, "-1s", "1 s", "1S", "1w", "s", "1m30s", "1e3s", ".5s"]
)
def test_no_other_durations(text) -> None:
    with pytest.raises(ValidationError, match="duration with a unit, as in 500ms, 30s, 5m or 1h"):
        DURATION.validate_python(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [("0B", 0), ("1B", 1), ("4KiB", 4096), ("512MiB", 512 << 20), ("1.5GiB", 3 << 29), ("2TiB", 2 << 40)],
)
def test_sizes(text, size) -> None:
    assert SIZE.validate_python(text) == size


@pytest.mark.parametrize("text", ["", "16", 16, "16GB", "16 GiB", "16gib", "-1GiB", "GiB", "1e3B", None])
def test_no_other_sizes(text) -> None:
    with pytest.raises(ValidationError, match="size with a binary unit, as in 512MiB or 16GiB"):
        SIZE.validate_python(text)


@given(st.integers(min_value=0, max_value=10**12))
def test_what_is_written_reads_back(number) -> None:
    assert SIZE.validate_python(size_text(number)) == number
    assert DURATION.validate_python(duration_text(number / 1000)) == pytest.approx(number / 1000)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0, "0ms"), (0.25, "250ms"), (90.0, "90s"), (120.0, "2m"), (7200.0, "2h"), (86400.0, "1d")]
)
def test_durations_are_written_in_the_largest_whole_unit(seconds, text) -> None:
    assert duration_text(seconds) == text


def test_every_field_of_every_kind_says_what_its_change_costs() -> None:
    for kind in KINDS.values():
        for name in kind.model_fields:
            assert isinstance(impact_of(kind, name), Impact)
    assert impact_of(Profile, "start_timeout") is Impact.LIVE
    assert impact_of(Model, "aliases") is Impact.ROUTE
