"""What an adapter is given: a replica with its place."""

from dataclasses import dataclass

from llmgw.base.ids import NodeName, ReplicaId, RestartHash
from llmgw.engines.shard import LOOPBACK
from llmgw.spec.cluster import Backoff, EngineDefinition
from llmgw.spec.model import Model
from llmgw.spec.profile import Profile


@dataclass(frozen=True, slots=True)
class Seat:
    """The place of one shard: a node, what of it the shard gets, and where it listens."""

    node: NodeName
    port: int
    """First of the ports that the engine's adapter asks for."""
    host: str = LOOPBACK
    """Address to listen on."""
    address: str = LOOPBACK
    """Address at which the other shards of the replica reach this node."""
    gpus: tuple[str, ...] = ()
    """UUIDs of its cards."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A replica with its place: what an adapter needs besides the spec."""

    replica: ReplicaId
    model: Model
    profile: Profile
    definition: EngineDefinition | None
    """The cluster's own definition of the engine, if it has one."""
    hash: RestartHash
    seats: tuple[Seat, ...]
    """One a shard, in order of rank."""
    backoff: Backoff
    interface: str | None = None
    """Network interface over which the shards talk (`control.mgmt_interface`); None: that of the seat's address."""
    incarnation: int = 0
    """See `ShardSpec.incarnation`."""

    @property
    def head(self) -> Seat:
        """The seat of the shard that serves HTTP."""
        return self.seats[0]
