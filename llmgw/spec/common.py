"""What all kinds share: the strict base model, field impacts, and the scalar types with units.

Strict means that nothing is converted: `"8000"` is not a number and `true` is not 1, so that pydantic and the JSON
Schema an editor checks always agree. The types with units (`30s`, `16GiB`) take text only: a bare `30` would leave
the reader guessing. Messages are written for the person who made the mistake, since they are shown as they stand.
"""

import re
from enum import StrEnum
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, StringConstraints, WithJsonSchema
from pydantic.config import JsonDict
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


PLANNED_KEY = "x-llmgw-planned"
"""In the schema of a field that is checked and kept, and that nothing acts on yet; using it is a warning."""


class SpecModel(BaseModel):
    """Base of every kind and every nested object: frozen, strict, no unknown keys.

    A rule over several fields is written twice, as a validator and as JSON Schema in `model_config`, and a property test
    holds the two against each other. What JSON Schema cannot say (sums, references, order) is a rule of `catalog`.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", hide_input_in_errors=True)


def impact(value: Impact) -> dict[str, Any]:
    """Return the `json_schema_extra` that keeps a field's impact in the schema, where the plan and editors read it."""
    return {IMPACT_KEY: value.value}


def planned(value: Impact) -> dict[str, Any]:
    """Return the same for a field that is part of the language and that nothing acts on yet."""
    return {IMPACT_KEY: value.value, PLANNED_KEY: True}


def impact_of(model: type[BaseModel], field: str) -> Impact:
    """Return the impact declared for a field. Raises KeyError if the field has none: every field must say."""
    extra = model.model_fields[field].json_schema_extra
    if not isinstance(extra, dict):
        raise KeyError(f"{model.__name__}.{field} declares no impact")
    return Impact(str(extra[IMPACT_KEY]))


def is_planned(model: type[BaseModel], field: str) -> bool:
    """Whether nothing acts on a field yet."""
    extra = model.model_fields[field].json_schema_extra
    return isinstance(extra, dict) and bool(extra.get(PLANNED_KEY))


_DURATION = re.compile(r"^([0-9]{1,15}(?:\.[0-9]{1,9})?)(ms|s|m|h|d)$")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SIZE = re.compile(r"^([0-9]{1,15}(?:\.[0-9]{1,9})?)(B|KiB|MiB|GiB|TiB)$")
_BYTES = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


_SHARE = re.compile(r"^(100|[1-9]?[0-9])%$")


def _duration(value: object) -> float:
    match = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise PydanticCustomError("duration", "expected a duration with a unit, as in 500ms, 30s, 5m or 1h")
    return float(match[1]) * _SECONDS[match[2]]


def _size(value: object) -> int:
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise PydanticCustomError("size", "expected a size with a binary unit, as in 512MiB or 16GiB")
    return int(float(match[1]) * _BYTES[match[2]])


def _share(value: object) -> float:
    match = _SHARE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise PydanticCustomError("share", "expected a percentage from 0% to 100%, as in 25%")
    return int(match[1]) / 100


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

Share = Annotated[
    float,
    BeforeValidator(_share),
    PlainSerializer(lambda share: f"{round(share * 100)}%", return_type=str),
    WithJsonSchema({"type": "string", "pattern": _SHARE.pattern, "examples": ["25%", "50%"]}),
]
"""A part of a whole, from 0 to 1, written in percent."""

Port = Annotated[int, Field(ge=1, le=65535)]

Count = Annotated[int, Field(ge=0)]

Positive = Annotated[int, Field(ge=1)]

Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]

HttpUrl = Annotated[str, StringConstraints(pattern=r"^https?://[^\s/@]+(/[^\s]*)?$")]
"""Without a user or password: those are secrets, and secrets are references."""

Glob = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9*?._:/@ -]+$")]

Instant = Annotated[str, StringConstraints(pattern=r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}(:\d{2})?Z$")]
"""A moment in UTC, as in 2026-12-24T18:00Z."""


Repository = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]+/[A-Za-z0-9._-]+$")]

Cron = Annotated[str, StringConstraints(pattern=r"^\S+ \S+ \S+ \S+ \S+$")]

SecretName = Annotated[str, StringConstraints(pattern=r"^[A-Z][A-Z0-9_]*$")]


class Secret(SpecModel):
    """A reference to a secret. Its value never stands in the cluster directory."""

    secret: SecretName = Field(
        description="Name of the secret: the environment variable `LLMGW_SECRET_NAME`, or a file in the secrets directory.",
        json_schema_extra={IMPACT_KEY: "restart"},
    )


ONE_KEY: JsonDict = {"not": {"required": ["identity", "identity_file"]}}
"""The rule of `refuse_two_keys`, as a JSON Schema has it."""


def refuse_two_keys(identity: Secret | None, identity_file: str | None) -> None:
    """Refuse two private keys in one object: which of them logs in would be a matter of guessing."""
    if identity is not None and identity_file is not None:
        raise PydanticCustomError(
            "identity", "the private key is either `identity` (a secret) or `identity_file` (a path); keep one of them"
        )


Text = Annotated[str, StringConstraints(min_length=1)]

Image = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@-]*$", max_length=512)]
"""A container image, as `docker run` takes it; never a flag, since it stands among them."""

AbsolutePath = Annotated[str, StringConstraints(pattern=r"^/[^\x00]*$")]
