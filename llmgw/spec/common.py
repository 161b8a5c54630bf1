"""What all kinds share: the strict base model, field impacts, and the scalar types with units.

Strict means that nothing is converted: `"8000"` is not a number and `true` is not 1, so that pydantic and the JSON
Schema an editor checks always agree. The types with units (`30s`, `16GiB`) take text only: a bare `30` would leave
the reader guessing. Messages are written for the person who made the mistake, since they are shown as they stand.
"""

import re
from enum import StrEnum
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, StringConstraints, WithJsonSchema
from pydantic_core import PydanticCustomError

API_VERSION = "llmgw/v1"

NAME_PATTERN = r"^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?$"
ALIAS_PATTERN = r"^[A-Za-z0-9]([A-Za-z0-9._:/@-]{0,125}[A-Za-z0-9])?$"
LABEL_PATTERN = r"^[A-Za-z0-9]([A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?$"
ENV_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]*$"

Name = Annotated[str, StringConstraints(pattern=NAME_PATTERN)]
Alias = Annotated[str, StringConstraints(pattern=ALIAS_PATTERN)]
Label = Annotated[str, StringConstraints(pattern=LABEL_PATTERN)]
EnvName = Annotated[str, StringConstraints(pattern=ENV_PATTERN)]


class Impact(StrEnum):
    """What changing a field costs what runs; the plan prints it beside the field."""

    NONE = "none"
    """Nothing that runs notices."""
    ROUTE = "route"
    """Only the endpoint table changes."""
    LIVE = "live"
    """Takes effect in place, without a restart."""
    DRAIN = "drain"
    """Replicas may move; each is drained first."""
    RESTART = "restart"
    """Replicas are replaced by new ones."""
    REDOWNLOAD = "redownload"
    """As restart, and the weights are fetched again."""


RESTARTING = (Impact.RESTART, Impact.REDOWNLOAD)

IMPACT_KEY = "x-llmgw-impact"


class SpecModel(BaseModel):
    """Base of every kind and every nested object: frozen, strict, no unknown keys."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", hide_input_in_errors=True)


def impact(value: Impact) -> dict[str, Any]:
    """Return the `json_schema_extra` that keeps a field's impact in the schema, where the plan and editors read it."""
    return {IMPACT_KEY: value.value}


def impact_of(model: type[BaseModel], field: str) -> Impact:
    """Return the impact declared for a field. Raises KeyError if the field has none: every field must say."""
    extra = model.model_fields[field].json_schema_extra
    if not isinstance(extra, dict):
        raise KeyError(f"{model.__name__}.{field} declares no impact")
    return Impact(str(extra[IMPACT_KEY]))


_DURATION = re.compile(r"^(\d+(?:\.\d+)?)(ms|s|m|h|d)$")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SIZE = re.compile(r"^(\d+(?:\.\d+)?)(B|KiB|MiB|GiB|TiB)$")
_BYTES = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


def _duration(value: object) -> float:
    match = _DURATION.match(value) if isinstance(value, str) else None
    if match is None:
        raise PydanticCustomError("duration", "expected a duration with a unit, as in 500ms, 30s, 5m or 1h")
    return float(match[1]) * _SECONDS[match[2]]


def _size(value: object) -> int:
    match = _SIZE.match(value) if isinstance(value, str) else None
    if match is None:
        raise PydanticCustomError("size", "expected a size with a binary unit, as in 512MiB or 16GiB")
    return int(float(match[1]) * _BYTES[match[2]])


def duration_text(seconds: float) -> str:
    """Write seconds as YAML takes them, in the largest unit that keeps a whole number."""
    for unit, size in (("d", 86400.0), ("h", 3600.0), ("m", 60.0), ("s", 1.0)):
        if seconds >= size and seconds % size == 0:
            return f"{int(seconds / size)}{unit}"
    return f"{round(seconds * 1000)}ms"


def size_text(size: int) -> str:
    """Write bytes as YAML takes them, in the largest unit that keeps a whole number."""
    for unit, step in reversed(_BYTES.items()):
        if size >= step and size % step == 0:
            return f"{size // step}{unit}"
    return f"{size}B"


Duration = Annotated[
    float,
    BeforeValidator(_duration),
    PlainSerializer(duration_text, return_type=str),
    WithJsonSchema({"type": "string", "pattern": _DURATION.pattern, "examples": ["30s", "5m"]}),
]
"""Seconds, written with a unit."""

Size = Annotated[
    int,
    BeforeValidator(_size),
    PlainSerializer(size_text, return_type=str),
    WithJsonSchema({"type": "string", "pattern": _SIZE.pattern, "examples": ["512MiB", "16GiB"]}),
]
"""Bytes, written with a binary unit."""

Port = Annotated[int, Field(ge=1, le=65535)]

Text = Annotated[str, StringConstraints(min_length=1)]

AbsolutePath = Annotated[str, StringConstraints(pattern=r"^/[^\x00]*$")]
