"""`EndpointTable`: all models and endpoints a gateway may send requests to; versioned and swapped whole."""

from dataclasses import dataclass, replace
from typing import Literal

from llmgw.base.ids import ModelName, ReplicaId


@dataclass(frozen=True, slots=True)
class TcpAddress:
    """An engine that can be connected to directly."""

    host: str
    port: int
    tls: bool = False
    """Whether it speaks TLS, with a certificate for `host` that this machine trusts."""
    kind: Literal["tcp"] = "tcp"

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class UnixAddress:
    """The local end of a tunnel to an engine."""

    path: str
    kind: Literal["unix"] = "unix"

    def __str__(self) -> str:
        return f"unix:{self.path}"


Address = TcpAddress | UnixAddress


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A ready replica, or a model at a static upstream."""

    id: ReplicaId
    model: ModelName
    address: Address
    served_name: str
    """What the engine calls the model; a request that used an alias is rewritten to it."""
    process: str = ""
    """Another one after each start of the engine: what was learnt of the one before does not hold of it."""
    prefix: str = ""
    """What stands before `/v1` in its paths."""
    max_inflight: int | None = None
    """Most requests that it is given at once."""
    adapters: tuple[tuple[str, str], ...] = ()
    """LoRA adapters that it has: the name that clients ask for, and what the engine calls it."""
    key: str = ""
    """Name of the secret that it is sent as a bearer token; its value travels beside the table, to workers of this host."""


@dataclass(frozen=True, slots=True)
class RoutedModel:
    """A model of the catalog, whether or not something serves it now."""

    name: ModelName
    aliases: tuple[str, ...]
    wanted: int
    """Replicas that should run; 0 means that it is switched off."""
    retry_after: int
    """Seconds after which a client that met no ready replica should come again."""
    keep_alive: float | None = None
    """Seconds of a stream's silence after which its client is sent a comment; None means never."""
    max_model_len: int | None = None
    """Tokens of prompt and answer together that it takes, where that is known."""
    inflight: int | None = None
    """Most requests to it that are being answered at once."""
    queue: int | None = None
    """Most requests that wait for a place at it; None leaves that to the limit over all models."""
    adapts: ModelName | None = None
    """For a LoRA adapter: the model whose endpoints answer for it, where they have it. Its limits are that model's."""


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """Limits of the gateway. Times in seconds."""

    connect: float = 5.0
    """For a connection to an engine."""
    headers: float = 600.0
    """From the request's last byte to the response's head; of an answer that is no stream, this is nearly all of it."""
    first_byte: float = 600.0
    """From the head to the first byte of the body."""
    inter_chunk: float = 120.0
    """Between two pieces of the body."""
    max_body: int = 64 << 20
    """Bytes of a request's body, as it comes and decompressed."""
    queue: float = 60.0
    """Until a place is free."""
    waiting: int = 1000
    """Most requests that wait for a place, over all models."""
    inflight: int | None = None
    """Most requests that are being answered at once, over all models."""


@dataclass(frozen=True, slots=True)
class EndpointTable:
    """All of them. Two tables with the same contents have the same version."""

    version: int
    models: tuple[RoutedModel, ...]
    endpoints: tuple[Endpoint, ...]
    settings: GatewaySettings = GatewaySettings()


EMPTY_TABLE = EndpointTable(0, (), ())


def shared(table: EndpointTable, workers: int) -> EndpointTable:
    """Return the table that each of so many workers of one gateway goes by: each has its share of every limit, rounded up.

    Workers do not ask each other before they take a request, so one that had bad luck with its connections may let a request
    wait while another has a place.
    """
    if workers <= 1:
        return table
    settings = table.settings

    def share(limit: int | None) -> int | None:
        return -(-limit // workers) if limit is not None else None

    return replace(
        table,
        models=tuple(replace(one, inflight=share(one.inflight), queue=share(one.queue)) for one in table.models),
        endpoints=tuple(replace(one, max_inflight=share(one.max_inflight)) for one in table.endpoints),
        settings=replace(settings, waiting=-(-settings.waiting // workers), inflight=share(settings.inflight)),
    )
