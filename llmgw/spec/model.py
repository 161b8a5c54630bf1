"""A `Model`: what is served, how many replicas of it, and the ways (profiles) one replica may be run."""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from llmgw.spec.common import (
    API_VERSION,
    Alias,
    Count,
    Cron,
    Duration,
    Glob,
    HttpUrl,
    Impact,
    Name,
    Positive,
    Repository,
    Sha256,
    Share,
    SpecModel,
    Text,
    impact,
    planned,
)
from llmgw.spec.profile import Profile

Replicas = Annotated[int, Field(ge=0, le=1000)]


def _any_of(*keys: str) -> dict[str, Any]:
    return {"anyOf": [{"required": [key]} for key in keys]}


class Weights(SpecModel):
    """Where weights come from: a Hugging Face repository, a file on the node, or a URL; exactly one of them."""

    model_config = ConfigDict(
        json_schema_extra={
            "oneOf": [
                {"required": ["hf"], "not": _any_of("path", "url", "sha256")},
                {"required": ["path"], "not": _any_of("hf", "url", "revision", "files")},
                {"required": ["url", "sha256"], "not": _any_of("hf", "path", "revision", "files")},
            ]
        }
    )

    hf: Repository | None = Field(
        None, description="Repository, as `ORG/NAME`.", json_schema_extra=impact(Impact.REDOWNLOAD)
    )
    revision: Text | None = Field(
        None,
        description="Commit of the repository, 40 digits. With a tag or a branch the model stays pending.",
        json_schema_extra=impact(Impact.REDOWNLOAD),
    )
    files: list[Glob] | None = Field(
        None,
        description="Only these files of the repository, with `*`; for llama.cpp one GGUF file without it. Without `files`, "
        "all but what repeats the weights in other formats.",
        json_schema_extra=impact(Impact.REDOWNLOAD),
    )
    path: Text | None = Field(
        None,
        description="File on the node: absolute, or relative to the node's weights directory.",
        json_schema_extra=impact(Impact.REDOWNLOAD),
    )
    url: HttpUrl | None = Field(
        None,
        description="Where each node fetches the file from, into its weights directory.",
        json_schema_extra=impact(Impact.REDOWNLOAD),
    )
    sha256: Sha256 | None = Field(
        None,
        description="Digest of the file: a URL needs it, and what does not match is not kept. With a `path` it is not checked.",
        json_schema_extra=impact(Impact.REDOWNLOAD),
    )

    @model_validator(mode="after")
    def _one_place(self) -> "Weights":
        places = [key for key in ("hf", "path", "url") if getattr(self, key) is not None]
        if len(places) != 1:
            raise PydanticCustomError("weights", "weights have one of `hf`, `path` and `url`")
        if self.hf is None and (self.revision is not None or self.files is not None):
            raise PydanticCustomError("weights", "`revision` and `files` belong to `hf`")
        if self.hf is not None and self.sha256 is not None:
            raise PydanticCustomError("weights", "`sha256` belongs to `path` or `url`; pin `hf` by its `revision`")
        if self.url is not None and self.sha256 is None:
            raise PydanticCustomError("weights", "weights from a `url` need their `sha256`")
        return self


class Window(SpecModel):
    """Other bounds at certain times."""

    cron: Cron = Field(
        description="When it begins: minute, hour, day, month, weekday.", json_schema_extra=planned(Impact.LIVE)
    )
    duration: Duration = Field(description="How long it lasts.", json_schema_extra=planned(Impact.LIVE))
    timezone: Text = Field("UTC", description="Time zone of `cron`.", json_schema_extra=planned(Impact.LIVE))
    min: Replicas | None = Field(None, description="Fewest replicas meanwhile.", json_schema_extra=planned(Impact.LIVE))
    max: Replicas | None = Field(None, description="Most replicas meanwhile.", json_schema_extra=planned(Impact.LIVE))


class Scale(SpecModel):
    """Let the number of replicas follow the load."""

    min: Replicas = Field(
        0, description="Fewest replicas; 0 lets the model sleep.", json_schema_extra=planned(Impact.LIVE)
    )
    max: Annotated[int, Field(ge=1, le=1000)] = Field(
        description="Most replicas.", json_schema_extra=planned(Impact.LIVE)
    )
    target_inflight: Positive = Field(
        8, description="Requests in flight that one replica should have.", json_schema_extra=planned(Impact.LIVE)
    )
    idle_after: Duration = Field(
        900.0,
        description="Time without a request after which a replica is not needed.",
        json_schema_extra=planned(Impact.LIVE),
    )
    hold: Duration = Field(
        60.0,
        description="How long a request waits for a sleeping model to wake.",
        json_schema_extra=planned(Impact.ROUTE),
    )
    schedule: list[Window] = Field(
        default_factory=list, description="Other bounds at certain times.", json_schema_extra=planned(Impact.LIVE)
    )


class Rollout(SpecModel):
    """How changed replicas are replaced."""

    strategy: Literal["auto", "surge", "recreate"] = Field(
        "auto",
        description="New before old, old before new, or new before old where there is room.",
        json_schema_extra=impact(Impact.NONE),
    )
    max_surge: Positive = Field(
        1, description="Most replicas beyond the wanted number.", json_schema_extra=impact(Impact.NONE)
    )
    max_unavailable: Count = Field(
        0, description="Most replicas missing meanwhile.", json_schema_extra=impact(Impact.NONE)
    )
    min_ready: Duration = Field(
        0.0, description="Time a new replica must be ready before it counts.", json_schema_extra=impact(Impact.NONE)
    )
    deadline: Duration = Field(
        3600.0,
        description="Time after which a rollout that stands still has failed.",
        json_schema_extra=impact(Impact.NONE),
    )
    auto_revert: bool = Field(
        False,
        description="Go back to the last good spec when a rollout failed.",
        json_schema_extra=impact(Impact.NONE),
    )


