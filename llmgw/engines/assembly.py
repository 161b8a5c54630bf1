"""What all adapters do alike: the fields of a `ShardSpec` that follow from the profile and the place, whatever the engine.

An adapter adds what is its own: programs, arguments, environment, probes, metrics, messages. What the profile's and the
cluster's `env` say wins over what an adapter sets, because it is the operator's word.
"""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass

from llmgw.base.ids import ModelName, shard_id
from llmgw.engines.placed import Placed, Seat
from llmgw.engines.shard import (
    INTERFACE,
    ExitPattern,
    LoraAdapter,
    LoraPaths,
    MetricNames,
    RestartPolicy,
    ShardSpec,
)
from llmgw.engines.weights import path_of, source_of
from llmgw.spec.common import Secret

OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
}
"""Weights are on the node before an engine starts; what still asks the hub then would make a start depend on it."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What is the same for every shard of an engine."""

    programs: tuple[tuple[str, ...], ...]
    """Its own, first found wins; a `command` in the profile or the cluster stands in their place."""
    in_image: tuple[str, ...]
    """What is run in an image instead of its entry point, which has changed with releases; empty where that one is right."""
    ports: int
    stop_grace: float
    """Seconds after SIGTERM; the gateway has drained before, so this is what an idle engine takes."""
    patterns: tuple[ExitPattern, ...]
    metrics: MetricNames | None
    ready_path: str = "/health"
    models_path: str = "/v1/models"
    lora: LoraPaths | None = None


@dataclass(frozen=True, slots=True)
class Launch:
    """What is special to one shard."""

    args: tuple[str, ...]
    env: Mapping[str, str]
    serves: bool = True
    """It answers HTTP at its port at all."""
    adapters: tuple[LoraAdapter, ...] = ()


def shard(placed: Placed, rank: int, kind: Kind, launch: Launch) -> ShardSpec:
    """Return the spec of the shard with this rank."""
    model, profile, seat = placed.model, placed.profile, placed.seats[rank]
    definition, backoff, weights = placed.definition, placed.backoff, placed.model.weights
    env = {**launch.env, **(definition.env if definition else {}), **profile.env}
    path = path_of(weights)
    assert path is not None, "the planner places no other weights"
    return ShardSpec(
        shard=shard_id(placed.replica, rank),
        replica=placed.replica,
        model=ModelName(model.name),
        profile=profile.name,
        rank=rank,
        hash=placed.hash,
        programs=_programs(placed, kind),
        args=launch.args,
        env={name: value for name, value in env.items() if isinstance(value, str)},
        weights=path,
        port=seat.port,
        served_name=model.name,
        ready_path=kind.ready_path if launch.serves else "",
        models_path=kind.models_path if rank == 0 else "",
        cpus=profile.cpus,
        memory=profile.memory,
        start_timeout=profile.start_timeout,
        stop_grace=kind.stop_grace,
        restarts=RestartPolicy(backoff.base, backoff.max, backoff.give_up_after, backoff.reset_after),
        exit_patterns=kind.patterns,
        host=seat.host,
        ports=kind.ports,
        gpus=seat.gpus,
        secrets={name: value.secret for name, value in env.items() if isinstance(value, Secret)},
        stall_after=profile.stall_after,
        metrics=metrics(placed, kind.metrics) if rank == 0 else None,
        fetch=source_of(weights),
        lora=kind.lora if rank == 0 and launch.adapters else None,
        adapters=launch.adapters if rank == 0 else (),
        shards=len(placed.seats),
        incarnation=placed.incarnation,
        runtime=profile.runtime,
        image=profile.image or "",
    )


def lora_adapters(placed: Placed, asked_as: str = "{adapter}") -> tuple[LoraAdapter, ...]:
    """Return the model's adapters; in `asked_as`, `{model}` and `{adapter}` stand for the two names."""
    name = placed.model.name
    return tuple(
        LoraAdapter(one.name, asked_as.format(model=name, adapter=one.name), one.weights.path)
        for one in placed.model.adapters
        if one.weights.path is not None
    )


def _programs(placed: Placed, kind: Kind) -> tuple[tuple[str, ...], ...]:
    command = command_of(placed)
    if command:
        return (command,)
    if placed.profile.runtime == "process":
        return kind.programs
    return (kind.in_image,) if kind.in_image else ()


def command_of(placed: Placed) -> tuple[str, ...] | None:
    """Return what is run instead of the engine's own program, if anything is.

    The cluster's definition names a program on its nodes; in an image, that path is another one or none.
    """
    if placed.profile.command is not None:
        return tuple(placed.profile.command)
    if placed.profile.runtime != "process":
        return None
    definition = placed.definition
    return tuple(definition.command) if definition is not None and definition.command is not None else None


def metrics(placed: Placed, own: MetricNames | None) -> MetricNames | None:
    """Return the names of the engine's metrics, with the cluster's override.

    One that names `running` is a complete statement: what it leaves blank stays blank. Any other changes what it names.
    """
    said = placed.definition.metrics if placed.definition is not None else None
    if said is None or not any((said.running, said.waiting, said.prompt_tokens, said.generation_tokens)):
        return own
    base = own or MetricNames("/metrics", "", "", "", "")
    kept = MetricNames(base.path, "", "", "", "") if said.running else base
    return MetricNames(
        path=base.path,
        running=said.running or kept.running,
        waiting=said.waiting or kept.waiting,
        prompt_tokens=said.prompt_tokens or kept.prompt_tokens,
        generation_tokens=said.generation_tokens or kept.generation_tokens,
        # no names that an override could mean: a page, and signs of life without which a busy engine would look stalled
        activity=base.activity,
        from_loop=base.from_loop,
        progress=base.progress,
        only=base.only,
    )


def network(placed: Placed, seat: Seat) -> dict[str, str]:
    """Return what ties a gang's own traffic to one interface; empty for a replica on one node.

    Without `mgmt_interface` the interface is the one that has the seat's address, which only the node can name; where the
    address is a host's name, NCCL and gloo choose by themselves.
    """
    if len(placed.seats) == 1:
        return {}
    interface = placed.interface or (INTERFACE + seat.address if is_ip(seat.address) else None)
    if interface is None:
        return {}
    return {
        "NCCL_SOCKET_IFNAME": f"={interface}",
        "GLOO_SOCKET_IFNAME": interface,
    }  # `=`: NCCL takes a mere prefix else


def is_ip(address: str) -> bool:
    """Whether this is an address and no name."""
    try:
        ipaddress.ip_address(address)
    except ValueError:
        return False
    return True


def join(address: str, port: int) -> str:
    """Return `address:port`, an IPv6 address in brackets."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
