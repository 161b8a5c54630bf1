"""`NodeOrder`: the whole wanted state of one node, and the only command an agent gets."""

from dataclasses import dataclass

from llmgw.base.cause import Cause
from llmgw.base.ids import Epoch, Generation, NodeName, ShardId
from llmgw.engines.shard import ShardSpec
from llmgw.engines.weights import Source


@dataclass(frozen=True, slots=True)
class ShardOrder:
    """One wanted shard."""

    spec: ShardSpec
    draining: bool = False
    """Keep it running, and tell everybody that nothing new may be sent to it."""


@dataclass(frozen=True, slots=True)
class WeightsOrder:
    """Weights that a node is to keep, whether a shard uses them now or not; what is not there is fetched."""

    name: str
    """Below its weights directory: `stored_name(source)`."""
    source: Source


@dataclass(frozen=True, slots=True)
class Hub:
    """How a node reaches the hub that repositories are fetched from."""

    endpoint: str = ""
    """URL of a mirror; empty for the hub itself."""
    token: str = ""
    """Name of the secret with the token; empty for none. Its value comes with the order, as those of engines do."""


@dataclass(frozen=True, slots=True)
class NodeOrder:
    """All shards a node shall have; what it has besides these is stopped.

    Ordered by `(epoch, generation)`: agents refuse an older one, so lost, repeated and reordered orders are harmless.
    """

    node: NodeName
    epoch: Epoch
    generation: Generation
    shards: tuple[ShardOrder, ...]
    weights_dir: str | None
    cause: Cause
    weights: tuple[WeightsOrder, ...] = ()
    """What is fetched ahead of the shards that will need it, in this order; those of `shards` need not be among them.

    What an agent once fetched and is neither here nor named by a shard may be removed when room is needed.
    """
    disk_budget: int | None = None
    """Bytes that all fetched weights together may take; None for as many as the disk has room for."""
    hub: Hub = Hub()

    @property
    def rank(self) -> tuple[Epoch, Generation]:
        """Return what orders are compared by."""
        return (self.epoch, self.generation)

    def shard(self, shard: ShardId) -> ShardOrder | None:
        """Return the order for one shard, or None if it is not wanted."""
        return next((wanted for wanted in self.shards if wanted.spec.shard == shard), None)
