"""The one `Cluster` object: what holds for every model and node, and how the control plane behaves."""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

from llmgw.spec.common import (
    API_VERSION,
    ONE_KEY,
    AbsolutePath,
    Count,
    Duration,
    EnvName,
    Glob,
    Impact,
    Name,
    Port,
    Positive,
    Secret,
    Share,
    Size,
    SpecModel,
    Text,
    impact,
    planned,
    refuse_two_keys,
)
from llmgw.spec.router import Router

Fingerprint = Annotated[str, StringConstraints(pattern=r"^([0-9A-Fa-f]{40}|[0-9A-Fa-f]{64})$")]


class Verify(SpecModel):
    """Which commits are trusted. The rules in force judge the next commit; the first of all is judged by its own."""

    model_config = ConfigDict(
        json_schema_extra={
            "if": {"properties": {"mode": {"enum": ["head", "range"]}}, "required": ["mode"]},
            "then": {
                "anyOf": [
                    {"required": [field], "properties": {field: {"minItems": 1}}}
                    for field in ("ssh_signers", "gpg_fingerprints")
                ]
            },
        }
    )

    mode: Literal["off", "head", "range"] = Field(
        "off",
        description="Check no signature, that of the newest commit, or those of every commit since the one in force.",
        json_schema_extra=impact(Impact.NONE),
    )
    ssh_signers: list[Text] = Field(
        default_factory=list,
        description="Allowed SSH signers, a line each as in git's allowed-signers file.",
        json_schema_extra=impact(Impact.NONE),
    )
    gpg_fingerprints: list[Fingerprint] = Field(
        default_factory=list,
        description="Fingerprints of allowed GPG keys, in full; the keys are in the keyring of the server's user.",
        json_schema_extra=impact(Impact.NONE),
    )

    @model_validator(mode="after")
    def _somebody(self) -> "Verify":
        if self.mode != "off" and not self.ssh_signers and not self.gpg_fingerprints:
            raise PydanticCustomError(
                "verify",
                "`mode: {mode}` needs `ssh_signers` or `gpg_fingerprints`, or no commit will do",
                {"mode": self.mode},
            )
        return self


class SourceRules(SpecModel):
    """How the git source is trusted."""

    verify: Verify = Field(
        default_factory=Verify, description="Signatures of commits.", json_schema_extra=impact(Impact.NONE)
    )
    rewrite: Literal["accept", "hold"] = Field(
        "accept",
        description="What to do when the branch's history was rewritten: follow it, or hold until an operator says so.",
        json_schema_extra=impact(Impact.NONE),
    )


class Guard(SpecModel):
    """What one revision may remove without its saying so."""

    max_removed: Count | None = Field(
        None, description="Most objects one revision may remove.", json_schema_extra=impact(Impact.NONE)
    )
    max_removed_share: Share | None = Field(
        None, description="Largest share of the models one revision may remove.", json_schema_extra=impact(Impact.NONE)
    )
    protect: list[Glob] = Field(
        default_factory=list,
        description="Objects that no revision may remove, as `model/NAME` or `node/NAME` with `*`.",
        json_schema_extra=impact(Impact.NONE),
    )


class Brake(SpecModel):
    """When the loss of nodes is taken for a fault of our own network."""

    share: Share = Field(0.5, description="Share of nodes that vanish together.", json_schema_extra=impact(Impact.LIVE))
    min_nodes: Positive = Field(2, description="And at least so many nodes.", json_schema_extra=impact(Impact.LIVE))


