"""A `Model`: what is served, how many replicas of it, and the ways (profiles) one replica may be run."""

from typing import Annotated, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from llmgw.spec.common import API_VERSION, Alias, Duration, EnvName, Impact, Label, Name, Size, SpecModel, Text, impact


class Weights(SpecModel):
    """Where the model's weights are."""

    path: Text = Field(
        description="File on the node: absolute, or relative to the node's weights directory.",
        json_schema_extra=impact(Impact.REDOWNLOAD),
    )


class Profile(SpecModel):
    """One way to run a replica."""

    name: Name = Field(
        "default",
        description="Name of the profile; renaming it restarts nothing.",
        json_schema_extra=impact(Impact.NONE),
    )
    engine: Name = Field(description="Which engine runs it.", json_schema_extra=impact(Impact.RESTART))
    command: Annotated[list[Text], Field(min_length=1)] | None = Field(
        None,
        description="Program and first arguments to run instead of the engine's own.",
        json_schema_extra=impact(Impact.RESTART),
    )
    args: list[str] = Field(
        default_factory=list,
        description="Arguments added to the engine's command line.",
        json_schema_extra=impact(Impact.RESTART),
    )
    env: dict[EnvName, str] = Field(
        default_factory=dict, description="Environment of the engine.", json_schema_extra=impact(Impact.RESTART)
    )
    cpus: Annotated[int, Field(ge=1)] | None = Field(
        None,
        description="CPU cores one replica is given; placement keeps the sum on a node within its cores.",
        json_schema_extra=impact(Impact.RESTART),
    )
    memory: Size | None = Field(
        None,
        description="Memory one replica needs; placement keeps the sum on a node within its memory.",
        json_schema_extra=impact(Impact.DRAIN),
    )
    pool: Name | None = Field(
        None, description="Only nodes of this pool; default any.", json_schema_extra=impact(Impact.DRAIN)
    )
    labels: dict[Label, Label] = Field(
        default_factory=dict, description="Only nodes with these labels.", json_schema_extra=impact(Impact.DRAIN)
    )
    priority: int = Field(0, description="Lower is tried first.", json_schema_extra=impact(Impact.NONE))
    start_timeout: Duration = Field(
        1200.0,
        description="Time an engine may take to become ready before the attempt counts as failed.",
        json_schema_extra=impact(Impact.LIVE),
    )


class Model(SpecModel):
    """A model to serve."""

    apiVersion: Literal["llmgw/v1"] = Field(  # noqa: N815 - the YAML key
        description=f"Always `{API_VERSION}`.", json_schema_extra=impact(Impact.NONE)
    )
    kind: Literal["Model"] = Field(description="Always `Model`.", json_schema_extra=impact(Impact.NONE))
    name: Name = Field(description="Name that clients ask for.", json_schema_extra=impact(Impact.NONE))
    aliases: list[Alias] = Field(
        default_factory=list, description="Further names that clients may use.", json_schema_extra=impact(Impact.ROUTE)
    )
    weights: Weights = Field(description="Where the model's weights are.", json_schema_extra=impact(Impact.REDOWNLOAD))
    replicas: Annotated[int, Field(ge=0, le=1000)] = Field(
        1,
        description="How many replicas to run; 0 stops the model and keeps it known.",
        json_schema_extra=impact(Impact.LIVE),
    )
    priority: int = Field(
        0,
        description="Higher is placed first where room is short.",
        json_schema_extra=impact(Impact.NONE),
    )
    profiles: Annotated[list[Profile], Field(min_length=1)] = Field(
        description="Ways to run a replica; the first that fits now is taken.", json_schema_extra=impact(Impact.RESTART)
    )

    @model_validator(mode="after")
    def _distinct_profiles(self) -> "Model":
        names = [profile.name for profile in self.profiles]
        for name in names:
            if names.count(name) > 1:
                raise PydanticCustomError(
                    "profiles", "two profiles are called {name}; give each a name of its own", {"name": repr(name)}
                )
        return self
