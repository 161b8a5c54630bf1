"""A `Node`: a machine an agent runs on, and how the control plane reaches it."""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

from llmgw.spec.common import (
    API_VERSION,
    ONE_KEY,
    AbsolutePath,
    Count,
    Impact,
    Instant,
    Label,
    Name,
    Port,
    Secret,
    Size,
    SpecModel,
    Text,
    impact,
    planned,
    refuse_two_keys,
)

HostKey = Annotated[
    str, StringConstraints(pattern=r"^(ssh-[a-z0-9-]+|ecdsa-[a-z0-9-]+|sk-[a-z0-9@.-]+) [A-Za-z0-9+/=]+$")
]


class Hop(SpecModel):
    """A machine to jump through on the way to a node."""

    host: Text = Field(description="Host name or address.", json_schema_extra=impact(Impact.LIVE))
    port: Port = Field(22, description="TCP port of sshd.", json_schema_extra=impact(Impact.LIVE))
    user: Text | None = Field(
        None, description="User to log in as; default is the cluster's.", json_schema_extra=impact(Impact.LIVE)
    )
    host_key: HostKey = Field(description="The machine's public host key.", json_schema_extra=impact(Impact.LIVE))


class Ssh(SpecModel):
    """How to reach a node by SSH."""

    model_config = ConfigDict(json_schema_extra=ONE_KEY)

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
        description="Private key on the control plane's host; without it and `identity`, the key is the cluster's.",
        json_schema_extra=impact(Impact.LIVE),
    )
    identity: Secret | None = Field(
        None, description="Private key as a secret; instead of `identity_file`.", json_schema_extra=impact(Impact.LIVE)
    )
    proxy_jump: list[Hop] = Field(
        default_factory=list,
        description="Machines to jump through, the first one nearest to the control plane.",
        json_schema_extra=impact(Impact.LIVE),
    )

    @model_validator(mode="after")
    def _one_key(self) -> "Ssh":
        refuse_two_keys(self.identity, self.identity_file)
        return self


class Cordon(SpecModel):
    """Why a node gets no new replicas and gives up those it has."""

    reason: Text = Field(description="Shown in plans and status.", json_schema_extra=impact(Impact.NONE))
    until: Instant | None = Field(
        None, description="When it ends by itself; default never.", json_schema_extra=impact(Impact.NONE)
    )


class Expect(SpecModel):
    """What the node should have. A node that has something else is an alarm, and what it has counts."""

    gpu_class: Name | None = Field(None, description="Class of its GPUs.", json_schema_extra=impact(Impact.NONE))
    gpus: Count | None = Field(None, description="Number of its GPUs.", json_schema_extra=impact(Impact.NONE))


class Reserved(SpecModel):
    """What of the node is not for replicas."""

    gpus: Count = Field(0, description="GPUs kept free.", json_schema_extra=impact(Impact.DRAIN))
    memory: Size = Field(0, description="Memory kept free.", json_schema_extra=impact(Impact.DRAIN))
    cpus: Count = Field(0, description="CPU cores kept free.", json_schema_extra=impact(Impact.DRAIN))


class Node(SpecModel):
    """A machine that runs engines. Its identity is its name here and its SSH host key, never its host name."""

    model_config = ConfigDict(
        json_schema_extra={
            "oneOf": [
                {"required": ["ssh"], "properties": {"local": {"const": False}}},
                {"required": ["local"], "properties": {"local": {"const": True}}, "not": {"required": ["ssh"]}},
            ],
            "if": {"properties": {"traffic": {"const": "direct"}}, "required": ["traffic"]},
            "then": {"required": ["address"]},
        }
    )

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
    pool: Name = Field(
        "default",
        description="Pool the node belongs to; replicas of profiles that ask for another one move away.",
        json_schema_extra=impact(Impact.DRAIN),
    )
    fabric: Name | None = Field(
        None,
        description="Fast network the node is on; all nodes of one replica share it.",
        json_schema_extra=impact(Impact.DRAIN),
    )
    labels: dict[Label, Label] = Field(
        default_factory=dict,
        description="Labels that profiles may ask for; replicas of profiles that ask for others move away.",
        json_schema_extra=impact(Impact.DRAIN),
    )
    expect: Expect | None = Field(None, description="What the node should have.", json_schema_extra=impact(Impact.NONE))
    cordoned: Cordon | None = Field(
        None,
        description="Gets no new replicas; those it has move away, one at a time, replacement first.",
        json_schema_extra=impact(Impact.DRAIN),
    )
    reserved: Reserved = Field(
        default_factory=Reserved,
        description="What of the node is not for replicas.",
        json_schema_extra=impact(Impact.DRAIN),
    )
    traffic: Literal["tunnel", "direct"] = Field(
        "tunnel",
        description="Whether requests reach engines through SSH, or straight at the node's `address`.",
        json_schema_extra=impact(Impact.RESTART),
    )
    address: Text | None = Field(
        None, description="Address of the node for `traffic: direct`.", json_schema_extra=impact(Impact.RESTART)
    )
    weights_dir: AbsolutePath | None = Field(
        None,
        description="Directory on the node that relative weight paths start from; default is the agent's own.",
        json_schema_extra=impact(Impact.NONE),
    )
    disk_budget: Size | None = Field(
        None, description="Most that weights may take of the node's disk.", json_schema_extra=planned(Impact.NONE)
    )

    @model_validator(mode="after")
    def _reachable(self) -> "Node":
        if self.local == (self.ssh is not None):
            raise PydanticCustomError(
                "local", "a node has either `local: true` or an `ssh:` block, exactly one of them"
            )
        if self.traffic == "direct" and self.address is None:
            raise PydanticCustomError("traffic", "`traffic: direct` needs the node's `address`")
        return self
