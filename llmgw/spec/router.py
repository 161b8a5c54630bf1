"""The gateway's settings: how endpoints are chosen, what may wait and for how long, who may ask."""

from typing import Literal

from pydantic import Field

from llmgw.spec.common import Count, Duration, Impact, Name, Positive, Size, SpecModel, impact, planned

Picker = Literal["least_load", "round_robin", "random", "prefix", "session"]


class Policy(SpecModel):
    """One way to choose among a model's endpoints."""

    name: Name = Field(description="Name that models ask for.", json_schema_extra=impact(Impact.NONE))
    picker: Picker = Field(
        description="Least in flight, in turn, by chance, by shared prompt prefix, or by session.",
        json_schema_extra=planned(Impact.ROUTE),
    )
    keep_alive: Duration | None = Field(
        None,
        description="Send an SSE comment so often while a stream is silent; default never.",
        json_schema_extra=impact(Impact.ROUTE),
    )


class Timeouts(SpecModel):
    """Limits of the gateway."""

    drain: Duration = Field(
        300.0,
        description="Longest wait for the requests of a withdrawn replica before it is stopped.",
        json_schema_extra=impact(Impact.LIVE),
    )
    connect: Duration = Field(
        5.0, description="Limit for connecting to an engine.", json_schema_extra=impact(Impact.ROUTE)
    )
    headers: Duration = Field(
        600.0,
        description="Limit for the head of an engine's response; of an answer that is no stream, that is nearly all of it.",
        json_schema_extra=impact(Impact.ROUTE),
    )
    first_byte: Duration = Field(
        600.0,
        description="Limit from an engine's response head to the first byte of its body.",
        json_schema_extra=impact(Impact.ROUTE),
    )
    inter_chunk: Duration = Field(
        120.0, description="Limit for silence in the middle of a response.", json_schema_extra=impact(Impact.ROUTE)
    )
    queue: Duration = Field(
        60.0,
        description="Longest wait for a place before a request is refused.",
        json_schema_extra=impact(Impact.ROUTE),
    )


class Admission(SpecModel):
    """How many requests may wait."""

    queue: Count = Field(
        1000, description="Most requests waiting, over all models.", json_schema_extra=impact(Impact.ROUTE)
    )
    inflight: Positive | None = Field(
        None,
        description="Most requests being answered, over all models; more wait.",
        json_schema_extra=impact(Impact.ROUTE),
    )


class Router(SpecModel):
    """The gateway's settings."""

    default_policy: Name = Field(
        "least-load",
        description="Policy of models that name none; `least-load` is always there.",
        json_schema_extra=impact(Impact.ROUTE),
    )
    policies: list[Policy] = Field(
        default_factory=list, description="Policies that models may name.", json_schema_extra=impact(Impact.ROUTE)
    )
    timeouts: Timeouts = Field(
        default_factory=Timeouts, description="Time limits.", json_schema_extra=impact(Impact.ROUTE)
    )
    admission: Admission = Field(
        default_factory=Admission, description="How many requests may wait.", json_schema_extra=impact(Impact.ROUTE)
    )
    max_body: Size = Field(
        64 << 20,
        description="Largest request body, as it comes and decompressed.",
        json_schema_extra=impact(Impact.ROUTE),
    )
    auth: Literal["off", "keys"] = Field(
        "off",
        description="Whether clients need a key; `off` only while the gateway listens on loopback.",
        json_schema_extra=impact(Impact.ROUTE),
    )
    usage_kept: Duration = Field(
        400 * 86400.0,
        description="How long what requests cost, the audit trail and keys that are over are kept; default 13 months.",
        json_schema_extra=impact(Impact.LIVE),
    )
