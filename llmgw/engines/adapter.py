"""What an engine's adapter is, and the table of those there are."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from llmgw.base.ids import ReplicaId, RestartHash
from llmgw.engines.llamacpp import LlamaCpp
from llmgw.engines.shard import ShardSpec
from llmgw.spec.cluster import Backoff, EngineDefinition
from llmgw.spec.model import Model, Profile


@dataclass(frozen=True, slots=True)
class Placed:
    """A replica with its place: what an adapter needs besides the spec."""

    replica: ReplicaId
    model: Model
    profile: Profile
    definition: EngineDefinition | None
    """The cluster's own definition of the engine, if it has one."""
    hash: RestartHash
    port: int
    backoff: Backoff


class Engine(Protocol):
    """One engine: pure functions over specs."""

    name: str
    serves_without_gpu: bool

    def shards(self, placed: Placed) -> tuple[ShardSpec, ...]:
        """Return the replica's shards in order of rank; the first serves HTTP."""
        ...


ENGINES: Mapping[str, Engine] = {engine.name: engine for engine in (LlamaCpp(),)}
"""Every engine by the name that profiles use."""
