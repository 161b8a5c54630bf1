"""A `Tenant`: who may ask for which models, and how much. Keys themselves live in the store, hashed."""

from typing import Annotated, Literal

from pydantic import Field

from llmgw.spec.common import API_VERSION, Glob, Impact, Name, Positive, SpecModel, impact, planned


class TenantLimits(SpecModel):
    """How much at once."""

    rpm: Positive | None = Field(None, description="Requests a minute.", json_schema_extra=planned(Impact.ROUTE))
    tpm: Positive | None = Field(None, description="Tokens a minute.", json_schema_extra=planned(Impact.ROUTE))
    inflight: Positive | None = Field(
        None, description="Requests being answered at once.", json_schema_extra=planned(Impact.ROUTE)
    )


class Budget(SpecModel):
    """How much in all."""

    tokens: Positive = Field(description="Tokens, read and generated.", json_schema_extra=planned(Impact.ROUTE))
    per: Literal["day", "week", "month"] = Field(
        description="Period after which it starts anew, in UTC.", json_schema_extra=planned(Impact.ROUTE)
    )


class Tenant(SpecModel):
    """A group of clients with keys of its own."""

    apiVersion: Literal["llmgw/v1"] = Field(  # noqa: N815 - the YAML key
        description=f"Always `{API_VERSION}`.", json_schema_extra=impact(Impact.NONE)
    )
    kind: Literal["Tenant"] = Field(description="Always `Tenant`.", json_schema_extra=impact(Impact.NONE))
    name: Name = Field(description="Name of the tenant.", json_schema_extra=impact(Impact.NONE))
    models: Annotated[list[Glob], Field(min_length=1)] = Field(
        description="Models it may ask for, by name or alias, with `*`.", json_schema_extra=impact(Impact.ROUTE)
    )
    priority: int = Field(0, description="Higher waits less.", json_schema_extra=planned(Impact.ROUTE))
    limits: TenantLimits = Field(
        default_factory=TenantLimits, description="How much at once.", json_schema_extra=planned(Impact.ROUTE)
    )
    budget: Budget | None = Field(None, description="How much in all.", json_schema_extra=planned(Impact.ROUTE))
