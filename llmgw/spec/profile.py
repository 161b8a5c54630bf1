"""A profile: one way to run a replica of a model."""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from llmgw.spec.common import (
    Duration,
    EnvName,
    Image,
    Impact,
    Label,
    Name,
    Positive,
    Secret,
    Size,
    SpecModel,
    Text,
    impact,
    planned,
)


class Gpu(SpecModel):
    """The GPUs of one shard."""

    gpu_class: Name = Field(
        alias="class",
        description="Class of the GPUs, one of the cluster's `gpu_classes`.",
        json_schema_extra=impact(Impact.RESTART),
    )
    count: Positive = Field(
        1, description="GPUs on each node of the replica.", json_schema_extra=impact(Impact.RESTART)
    )


class Profile(SpecModel):
    """One way to run a replica."""

    model_config = ConfigDict(
        json_schema_extra={
            "if": {"properties": {"runtime": {"enum": ["docker", "podman"]}}, "required": ["runtime"]},
            "then": {"required": ["image"]},
            "else": {"not": {"required": ["image"]}},
        }
    )

    name: Name = Field(
        "default",
        description="Name of the profile; renaming it restarts nothing.",
        json_schema_extra=impact(Impact.NONE),
    )
    engine: Name = Field(description="Which engine runs it.", json_schema_extra=impact(Impact.RESTART))
    gpu: Gpu | None = Field(
        None,
        description="GPUs it needs; without it, it runs on the CPU.",
        json_schema_extra=impact(Impact.RESTART),
    )
    nodes: Positive = Field(
        1, description="Nodes that one replica spans, a shard on each.", json_schema_extra=impact(Impact.RESTART)
    )
    tensor_parallel: Positive = Field(
        1, description="GPUs that share each layer.", json_schema_extra=impact(Impact.RESTART)
    )
    pipeline_parallel: Positive = Field(
        1, description="Groups of GPUs that hold consecutive layers.", json_schema_extra=impact(Impact.RESTART)
    )
    data_parallel: Positive = Field(
        1, description="Copies within one replica.", json_schema_extra=impact(Impact.RESTART)
    )
    distributed: Literal["native", "ray"] = Field(
        "native",
        description="How the shards of a replica find each other.",
        json_schema_extra=impact(Impact.RESTART),
    )
    pool: Name | None = Field(
        None, description="Only nodes of this pool; default any.", json_schema_extra=impact(Impact.DRAIN)
    )
    labels: dict[Label, Label] = Field(
        default_factory=dict, description="Only nodes with these labels.", json_schema_extra=impact(Impact.DRAIN)
    )
    weight: Positive = Field(
        1, description="Share of requests that a replica by this profile gets.", json_schema_extra=planned(Impact.ROUTE)
    )
    priority: int = Field(0, description="Lower is tried first.", json_schema_extra=impact(Impact.NONE))
    command: Annotated[list[Text], Field(min_length=1)] | None = Field(
        None,
        description="Program and first arguments to run instead of the engine's own, or the image's.",
        json_schema_extra=impact(Impact.RESTART),
    )
    args: list[str] = Field(
        default_factory=list,
        description="Arguments added to the engine's command line.",
        json_schema_extra=impact(Impact.RESTART),
    )
    env: dict[EnvName, str | Secret] = Field(
        default_factory=dict, description="Environment of the engine.", json_schema_extra=impact(Impact.RESTART)
    )
    cpus: Positive | None = Field(
        None,
        description="CPU cores one shard is given; placement keeps the sum on a node within its cores.",
        json_schema_extra=impact(Impact.RESTART),
    )
    memory: Size | None = Field(
        None,
        description="Memory one shard needs; placement keeps the sum on a node within its memory.",
        json_schema_extra=impact(Impact.DRAIN),
    )
    max_inflight: Positive | None = Field(
        None,
        description="Most requests one replica is given at once; more wait.",
        json_schema_extra=impact(Impact.ROUTE),
    )
    start_timeout: Duration = Field(
        1200.0,
        description="Time an engine may take to become ready before the attempt counts as failed.",
        json_schema_extra=impact(Impact.LIVE),
    )
    stall_after: Duration = Field(
        300.0,
        description="Time without a token, with requests in flight, after which an engine counts as stalled.",
        json_schema_extra=impact(Impact.LIVE),
    )
    runtime: Literal["process", "docker", "podman"] = Field(
        "process",
        description="Whether the engine runs as a process or in a container; placed only on nodes that can do that.",
        json_schema_extra=impact(Impact.RESTART),
    )
    image: Image | None = Field(
        None,
        description="Container image of the engine, with a tag or, better, a digest; pulled where it is missing.",
        json_schema_extra=impact(Impact.RESTART),
    )

    @model_validator(mode="after")
    def _image(self) -> "Profile":
        if (self.runtime == "process") == (self.image is not None):
            raise PydanticCustomError("image", "`image` goes with `runtime: docker` or `podman`, and those need it")
        return self
