"""`EndpointTable`: all models and endpoints a gateway may send requests to; versioned and swapped whole."""

from dataclasses import dataclass
from typing import Literal

from llmgw.base.ids import ModelName, ReplicaId


@dataclass(frozen=True, slots=True)
class TcpAddress:
    """An engine that can be connected to directly."""

    host: str
    port: int
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
    """A ready replica."""

    id: ReplicaId
    model: ModelName
    address: Address
    served_name: str
    """What the engine calls the model; a request that used an alias is rewritten to it."""


@dataclass(frozen=True, slots=True)
class RoutedModel:
    """A model of the catalog, whether or not something serves it now."""

    name: ModelName
    aliases: tuple[str, ...]
    wanted: int
    """Replicas that should run; 0 means that it is switched off."""
    retry_after: int
    """Seconds after which a client that met no ready replica should come again."""


@dataclass(frozen=True, slots=True)
class EndpointTable:
    """All of them. Two tables with the same contents have the same version."""

    version: int
    models: tuple[RoutedModel, ...]
    endpoints: tuple[Endpoint, ...]
    connect_timeout: float = 5.0
    """Seconds."""


EMPTY_TABLE = EndpointTable(0, (), ())
