"""Names and ids, one `NewType` each, so that a replica's id cannot be passed where a shard's belongs.

A replica's id is `MODEL-EPOCH-N` with the smallest free N, and a shard's is `REPLICA.sRANK`: both are derived, never
drawn, so that the same snapshot always gives the same plan. The epoch is that of the leader who started it: a node that
nobody could ask may hold replicas of earlier leaders, and a later one must not give their ids to others. Random ids (a
boot, a lease owner) come from an `IdSource`.
"""

from functools import lru_cache
from typing import NewType, Protocol

NodeName = NewType("NodeName", str)
ModelName = NewType("ModelName", str)
ReplicaId = NewType("ReplicaId", str)
ShardId = NewType("ShardId", str)
Revision = NewType("Revision", str)
BootId = NewType("BootId", str)
OwnerId = NewType("OwnerId", str)
Epoch = NewType("Epoch", int)
Generation = NewType("Generation", int)
RestartHash = NewType("RestartHash", str)


class IdSource(Protocol):
    """Where random ids come from; a test passes a counter."""

    def new(self) -> str:
        """Return an id of 16 hexadecimal digits that was never returned before."""
        ...


def replica_id(model: ModelName, epoch: Epoch, number: int) -> ReplicaId:
    """Name the replica: `MODEL-EPOCH-N`."""
    return ReplicaId(f"{model}-{epoch}-{number}")


def shard_id(replica: ReplicaId, rank: int) -> ShardId:
    """Name the part of the replica with this rank: `REPLICA.sRANK`."""
    return ShardId(f"{replica}.s{rank}")


@lru_cache(maxsize=1 << 16)
def order_of(replica: ReplicaId) -> tuple[int, int]:
    """Return (EPOCH, N), by which replicas of one model are ordered; (0, 0) for an id that was not made by `replica_id`."""
    *_, epoch, number = ["", "", *replica.split("-")]
    return (int(epoch), int(number)) if epoch.isdigit() and number.isdigit() else (0, 0)


def short(revision: Revision) -> str:
    """Return what a person reads of a revision: 10 characters of a commit id, or of the digest behind `worktree-`."""
    kind, dash, digest = revision.rpartition("-")
    return f"{kind}{dash}{digest[:10]}" if kind in ("worktree", "index") else revision[:10]
