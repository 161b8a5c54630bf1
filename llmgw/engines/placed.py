"""What an adapter is given: a replica with its place."""

from dataclasses import dataclass

from llmgw.base.ids import ReplicaId, RestartHash
from llmgw.engines.shard import LOOPBACK
from llmgw.spec.cluster import Backoff, EngineDefinition
from llmgw.spec.model import Model
from llmgw.spec.profile import Profile


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
    host: str = LOOPBACK
    """Address to listen on."""
    gpus: tuple[str, ...] = ()
    """UUIDs of its cards, on each node of the replica the shard's own."""
