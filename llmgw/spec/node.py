"""A `Node`: a machine an agent runs on, and how the control plane reaches it."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

from llmgw.spec.common import API_VERSION, AbsolutePath, Impact, Label, Name, Port, SpecModel, Text, impact

HostKey = Annotated[
    str, StringConstraints(pattern=r"^(ssh-[a-z0-9-]+|ecdsa-[a-z0-9-]+|sk-[a-z0-9@.-]+) [A-Za-z0-9+/=]+$")
]


class Ssh(SpecModel):
    """How to reach a node by SSH."""

    host: Text = Field(description="Host name or address.", json_schema_extra=impact(Impact.LIVE))
    port: Port = Field(22, description="TCP port of sshd.", json_schema_extra=impact(Impact.LIVE))
    user: Text | None = Field(
        None, description="User to log in as; default is the cluster's.", json_schema_extra=impact(Impact.LIVE)
    )
    host_key: HostKey = Field(
        description="The node's public host key, `TYPE BASE64`, as `ssh-keyscan HOST` prints it after the host's name.",
        json_schema_extra=impact(Impact.LIVE),
    )
    identity_file: AbsolutePath | None = Field(
        None,
        description="Private key on the control plane's host; default is the cluster's.",
        json_schema_extra=impact(Impact.LIVE),
    )


class Cordon(SpecModel):
    """Why a node gets no new replicas and gives up those it has."""

    reason: Text = Field(description="Shown in plans and status.", json_schema_extra=impact(Impact.NONE))


class Node(SpecModel):
    """A machine that runs engines. Its identity is its name here and its SSH host key, never its host name."""

    apiVersion: Literal["llmgw/v1"] = Field(  # noqa: N815 - the YAML key
        description=f"Always `{API_VERSION}`.", json_schema_extra=impact(Impact.NONE)
    )
    kind: Literal["Node"] = Field(description="Always `Node`.", json_schema_extra=impact(Impact.NONE))
    name: Name = Field(description="Name of the node.", json_schema_extra=impact(Impact.NONE))
    local: bool = Field(
        False,
        description="The agent runs on the control plane's own host; no SSH.",
        json_schema_extra=impact(Impact.LIVE),
    )
    ssh: Ssh | None = Field(None, description="How to reach the node by SSH.", json_schema_extra=impact(Impact.LIVE))
    agent_socket: AbsolutePath | None = Field(
        None,
        description="Unix socket of the node's agent; default is the agent's own default.",
        json_schema_extra=impact(Impact.LIVE),
    )
    pool: Name = Field("default", description="Pool the node belongs to.", json_schema_extra=impact(Impact.DRAIN))
    labels: dict[Label, Label] = Field(
        default_factory=dict, description="Labels that profiles may ask for.", json_schema_extra=impact(Impact.DRAIN)
    )
    cordoned: Cordon | None = Field(
        None,
        description="Gets no new replicas; those it has move away, one at a time, replacement first.",
        json_schema_extra=impact(Impact.DRAIN),
    )
    weights_dir: AbsolutePath | None = Field(
        None,
        description="Directory on the node that relative weight paths start from; default is the agent's own.",
        json_schema_extra=impact(Impact.NONE),
    )

    @model_validator(mode="after")
    def _reachable(self) -> "Node":
        if self.local == (self.ssh is not None):
            raise PydanticCustomError(
                "reach", "a node has either `local: true` or an `ssh:` block, exactly one of them"
            )
        return self