class Split(SpecModel):
    """A share of a model's requests that goes to another model."""

    model: Name = Field(description="The other model.", json_schema_extra=planned(Impact.ROUTE))
    share: Share = Field(description="Its share.", json_schema_extra=planned(Impact.ROUTE))


class Routing(SpecModel):
    """How a model's endpoint is chosen."""

    policy: Name | None = Field(
        None,
        description="Policy of the cluster's router; default is its default.",
        json_schema_extra=impact(Impact.ROUTE),
    )
    session_header: Text | None = Field(
        None, description="Request header that names a session.", json_schema_extra=planned(Impact.ROUTE)
    )
    split: list[Split] = Field(
        default_factory=list, description="Shares that go to other models.", json_schema_extra=planned(Impact.ROUTE)
    )
    mirror: Name | None = Field(
        None,
        description="Model that gets a copy of each request; its answers are dropped.",
        json_schema_extra=planned(Impact.ROUTE),
    )


class Limits(SpecModel):
    """How many requests a model may have."""

    queue: Count | None = Field(None, description="Most requests waiting.", json_schema_extra=impact(Impact.ROUTE))
    inflight: Positive | None = Field(
        None, description="Most requests being answered; more wait.", json_schema_extra=impact(Impact.ROUTE)
    )


class Adapter(SpecModel):
    """A LoRA adapter, served as a model of its own."""

    name: Name = Field(description="Name that clients ask for.", json_schema_extra=impact(Impact.LIVE))
    weights: Weights = Field(
        description="Where the adapter's weights lie: a directory as PEFT writes it.",
        json_schema_extra=impact(Impact.LIVE),
    )


class Model(SpecModel):
    """A model to serve."""

    model_config = ConfigDict(json_schema_extra={"not": {"required": ["replicas", "scale"]}})

    apiVersion: Literal["llmgw/v1"] = Field(  # noqa: N815 - the YAML key
        description=f"Always `{API_VERSION}`.", json_schema_extra=impact(Impact.NONE)
    )
    kind: Literal["Model"] = Field(description="Always `Model`.", json_schema_extra=impact(Impact.NONE))
    name: Name = Field(description="Name that clients ask for.", json_schema_extra=impact(Impact.NONE))
    moved_from: Name | None = Field(
        None,
        description="Name this model had before: its replicas are kept, under the new name. Remove it when that is done.",
        json_schema_extra=impact(Impact.NONE),
    )
    aliases: list[Alias] = Field(
        default_factory=list, description="Further names that clients may use.", json_schema_extra=impact(Impact.ROUTE)
    )
    weights: Weights = Field(
        description="Where the model's weights come from.", json_schema_extra=impact(Impact.REDOWNLOAD)
    )
    replicas: Replicas = Field(
        1,
        description="How many replicas to run; 0 stops the model and keeps it known.",
        json_schema_extra=impact(Impact.LIVE),
    )
    scale: Scale | None = Field(
        None,
        description="Let the number of replicas follow the load, instead of `replicas`.",
        json_schema_extra=planned(Impact.LIVE),
    )
    priority: int = Field(
        0,
        description="Higher is placed first where room is short.",
        json_schema_extra=impact(Impact.NONE),
    )
    profiles: Annotated[list[Profile], Field(min_length=1)] = Field(
        description="Ways to run a replica; the first that fits now is taken.", json_schema_extra=impact(Impact.RESTART)
    )
    rollout: Rollout = Field(
        default_factory=Rollout,
        description="How changed replicas are replaced.",
        json_schema_extra=impact(Impact.NONE),
    )
    routing: Routing = Field(
        default_factory=Routing, description="How an endpoint is chosen.", json_schema_extra=impact(Impact.ROUTE)
    )
    limits: Limits = Field(
        default_factory=Limits, description="How many requests it may have.", json_schema_extra=impact(Impact.ROUTE)
    )
    placement: Literal["spread", "pack"] = Field(
        "spread",
        description="Whether replicas keep apart from each other or together.",
        json_schema_extra=impact(Impact.NONE),
    )
    preempt: bool = Field(
        False,
        description="May take the place of replicas of lower priority.",
        json_schema_extra=impact(Impact.NONE),
    )
    min_life: Duration = Field(
        600.0, description="Time a replica runs before it may be preempted.", json_schema_extra=impact(Impact.NONE)
    )
    adapters: list[Adapter] = Field(
        default_factory=list,
        description="LoRA adapters, each served as a model of its own and loaded while it serves; only the first one, and "
        "removing the last, restarts it.",
        json_schema_extra=impact(Impact.LIVE),
    )
    protect: bool = Field(
        False, description="No revision may remove it without saying so.", json_schema_extra=impact(Impact.NONE)
    )

    @model_validator(mode="after")
    def _one_number(self) -> "Model":
        if self.scale is not None and "replicas" in self.model_fields_set:
            raise PydanticCustomError("scale", "a model has `replicas` or `scale`, not both; remove one of them")
        return self
