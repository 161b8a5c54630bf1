"""An `Endpoint`: a static upstream, which llmgw routes to and does not run."""

from typing import Annotated, Literal

from pydantic import Field

from llmgw.spec.common import API_VERSION, Alias, HttpUrl, Impact, Name, Positive, Secret, SpecModel, impact, planned


class Endpoint(SpecModel):
    """An OpenAI-compatible server that somebody else runs."""

    apiVersion: Literal["llmgw/v1"] = Field(  # noqa: N815 - the YAML key
        description=f"Always `{API_VERSION}`.", json_schema_extra=impact(Impact.NONE)
    )
    kind: Literal["Endpoint"] = Field(description="Always `Endpoint`.", json_schema_extra=impact(Impact.NONE))
    name: Name = Field(description="Name of the endpoint.", json_schema_extra=impact(Impact.NONE))
    url: HttpUrl = Field(
        description="Its address, up to what stands before `/v1`. With `https`, its certificate must be one that the "
        "gateway's host trusts.",
        json_schema_extra=impact(Impact.ROUTE),
    )
    models: Annotated[list[Alias], Field(min_length=1)] = Field(
        description="Models it serves, by the names it knows them by. One that is a Model's name or alias, too, is served "
        "by both.",
        json_schema_extra=impact(Impact.ROUTE),
    )
    pool: Name = Field("static", description="Pool it counts to.", json_schema_extra=planned(Impact.ROUTE))
    weight: Positive = Field(
        1, description="Share of a model's requests that it gets.", json_schema_extra=planned(Impact.ROUTE)
    )
    engine: Name | None = Field(
        None, description="What runs behind it, for its metrics.", json_schema_extra=planned(Impact.NONE)
    )
    api_key: Secret | None = Field(
        None,
        description="Key it wants, as a reference; sent to it, and to nobody else, as `Authorization: Bearer`. Without a value "
        "it is not routed to.",
        json_schema_extra=impact(Impact.ROUTE),
    )
