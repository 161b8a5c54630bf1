"""`NodeOrder`: the whole wanted state of one node, and the only command an agent gets."""

from dataclasses import dataclass

from llmgw.base.cause import Cause
from llmgw.base.ids import Epoch, Generation, NodeName, ShardId
from llmgw.engines.shard import ShardSpec


@dataclass(frozen=True, slots=True)
class ShardOrder:
    """One wanted shard."""

    spec: ShardSpec
    draining: bool = False
    """Keep it running, and tell everybody that nothing new may be sent to it."""


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

    @property
    def rank(self) -> tuple[Epoch, Generation]:
        """Return what orders are compared by."""
        return (self.epoch, self.generation)

    def shard(self, shard: ShardId) -> ShardOrder | None:
        """Return the order for one shard, or None if it is not wanted."""
        return next((wanted for wanted in self.shards if wanted.spec.shard == shard), None)