class Backoff(SpecModel):
    """How often a crashed engine is started again."""

    base: Duration = Field(
        2.0, description="Wait before the first restart; doubled each time.", json_schema_extra=impact(Impact.LIVE)
    )
    max: Duration = Field(60.0, description="Longest wait between restarts.", json_schema_extra=impact(Impact.LIVE))
    give_up_after: Positive = Field(
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
    lost_after: Duration = Field(
        300.0,
        description="Silence after which a node's replicas are replaced elsewhere.",
        json_schema_extra=impact(Impact.LIVE),
    )
    brake: Brake = Field(
        default_factory=Brake,
        description="When many nodes vanish together, nothing is replaced.",
        json_schema_extra=impact(Impact.LIVE),
    )
    backoff: Backoff = Field(
        default_factory=Backoff, description="Restarts of crashed engines.", json_schema_extra=impact(Impact.LIVE)
    )
    on_store_loss: Literal["keep", "stop"] = Field(
        "keep",
        description="What a leader does that cannot reach the store: go on deciding until an agent tells of another leader, "
        "or stop deciding at two thirds of the lease (10 s). It serves on either way.",
        json_schema_extra=impact(Impact.NONE),
    )
    ports: Annotated[list[Port], Field(min_length=2, max_length=2)] = Field(
        [20000, 20999],
        description="First and last TCP port that engines may get, on every node.",
        json_schema_extra=impact(Impact.NONE),
    )
    mgmt_interface: Text | None = Field(
        None,
        description="Network interface over which the shards of a replica talk, from their next start on; default is "
        "that of the node's address.",
        json_schema_extra=impact(Impact.NONE),
    )


class GpuClass(SpecModel):
    """A kind of GPU, by the names that drivers give it."""

    name: Name = Field(description="Name that profiles ask for.", json_schema_extra=impact(Impact.NONE))
    match: Annotated[list[Glob], Field(min_length=1)] = Field(
        description="Names as the driver gives them, with `*`.", json_schema_extra=impact(Impact.DRAIN)
    )
    memory: Size | None = Field(
        None, description="Memory of one card; `llmgw fit` counts with it.", json_schema_extra=impact(Impact.NONE)
    )


class SshDefaults(SpecModel):
    """What holds for every node that is reached by SSH, unless the node says otherwise."""

    model_config = ConfigDict(json_schema_extra=ONE_KEY)

    user: Text = Field("llmgw", description="User to log in as.", json_schema_extra=impact(Impact.LIVE))
    identity_file: AbsolutePath | None = Field(
        None,
        description="Private key on the control plane's host; without it and `identity`, those of the running ssh-agent.",
        json_schema_extra=impact(Impact.LIVE),
    )
    identity: Secret | None = Field(
        None, description="Private key as a secret; instead of `identity_file`.", json_schema_extra=impact(Impact.LIVE)
    )

    @model_validator(mode="after")
    def _one_key(self) -> "SshDefaults":
        refuse_two_keys(self.identity, self.identity_file)
        return self


class EngineMetrics(SpecModel):
    """Names of an engine's own metrics. One that names `running` is complete: what it leaves blank stays blank."""

    running: Text | None = Field(None, description="Requests being worked on.", json_schema_extra=impact(Impact.NONE))
    waiting: Text | None = Field(None, description="Requests queued.", json_schema_extra=impact(Impact.NONE))
    kv_usage: Text | None = Field(
        None, description="Share of the KV cache in use, from 0 to 1.", json_schema_extra=planned(Impact.NONE)
    )
    prompt_tokens: Text | None = Field(
        None, description="Prompt tokens read, a counter.", json_schema_extra=impact(Impact.NONE)
    )
    generation_tokens: Text | None = Field(
        None, description="Tokens generated, a counter.", json_schema_extra=impact(Impact.NONE)
    )


class EngineDefinition(SpecModel):
    """How one engine is run in this cluster."""

    name: Name = Field(description="The engine's name, as profiles use it.", json_schema_extra=impact(Impact.NONE))
    command: Annotated[list[Text], Field(min_length=1)] | None = Field(
        None,
        description="Program and first arguments to run instead of the engine's own; in an image those of the profile.",
        json_schema_extra=impact(Impact.RESTART),
    )
    env: dict[EnvName, str | Secret] = Field(
        default_factory=dict, description="Environment of the engine.", json_schema_extra=impact(Impact.RESTART)
    )
    metrics: EngineMetrics | None = Field(
        None, description="Names of the engine's own metrics.", json_schema_extra=impact(Impact.NONE)
    )


class Cluster(SpecModel):
    """The cluster as a whole. Exactly one in a cluster directory."""

    apiVersion: Literal["llmgw/v1"] = Field(  # noqa: N815 - the YAML key
        description=f"Always `{API_VERSION}`.", json_schema_extra=impact(Impact.NONE)
    )
    kind: Literal["Cluster"] = Field(description="Always `Cluster`.", json_schema_extra=impact(Impact.NONE))
    name: Name = Field(description="Name of the cluster.", json_schema_extra=impact(Impact.NONE))
    sync: Literal["auto", "manual"] = Field(
        "auto",
        description="Whether a valid commit is taken up by itself, or waits for `llmgw apply`.",
        json_schema_extra=impact(Impact.NONE),
    )
    source: SourceRules = Field(
        default_factory=SourceRules,
        description="How the git source is trusted.",
        json_schema_extra=impact(Impact.NONE),
    )
    guard: Guard = Field(
        default_factory=Guard,
        description="What one revision may remove without its saying so.",
        json_schema_extra=impact(Impact.NONE),
    )
    control: Control = Field(
        default_factory=Control, description="How the control plane decides.", json_schema_extra=impact(Impact.LIVE)
    )
    gpu_classes: list[GpuClass] = Field(
        default_factory=list, description="Kinds of GPU in this cluster.", json_schema_extra=impact(Impact.DRAIN)
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
