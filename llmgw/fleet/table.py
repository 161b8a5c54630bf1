"""`EndpointTable`: all models and endpoints a gateway may send requests to; versioned and swapped whole."""

from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class EndpointTable:
    """All of them. Two tables with the same contents have the same version."""

    version: int
    models: tuple[RoutedModel, ...]
    endpoints: tuple[Endpoint, ...]
    settings: GatewaySettings = GatewaySettings()


EMPTY_TABLE = EndpointTable(0, (), ())
