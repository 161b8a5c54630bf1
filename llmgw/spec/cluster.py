"""The one `Cluster` object: what holds for every model and node, and how the control plane behaves."""

from typing import Annotated, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from llmgw.spec.common import (
    API_VERSION,
    AbsolutePath,
    Duration,
    EnvName,
    Impact,
    Name,
    Port,
    SpecModel,
    Text,
    impact,
)


class Backoff(SpecModel):
    """How often a crashed engine is started again."""

    base: Duration = Field(
        2.0, description="Wait before the first restart; doubled each time.", json_schema_extra=impact(Impact.LIVE)
    )
    max: Duration = Field(60.0, description="Longest wait between restarts.", json_schema_extra=impact(Impact.LIVE))
    give_up_after: Annotated[int, Field(ge=1)] = Field(
        5,
        description="Failed attempts in a row after which a replica is `failed` until its spec changes.",
        json_schema_extra=impact(Impact.LIVE),
    )
    reset_after: Duration = Field(
        600.0,
        description="Time ready after which earlier failures are forgotten.",
        json_schema_extra=impact(Impact.LIVE),
    )


class Control(SpecModel):
    """How the control plane decides."""

    interval: Duration = Field(
        5.0, description="Longest time between two decisions.", json_schema_extra=impact(Impact.LIVE)
    )
    unreachable_after: Duration = Field(
        30.0,
        description="Silence after which a node gets no new work; also how long a fresh control plane waits for nodes.",
        json_schema_extra=impact(Impact.LIVE),
    )
    backoff: Backoff = Field(
        default_factory=Backoff, description="Restarts of crashed engines.", json_schema_extra=impact(Impact.LIVE)
    )
    ports: Annotated[list[Port], Field(min_length=2, max_length=2)] = Field(
        [20000, 20999],
        description="First and last TCP port that engines may get, on every node.",
        json_schema_extra=impact(Impact.NONE),
    )

    @model_validator(mode="after")
    def _range(self) -> "Control":
        if self.ports[0] > self.ports[1]:
            raise PydanticCustomError("ports", "the first port of the range is above the last")
        return self


class SshDefaults(SpecModel):
    """What holds for every node that is reached by SSH, unless the node says otherwise."""

    user: Text = Field("llmgw", description="User to log in as.", json_schema_extra=impact(Impact.LIVE))
    identity_file: AbsolutePath | None = Field(
        None,
        description="Private key on the control plane's host; without it, the keys of the running ssh-agent.",
        json_schema_extra=impact(Impact.LIVE),
    )


class EngineDefinition(SpecModel):
    """How one engine is run in this cluster."""

    name: Name = Field(description="The engine's name, as profiles use it.", json_schema_extra=impact(Impact.NONE))
    command: Annotated[list[Text], Field(min_length=1)] | None = Field(
        None,
        description="Program and first arguments to run instead of the engine's own.",
        json_schema_extra=impact(Impact.RESTART),
    )
    env: dict[EnvName, str] = Field(
        default_factory=dict, description="Environment of the engine.", json_schema_extra=impact(Impact.RESTART)
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


class Router(SpecModel):
    """The gateway's settings."""

    timeouts: Timeouts = Field(
        default_factory=Timeouts, description="Time limits.", json_schema_extra=impact(Impact.ROUTE)
    )


class Cluster(SpecModel):
    """The cluster as a whole. Exactly one in a cluster directory."""

    apiVersion: Literal["llmgw/v1"] = Field(  # noqa: N815 - the YAML key
        description=f"Always `{API_VERSION}`.", json_schema_extra=impact(Impact.NONE)
    )
    kind: Literal["Cluster"] = Field(description="Always `Cluster`.", json_schema_extra=impact(Impact.NONE))
    name: Name = Field(description="Name of the cluster.", json_schema_extra=impact(Impact.NONE))
    control: Control = Field(
        default_factory=Control, description="How the control plane decides.", json_schema_extra=impact(Impact.LIVE)
    )
    ssh: SshDefaults = Field(
        default_factory=SshDefaults, description="Defaults for SSH.", json_schema_extra=impact(Impact.LIVE)
    )
    engines: list[EngineDefinition] = Field(
        default_factory=list, description="Engines run differently here.", json_schema_extra=impact(Impact.RESTART)
    )
    router: Router = Field(
        default_factory=Router, description="The gateway's settings.", json_schema_extra=impact(Impact.ROUTE)
    )
